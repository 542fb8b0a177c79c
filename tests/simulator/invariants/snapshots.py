"""Invariants of checkpoints (invariants 4 and 7)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulator.history.history import History
from tests.simulator.history.ledger_view import Result
from tests.simulator.history.snapshots import Snapshot, parts_of
from tests.simulator.store import URL

from weir.dataflow.retention_settings import RetentionSettings
from weir.formats.checkpoint import Checkpoint
from weir.formats.paths import checkpoint_path, folder_of
from weir.ledger.runs import dataflow_of, epoch_of_run


def a_checkpoint_is_what_is_current(history: History) -> Iterator[str]:
    """A completed checkpoint has all that the next epoch reads; and that of the epoch before is complete."""
    for row in history.snapshots.newly_completed:
        written = history.snapshots.written.get(row.key)
        if row.is_savepoint:
            yield from _missing(history, row, written)
            continue
        before = history.epochs.previous_of(row.run)
        is_first = before is None or history.restores.began_with(before)
        if not is_first and before not in history.snapshots.completed:
            yield f"checkpoint {row.number} of {row.run} is complete before that of {before}"
        if written is None:
            yield f"checkpoint {row.number} is complete, and has no manifest"
            continue
        for partition, attempt, _, files in parts_of(written):
            found = history.ledger.current.get(partition)
            if not _is_made_of(history, found, attempt, files) or not history.ledger.is_valid(partition):
                yield f"checkpoint {row.number} has {partition.id} of {attempt}, which is not current or not valid"
            elif found is not None and not _is_there(history, found, files):
                yield f"checkpoint {row.number} misses a file of {partition.id} of {attempt}"


def a_retained_checkpoint_can_be_read_whole(history: History) -> Iterator[str]:
    """Invariant 4, whichever processes complete, subsume and delete checkpoints: only faults take a file away."""
    for each in history.snapshots.retained():
        for partition, attempt, _, files in parts_of(each):
            for path in files:
                if path not in history.files and path.rpartition("/")[0] not in history.damaged:
                    yield f"checkpoint {each.number} is retained without {path}, of {partition.id} of {attempt}"


def _is_made_of(history: History, found: Result | None, attempt: str, files: tuple[str, ...]) -> bool:
    """Report whether a result is what a checkpoint has: of that attempt, or recomputed and made of the same files."""
    return found is not None and (found.attempt == attempt or set(files) == set(history.files_of(found)))


def _missing(history: History, row: Snapshot, written: Checkpoint | None) -> Iterator[str]:
    """Yield the files that a complete savepoint lacks."""
    for _, _, _, files in () if written is None else parts_of(written):
        for path in files:
            if f"{row.folder.removeprefix(f'{URL}/')}/{path}" not in history.files:
                yield f"savepoint {row.number} is complete without {path}"
    if written is None:
        yield f"savepoint {row.number} is complete, and has no manifest"


def _is_there(history: History, result: Result, files: tuple[str, ...]) -> bool:
    folders = {result.folder, *(folder_of(path) for path in files)}
    return not folders.isdisjoint(history.damaged) or all(path in history.files for path in files)


def _other_content(history: History, row: Snapshot) -> Iterator[str]:
    """Yield the parts of a retained checkpoint that are not current; those of a deleted run need not be."""
    ledger = history.ledger
    if ledger.runs()[row.run].run_id in history.deleted:
        return
    for partition, attempt, _, files in parts_of(history.snapshots.written[row.key]):
        found = ledger.current.get(partition)
        if found is None or not _is_made_of(history, found, attempt, files) or not _is_there(history, found, files):
            now = "nothing" if found is None else found.attempt
            yield f"checkpoint {row.number} of {row.run} has {partition.id} of {attempt}; {now} is current"


def unfinished(history: History) -> Iterator[str]:
    """Yield snapshots that are not finished when all has recovered, or whose content is not current."""
    snapshots, ledger = history.snapshots, history.ledger
    newest = {row.run: row for row in sorted(snapshots.known.values()) if row.is_retained}
    for row in snapshots.known.values():
        if row.status == "pending":
            yield f"checkpoint {row.number} of {row.run} is neither complete nor given up"
        path = checkpoint_path(row.dataflow, row.number)
        if path in history.files and not row.is_retained:
            yield f"{path} is left"
        folder = f"{row.folder.removeprefix(f'{URL}/')}/"
        if row.is_savepoint and not row.is_usable and any(each.startswith(folder) for each in history.files):
            yield f"{row.folder} is left"
        if row.is_retained and newest[row.run] != row:
            yield f"checkpoint {row.number} of {row.run} is retained beside {newest[row.run].number}"
    yield from _automatic(history)
    for row in newest.values():
        yield from _other_content(history, row)
    # A run of which no task has begun is that of a queued DagRun, which is known since a later day had begun.
    begun = (run for run, row in ledger.runs().items() if row.run_id not in history.deleted)
    last = max((run for run in begun if history.epochs.is_pinned(run)), default=None)
    if history.flow.keeps_state and last is not None and last not in newest and not _is_subsumed(history, last):
        yield f"{last} has no checkpoint"


def _automatic(history: History) -> Iterator[str]:
    """Yield automatic savepoints that are too many, or none where enough epochs were closed."""
    flow = history.flow
    there = history.snapshots.automatic(flow.name)
    if flow.savepoint_every is None:
        return
    if len(there) > flow.retained_savepoints:
        yield f"there are the automatic savepoints {[row.number for row in there]}"
    closed = [run for run, row in history.ledger.runs().items() if row.closed_at and dataflow_of(run) == flow.name]
    is_due = len(closed) >= flow.savepoint_every and history.snapshots.completed.issuperset(closed)
    if is_due and not there and not history.damaged:
        yield f"there is no automatic savepoint, and {len(closed)} epochs are closed"


def _is_subsumed(history: History, run: str) -> bool:
    """Report whether a run had a checkpoint, and as many of later epochs are retained, whose DagRuns were deleted."""
    most = history.flow.retained_checkpoints or RetentionSettings().retained_checkpoints
    dataflow, epoch = dataflow_of(run), epoch_of_run(run)
    listed = [row for row in history.snapshots.known.values() if row.is_listed and row.dataflow == dataflow]
    later = [row for row in listed if row.epoch > epoch]
    return run in history.snapshots.completed and len(later) >= most
