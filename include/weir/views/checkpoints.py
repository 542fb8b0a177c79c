"""Checkpoints and savepoints with their sizes, the content of one, and what a restore does or would do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.run_state import ReadResult
from weir.formats.checkpoint import Checkpoint
from weir.formats.paths import ResultPath, parse_attempt_path
from weir.ledger.checkpoints import (
    CheckpointStatus,
    checkpoint_row,
    checkpoints_of,
    retained_checkpoints,
    savepoint_url,
)
from weir.ledger.database.columns import taken
from weir.ledger.database.tables import AttemptRow, CheckpointRow, ResultRow, RunRow
from weir.ledger.names import require_dataflow
from weir.ledger.reads import reads_of
from weir.ledger.runs import topology_of
from weir.retention.sizes import dataflows
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.restore_report import Restored
from weir.state.checkpoint_content import files_named, read_checkpoint
from weir.state.compaction_rules import Amplification, amplification
from weir.state.compactions import compaction_rows
from weir.state.file_rules import sorted_runs
from weir.topology.ids import AttemptId

SUBSUMED, DROPPED = "subsumed", "dropped"
"""The status of a completed checkpoint that was subsumed, and of a savepoint that was dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """A checkpoint or savepoint. Sizes are in bytes; `seconds` is how long it took, None where it is not complete.

    `folder` is that of a savepoint; else None. `amplification` is that of retained checkpoints, whose manifests are in
    the store; else None, as where the store was not asked. `code` are, by state, the versions of code that have made it
    of the one of the epoch before.
    """

    dataflow: str
    number: int
    kind: str
    epoch: str
    status: str
    triggered_at: datetime
    seconds: float | None
    full_bytes: int
    incremental_bytes: int
    files: int
    new_files: int
    shared_files: int
    subsumed_by: int | None
    folder: str | None
    amplification: Amplification | None
    code: Mapping[str, tuple[str, ...]]


def checkpoint_views(services: Services, dataflow: str | None = None, *, looks: bool = True) -> list[CheckpointView]:
    """Return all checkpoints and savepoints of a dataflow, or of all dataflows, by number.

    Without `looks` the store is not asked. Raises Misconfigured for a dataflow that is not known, and Retryable.
    """
    with services.ledger.transaction() as session:
        if dataflow is not None:
            require_dataflow(session, dataflow)
        names = dataflows(session) if dataflow is None else [dataflow]
        rows = [row for name in names for row in checkpoints_of(session, name)]
        retained = [row for row in rows if looks and _is_retained(row)]
        written = {(row.dataflow, row.number): _written(session, row) for row in retained}
        code = {row.run: _code(session, row.run) for row in rows}
    return [_view(services, row, written, code[row.run]) for row in rows]


def _is_retained(row: CheckpointRow) -> bool:
    is_complete = row.status == CheckpointStatus.COMPLETED.value and row.subsumed_at is None
    return is_complete and row.deleted_at is None and not row.is_savepoint


def _written(session: Session, row: CheckpointRow) -> tuple[int, int]:
    """Return the bytes that the epoch has written of keyed states, and those that compactions of it have."""
    compactions = compaction_rows(session, row.run)
    states = {each.state for each in compactions}
    query = select(func.coalesce(func.sum(ResultRow.bytes), 0)).where(
        ResultRow.run == row.run, ResultRow.is_current, ResultRow.stage.in_(states)
    )
    return int(session.scalar(query) or 0), sum(each.written_bytes for each in compactions)


def _code(session: Session, run: str) -> dict[str, tuple[str, ...]]:
    """Return the versions by which the present states of a run were computed; none for those that were restored."""
    row = session.get(RunRow, run)
    states = () if row is None or row.pinned is None else topology_of(row.pinned).states
    query = (
        select(ResultRow.stage, AttemptRow.code)
        .join(AttemptRow, AttemptRow.id == ResultRow.attempt)
        .where(ResultRow.run == run, ResultRow.stage.in_(states), ResultRow.is_current, AttemptRow.code.is_not(None))
        .distinct()
        .order_by(ResultRow.stage, AttemptRow.code)
    )
    found: dict[str, tuple[str, ...]] = {}
    for stage, version in session.execute(query):
        found[stage] = (*found.get(stage, ()), str(version))
    return found


def _view(
    services: Services,
    row: CheckpointRow,
    written: dict[tuple[str, int], tuple[int, int]],
    code: Mapping[str, tuple[str, ...]],
) -> CheckpointView:
    is_read = (row.dataflow, row.number) in written
    found = read_checkpoint(services.store, row.dataflow, row.number) if is_read else None
    done = None if row.completed_at is None else (row.completed_at - row.triggered_at).total_seconds()
    return taken(
        CheckpointView,
        row,
        status=_status(row),
        seconds=done,
        files=row.new_files + row.shared_files,
        folder=savepoint_url(row, services.store.url) or None,
        amplification=None if found is None else _amplification(found, *written[row.dataflow, row.number]),
        code=code,
    )


def _status(row: CheckpointRow) -> str:
    if row.status == CheckpointStatus.COMPLETED.value and row.subsumed_at is not None:
        return SUBSUMED
    is_dropped = row.status == CheckpointStatus.COMPLETED.value and row.deleted_at is not None
    return DROPPED if is_dropped else row.status


def _amplification(checkpoint: Checkpoint, changed: int, compacted: int) -> Amplification:
    """Return the amplification of all states together; a reader merges the sorted runs of one partition only."""
    parts = [part for state in checkpoint.states for part in state.partitions]
    together = amplification(
        (file for part in parts for file in part.files), sum(part.rows for part in parts), changed, compacted
    )
    return Amplification(max((sorted_runs(part.files) for part in parts), default=0), together.writing, together.space)


_Made = tuple[AttemptId, str, int]
"""The attempt, the stage and the subtask of a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentView:
    """A task instance whose state a checkpoint names, and when the inputs were ready that it has read of its own run.

    An input is ready when the attempt that made it commits. `seconds` are those between the first and the last one, and
    `straggler` is the partition that came last; they are None where it has read none of its own run. `computed` are the
    seconds from then, or from its begin, to its own commit.
    """

    region: str
    attempt: str
    inputs: int
    first_ready_at: datetime | None
    last_ready_at: datetime | None
    seconds: float | None
    straggler: str | None
    computed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFileView:
    """A file that retained checkpoints name, by the numbers of these.

    `name` is below the folder of the attempt that has written it, for `partition` in `epoch`.
    """

    path: str
    epoch: str
    partition: str
    name: str
    bytes: int
    checkpoints: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenView:
    """How an epoch has written a partition of a state that is `incremental="auto"`, and the estimates, in bytes.

    `full` is all of the state; `changes` and their `compaction` are the other way. The lesser is `written`: "full" or
    "incremental".
    """

    partition: str
    written: str
    full: int
    changes: int
    compaction: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDetails:
    """A checkpoint, the alignment of the task instances whose state it names, and the files of all retained ones.

    `written` are the partitions for which an estimate has decided how they were written. What a checkpoint has named is
    not known any more once it is deleted: then there is neither alignment nor `written`.
    """

    checkpoint: CheckpointView
    alignment: tuple[AlignmentView, ...]
    written: tuple[WrittenView, ...]
    files: tuple[SharedFileView, ...]


def checkpoint_details(services: Services, dataflow: str, number: int) -> CheckpointDetails:
    """Return what a checkpoint or savepoint consists of, by its number.

    Raises Misconfigured for a dataflow or number that is not known, and Retryable.
    """
    listed = checkpoint_views(services, dataflow)
    of_number = next((each for each in listed if each.number == number), None)
    if of_number is None:
        raise Misconfigured.of("views.checkpoint_unknown", dataflow=dataflow, number=number)
    with services.ledger.transaction() as session:
        row = checkpoint_row(session, dataflow, number)
        alignment = () if row is None else tuple(_alignment(session, row.run, row.results))
        retained = [each.number for each in retained_checkpoints(session, dataflow)]
    return CheckpointDetails(
        checkpoint=of_number,
        alignment=alignment,
        written=tuple(_ways_written(services, of_number)),
        files=shared_files(services, dataflow, retained),
    )


def _ways_written(services: Services, of: CheckpointView) -> Iterable[WrittenView]:
    found = None if of.folder is not None else read_checkpoint(services.store, of.dataflow, of.number)
    for state in () if found is None else found.states:
        for part in state.partitions:
            known = part.estimate
            if known is not None:
                yield WrittenView(
                    partition=f"{state.state.name}[{part.subtask}]",
                    written="full" if known.is_full else "incremental",
                    full=known.full,
                    changes=known.changes,
                    compaction=known.compaction,
                )


def _alignment(session: Session, run: str, results: Sequence[int]) -> Iterable[AlignmentView]:
    """Return when the inputs of the attempts were ready that have made these results, by region and subtask."""
    query = select(ResultRow, AttemptRow).join(AttemptRow, AttemptRow.id == ResultRow.attempt)
    made = session.execute(query.where(ResultRow.run == run).order_by(ResultRow.id)).tuples().all()
    named = set(results)
    newest = {(attempt.region, attempt.subtask): attempt for result, attempt in made if result.id in named}
    ready = {
        (attempt.id, result.stage, result.subtask): attempt.ended_at
        for result, attempt in made
        if attempt.ended_at is not None
    }
    for _, attempt in sorted(newest.items()):
        yield _aligned(attempt, _ready(ready, reads_of(session, attempt.id, run)))


def _ready(ready: Mapping[_Made, datetime], inputs: Iterable[ReadResult]) -> list[tuple[datetime, str]]:
    """Return when each input of the run was ready, in the order of `ready`, the ledger's: clocks may differ."""
    read = {(each.attempt, each.partition.stage, each.partition.subtask) for each in inputs if not each.partition.run}
    return [(ready[each], f"{each[1]}[{each[2]}]") for each in ready if each in read]


def _aligned(row: AttemptRow, ready: Sequence[tuple[datetime, str]]) -> AlignmentView:
    first, last = (ready[0][0], ready[-1][0]) if ready else (None, None)
    begun = row.began_at if last is None else last
    return AlignmentView(
        region=f"{row.region}[{row.subtask}]",
        attempt=row.id,
        inputs=len(ready),
        first_ready_at=first,
        last_ready_at=last,
        seconds=None if first is None or last is None else max(0.0, (last - first).total_seconds()),
        straggler=ready[-1][1] if ready else None,
        computed=None if row.ended_at is None else max(0.0, (row.ended_at - begun).total_seconds()),
    )


def shared_files(services: Services, dataflow: str, retained: Sequence[int]) -> tuple[SharedFileView, ...]:
    """Return the files that these checkpoints name, oldest epoch first; those without a manifest name none."""
    named: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for number in retained:
        found = read_checkpoint(services.store, dataflow, number)
        for path, size in {} if found is None else files_named(found).items():
            named.setdefault(path, []).append(number)
            sizes[path] = size
    return tuple(_shared_file(path, sizes[path], tuple(named[path])) for path in sorted(named))


def _shared_file(path: str, size: int, checkpoints: tuple[int, ...]) -> SharedFileView:
    parsed = parse_attempt_path(path)
    of = parsed if isinstance(parsed, ResultPath) else None
    return SharedFileView(
        path=path,
        epoch=of.epoch if of else "",
        partition=f"{of.stage}[{of.subtask}]" if of else "",
        name=path.rpartition(f"/{of.attempt}/")[2] if of else path,
        bytes=size,
        checkpoints=checkpoints,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateContent:
    """A keyed state in a savepoint: its declaration, and how many rows its partitions have together."""

    name: str
    stage: str
    schema: str
    keys: tuple[str, ...]
    max_parallelism: int
    subtasks: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultContent:
    """A result of one subtask in a savepoint that is no keyed state."""

    stage: str
    subtask: int
    layout: str
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointContent:
    """A complete savepoint, as its manifest has it; times are texts in ISO 8601."""

    dataflow: str
    number: int
    kind: str
    epoch: str
    status: str
    folder: str
    bytes: int
    files: int
    triggered_at: str
    completed_at: str
    states: tuple[StateContent, ...]
    results: tuple[ResultContent, ...]


def content_of(savepoint: Checkpoint, folder: str) -> SavepointContent:
    """Return the states and results of a savepoint in a folder, which is a URL."""
    return taken(
        SavepointContent,
        savepoint,
        kind=savepoint.kind.value,
        status=CheckpointStatus.COMPLETED.value,  # one without a manifest is an error
        folder=folder,
        bytes=savepoint.full_bytes,
        files=savepoint.new_files,
        states=tuple(
            taken(
                StateContent,
                each.state,
                stage=each.stage,
                max_parallelism=each.max_parallelism,
                subtasks=len(each.partitions),
                rows=sum(part.rows for part in each.partitions),
            )
            for each in savepoint.states
        ),
        results=tuple(
            ResultContent(stage=each.stage, subtask=each.subtask, layout=each.layout, files=len(each.files))
            for each in savepoint.results
        ),
    )


def dry_run_of(services: Services, dataflow: str, number: int) -> dict[str, Any]:
    """Return the fields of the document of a dry run: the restore of a checkpoint or savepoint by its number.

    Raises as `weir.snapshots.restore.restore`.
    """
    done = restore(services, RestoreRequest(dataflow, str(number), is_dry=True))
    return restore_fields(done, looked_at=services.now())


def restore_fields(done: Restored, *, looked_at: datetime | None) -> dict[str, Any]:
    """Return the fields of the document of a restore; `looked_at` is when the dry run looked into the store."""
    return {
        "is_dry": looked_at is not None,
        "looked_at": looked_at,
        "hash": done.hash,
        **{each.name: getattr(done, each.name) for each in fields(done)},
    }
