"""`weir savepoint create|list|show|drop`: self-contained copies of checkpoints.

Invariant: a failed command leaves no files, and only the named savepoint is deleted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from weir.cli.tables import cell, key, number, print_rows, value
from weir.environment import open_store, opened_services
from weir.units import format_size

if TYPE_CHECKING:
    from weir.snapshots.savepoint import Savepoint
    from weir.snapshots.source import Source


savepoint_app = typer.Typer(help="Create, list and drop savepoints.", no_args_is_help=True)
DataflowName = Annotated[str, typer.Argument(help="The dataflow.", show_default=False)]
SavepointName = Annotated[str, typer.Argument(help="Its number, its name, or its folder.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@savepoint_app.command()
def create(
    dataflow: DataflowName,
    checkpoint: Annotated[
        int | None,
        typer.Option("--checkpoint", help="The checkpoint to copy; default: the newest.", show_default=False),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", help="An existing folder, or its URL; default: in the store.", show_default=False),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="The name of its folder.", show_default=False)] = None,
    as_json: AsJson = False,  # noqa: FBT002  Typer's
) -> None:
    """Copy all files of a checkpoint into one folder, which can be moved and restored from anywhere."""
    from weir.snapshots.savepoint import SavepointRequest, displaced  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.snapshots.savepoint import create as create_savepoint  # noqa: PLC0415

    with opened_services() as services:
        made = create_savepoint(services, SavepointRequest(dataflow, checkpoint, to, name), open_store)
        means = displaced(services, dataflow)
    if as_json:
        going = [number for number, _ in means.going]
        print(json.dumps({"version": 1, "savepoint": _json(made), "displaces": going}))
        return
    _print(
        f"Savepoint {made.number} of {made.dataflow}, the state at the end of epoch {made.epoch}: "
        f"{made.files} file(s), {format_size(made.bytes)}, at {made.url}\n"
        f"It is self-contained and can be moved. `weir restore {made.dataflow} {made.number}` restores it.\n{means}."
    )


@savepoint_app.command(name="list")
def list_(
    dataflow: Annotated[str | None, typer.Argument(help="Only this dataflow.", show_default=False)] = None,
    as_json: AsJson = False,  # noqa: FBT002  Typer's
) -> None:
    """List savepoints; one that was moved is found only by its new folder."""
    from weir.snapshots.savepoint import savepoints, tidy  # noqa: PLC0415

    with opened_services() as services:
        for name in {each.dataflow for each in savepoints(services, dataflow)}:
            tidy(services, name, open_store)
        found = savepoints(services, dataflow)
    if as_json:
        print(json.dumps({"version": 1, "savepoints": [_json(each) for each in found]}))
        return
    if not found:
        _print("There is no savepoint: `weir savepoint create DATAFLOW` makes one of the newest checkpoint.")
        return
    print_rows(_COLUMNS, map(_cells, found))


_COLUMNS = (
    *(key("epoch"), key("dataflow"), key("number"), value("status"), number("files"), number("bytes")),
    *(value("made"), value("folder")),
)


def _cells(each: Savepoint) -> tuple[str, ...]:
    at = cell(each.completed_at) or "-"
    size = format_size(each.bytes)
    return each.epoch, each.dataflow, str(each.number), each.status, str(each.files), size, at, each.url


@savepoint_app.command()
def show(dataflow: DataflowName, savepoint: SavepointName, as_json: AsJson = False) -> None:  # noqa: FBT002  Typer's
    """Show the states and results of a savepoint, and check that all of its files exist."""
    from weir.snapshots.savepoint import show as show_savepoint  # noqa: PLC0415
    from weir.snapshots.source import require_whole  # noqa: PLC0415

    with opened_services() as services:
        source = show_savepoint(services, dataflow, savepoint, open_store)
        require_whole(source)
    if as_json:
        print(json.dumps({"version": 1, "savepoint": _content(source)}))
        return
    known = source.checkpoint
    _print(
        f"Savepoint {known.number} of {known.dataflow} at {source.folder.url}: the state at the end of epoch "
        f"{known.epoch}, made {known.completed_at}, {known.new_files} file(s), {format_size(known.full_bytes)}, "
        "completed"
    )
    for state in known.states:
        rows = sum(part.rows for part in state.partitions)
        _print(f"  state {state.state.name} of stage {state.stage}: {rows} row(s), {len(state.partitions)} subtask(s)")
    for result in known.results:
        _print(f"  {result.stage}[{result.subtask}] ({result.layout}): {len(result.files)} file(s)")


@savepoint_app.command()
def drop(dataflow: DataflowName, savepoint: SavepointName) -> None:
    """Delete a savepoint with all of its files, also an incomplete one."""
    from weir.snapshots.savepoint import drop as drop_savepoint  # noqa: PLC0415

    with opened_services() as services:
        gone = drop_savepoint(services, dataflow, savepoint, open_store)
    _print(f"Savepoint {gone.number} of {gone.dataflow} is deleted: {gone.url}, {format_size(gone.bytes)}")


def _content(source: Source) -> dict[str, Any]:
    known = source.checkpoint
    return {
        "dataflow": known.dataflow,
        "number": known.number,
        "epoch": known.epoch,
        "status": "completed",  # what is not raises an error
        "folder": source.folder.url,
        "bytes": known.full_bytes,
        "files": known.new_files,
        "triggered_at": known.triggered_at,
        "completed_at": known.completed_at,
        "states": [
            {
                "name": state.state.name,
                "stage": state.stage,
                "schema": state.state.schema,
                "keys": list(state.state.keys),
                "max_parallelism": state.max_parallelism,
                "subtasks": len(state.partitions),
                "rows": sum(part.rows for part in state.partitions),
            }
            for state in known.states
        ],
        "results": [
            {
                "stage": result.stage,
                "subtask": result.subtask,
                "layout": result.layout,
                "files": len(result.files),
            }
            for result in known.results
        ],
    }


def _json(savepoint: Savepoint) -> dict[str, Any]:
    return {
        "dataflow": savepoint.dataflow,
        "number": savepoint.number,
        "epoch": savepoint.epoch,
        "status": savepoint.status,
        "folder": savepoint.url,
        "bytes": savepoint.bytes,
        "files": savepoint.files,
        "triggered_at": savepoint.triggered_at.isoformat(),
        "completed_at": None if savepoint.completed_at is None else savepoint.completed_at.isoformat(),
    }


def _print(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
