"""Maintain checkpoints: subsume old ones, complete outdated ones again, and delete unused files and compactions.

Invariant 7: any later process continues where one was killed, in this order: pending checkpoints that will not be
completed are abandoned; runs whose state was recomputed are checkpointed again; checkpoints beyond the retained number
are subsumed in the ledger; results are released; manifests are deleted, and then their files.

A compaction stays in the ledger while the compacted result is current, and while a file that was written for it is in
use: its bytes are counted by its row (`weir.retention.sizes`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.evidence import require_known_checkpoints
from weir.coordination.services import Services
from weir.errors import Conflict, Internal
from weir.execution.run_state import CLOSE
from weir.formats.checkpoint import Checkpoint
from weir.formats.manifest import DataFile
from weir.formats.paths import (
    checkpoint_number,
    checkpoint_path,
    checkpoints_folder,
    is_below_dataflow,
    number_path,
    numbers_folder,
    parse_attempt_path,
)
from weir.ledger.attempts import LIVE
from weir.ledger.checkpoints import (
    abandon,
    checkpoint_row,
    checkpoints_of,
    pending_checkpoints,
    retained_checkpoints,
    retained_of_run,
    retained_snapshots,
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
from weir.state.checkpoint import Draft, Guard, complete_checkpoint, draft_of, subsume_checkpoints
from weir.state.checkpoint_content import read_checkpoint
from weir.state.checkpoint_order import is_complete
from weir.state.files_in_use import COUNTING, live_state_files, paths_of
from weir.store.errors import AlreadyExists
from weir.store.probe import probe_twice
from weir.store.walk import files_in
from weir.store.worker_threads import in_parallel


@dataclass(frozen=True, slots=True)
class CheckpointMaintenance:
    """Checkpoints that were abandoned, completed again and subsumed (numbers), and files that were deleted."""

    abandoned: tuple[int, ...] = ()
    completed: tuple[int, ...] = ()
    subsumed: tuple[int, ...] = ()
    deleted: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Describe it as a part of a sentence; empty if nothing was done."""
        done = {"abandoned": self.abandoned, "completed once more": self.completed, "subsumed": self.subsumed}
        parts = [f"checkpoint(s) {', '.join(map(str, numbers))} {what}" for what, numbers in done.items() if numbers]
        if self.deleted:
            parts.append(f"{len(self.deleted)} file(s) of state deleted that no checkpoint names any more")
        return "; ".join(parts)


def maintain_checkpoints(services: Services, dataflow: str, *, is_thorough: bool = False) -> CheckpointMaintenance:
    """Complete, subsume and delete checkpoints of a dataflow as needed; if `is_thorough`, look at their manifests, too.

    Raises Retryable.
    """
    lost: tuple[int, ...] = ()
    if is_thorough:
        lost = _abandon_lost(services, dataflow)
        _note_written_late(services, dataflow)
    with services.ledger.transaction() as session:
        if session.scalar(select(CheckpointRow.id).where(CheckpointRow.dataflow == dataflow).limit(1)) is None:
            return CheckpointMaintenance()
        is_pending = bool(pending_checkpoints(session, dataflow))
        outdated = _outdated(session, services, dataflow)
    abandoned = (_abandon_pending(services, dataflow) if is_pending else ()) + lost
    completed = _complete_again(services, outdated)
    subsumed = _subsume(services, dataflow)
    return CheckpointMaintenance(abandoned, completed, subsumed, _delete(services, dataflow))


def maintain_outdated(services: Services, dataflow: str, runs: Iterable[str]) -> None:
    """Maintain the checkpoints if the state of one of these closed runs was recomputed. Raises Retryable.

    Those of later epochs may have waited for that.
    """
    with services.ledger.transaction() as session:
        is_outdated = any(_is_outdated(session, run) for run in runs)
    if is_outdated:
        maintain_checkpoints(services, dataflow)


def _abandon_pending(services: Services, dataflow: str) -> tuple[int, ...]:
    """Abandon pending checkpoints that will not be completed: the next one of the run takes a new number."""
    with services.ledger.transaction(dataflow) as session:
        rows = [
            row for row in pending_checkpoints(session, dataflow) if not _may_complete(session, row, services.now())
        ]
        for row in rows:
            abandon(session, row, services.now())
        return tuple(row.number for row in rows)


def _abandon_lost(services: Services, dataflow: str) -> tuple[int, ...]:
    """Abandon retained checkpoints whose manifest is definitely missing, or not as it was written."""
    with services.ledger.transaction() as session:
        rows = retained_checkpoints(session, dataflow)
    if not rows:
        return ()

    def look(some: list[CheckpointRow]) -> list[bool]:
        return in_parallel(
            lambda row: read_checkpoint(services.store, dataflow, row.number) is None, some, services.store.workers
        )

    answers = probe_twice(services.store, services.store_id(), rows, look, lambda is_lost: is_lost)
    lost = tuple(row.number for row, is_lost in zip(rows, answers, strict=True) if is_lost)
    if lost:
        with services.ledger.transaction(dataflow) as session:
            for row in retained_checkpoints(session, dataflow):
                if row.number in lost:
                    abandon(session, row, services.now())
    return lost


def _note_written_late(services: Services, dataflow: str) -> None:
    """Have manifests deleted again that a process has written which had slept since before they were deleted.

    A sweep would do so, too, but later; a ledger that was rebuilt until then would have them for checkpoints.
    """
    listed = {checkpoint_number(name) for name in files_in(services.store, checkpoints_folder(dataflow))}
    with services.ledger.transaction() as session:
        deleted = {row.number for row in checkpoints_of(session, dataflow) if row.deleted_at is not None}
    if not listed.isdisjoint(deleted):
        with services.ledger.transaction(dataflow) as session:
            for row in checkpoints_of(session, dataflow):
                if row.number in listed:
                    row.deleted_at = None


def _may_complete(session: Session, row: CheckpointRow, now: datetime) -> bool:
    """Report whether an attempt completes it, or will: the next try of the closing task continues this number."""
    return row.triggered_at + LEASE > now or _is_closing(session, row.run)


def _is_closing(session: Session, run: str) -> bool:
    query = select(AttemptRow.id).where(
        AttemptRow.run == run, AttemptRow.region == CLOSE.name, AttemptRow.state.in_(LIVE)
    )
    return session.scalar(query.limit(1)) is not None


def _outdated(session: Session, services: Services, dataflow: str) -> set[str]:
    """Return the runs to be checkpointed again: those whose state was recomputed, and those whose checkpoint was lost.

    The process that abandoned a lost one may have been killed, or the run was busy.
    """
    most = newest_dataflow_settings(session, dataflow, services.retention).retained_checkpoints
    lost = runs_of_lost_checkpoints(session, dataflow, most)
    runs = {run for run in runs_with_checkpoints(session, dataflow) if _is_outdated(session, run)}
    return runs | {run for run in lost if _may_be_checkpointed(session, run)}


def _complete_again(services: Services, runs: Iterable[str]) -> tuple[int, ...]:
    """Checkpoint runs again, oldest epoch first."""
    found = []
    for run in sorted(runs):
        with suppress(Conflict):  # an attempt is running in it: a later process tries again
            found.append(_checkpoint_again(services, run))
    return tuple(number for number in found if number is not None)


def _is_outdated(session: Session, run: str) -> bool:
    """Report whether a closed run has other state than its checkpoint names, and no closing task is running."""
    made = retained_of_run(session, run)
    if made is None or not _may_be_checkpointed(session, run):
        return False
    named = {(each.stage, each.subtask, each.layout) for each in checkpointed(run_by_id(session, run).topology)}
    query = select(ResultRow.id, ResultRow.stage, ResultRow.subtask, ResultRow.layout)
    rows = session.execute(query.where(ResultRow.run == run, ResultRow.is_current))
    current = {number for number, *of in rows if tuple(of) in named}
    return not current <= set(made.results)


def _may_be_checkpointed(session: Session, run: str) -> bool:
    """Report whether a run is closed, no closing task is running, and its predecessor has a checkpoint."""
    row = session.get(RunRow, run)
    if row is None or row.closed_at is None or row.pinned is None or _is_closing(session, run):
        return False
    return row.predecessor is None or is_complete(session, run_key(row.dataflow, row.predecessor))


def _checkpoint_again(services: Services, run: str) -> int | None:
    """Complete another checkpoint of a closed run; return None if its state is not whole."""
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
            raise Conflict.of("retention.run_open_again", run_id=draft.run.id)

    return guard


def _subsume(services: Services, dataflow: str) -> tuple[int, ...]:
    with services.ledger.transaction() as session:
        retained = newest_dataflow_settings(session, dataflow, services.retention).retained_checkpoints
        if len(retained_snapshots(session, dataflow)) <= 1:
            return ()
    with services.ledger.transaction(dataflow) as session:
        gone = subsume_checkpoints(session, dataflow, retained, services.now())
        return tuple(row.number for row in gone)


def _delete(services: Services, dataflow: str) -> tuple[str, ...]:
    """Delete checkpoints that are not retained: manifests first, then files that are not in use."""
    with services.ledger.transaction() as session:
        rows = undeleted_checkpoints(session, dataflow)
        kept = [row.number for row in retained_checkpoints(session, dataflow)]
    if not rows:
        return ()
    require_known_checkpoints(services, dataflow)  # one that the ledger has lost may name the same files
    release(services, dataflow, sorted({row.run for row in rows}))
    gone = _read(services, dataflow, (row.number for row in rows))
    unused = unused_files([*gone.values()], [*_read(services, dataflow, kept).values()])
    services.store_id()  # on an unmounted disk everything seems deleted already
    highest = max(row.number for row in rows)
    if highest > max(kept, default=0):
        _keep_number(services, dataflow, highest)
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
                found.deleted_at, found.results = services.now(), []
        forget_unused(session, dataflow, in_use)
    return tuple(deleted)


def _keep_number(services: Services, dataflow: str, number: int) -> None:
    """Keep the highest number in the store when its manifest goes: a rebuilt ledger does not give it out again."""
    with suppress(AlreadyExists):
        services.store.create(number_path(dataflow, number), b"")
    for name, size in services.store.list(numbers_folder(dataflow)):
        if size == 0 and name.isdecimal() and int(name) < number:
            services.store.delete(f"{numbers_folder(dataflow)}/{name}")


def _read(services: Services, dataflow: str, numbers: Iterable[int]) -> Mapping[int, Checkpoint]:
    found = {number: read_checkpoint(services.store, dataflow, number) for number in numbers}
    return {number: each for number, each in found.items() if each is not None}


def unused_files(gone: Sequence[Checkpoint], kept: Sequence[Checkpoint]) -> tuple[str, ...]:
    """Return the files of keyed state that no kept checkpoint names, as Flink's SharedStateRegistryImpl would.

    A file belongs to no checkpoint: the one that wrote it may have been deleted long before. Raises Internal if two
    checkpoints describe a file differently (FLINK-29913: one of two would be deleted while in use).
    """
    described: dict[str, tuple[int, DataFile]] = {}
    for checkpoint in (*gone, *kept):
        for path, named in checkpoint.files.items():
            number, file = described.setdefault(path, (checkpoint.number, named.file))
            if named.file != file:
                raise Internal.of(
                    "retention.state_file_named_twice",
                    number=checkpoint.number,
                    path=path,
                    file=named.file,
                    other=number,
                    other_file=file,
                )
    in_use = {path for checkpoint in kept for path in checkpoint.files}
    return tuple(sorted(described.keys() - in_use))


def forget_compactions(services: Services, dataflow: str) -> int:
    """Delete the rows of compactions that are not needed any more; return how many. Raises Retryable."""
    with services.ledger.transaction() as session:
        if not _of_released(session, dataflow):
            return 0
    in_use = live_state_files(services, dataflow)
    with services.ledger.transaction(dataflow) as session:
        return forget_unused(session, dataflow, in_use)


def forget_unused(session: Session, dataflow: str, in_use: Container[str]) -> int:
    """Delete the rows of unneeded compactions; `in_use` was read before: a file not in it is never used again."""
    gone = [row for row in _of_released(session, dataflow) if not any(path in in_use for path in _written(row))]
    for row in gone:
        session.delete(row)
    return len(gone)


def _of_released(session: Session, dataflow: str) -> list[CompactionRow]:
    """Return compactions of results that are not current any more, and never become current again."""
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
    """Return the files that were written for the compaction."""
    return [path for path in paths_of(row) if (found := parse_attempt_path(path)) and found.attempt == row.attempt]
