"""Stores checkpoints and savepoints.

Invariant: a number is assigned once, and a failed checkpoint is never completed. The results that a checkpoint names
are recorded with its number, and none of them is released while the checkpoint is being completed or is retained.
The transaction that completes, abandons or subsumes a checkpoint records that its receivers are to be told.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, bindparam, func, select
from sqlalchemy.orm import Session

from weir.dataflow.notifications import EventKind
from weir.errors import Conflict
from weir.execution.partition_state import PartitionState
from weir.formats.checkpoint import Checkpoint, SnapshotKind, fingerprint
from weir.formats.notification import Subject, checkpoint_event
from weir.formats.paths import name_of, savepoints_folder
from weir.ledger.attempts import Origin
from weir.ledger.database.tables import AttemptRow, CheckpointRow, ResultRow, RunRow
from weir.ledger.outbox import tell
from weir.ledger.runs import topology_of
from weir.topology.ids import is_synthetic

_SHOWN = 10


class CheckpointStatus(Enum):
    """The status of a checkpoint. A subsumed one stays completed and has a `subsumed_at`."""

    PENDING = "pending"
    """Its number is assigned; its manifest may exist."""
    COMPLETED = "completed"
    FAILED = "failed"
    """It will never be completed; or it was, if it has a `completed_at`, and its manifest was lost."""


def is_retained() -> ColumnElement[bool]:
    """Return the condition on rows of checkpoints and savepoints that are complete and not subsumed."""
    return (
        (CheckpointRow.status == CheckpointStatus.COMPLETED.value)
        & CheckpointRow.subsumed_at.is_(None)
        & CheckpointRow.deleted_at.is_(None)
    )


def is_needed() -> ColumnElement[bool]:
    """Return the condition on rows of checkpoints whose results must stay: retained, or being completed."""
    is_checkpoint = CheckpointRow.kind == SnapshotKind.CHECKPOINT.value
    return is_checkpoint & (is_retained() | (CheckpointRow.status == CheckpointStatus.PENDING.value))


# Built once: each task asks some of them.
_OWN = (
    select(CheckpointRow)
    .where(CheckpointRow.dataflow == bindparam("dataflow"), CheckpointRow.kind == SnapshotKind.CHECKPOINT.value)
    .order_by(CheckpointRow.number)
)

_PENDING = _OWN.where(CheckpointRow.status == CheckpointStatus.PENDING.value, CheckpointRow.deleted_at.is_(None))

_FAILED = CheckpointRow.status == CheckpointStatus.FAILED.value

_UNDELETED = _OWN.where(_FAILED | CheckpointRow.subsumed_at.is_not(None), CheckpointRow.deleted_at.is_(None))

_UNFINISHED = _OWN.where(CheckpointRow.status != CheckpointStatus.COMPLETED.value, CheckpointRow.deleted_at.is_(None))

_COMPLETED = _OWN.where(CheckpointRow.completed_at.is_not(None))

_LOST = _COMPLETED.where(_FAILED, CheckpointRow.subsumed_at.is_(None))

_RETAINED = _OWN.where(is_retained())

_RETAINED_OF_RUN = (
    select(CheckpointRow)
    .where(
        CheckpointRow.run == bindparam("run"),
        CheckpointRow.kind == SnapshotKind.CHECKPOINT.value,
        is_retained(),
    )
    .order_by(CheckpointRow.number.desc())
    .limit(1)
)


def retained_snapshots(session: Session, dataflow: str) -> list[CheckpointRow]:
    """Return the retained checkpoints and the savepoints of persons that count as retained, by number."""
    is_counted = is_retained() & (CheckpointRow.kind != SnapshotKind.AUTOMATIC.value)
    query = select(CheckpointRow).where(CheckpointRow.dataflow == dataflow, is_counted)
    return list(session.scalars(query.order_by(CheckpointRow.number)))


def automatic_savepoints(session: Session, dataflow: str) -> list[CheckpointRow]:
    """Return the automatic savepoints of a dataflow that are, were or may become complete, oldest epoch first."""
    query = select(CheckpointRow).where(
        CheckpointRow.dataflow == dataflow, CheckpointRow.kind == SnapshotKind.AUTOMATIC.value, ~_FAILED
    )
    return list(session.scalars(query.order_by(CheckpointRow.epoch, CheckpointRow.number)))


def retained_checkpoints(session: Session, dataflow: str) -> list[CheckpointRow]:
    """Return the retained checkpoints of a dataflow, by number."""
    return [row for row in retained_snapshots(session, dataflow) if not row.is_savepoint]


def newest_checkpoint(session: Session, dataflow: str) -> CheckpointRow | None:
    """Return the retained checkpoint of the latest epoch: from its state the next epoch goes on."""
    found = retained_checkpoints(session, dataflow)
    return max(found, key=lambda row: (row.epoch, row.number), default=None)


def checkpoints_of(session: Session, dataflow: str) -> list[CheckpointRow]:
    """Return all checkpoints and savepoints of a dataflow, by number."""
    query = select(CheckpointRow).where(CheckpointRow.dataflow == dataflow)
    return list(session.scalars(query.order_by(CheckpointRow.number)))


def numbers_taken(session: Session, dataflow: str, numbers: Collection[int]) -> set[int]:
    """Return those of `numbers` that checkpoints or savepoints of a dataflow have, or had."""
    query = select(CheckpointRow.number).where(CheckpointRow.dataflow == dataflow, CheckpointRow.number.in_(numbers))
    return set(session.scalars(query))


def pending_checkpoints(session: Session, dataflow: str) -> list[CheckpointRow]:
    """Return the pending checkpoints of a dataflow."""
    return _own(session, dataflow, _PENDING)


def unfinished_checkpoints(session: Session, dataflow: str) -> list[CheckpointRow]:
    """Return the checkpoints that are not complete, or were given up, and whose manifest may exist; by number."""
    return _own(session, dataflow, _UNFINISHED)


def undeleted_checkpoints(session: Session, dataflow: str) -> list[CheckpointRow]:
    """Return the subsumed or failed checkpoints whose manifest may still exist."""
    return _own(session, dataflow, _UNDELETED)


def retained_of_run(session: Session, run: str) -> CheckpointRow | None:
    """Return the newest retained checkpoint of a run."""
    return session.scalar(_RETAINED_OF_RUN, {"run": run})


def _own(session: Session, dataflow: str, query: Select[CheckpointRow]) -> list[CheckpointRow]:
    return list(session.scalars(query, {"dataflow": dataflow}))


def savepoint_url(row: CheckpointRow, root: str) -> str:
    """Return the URL of a savepoint's folder, empty for a checkpoint; `root` is that of the store.

    A savepoint in the store moves with it: its row has the URL of the place where the store was then.
    """
    path = f"{savepoints_folder(row.dataflow)}/{name_of(row.folder)}"
    return f"{root}/{path}" if row.folder.endswith(f"/{path}") else row.folder


def next_number(session: Session, dataflow: str) -> int:
    """Return the next number of a checkpoint or savepoint, which has to be assigned in the same transaction."""
    highest = session.scalar(select(func.max(CheckpointRow.number)).where(CheckpointRow.dataflow == dataflow))
    return (highest or 0) + 1


def enter_checkpoint(
    session: Session, checkpoint: Checkpoint, content: str, triggered_at: datetime, folder: str = ""
) -> CheckpointRow:
    """Add a pending checkpoint or savepoint with its number. Results that a checkpoint names stay from now on."""
    row = CheckpointRow(
        dataflow=checkpoint.dataflow,
        number=checkpoint.number,
        kind=checkpoint.kind.value,
        status=CheckpointStatus.PENDING.value,
        epoch=checkpoint.epoch,
        run=checkpoint.run,
        lineage=checkpoint.lineage,
        attempt=checkpoint.attempt,
        content=content,
        folder=folder,
        results=[] if checkpoint.kind.is_savepoint else results_named(session, checkpoint),
        triggered_at=triggered_at,
        full_bytes=checkpoint.full_bytes,
        incremental_bytes=checkpoint.incremental_bytes,
        new_files=checkpoint.new_files,
        shared_files=checkpoint.shared_files,
    )
    session.add(row)
    session.flush()
    return row


def results_named(session: Session, checkpoint: Checkpoint) -> list[int]:
    """Return the numbers of the results that a checkpoint names, as far as the ledger has them."""
    named = {(part.attempt, each.stage, each.subtask, each.layout) for each, part in checkpoint.parts.items()}
    columns = (ResultRow.attempt, ResultRow.stage, ResultRow.subtask, ResultRow.layout)
    rows = session.execute(select(ResultRow.id, *columns).where(ResultRow.run == checkpoint.run))
    return sorted(number for number, *of in rows if tuple(of) in named)


def is_of_closed(session: Session, checkpoint: CheckpointRow, stage: str) -> bool:
    """Report whether a checkpoint has of a stage only what a closed run was closed with; of a sealed run nothing."""
    run = session.get(RunRow, checkpoint.run)
    found = select(ResultRow).where(ResultRow.id.in_(checkpoint.results), ResultRow.stage == stage)
    rows = list(session.scalars(found))
    if run is None or run.sealed_at is not None or not rows or _lacks_any(run, rows):
        return False
    return is_closed_with(session, run, rows)


def _lacks_any(run: RunRow, rows: Sequence[ResultRow]) -> bool:
    """Report whether a stage has other subtasks: a rebuilt ledger may not know all results that a checkpoint names."""
    if run.pinned is None:
        return False
    return len(rows) < topology_of(run.pinned).dataflow.stage(rows[0].stage).parallelism


def is_closed_with(session: Session, run: RunRow, rows: Sequence[ResultRow]) -> bool:
    """Report whether a run is closed with results of all subtasks, and none has half of what a person has cleared.

    What stood when it was last closed counts also while it is open again. A run of which Weir has something computed
    again is not closed until all of it is valid. Of what a person clears the ledger learns when it begins: where a
    subtask has other rows since a clear that another one has not seen, that may follow.
    """
    if all(_stood_at_close(run, row) for row in rows):
        return True
    if run.closed_at is None:
        return False
    seen = min(session.get_one(AttemptRow, row.attempt).clear_number for row in rows)
    return all(_since_clear(session, run, row) <= seen for row in rows)


def _stood_at_close(run: RunRow, row: ResultRow) -> bool:
    """Report whether a result stood when its run was last closed: those that came later have greater numbers.

    What a rebuild or a restore has entered stands where the run is closed.
    """
    if is_synthetic(row.attempt):
        return run.closed_at is not None
    return run.closed_result is not None and row.id <= run.closed_result


def _since_clear(session: Session, run: RunRow, row: ResultRow) -> int:
    """Return since which clear by a person a subtask has these rows; 0 for those that a run was closed with."""
    of_same = (ResultRow.run == row.run, ResultRow.stage == row.stage, ResultRow.layout == row.layout)
    query = select(ResultRow).where(*of_same, ResultRow.subtask == row.subtask, ResultRow.id <= row.id)
    by_person: tuple[AttemptRow, str] | None = None
    for each in session.scalars(query.order_by(ResultRow.id.desc())):
        attempt = session.get_one(AttemptRow, each.attempt)
        if by_person is not None and by_person[1] != each.digest:
            return _clear_after(attempt, by_person[0])
        if _stood_at_close(run, each):
            return 0
        if attempt.origin in _BY_PERSON:
            by_person = attempt, each.digest
    return 0 if by_person is None else by_person[0].clear_number


def _clear_after(before: AttemptRow, cleared: AttemptRow) -> int:
    """Return the number of the clear with which the rows of `before` went; of another DagRun, Airflow begins at 0."""
    is_of_other = cleared.clear_number <= before.clear_number and cleared.origin == Origin.CLEARED_BY_PERSON.value
    return cleared.clear_number + is_of_other


_BY_PERSON: Final = {Origin.CLEARED_BY_PERSON.value, Origin.RETRY.value, Origin.REBUILT.value}
"""Of attempts: what a person has cleared, or has failed at first, or was found in the store."""


def add_results(session: Session, row: CheckpointRow, checkpoint: Checkpoint) -> None:
    """Record that a checkpoint names these results, too: they consist of the same files as those it was made of."""
    row.results = sorted({*row.results, *results_named(session, checkpoint)})


def is_whole(session: Session, row: CheckpointRow) -> bool:
    """Report whether no result that a checkpoint names is known to be gone or damaged."""
    if not row.results:
        return True
    query = select(ResultRow.id).where(ResultRow.run == row.run, ResultRow.state != PartitionState.FINISHED.value)
    return set(row.results).isdisjoint(session.scalars(query))


def enter_taken(
    session: Session,
    dataflow: str,
    number: int,
    now: datetime,
    kind: SnapshotKind = SnapshotKind.CHECKPOINT,
    folder: str = "",
    attempt: str = "",
) -> None:
    """Add a number of which only is known that it was assigned; it is pending if an attempt writes a savepoint."""
    session.add(
        CheckpointRow(
            dataflow=dataflow,
            number=number,
            kind=kind.value,
            status=(CheckpointStatus.PENDING if attempt else CheckpointStatus.FAILED).value,
            epoch="",
            run="",
            lineage=0,
            attempt=attempt,
            content="",
            folder=folder,
            results=[],
            triggered_at=now,
            deleted_at=now if folder and not attempt else None,
            full_bytes=0,
            incremental_bytes=0,
            new_files=0,
            shared_files=0,
        )
    )
    session.flush()


def checkpoint_row(session: Session, dataflow: str, number: int) -> CheckpointRow | None:
    """Return the row of a number, if there is one."""
    query = select(CheckpointRow).where(CheckpointRow.dataflow == dataflow, CheckpointRow.number == number)
    return session.scalar(query)


def is_other(row: CheckpointRow, found: Checkpoint) -> bool:
    """Report whether a manifest is not that of the row of its number: a ledger that has lost it gave the number again.

    Attempts say nothing: a try may complete what an earlier one has written, and a run whose state was computed again
    is checkpointed again for the same closing task. Of a number that is only known to be taken nothing can differ.
    """
    return bool(row.run) and row.content != fingerprint(found)


def complete(session: Session, dataflow: str, number: int, attempt: str, content: str, now: datetime) -> CheckpointRow:
    """Record that the manifest of an attempt exists. Raises Conflict if it has failed, or the number is another's."""
    row = checkpoint_row(session, dataflow, number)
    is_own = row is not None and (row.attempt, row.content) == (attempt, content)  # a closing task may make several
    if row is None or not is_own or row.status == CheckpointStatus.FAILED.value:
        raise Conflict.of("ledger.checkpoint_abandoned", number=number, dataflow=dataflow)
    is_new = row.status != CheckpointStatus.COMPLETED.value
    row.status, row.completed_at = CheckpointStatus.COMPLETED.value, row.completed_at or now
    if is_new:
        tell_completed(session, row, now)
    return row


def abandon(session: Session, row: CheckpointRow, now: datetime) -> None:
    """Mark a checkpoint failed that will never be completed, or whose manifest is lost; its files are deleted later.

    A completed one keeps its `completed_at`, which shows that its run needs another checkpoint.
    """
    row.status = CheckpointStatus.FAILED.value
    tell_aborted(session, row, now)


def subsume(session: Session, row: CheckpointRow, by: int, now: datetime) -> None:
    """Mark a checkpoint or savepoint subsumed by the one of this number."""
    row.subsumed_at, row.subsumed_by = now, by
    _tell(session, EventKind.CHECKPOINT_SUBSUMED, row, f"is subsumed by checkpoint {by}", now, by=by)


def tell_completed(session: Session, row: CheckpointRow, now: datetime, *, is_rebuilt: bool = False) -> None:
    """Record that receivers are to be told of a completed checkpoint."""
    sizes = {"full_bytes": row.full_bytes, "incremental_bytes": row.incremental_bytes}
    _tell(session, EventKind.CHECKPOINT_COMPLETED, row, "is complete", now, is_rebuilt=is_rebuilt, **sizes)


def tell_aborted(session: Session, row: CheckpointRow, now: datetime, *, is_rebuilt: bool = False) -> None:
    """Record that receivers are to be told of an abandoned checkpoint."""
    was_completed = row.completed_at is not None
    text = "has lost its manifest or its files, and is given up" if was_completed else "will never be complete"
    _tell(session, EventKind.CHECKPOINT_ABORTED, row, text, now, is_rebuilt=is_rebuilt, was_completed=was_completed)


def _tell(
    session: Session,
    kind: EventKind,
    row: CheckpointRow,
    text: str,
    now: datetime,
    *,
    is_rebuilt: bool = False,
    **details: Any,
) -> None:
    """Record an event of a checkpoint; a savepoint is made by a person, who sees what becomes of it."""
    if row.is_savepoint:
        return
    of = Subject(row.dataflow, row.epoch or None, row.run or None)
    event = checkpoint_event(kind, of, row.number, text, **details)
    tell(session, replace(event, is_rebuilt=is_rebuilt), now)


def runs_with_checkpoints(session: Session, dataflow: str) -> set[str]:
    """Return the runs with a retained checkpoint of their own."""
    return {row.run for row in _own(session, dataflow, _RETAINED)}


def runs_of_lost_checkpoints(session: Session, dataflow: str, most: int) -> set[str]:
    """Return the runs whose newest checkpoint was completed and has lost its manifest: it has to be taken again.

    Runs whose checkpoint would not be one of the `most` that are retained are left out.
    """
    lost = {row.run: row for row in _own(session, dataflow, _LOST)}
    if not lost:
        return set()
    newest = {row.run: row.number for row in _own(session, dataflow, _COMPLETED)}
    epochs = {row.epoch for row in _own(session, dataflow, _RETAINED)}
    return {
        run
        for run, row in lost.items()
        if newest[run] == row.number and sum(each > row.epoch for each in epochs) < most
    }


def is_restorable(row: CheckpointRow) -> bool:
    """Report whether a dataflow can resume from it: the files of a savepoint that is subsumed are its own."""
    is_kept = row.subsumed_at is None or row.is_savepoint
    return is_kept and row.deleted_at is None and row.status == CheckpointStatus.COMPLETED.value


def restorable(session: Session, dataflow: str) -> list[CheckpointRow]:
    """Return the retained checkpoints of a dataflow, and all of its savepoints, by number."""
    return [row for row in checkpoints_of(session, dataflow) if is_restorable(row)]


def what_is_kept(session: Session, dataflow: str) -> str:
    """Describe the retained checkpoints and the savepoints of a dataflow."""
    found = restorable(session, dataflow)
    kept = [row for row in found if not row.is_savepoint]
    savepoints = [row for row in found if row.is_savepoint]
    oldest = "No checkpoint is kept"
    if kept:
        oldest = f"The oldest kept checkpoint is {kept[0].number}, of epoch {kept[0].epoch}"
    listed = [f"{row.number} of epoch {row.epoch}" for row in savepoints[-_SHOWN:]]
    more = f" (and {len(savepoints) - _SHOWN} older ones)" if len(savepoints) > _SHOWN else ""
    held = f"savepoints are {', '.join(listed)}{more}" if listed else "there is no savepoint"
    if kept[1:]:
        held += f"; newer checkpoints are {', '.join(str(row.number) for row in kept[1:][-_SHOWN:])}"
    return f"{oldest}; {held}" if kept or listed else f"{oldest}, and {held}"
