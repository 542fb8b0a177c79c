"""Who needs a result, worked out from the ledger's tables and the store's pointers (DESIGN 9, invariant 4).

Invariant: nothing here asks the code that releases. What a policy keeps is told apart from what somebody needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from weir.dataflow.retention import RetentionPolicy
from weir.execution.run_state import CLOSE
from weir.formats.manifest import RELEASED_NOTE
from weir.formats.paths import MANIFEST
from weir.formats.pointer import Pointer
from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.testing.simulator.invariants.sight import Attempt, Partition, Result
from weir.topology.regions import RegionId
from weir.units import time_from_text

if TYPE_CHECKING:
    from weir.testing.simulator.witness import Witness


HOUR: Final = timedelta(hours=1)
USUAL_KEEP: Final = "2 runs"
USUAL_KEEP_FAILED: Final = "14 days"
COMMITTED: Final = ("committed", "adopted")


class Publications:
    """What readers of published data may see: each pointer that is there, and since when."""

    def __init__(self) -> None:
        self._there: dict[str, tuple[Pointer, datetime]] = {}

    def add(self, path: str, pointer: Pointer, now: datetime) -> None:
        """A pointer is there."""
        self._there[path] = pointer, now

    def remove(self, path: str) -> None:
        """It is not, any more."""
        self._there.pop(path, None)

    def holds(self, folder: str) -> bool:
        """Whether a pointer names a folder."""
        return any(folder == part.folder for pointer, _ in self._there.values() for part in pointer.partitions)

    def may_be_read(self, path: str, now: datetime) -> bool:
        """Whether a pointer is the newest of its epoch, or was within the last hour."""
        if path not in self._there:
            return False
        mine, _ = self._there[path]
        of_epoch = [each for each in self._there.values() if _of_epoch(each[0]) == _of_epoch(mine)]
        newest, since = max(of_epoch, key=lambda each: each[0].version)
        return newest.version == mine.version or since + HOUR > now


def _of_epoch(pointer: Pointer) -> tuple[str, str, str]:
    return pointer.dataflow, pointer.sink, pointer.epoch


def what_is_released_is_needed_by_nobody(witness: Witness) -> Iterator[str]:
    """Invariant 4, at the instant at which a result is given up; and a policy keeps what it says."""
    for result in witness.sight.newly_released:
        if witness.is_state(result):
            why = _why_state_needed(witness, result)
        else:
            why = why_needed(witness, result) or (None if witness.is_reclaiming else why_kept(witness, result))
        if why is not None:
            yield f"{result.partition.id} of {result.attempt} in {result.run} is released: {why}"


def _why_state_needed(witness: Witness, result: Result) -> str | None:
    """Who goes on from a state: policies say nothing of it, and its files are another matter."""
    kept = reader_of(witness, result) or witness.snapshots.why_needed(result) or witness.restores.why_kept(result)
    if kept is not None or not result.is_current or witness.restores.began_with(result.run):
        return kept
    runs = witness.sight.runs()
    following = [run for run in runs if witness.epochs.previous_of(run) == result.run and runs[run].closed_at is None]
    if following:
        return f"{following[0]} goes on from it, and is not closed"
    epoch, dataflow = epoch_of_run(result.run), dataflow_of(result.run)
    if not any(each.epoch > epoch and each.dataflow == dataflow for each in witness.snapshots.retained()):
        return "no later epoch has a checkpoint"
    return None


def left_over(witness: Witness, *, is_reclaiming: bool) -> Iterator[str]:
    """What is still there though nobody needs it, and no policy keeps it."""
    for result in witness.sight.results.values():
        of = f"{result.partition.id} of {result.attempt} in {result.run}"
        why = why_needed(witness, result) or (None if is_reclaiming else why_kept(witness, result))
        if result.state == "finished" and why is None:
            yield f"{of} is not released"
        # A person may have brought back what was harmed.
        is_there = f"{result.folder}/part-0.bin" in witness.files and result.folder not in witness.harmed
        if result.state == "released" and is_there:
            yield f"{of} is released, and its bytes are there"


def unknown_files(witness: Witness) -> Iterator[str]:
    """Data files that are of no result that is there or may come back."""
    there = {result.folder for result in witness.sight.results.values() if result.state in ("finished", "lost")}
    for path in witness.files:
        folder, _, name = path.rpartition("/")
        if name.startswith("part-") and folder not in there:
            yield f"{path} is left"


def is_in_use(witness: Witness, path: str) -> str | None:
    """Why a file must not be deleted now."""
    folder, _, name = path.rpartition("/")
    attempt = witness.sight.attempts.get(folder.rpartition("/")[2])
    if attempt is not None and attempt.state in ("running", "waiting") and not _is_silent(witness, attempt):
        return f"{attempt.id} is at work"
    if witness.published.holds(folder) or witness.published.may_be_read(path, witness.now()):
        return "it is published"
    why = witness.snapshots.why_kept(path) or _whose_state(witness, path)
    if why is not None:
        return why
    for result in witness.sight.results.values():
        if result.folder != folder:
            continue
        is_data_of_none = result.state == "released" and name not in (MANIFEST, RELEASED_NOTE)
        if not is_data_of_none and result.state != "superseded":
            return f"its result is {result.state}"
        reader = reader_of(witness, result)
        if reader is not None:
            return f"{reader} reads it"
    return None


def _whose_state(witness: Witness, path: str) -> str | None:
    """Which keyed state a file is of, that is there or may come back, or that somebody reads."""
    for result in witness.sight.results.values():
        files = witness.files_of(result)
        if path not in files or path.rpartition("/")[0] == result.folder:
            continue
        if result.state not in ("released", "superseded"):
            return f"{result.partition.id} of {result.attempt} in {result.run} has it"
        reader = reader_of(witness, result)
        if reader is not None:
            return f"{reader} reads it, as a file of {result.attempt}"
    return None


def why_needed(witness: Witness, result: Result) -> str | None:
    """Who needs a result now."""
    reader = reader_of(witness, result)
    if reader is not None:
        return f"{reader} reads it"
    if witness.published.holds(result.folder):
        return "it is published"
    kept = witness.restores.why_kept(result) or witness.snapshots.why_needed(result)
    if kept is not None and result.is_current:
        return kept
    if not result.is_current or _is_over(witness, result.run) or _is_given_up(witness, result.run):
        return None
    consumers = witness.topology_of(result.run).consumers(result.partition.id)
    waiting = next((each for each in consumers if _may_need(witness, result, each)), None)
    if waiting is not None:
        return f"{waiting} has not done with it"
    return None if consumers else "its run is not over"


def reader_of(witness: Witness, result: Result) -> str | None:
    """Who has a claim on a result now."""
    now = told(witness.now())
    claims = (row for row in witness.sight.leases.values() if row.result == result.id and row.expires_at > now)
    return next((row.holder for row in claims), None)


def why_kept(witness: Witness, result: Result) -> str | None:
    """Which policy keeps a current result that nobody needs."""
    if not result.is_current or _is_given_up(witness, result.run):
        return None
    keep, runs = RetentionPolicy.from_text(witness.flow.keep or USUAL_KEEP), witness.sight.runs()
    if str(keep) == "on_consumed":
        return None
    closed_at = runs[result.run].closed_at
    if not _is_over(witness, result.run) or closed_at is None:
        return "its run is not over"
    if keep.runs and sum(1 for row in runs.values() if row.closed_at and row.closed_at > closed_at) < keep.runs:
        return f"{keep} have not been closed"
    if keep.time and closed_at > told(witness.now() - keep.time):
        return f"{keep} have not gone by"
    return None


def _may_need(witness: Witness, result: Result, consumer: RegionId) -> bool:
    """Whether a consumer is at work, has to run, or has been made from something else."""
    sight, run = witness.sight, result.run
    newest = sight.newest(run, consumer)
    if newest is None or newest.state not in COMMITTED or sight.is_at_work(run, consumer):
        return True
    outputs = [Partition(run, each) for each in witness.topology_of(run).outputs(consumer)]
    if not all(sight.is_done(each) for each in outputs):
        return True
    made_by = {sight.current[each].attempt for each in outputs}
    read = {(each.partition, each.attempt) for attempt in made_by for each in sight.reads.get(attempt, ())}
    return (result.partition, result.attempt) not in read


def _is_over(witness: Witness, run: str) -> bool:
    """Whether the closing task has seen all that is current, or nothing else has come of an hour; nobody is at work."""
    sight = witness.sight
    regions = [*witness.topology_of(run).region_ids(), CLOSE]
    closing = sight.committed(run, CLOSE)
    is_open = any(sight.is_at_work(run, each) or _has_failed(sight.newest(run, each)) for each in regions)
    if sight.runs()[run].closed_at is None or closing is None or is_open:
        return False
    current = [result.attempt for partition, result in sight.current.items() if partition.run == run]
    made = [each for each in current if not sight.attempts[each].is_restored]
    if all(sight.committed_in[each] <= sight.committed_in[closing.id] for each in made):
        return True
    is_whole = all(sight.is_done(partition) for partition in sight.current if partition.run == run)
    return is_whole and sight.last_event(run) <= told(witness.now() - HOUR)


def _has_failed(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.state == "failed"


def _is_given_up(witness: Witness, run: str) -> bool:
    limit = _keep_failed(witness)
    is_long_ago = limit is not None and witness.sight.last_event(run) <= told(witness.now() - limit)
    return is_long_ago and not _is_over(witness, run)


def _is_silent(witness: Witness, attempt: Attempt) -> bool:
    """Whether nobody has heard of an attempt for as long as a failed run is kept."""
    limit = _keep_failed(witness)
    now = told(witness.now())
    is_reading = any(row.holder == attempt.id and row.expires_at > now for row in witness.sight.leases.values())
    return limit is not None and attempt.began_at <= told(witness.now() - limit) and not is_reading


def _keep_failed(witness: Witness) -> timedelta | None:
    return time_from_text("keep_failed", witness.flow.keep_failed or USUAL_KEEP_FAILED)


def told(at: datetime) -> str:
    """A time as the ledger's tables hold it."""
    return f"{at:%Y-%m-%d %H:%M:%S.%f}"
