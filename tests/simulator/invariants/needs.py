"""The needs of consumers and policies for results, by the ledger's tables and the pointers (invariant 4).

Invariant: nothing here asks the code that releases. Needs of consumers and retention policies are distinguished.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tests.simulator.history.history import History
from tests.simulator.history.ledger_view import Attempt, Partition, Result
from tests.simulator.invariants.sources import copied_by

from weir.dataflow.retention import RetentionPolicy
from weir.execution.run_state import CLOSE
from weir.formats.manifest import COPY_NAME, RELEASED_NOTE
from weir.formats.paths import COPY, MANIFEST, SOURCE_COPY, folder_of, manifest_path, name_of
from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.topology.regions import RegionId, Topology
from weir.units import time_from_text


class Compaction(NamedTuple):
    """The attempt that wrote the files of a compaction."""

    attempt: str


HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
USUAL_KEEP: Final = "2 runs"
USUAL_KEEP_FAILED: Final = "14 days"
COMMITTED: Final = ("committed", "adopted")
LIVE: Final = ("running", "waiting")


def no_needed_result_is_released(history: History) -> Iterator[str]:
    """Invariant 4, at the instant of a release; and retention policies are followed."""
    for result in history.ledger.newly_released:
        why = _why_it_stays(history, result, is_reclaiming=history.is_reclaiming)
        if why is not None:
            yield f"{result.partition.id} of {result.attempt} in {result.run} is released: {why}"


def _why_it_stays(history: History, result: Result, *, is_reclaiming: bool) -> str | None:
    if history.is_state(result):
        return _why_state_needed(history, result)
    return why_needed(history, result) or (None if is_reclaiming else why_kept(history, result))


def _why_state_needed(history: History, result: Result) -> str | None:
    """Return which run or snapshot still needs a result of keyed state; no policy applies to it."""
    is_unpinned = history.ledger.attempts[result.attempt].is_restored and not history.restores.is_pinned(result.run)
    reader = None if is_unpinned else reader_of(history, result)  # files stay for readers of what was restored
    is_open = history.ledger.runs()[result.run].closed_at is None
    is_given_up = is_open and _is_given_up(history, result.run)
    kept = reader or history.snapshots.why_needed(result)
    kept = kept or (None if is_given_up else history.restores.why_kept(result))
    if kept is not None or not result.is_current or history.restores.began_with(result.run):
        return kept
    following = _who_goes_on_from(history, result)
    if following is not None:
        return following
    epoch, dataflow = epoch_of_run(result.run), dataflow_of(result.run)
    if is_given_up and any(_made_later(history, result)):
        return None
    if not any(each.epoch > epoch and each.dataflow == dataflow for each in history.snapshots.retained()):
        return "no later epoch has a checkpoint"
    return None


def _who_goes_on_from(history: History, result: Result) -> str | None:
    """Return the next epoch's run that has not read a state, or of which a task is to read it again."""
    runs = history.ledger.runs()
    for run in runs:
        is_next = runs[run].run_id not in history.deleted and history.epochs.previous_of(run) == result.run
        if is_next and not (_has_read(history, run) or _is_given_up(history, run) or _comes_too_late(history, run)):
            return f"{run} reads its state, and is not closed, or has a task that is to run again"
    return None


def _comes_too_late(history: History, run: str) -> bool:
    """Report whether a later epoch has gone on from an earlier state: a run in between is refused at its begin."""
    made, runs = {each.run for each in history.ledger.current}, history.ledger.runs()
    there = (each for each in made if runs[each].run_id not in history.deleted)
    later = (each for each in there if each > run and dataflow_of(each) == dataflow_of(run))
    before = {history.epochs.previous_of(each) for each in later}
    return any(each is not None and each < run for each in before)


def left_over(history: History, *, is_reclaiming: bool) -> Iterator[str]:
    """Yield the results that are not released though no consumer needs them and no policy keeps them."""
    for result in history.ledger.results.values():
        if history.ledger.runs()[result.run].run_id in history.deleted:
            continue  # that is noted later, and then forgotten after a day
        of = f"{result.partition.id} of {result.attempt} in {result.run}"
        why = _why_it_stays(history, result, is_reclaiming=is_reclaiming) or _why_state_stays(history, result)
        why = why or _which_deleted_run_reads_it(history, result)
        if result.state == "finished" and why is None:
            yield f"{of} is not released"
        # Damage may have been undone.
        path = f"{result.folder}/part-0.bin"
        is_there = path in history.files and result.folder not in history.damaged
        if result.state == "released" and is_there and not history.is_state(result):  # later epochs may name its files
            yield f"{of} is released, and its bytes are there"


def _why_state_stays(history: History, result: Result) -> str | None:
    """Return why a state is not released yet, though no run or snapshot needs it."""
    if not history.is_state(result):
        return None
    # One of equal content that came after the checkpoint counts as named by it.
    if any(each.files.keys() >= {*history.files_of(result)} for each in history.snapshots.retained()):
        return "a retained checkpoint has its files"
    if not result.is_current:
        return None
    if any(each.run == result.run for each in history.snapshots.retained()):
        return "its run has a retained checkpoint"
    if (following := _who_goes_on_from(history, result)) is not None:
        return following
    if history.restores.is_pinned(result.run):
        return "its run was restored"
    return None if history.ledger.runs()[result.run].closed_at else "its run is not closed"


def _which_deleted_run_reads_it(history: History, result: Result) -> str | None:
    """Return the next epoch's run whose DagRun was deleted: it counts until the ledger has known that for a day."""
    topology, runs = history.epochs.newest, history.ledger.runs()
    if not topology.reads_previous or result.stage not in _read_over_previous(topology):
        return None
    deleted = (run for run, row in runs.items() if row.run_id in history.deleted and not is_gone(history, run))
    return next((run for run in deleted if history.epochs.previous_of(run) == result.run), None)


def unknown_files(history: History) -> Iterator[str]:
    """Yield data files of no result that is there or may come back, and of no compaction.

    Files of deleted DagRuns go a day after that was noted, and those of a fork that was never begun when it is.
    """
    results = history.ledger.results.values()
    runs = history.ledger.runs()
    begun, deleted = set(map(dataflow_of, runs)), {run for run in runs if runs[run].run_id in history.deleted}
    there = {each.folder for each in results if each.state in ("finished", "lost") or history.is_state(each)}
    compactions = {row.attempt for row in history.ledger.rows(Compaction, "compaction")}
    for path in history.files:
        folder, _, name = path.rpartition("/")
        dataflow, _, rest = path.partition("/")
        is_known = folder in there or not compactions.isdisjoint(folder.split("/"))
        is_known |= dataflow not in begun or f"{dataflow}@{rest.partition('/')[0]}" in deleted
        is_known |= is_copied(history, folder) or _may_be_resumed(history, folder)
        if name.startswith("part-") and not is_known and is_in_use(history, path) is None:
            yield f"{path} is left"


def is_copied(history: History, folder: str) -> bool:
    """Report whether a folder has the files of the copy of a source that its run reads."""
    if f"/{SOURCE_COPY}/" not in folder:
        return False
    _, _, source, _, subtask, *_, attempt = folder.split("/")
    return copied_by(history, _run_of(folder), source, int(subtask)) == attempt


def _may_be_resumed(history: History, folder: str) -> bool:
    """Report whether a retry may resume from a copy: the newest of a run that is not over, or one of a running task."""
    above, _, id_ = folder.rpartition("/")
    made, run = history.ledger.attempts.get(id_), _run_of(folder)
    if made is None or f"/{COPY}/" not in folder or f"{folder}/{COPY_NAME}" not in history.files:
        return False
    of_task = (each for each in history.ledger.attempts.values() if each.run_region == made.run_region)
    if any(each.state in LIVE and not _is_silent(history, each) for each in of_task):
        return True
    whole = (folder_of(path) for path in history.files if path.startswith(f"{above}/") and name_of(path) == COPY_NAME)
    known = [found for each in whole if (found := history.ledger.attempts.get(name_of(each)))]
    is_newest = made.try_number == max(each.try_number for each in known)
    return is_newest and not _is_over(history, run) and not _is_given_up(history, run)


def _run_of(folder: str) -> str:
    return "@".join(folder.split("/")[:2])


def is_in_use(history: History, path: str) -> str | None:
    """Return why a file must not be deleted now."""
    folder, _, name = path.rpartition("/")
    attempt = history.ledger.attempts.get(name_of(folder))
    if attempt is not None and attempt.state in LIVE and not _is_silent(history, attempt):
        return f"{attempt.id} is running"
    if is_copied(history, folder) and not is_gone(history, _run_of(folder)):
        return "a source has given it"
    if history.published.holds(folder) or history.published.may_be_read(path, history.latest()):
        return "it is published"
    why = history.snapshots.why_kept(path, history.flow.retained_savepoints) or _whose_state(history, path)
    if why is not None:
        return why
    for result in history.ledger.results.values():
        if result.folder != folder:
            continue
        # A state without its manifest is lost, and recomputed to other files.
        is_lost = history.is_state(result) and manifest_path(folder) not in history.files
        is_expired = result.state == "released" and is_gone(history, result.run)
        is_data_of_none = (result.state == "released" or is_lost) and name not in (MANIFEST, RELEASED_NOTE)
        if not is_data_of_none and not is_expired and result.state != "superseded":
            return f"its result is {result.state}"
        reader = reader_of(history, result)
        if reader is not None:
            return f"{reader} reads it"
    return None


def _whose_state(history: History, path: str) -> str | None:
    """Return the result of keyed state, there or read, that a file belongs to."""
    for result in history.ledger.results.values():
        files = history.files_of(result)
        if path not in files or folder_of(path) == result.folder:
            continue
        # Without its manifest it is lost, and recomputed to other files.
        if result.state not in ("released", "superseded") and manifest_path(result.folder) in history.files:
            return f"{result.partition.id} of {result.attempt} in {result.run} has it"
        reader = reader_of(history, result)
        if reader is not None:
            return f"{reader} reads it, as a file of {result.attempt}"
    return None


def why_needed(history: History, result: Result) -> str | None:
    """Return what needs a result now."""
    reader = reader_of(history, result)
    if reader is not None:
        return f"{reader} reads it"
    if history.published.holds(result.folder):
        return "it is published"
    if not result.is_current:
        return None
    if history.published.has_equal(result.stage, result.run, result.subtask, result.digest):
        return "its equal is published"
    # A restore pins states. A plain result is read by the next epoch alone, which may have been closed before a restore
    # that has replaced nothing.
    kept = history.snapshots.why_needed(result) or _who_reads_it_later(history, result)
    return kept or _who_reads_it(history, result)


def _who_reads_it(history: History, result: Result) -> str | None:
    """Return which consumer of the same run may still read a result."""
    if _is_over(history, result.run) or _is_given_up(history, result.run):
        return None
    consumers = history.topology_of(result.run).consumers(result.partition.id)
    waiting = next((each for each in consumers if _may_need(history, result, each)), None)
    if waiting is not None:
        return f"{waiting} may still read it"
    return None if consumers else "its run is not over"


def _who_reads_it_later(history: History, result: Result) -> str | None:
    """Return which later epoch reads a result over `previous`, or will."""
    topology, runs = history.epochs.newest, history.ledger.runs()
    if not topology.reads_previous or result.stage not in _read_over_previous(topology):
        return None
    of, epoch = dataflow_of(result.run), epoch_of_run(result.run)
    later = [run for run in runs if dataflow_of(run) == of and epoch_of_run(run) > epoch]
    there = [run for run in later if runs[run].run_id not in history.deleted and not _comes_too_late(history, run)]
    readers = [run for run in there if history.epochs.previous_of(run) == result.run]
    waiting = [run for run in readers if not _has_read(history, run) and not _is_given_up(history, run)]
    if waiting:
        return f"{waiting[0]} reads it"
    return None if any(_made_later(history, result)) else "the next epoch reads it"


def _made_later(history: History, result: Result) -> Iterator[bool]:
    """Yield whether each later run has a result of a stage, or has had one and released it."""
    of, epoch = dataflow_of(result.run), epoch_of_run(result.run)
    for at, each in history.ledger.current.items():
        if each.stage == result.stage and dataflow_of(at.run) == of and epoch_of_run(at.run) > epoch:
            yield each.state in ("finished", "released")


def _read_over_previous(topology: Topology) -> set[str]:
    return {read.producer for region in topology.region_ids() for read in topology.previous_inputs(region)}


def reader_of(history: History, result: Result) -> str | None:
    """Return the holder of a read lease on a result."""
    return next(history.readers_of((result.id,)), None)


def why_kept(history: History, result: Result) -> str | None:
    """Return the policy that keeps a current result which no consumer needs; of a closed run also if it is given up."""
    closed_at, is_given_up = history.ledger.runs()[result.run].closed_at, _is_given_up(history, result.run)
    is_unkept = is_given_up and (closed_at is None or is_gone(history, result.run))
    if not result.is_current or is_unkept:
        return None
    keep, runs = RetentionPolicy.from_text(history.flow.keep or USUAL_KEEP), history.ledger.runs()
    if str(keep) == "on_consumed":
        return None
    if closed_at is None or not (is_given_up or _is_over(history, result.run)):
        return "its run is not over"
    of, epoch = dataflow_of(result.run), epoch_of_run(result.run)
    later = [run for run in runs if dataflow_of(run) == of and epoch_of_run(run) > epoch and runs[run].closed_at]
    if len(later) < keep.runs:
        return f"{keep} of later epochs are not closed"
    if keep.time and closed_at > as_text(history.latest() - keep.time):
        return f"{keep} have not gone by"
    return None


def _may_need(history: History, result: Result, consumer: RegionId) -> bool:
    """Report whether a consumer is running, has to run, or was made from another input."""
    ledger, run = history.ledger, result.run
    newest = ledger.newest(run, consumer)
    if newest is None or newest.state not in COMMITTED or ledger.is_running(run, consumer):
        return True
    outputs = [Partition(run, each) for each in history.topology_of(run).outputs(consumer)]
    if not all(ledger.is_done(each) for each in outputs):
        return True
    made_by = {ledger.current[each].attempt for each in outputs}
    read = {(each.partition, each.attempt) for attempt in made_by for each in ledger.reads.get(attempt, ())}
    return (result.partition, result.attempt) not in read


def _has_read(history: History, run: str) -> bool:
    """Report whether a run was closed, and none of its regions is to run again."""
    ledger, regions = history.ledger, history.topology_of(run).region_ids()
    is_open = any(ledger.is_running(run, each) or _has_failed(ledger.newest(run, each)) for each in regions)
    return ledger.runs()[run].closed_at is not None and not is_open


def _is_over(history: History, run: str) -> bool:
    """Report whether nothing is running, and the closing task has read all that is current or an hour has passed."""
    ledger = history.ledger
    closing = ledger.committed(run, CLOSE)
    is_closing = ledger.is_running(run, CLOSE) or _has_failed(ledger.newest(run, CLOSE))
    if closing is None or is_closing or not _has_read(history, run):
        return False
    current = [result.attempt for partition, result in ledger.current.items() if partition.run == run]
    made = [each for each in current if not ledger.attempts[each].is_restored]
    if all(ledger.committed_in[each] <= ledger.committed_in[closing.id] for each in made):
        return True
    is_whole = all(ledger.is_done(partition) for partition in ledger.current if partition.run == run)
    return is_whole and ledger.last_event(run) <= as_text(history.latest() - HOUR)


def _has_failed(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.state == "failed"


def _is_given_up(history: History, run: str) -> bool:
    if is_gone(history, run):
        return True
    limit = _keep_failed(history)
    is_long_ago = limit is not None and history.ledger.last_event(run) <= as_text(history.latest() - limit)
    return is_long_ago and not _is_over(history, run)


def is_gone(history: History, run: str) -> bool:
    """Report whether the DagRun was deleted, and the ledger has known that for a day."""
    row = history.ledger.runs()[run]
    noted = row.deleted_at if row.run_id in history.deleted else None
    return noted is not None and noted <= as_text(history.latest() - DAY)


def _is_silent(history: History, attempt: Attempt) -> bool:
    """Report whether an attempt began longer ago than failed runs are kept, and reads nothing."""
    limit = _keep_failed(history)
    is_reading = attempt.id in history.readers_of(history.ledger.results)
    return limit is not None and attempt.began_at <= as_text(history.latest() - limit) and not is_reading


def _keep_failed(history: History) -> timedelta | None:
    return time_from_text("keep_failed", history.flow.keep_failed or USUAL_KEEP_FAILED)


def as_text(at: datetime) -> str:
    """Return a time as the ledger's tables hold it."""
    return f"{at:%Y-%m-%d %H:%M:%S.%f}"
