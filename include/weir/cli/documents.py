"""The JSON that commands print, and lists of typed values, which are printed as JSON or as a table.

Invariant: the JSON has every field of a value; what a table leaves out is in the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import singledispatch
from typing import Any, Final

from weir.cli.tables import Column, key, print_cells, print_line, print_rows, text

VERSION: Final = 1
"""Of every document: docs/reference/contracts.md says when it changes."""


@singledispatch
def plain(value: Any) -> Any:
    """Return a value for JSON: dataclasses as objects, times in ISO 8601, decimals as text, bytes in hex."""
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    return value


plain.register(Mapping, lambda value: {name: plain(each) for name, each in value.items()})
plain.register(list, lambda value: [plain(each) for each in value])
plain.register(tuple, lambda value: [plain(each) for each in value])
plain.register(Enum, lambda value: value.value)
plain.register(date, lambda value: value.isoformat())
plain.register(Decimal, str)
plain.register(bytes, bytes.hex)


def print_document(**of: Any) -> None:
    """Print a document with these fields."""
    print(json.dumps({"version": VERSION, **plain(of)}))


@dataclass(frozen=True, slots=True)
class Listing:
    """How rows are printed: their field in the document, their columns in a table, and a line where there are none."""

    field: str
    columns: Sequence[Column]
    empty: str

    def show(self, rows: Sequence[Any], *, as_json: bool, **more: Any) -> None:
        """Print rows; a document has `more` fields."""
        if as_json:
            print_document(**{self.field: rows}, **more)
        elif rows:
            print_rows(self.columns, rows)
        else:
            print_line(self.empty)


def shown(value: Any) -> str:
    """Return a value of a row of data as text: as in JSON, and a text as it is."""
    found = plain(value)
    return found if isinstance(found, str) else json.dumps(found)


def print_data(rows: Sequence[Mapping[str, Any]], keys: Collection[str] = ()) -> None:
    """Print rows of data, whose columns are told by the first one; nothing where there are none."""
    if rows:
        columns = [key(name) if name in keys else text(name) for name in rows[0]]
        print_cells(columns, (tuple(map(shown, row.values())) for row in rows))
