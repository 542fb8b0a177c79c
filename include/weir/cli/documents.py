"""Prints documents, and lists of typed values as JSON or as a table; options that several commands have."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from weir.cli.tables import Column, key, print_cells, print_line, print_rows, text
from weir.views.documents import document, plain


def print_document(**of: Any) -> None:
    """Print a document with these fields."""
    print(json.dumps(document(**of)))


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


FirstEpoch = Annotated[str | None, typer.Option("--from", help="The first epoch, or the day of it.")]
LastEpoch = Annotated[str | None, typer.Option("--to", help="The last epoch, or the day of it.")]
WithReuse = Annotated[
    bool,
    typer.Option(
        "--reuse",
        help='They take what others have made of the same, in a dataflow with reuse="equal"; else they compute.',
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")]
DataflowName = Annotated[str, typer.Argument(help="The dataflow.", show_default=False)]
OnlyDataflow = Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)]
RunName = Annotated[str, typer.Argument(help="DATAFLOW@EPOCH, or Airflow's run id.", show_default=False)]
OnlyRunOrDataflow = Annotated[
    str | None, typer.Argument(metavar="[RUN|DATAFLOW]", help="Only this run, or dataflow.", show_default=False)
]
