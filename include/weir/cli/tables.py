"""Prints rows of typed values as tables, on a terminal of any width.

Invariants: what identifies a row is never cut, and comes first, the epoch before all; no value is cut. Where the
columns do not fit side by side, each row is printed as lines. What is piped into a program has no width.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from weir.units import format_size

_LEAST_TEXT = 20
"""The smallest width to which a column of text is folded."""

_BORDERS = 3
"""The characters around a cell: two spaces, and a line."""

_INDENT = "    "


class _Kind(Enum):
    KEY = "key"
    VALUE = "value"
    NUMBER = "number"
    TEXT = "text"


Of = str | Callable[[Any], object] | None
"""Where a cell comes from: an attribute of the row, by default the one with the column's title, or a function of it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, made by one of the functions below; `cell` makes the text of a row's cell."""

    title: str
    kind: _Kind
    cell: Callable[[Any], str]


def key(title: str, of: Of = None) -> Column:
    """Return a column that identifies the row, alone or with others: it is not folded."""
    return _column(title, _Kind.KEY, of, str)


def value(title: str, of: Of = None) -> Column:
    """Return a column of short values, which are not folded."""
    return _column(title, _Kind.VALUE, of, str)


def number(title: str, of: Of = None, form: str = ",") -> Column:
    """Return a column of numbers, aligned to the right; `form` is how Python formats one."""
    return _column(title, _Kind.NUMBER, of, lambda found: f"{found:{form}}")


def size(title: str, of: Of = None) -> Column:
    """Return a column of sizes, which are in bytes in the row."""
    return _column(title, _Kind.NUMBER, of, format_size)


def text(title: str, of: Of = None) -> Column:
    """Return a column of sentences, which are folded where they do not fit."""
    return _column(title, _Kind.TEXT, of, str)


def _column(title: str, kind: _Kind, of: Of, shown: Callable[[Any], str]) -> Column:
    """Show a time in UTC, to the second, nothing for None, and a text as it is."""
    take = of if callable(of) else attrgetter(of or title)

    def cell(row: Any) -> str:
        found = take(row)
        if isinstance(found, datetime):
            return f"{found:%Y-%m-%d %H:%M:%S}Z"
        return "" if found is None else found if isinstance(found, str) else shown(found)

    return Column(title, kind, cell)


OF_RUN = (
    key("epoch", lambda row: row.run.partition("@")[2]),
    key("dataflow", lambda row: row.run.partition("@")[0]),
)
"""The columns that name the run of a row."""


def of_partition(row: Any) -> str:
    """Name the partition of a row that has a stage and a subtask."""
    return f"{row.stage}[{row.subtask}]"


def print_rows(columns: Sequence[Column], rows: Iterable[Any], console: Console | None = None) -> None:
    """Print rows of a typed value as a table."""
    print_cells(columns, (tuple(column.cell(row) for column in columns) for row in rows), console)


def print_cells(columns: Sequence[Column], rows: Iterable[Sequence[str]], console: Console | None = None) -> None:
    """Print rows of texts, keys first: side by side in a table if they fit, else as lines."""
    console = console or Console()
    shown = [tuple(cells) for cells in rows]
    natural = [max(map(cell_len, (column.title, *_lines(cells)))) for column, cells in _by_column(columns, shown)]
    has_width = console.is_terminal or "COLUMNS" in os.environ
    width = console.width if has_width else sum(natural) + _BORDERS * len(columns) + 1
    widths = _fitted(columns, natural, width - _BORDERS * len(columns) - 1)
    if widths is None:
        _print_records(console, columns, shown, width)
        return
    table = Table()
    for column, room in zip(columns, widths, strict=True):
        is_number = column.kind is _Kind.NUMBER
        table.add_column(column.title, width=room, justify="right" if is_number else "left", overflow="fold")
    for cells in shown:
        table.add_row(*map(Text, cells))
    wide = console if has_width else Console(width=width, file=console.file)
    wide.print(table)


def _by_column(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterable[tuple[Column, tuple[str, ...]]]:
    return zip(columns, zip(*rows, strict=True) if rows else [()] * len(columns), strict=True)


def _lines(cells: Iterable[str]) -> list[str]:
    return [line for cell in cells for line in cell.splitlines()]


def _fitted(columns: Sequence[Column], natural: Sequence[int], room: int) -> list[int] | None:
    """Return the widths of the columns, with folded texts where needed; None if they do not fit."""
    widths = [
        min(size, _LEAST_TEXT) if each.kind is _Kind.TEXT else size for each, size in zip(columns, natural, strict=True)
    ]
    left = room - sum(widths)
    if left < 0:
        return None
    for place, size in enumerate(natural):
        more = min(size - widths[place], left)
        widths[place] += more
        left -= more
    return widths


def at(time: datetime) -> str:
    """Return a time as it stands in a sentence."""
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def print_some(lines: Sequence[str], most: int, indent: str = "") -> None:
    """Print the first lines, and how many more there are."""
    more = [f"and {len(lines) - most} more, which --json lists"] if len(lines) > most else []
    for line in (*lines[:most], *more):
        print_line(f"{indent}{line}")


def print_line(line: str, console: Console | None = None) -> None:
    """Print a line as it is, unbroken; by a new console unless one is given."""
    (console or Console()).print(line, markup=False, highlight=False, soft_wrap=True)


def _print_records(console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> None:
    """Print the keys of each row in a line, and below it what else it has; no word is broken."""
    keys = [place for place, each in enumerate(columns) if each.kind is _Kind.KEY]
    console.print(Text("  ".join(columns[place].title for place in keys), style="bold"), soft_wrap=True)
    for cells in rows:
        console.print(Text("  ".join(cells[place] for place in keys if cells[place])), soft_wrap=True)
        said = "; ".join(
            f"{column.title}: {' '.join(cell.split())}"
            for place, (column, cell) in enumerate(zip(columns, cells, strict=True))
            if place not in keys and cell
        )
        for line in textwrap.wrap(
            said,
            width,
            initial_indent=_INDENT,
            subsequent_indent=_INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            console.print(Text(line), soft_wrap=True)
