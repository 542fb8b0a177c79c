"""What follows when checkpoints are complete: older ones are subsumed, and what nobody uses any more is deleted.

Invariant 7: whoever comes by goes on where another was killed, in this order: numbers that nobody will complete are
given up; runs whose state was made again are checkpointed again; what is too many is subsumed, in the ledger; results
are released; manifests are deleted, and files behind them.

What is known of compactions, which goes when nobody can need it any more.

Invariant: a compaction is known as long as the result that was compacted counts, and as long as a file that was written
for it is in use: by what is known, its bytes are counted (`weir.retention.sizes`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Conflict
from weir.execution.run_state import CLOSE
from weir.formats.checkpoint import Checkpoint
from weir.formats.manifest import DataFile
from weir.formats.paths import checkpoint_path, is_below_dataflow, parse_attempt_path
from weir.ledger.attempts import LIVE
from weir.ledger.checkpoints import (
    abandon,
    checkpoint_row,
    pending_checkpoints,
    retained_checkpoints,
    retained_of_run,
    runs_of_lost_checkpoints,
    runs_with_checkpoints,
    undeleted_checkpoints,
)
from weir.ledger.database.tables import AttemptRow, CheckpointRow, CompactionRow, ResultRow, RunRow
from weir.ledger.leases import LEASE
from weir.ledger.runs import newest_dataflow_settings, run_by_id, run_key
from weir.ledger.snapshot import committed_attempt, run_state
from weir.recovery.inputs import checkpointed, probe_partitions
from weir.retention.release import delete_released, release
from weir.state.checkpoint import Draft, Guard, complete_checkpoint, draft_of
from weir.state.checkpoint_content import read_checkpoint
from weir.state.checkpoint_order import is_complete
from weir.state.files_in_use import COUNTING, live_state_files, paths_of
from weir.state.registry import SharedFiles
from weir.state.subsumption import subsume_checkpoints
from weir.store.probe import probe_twice
from weir.store.worker_threads import in_parallel


@dataclass(frozen=True, slots=True)
class KeptCheckpoints:
    """What was done: numbers that were given up, completed anew and subsumed, and files that were deleted."""

    given_up: tuple[int, ...] = ()
    completed: tuple[int, ...] = ()
    subsumed: tuple[int, ...] = ()
    deleted: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As a part of a sentence; empty if nothing was done."""
        done = {"given up": self.given_up, "completed once more": self.completed, "subsumed": self.subsumed}
        said = [f"checkpoint(s) {', '.join(map(str, numbers))} {what}" for what, numbers in done.items() if numbers]
        if self.deleted:
            said.append(f"{len(self.deleted)} file(s) of state deleted that no checkpoint names any more")
        return "; ".join(said)


def keep_checkpoints(services: Services, dataflow: str, *, is_thorough: bool = False) -> KeptCheckpoints:
    """Do what is left to do for the checkpoints of a dataflow; if that is thorough, their manifests are looked at.

    Raises Retryable.
    """
    with services.ledger.transaction() as session:
        if session.scalar(select(CheckpointRow.id).where(CheckpointRow.dataflow == dataflow).limit(1)) is None:
            return KeptCheckpoints()
        is_pending = bool(pending_checkpoints(session, dataflow))
    given_up = _give_up(services, dataflow) if is_pending else ()
    given_up += _give_up_lost(services, dataflow) if is_thorough else ()
    completed = _complete_again(services, dataflow)
    subsumed = _subsume(services, dataflow)
    return KeptCheckpoints(given_up, completed, subsumed, _delete(services, dataflow))


def _give_up(services: Services, dataflow: str) -> tuple[int, ...]:
    """Those whose attempt will not complete them: the next one of that run takes a number of its own."""
    with services.ledger.transaction(dataflow) as session:
        rows = [
            row for row in pending_checkpoints(session, dataflow) if not _may_complete(session, row, services.now())
        ]
        for row in rows:
            abandon(row)
        return tuple(row.number for row in rows)


def _give_up_lost(services: Services, dataflow: str) -> tuple[int, ...]:
    """Retained checkpoints whose manifest is definitely gone, or not as it was written."""
    with services.ledger.transaction() as session:
        rows = [row for row in retained_checkpoints(session, dataflow) if not row.is_savepoint]

    def look(some: list[CheckpointRow]) -> list[bool]:
        return in_parallel(lambda row: read_checkpoint(services.store, dataflow, row.number) is None, some, 16)

    answers = probe_twice(services.store, services.store_id(), rows, look, lambda is_lost: is_lost)
    lost = tuple(row.number for row, is_lost in zip(rows, answers, strict=True) if is_lost)
    if lost:
        with services.ledger.transaction(dataflow) as session:
            for row in retained_checkpoints(session, dataflow):
                if row.number in lost:
                    abandon(row)
    return lost


def _may_complete(session: Session, row: CheckpointRow, now: datetime) -> bool:
    """Whether somebody is at work on it, or will be: a try of the closing task goes on with an equal number."""
    return row.triggered_at + LEASE > now or _is_closing(session, row.run)


def _is_closing(session: Session, run: str) -> bool:
    query = select(AttemptRow.id).where(
        AttemptRow.run == run, AttemptRow.region == CLOSE.name, AttemptRow.state.in_(LIVE)
    )
    return session.scalar(query.limit(1)) is not None


def _complete_again(services: Services, dataflow: str) -> tuple[int, ...]:
    """Checkpoint runs once more whose state was made again, oldest epoch first: their checkpoints name other files.

    And those whose checkpoint was lost: who gave it up may have been killed, or have met somebody at work on the run.
    """
    with services.ledger.transaction() as session:
        most = newest_dataflow_settings(session, dataflow, services.retention).retained_checkpoints
        lost = runs_of_lost_checkpoints(session, dataflow, most)
        runs = {run for run in runs_with_checkpoints(session, dataflow) if _is_outdated(session, run)}
        runs |= {run for run in lost if _may_be_checkpointed(session, run)}
    found = []
    for run in sorted(runs):
        with suppress(Conflict):  # somebody is at work on it: who comes by then tries again
            found.append(_checkpoint_again(services, run))
    return tuple(number for number in found if number is not None)


def _is_outdated(session: Session, run: str) -> bool:
    """Whether a closed run has current state that was made since its checkpoint, and nobody is about to complete it."""
    made = retained_of_run(session, run)
    if made is None or not _may_be_checkpointed(session, run):
        return False
    named = {(each.stage, each.layout) for each in checkpointed(run_by_id(session, run).topology)}
    query = (
        select(ResultRow.stage, ResultRow.layout)
        .join(AttemptRow, AttemptRow.id == ResultRow.attempt)
        .where(ResultRow.run == run, ResultRow.is_current, AttemptRow.ended_at >= made.triggered_at)
    )
    return any((stage, layout) in named for stage, layout in session.execute(query))


def _may_be_checkpointed(session: Session, run: str) -> bool:
    """Whether a run is closed, nobody closes it again just now, and the one before it has its checkpoint."""
    row = session.get(RunRow, run)
    if row is None or row.closed_at is None or row.pinned is None or _is_closing(session, run):
        return False
    return row.predecessor is None or is_complete(session, run_key(row.dataflow, row.predecessor))


def _checkpoint_again(services: Services, run: str) -> int | None:
    """Complete another checkpoint of a closed run; None where it is not whole."""
    with services.ledger.transaction() as session:
        of_run = run_by_id(session, run)
        closing = committed_attempt(session, run, CLOSE)
        state = run_state(session, of_run, of_run.topology)
    named = checkpointed(of_run.topology)
    if closing is None or not all(state.is_good(each) for each in named):
        return None
    manifests = probe_partitions(services, services.store_id(), state, named).manifests
    draft = draft_of(of_run, closing.id, state, manifests)
    return None if draft is None else complete_checkpoint(services, draft, _still_closed(draft))


def _still_closed(draft: Draft) -> Guard:
    def guard(session: Session) -> None:
        row = session.get_one(RunRow, draft.run.id)
        if row.closed_at is None or _is_closing(session, draft.run.id):
            raise Conflict(f"run {draft.run.id} is not closed any more")

    return guard


def _subsume(services: Services, dataflow: str) -> tuple[int, ...]:
    with services.ledger.transaction() as session:
        retained = newest_dataflow_settings(session, dataflow, services.retention).retained_checkpoints
        if len(retained_checkpoints(session, dataflow)) <= 1:
            return ()
    with services.ledger.transaction(dataflow) as session:
        gone = subsume_checkpoints(session, dataflow, retained, services.now())
        return tuple(row.number for row in gone)


def _delete(services: Services, dataflow: str) -> tuple[str, ...]:
    """Delete what belongs to checkpoints that are no longer retained: manifests first, then files that nobody uses."""
    with services.ledger.transaction() as session:
        rows = undeleted_checkpoints(session, dataflow)
        kept = [row.number for row in retained_checkpoints(session, dataflow) if not row.is_savepoint]
    if not rows:
        return ()
    release(services, dataflow, sorted({row.run for row in rows}))
    gone = _read(services, dataflow, (row.number for row in rows))
    unused = unused_files([*gone.values()], [*_read(services, dataflow, kept).values()])
    services.store_id()  # an unmounted disk looks as if all were deleted already
    for row in rows:
        services.store.delete(checkpoint_path(dataflow, row.number))
    delete_released(services, dataflow)
    in_use = live_state_files(services, dataflow)
    deleted = [path for path in unused if is_below_dataflow(path, dataflow) and path not in in_use]
    for path in deleted:
        services.store.delete(path)
    services.store_id()  # or it was unmounted meanwhile
    with services.ledger.transaction(dataflow) as session:
        for row in rows:
            found = checkpoint_row(session, dataflow, row.number)
            if found is not None and found.deleted_at is None:
                found.deleted_at = services.now()
        forget_unused(session, dataflow, in_use)
    return tuple(deleted)


def _read(services: Services, dataflow: str, numbers: Iterable[int]) -> Mapping[int, Checkpoint]:
    found = {number: read_checkpoint(services.store, dataflow, number) for number in numbers}
    return {number: each for number, each in found.items() if each is not None}


def unused_files(gone: Iterable[Checkpoint], kept: Iterable[Checkpoint]) -> tuple[str, ...]:
    """The files of keyed state that no kept checkpoint names any more, by Flink's registry, built from manifests.

    It counts by ids that ascend; an old epoch may have been completed again under a high number, so those that are gone
    come first here.
    """
    registry: SharedFiles[DataFile] = SharedFiles()
    first = sorted(gone, key=_age)
    for place, checkpoint in enumerate([*first, *sorted(kept, key=_age)]):
        for path, file in checkpoint.files.items():
            registry.register(path, file.file, place)
    return tuple(sorted(registry.unregister_unused(len(first)).files))


def _age(checkpoint: Checkpoint) -> tuple[str, int]:
    return checkpoint.epoch, checkpoint.number


def forget_compactions(services: Services, dataflow: str) -> int:
    """Forget what nobody can need any more of the compactions of a dataflow; answers how many. Raises Retryable."""
    with services.ledger.transaction() as session:
        if not _of_released(session, dataflow):
            return 0
    in_use = live_state_files(services, dataflow)
    with services.ledger.transaction(dataflow) as session:
        return forget_unused(session, dataflow, in_use)


def forget_unused(session: Session, dataflow: str, in_use: Container[str]) -> int:
    """The same, of files that were `in_use` a moment ago: what was not by then never will be."""
    gone = [row for row in _of_released(session, dataflow) if not any(path in in_use for path in _written(row))]
    for row in gone:
        session.delete(row)
    return len(gone)


def _of_released(session: Session, dataflow: str) -> list[CompactionRow]:
    """Compactions of results that do not count any more: nobody begins to read them, and none of these counts again."""
    result = (
        (ResultRow.attempt == CompactionRow.of_attempt)
        & (ResultRow.stage == CompactionRow.state)
        & (ResultRow.subtask == CompactionRow.subtask)
        & ResultRow.state.in_(COUNTING)
    )
    query = select(CompactionRow).where(
        CompactionRow.dataflow == dataflow, ~select(ResultRow.id).where(result).exists()
    )
    return list(session.scalars(query))


def _written(row: CompactionRow) -> list[str]:
    """Those of its files that were written for it."""
    return [path for path in paths_of(row) if (found := parse_attempt_path(path)) and found.attempt == row.attempt]
