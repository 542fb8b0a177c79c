"""`weir checkpoints`, and `weir savepoint create|list|show|drop`: self-contained copies of checkpoints.

Invariant: a failed command leaves no files, and only the named savepoint is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from weir.cli.documents import AsJson, DataflowName, Listing, OnlyDataflow, print_document
from weir.cli.tables import key, number, print_line, print_rows, size, text, value
from weir.code.generation_rules import short
from weir.coordination.services import Services
from weir.environment import opened_services
from weir.errors import Misconfigured
from weir.formats.checkpoint import SnapshotKind
from weir.snapshots.savepoint import SavepointRequest, displaced, savepoints, tidy
from weir.snapshots.savepoint import create as create_savepoint
from weir.snapshots.savepoint import drop as drop_savepoint
from weir.snapshots.savepoint import show as find_savepoint
from weir.snapshots.source import require_whole
from weir.units import format_size
from weir.views.checkpoints import CheckpointDetails, CheckpointView, checkpoint_details, checkpoint_views, content_of

savepoint_app = typer.Typer(help="Create, list and drop savepoints.", no_args_is_help=True)
SavepointName = Annotated[str, typer.Argument(help="Its number, its name, or its folder.", show_default=False)]


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
    as_json: AsJson = False,
) -> None:
    """Copy all files of a checkpoint into one folder, which can be moved and restored from anywhere."""
    with opened_services() as services:
        made = create_savepoint(services, SavepointRequest(dataflow, checkpoint, to, name))
        means = displaced(services, dataflow)
    if as_json:
        print_document(savepoint=made, displaces=[number for number, _ in means.going])
        return
    print_line(
        f"{made}\n"
        f"It is self-contained and can be moved. `weir restore {made.dataflow} {made.number}` restores it.\n{means}."
    )


@savepoint_app.command(name="list")
def list_(dataflow: OnlyDataflow = None, as_json: AsJson = False) -> None:
    """List savepoints; one that was moved is found only by its new folder."""
    with opened_services() as services:
        for name in {each.dataflow for each in savepoints(services, dataflow)}:
            tidy(services, name)
        found = savepoints(services, dataflow)
    _SAVEPOINTS.show(found, as_json=as_json)


_SAVEPOINTS = Listing(
    "savepoints",
    (
        *(key("epoch"), key("dataflow"), key("number"), value("kind"), value("status")),
        *(number("files"), size("bytes")),
        *(value("made", lambda row: row.completed_at or "-"), value("folder")),
    ),
    "There is no savepoint: `weir savepoint create DATAFLOW` makes one of the newest checkpoint.",
)


@savepoint_app.command()
def show(dataflow: DataflowName, savepoint: SavepointName, as_json: AsJson = False) -> None:
    """Show the states and results of a savepoint, and check that all of its files exist."""
    with opened_services() as services:
        source = find_savepoint(services, dataflow, savepoint)
        require_whole(source)
    content = content_of(source.checkpoint, source.folder.url)
    if as_json:
        print_document(savepoint=content)
        return
    print_line(
        f"Savepoint {content.number} of {content.dataflow} at {content.folder}: the state at the end of epoch "
        f"{content.epoch}, made {content.completed_at}, {content.files} file(s), {format_size(content.bytes)}, "
        f"{content.status}{', automatic' if content.kind == SnapshotKind.AUTOMATIC.value else ''}"
    )
    for state in content.states:
        print_line(f"  state {state.name} of stage {state.stage}: {state.rows} row(s), {state.subtasks} subtask(s)")
    for result in content.results:
        print_line(f"  {result.stage}[{result.subtask}] ({result.layout}): {result.files} file(s)")


@savepoint_app.command()
def drop(dataflow: DataflowName, savepoint: SavepointName) -> None:
    """Delete a savepoint with all of its files, also an incomplete one."""
    with opened_services() as services:
        gone = drop_savepoint(services, dataflow, savepoint)
    print_line(f"Savepoint {gone.number} of {gone.dataflow} is deleted: {gone.folder}, {format_size(gone.bytes)}")


def checkpoints(
    dataflow: OnlyDataflow = None,
    of: Annotated[
        int | None,
        typer.Option(
            "--id",
            help="Only this one of a dataflow, when the inputs of its tasks were ready, and the files of all retained.",
            show_default=False,
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", help="Also draw the bytes of a dataflow's checkpoints to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List checkpoints and savepoints: epoch, status, sizes, new and shared files, and which checkpoint subsumed each.

    The incremental size is that of files that no earlier checkpoint has; runs to merge is the number of sorted runs
    that a read merges; code is the versions that have made the state of the one of the epoch before.

    With --id, alignment is how long the first input of a task waited for the last one, the straggler; written is how a
    state with incremental="auto" was, with the estimates that decided it; and the count of a file is that of the
    retained checkpoints that name it: without any it is deleted.
    """
    with opened_services() as services:
        details = None if of is None else _details(services, dataflow, of)
        found = checkpoint_views(services, dataflow) if details is None else [details.checkpoint]
    if details is None:
        _CHECKPOINTS.show(found, as_json=as_json)
    else:
        _show(details, as_json=as_json)
    if svg is not None:
        _draw(found, svg)


def _details(services: Services, dataflow: str | None, of: int) -> CheckpointDetails:
    if dataflow is None:
        raise Misconfigured.of("cli.checkpoint_without_dataflow", number=of)
    return checkpoint_details(services, dataflow, of)


def _show(details: CheckpointDetails, *, as_json: bool) -> None:
    more = {"alignment": details.alignment, "written": details.written, "files": details.files}
    _CHECKPOINTS.show([details.checkpoint], as_json=as_json, **more)
    if as_json:
        return
    if details.alignment:
        print_rows(_ALIGNMENT, details.alignment)
    if details.written:
        print_rows(_WRITTEN, details.written)
    if details.files:
        print_rows(_FILES, details.files)


def _draw(found: Sequence[CheckpointView], file: Path) -> None:
    from weir.views.charts import chart_file_of_bytes  # noqa: PLC0415  only a drawing needs templates

    of = {each.dataflow for each in found}
    if len(of) > 1:
        raise Misconfigured.of("cli.several_to_draw", dataflows=sorted(of))
    file.write_text(chart_file_of_bytes(found))


def _code(checkpoint: CheckpointView) -> str:
    return ", ".join(dict.fromkeys(short(version) for versions in checkpoint.code.values() for version in versions))


_CHECKPOINTS = Listing(
    "checkpoints",
    (
        *(key("epoch"), key("dataflow"), key("id", "number"), value("kind"), value("status")),
        *(value("triggered", "triggered_at"), number("seconds", form=".1f")),
        *(size("incremental", "incremental_bytes"), size("full", "full_bytes")),
        *(number("files"), number("new", "new_files"), number("shared", "shared_files")),
        number("runs to merge", lambda row: row.amplification and row.amplification.reading),
        *(value("subsumed by", "subsumed_by"), text("code", _code)),
    ),
    "No dataflow has a checkpoint: none keeps state, or none of its runs is closed.",
)

_ALIGNMENT = (
    *(key("task", "region"), number("inputs"), value("last ready", "last_ready_at"), value("straggler")),
    *(number("alignment, s", "seconds", form=",.1f"), number("computed, s", "computed", form=",.1f")),
)

_WRITTEN = (
    *(key("partition"), value("written"), size("all of it", "full")),
    *(size("changes"), size("their compaction", "compaction")),
)

_FILES = (
    *(key("epoch"), key("partition"), key("file", "name"), size("bytes")),
    number("count", lambda row: len(row.checkpoints)),
    value("checkpoints", lambda row: ", ".join(map(str, row.checkpoints))),
)
