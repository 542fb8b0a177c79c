"""`weir checkpoints`: lists checkpoints and savepoints. Invariant: it changes nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from weir.cli.tables import cell, key, number, print_rows, text, value
from weir.code.generation_rules import short
from weir.environment import opened_services
from weir.units import format_size

if TYPE_CHECKING:
    from weir.state.checkpoint_overview import CheckpointOverview


VERSION = 1


def checkpoints(
    dataflow: Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002  Typer's
) -> None:
    """List checkpoints and savepoints: epoch, status, sizes, new and shared files, and which checkpoint subsumed each.

    The incremental size is that of files that no earlier checkpoint has; runs to merge is the number of sorted runs
    that a read merges; code is the versions that have made the state of the one of the epoch before.
    """
    from weir.state.checkpoint_overview import checkpoint_overview  # noqa: PLC0415  SQLAlchemy is slow to import

    with opened_services() as services:
        found = checkpoint_overview(services, dataflow)
    if as_json:
        print(json.dumps({"version": VERSION, "checkpoints": [each.to_json() for each in found]}))
        return
    if not found:
        Console().print("No dataflow has a checkpoint: none keeps state, or none of its runs is closed.")
        return
    print_rows(_COLUMNS, map(_cells, found))


_COLUMNS = (
    *(key("epoch"), key("dataflow"), key("id"), value("kind"), value("status"), value("triggered")),
    *(number("seconds"), number("incremental"), number("full"), number("files"), number("new"), number("shared")),
    *(number("runs to merge"), value("subsumed by"), text("code")),
)


def _cells(each: CheckpointOverview) -> tuple[str, ...]:
    return (
        each.epoch,
        each.dataflow,
        str(each.number),
        each.kind,
        each.status,
        cell(each.triggered_at),
        "" if each.seconds is None else f"{each.seconds:.1f}",
        format_size(each.incremental_bytes),
        format_size(each.full_bytes),
        str(each.files),
        str(each.new_files),
        str(each.shared_files),
        "" if each.amplification is None else str(each.amplification.reading),
        "" if each.subsumed_by is None else str(each.subsumed_by),
        ", ".join(dict.fromkeys(short(version) for found in each.code.values() for version in found)),
    )
