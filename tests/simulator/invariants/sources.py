"""The invariants of sources: all that is valid together of one is of one listing.

Invariant: what an attempt has read is known from the engine, which files there were from the world; the ledger's tables
say only what a run is recorded to have resolved.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulator.history.history import History
from tests.simulator.listings import divided

from weir.formats.codec import from_json
from weir.formats.manifest import COPY_NAME, StageCopy
from weir.formats.paths import SOURCE_COPY, result_folder
from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.ledger.sources import COPY_ID


def a_source_is_recorded_as_it_once_was(history: History) -> Iterator[str]:
    """Invariant 1: what the subtasks of a source are to read is one listing, whole and divided among all of them."""
    for (run, source), splits in history.ledger.splits.items():
        if source in history.listings.sources and source not in history.listings.going:
            parallelism = history.topology_of(run).dataflow.stage(source).parallelism
            if not any(divided(files, parallelism) == splits for files in history.listings.ever(source)):
                yield f"{source} of {run} is to read {splits}, which it never had at once"


def results_of_a_source_are_of_one_listing(history: History) -> Iterator[str]:
    """Invariant 1: each valid result was made from the splits that its run is recorded to have resolved."""
    ledger = history.ledger
    for partition, result in ledger.current.items() if history.listings.sources else ():
        if ledger.attempts[result.attempt].is_restored or not ledger.is_valid(partition):
            continue
        for source, read in history.engine.made[result.attempt].splits.items():
            recorded = ledger.splits.get((partition.run, source), [])
            subtask = ledger.attempts[result.attempt].subtask
            wanted = recorded[subtask] if subtask < len(recorded) else None
            if read != wanted:
                yield f"{partition.id} of {result.attempt} is valid, and {source} read {read}; recorded is {wanted}"


def ranges_follow_each_other(history: History) -> Iterator[str]:
    """Invariant 14: the epochs of a source that goes on are to read all that has come, each file once."""
    ends: dict[tuple[str, str], int] = {}
    for (run, source), (end, base) in sorted(history.ledger.ends.items()):
        chain = dataflow_of(run), source
        splits = history.ledger.splits.get((run, source), [])  # none of a day that was sealed before it had read
        begin = end - sum(map(len, splits))
        if chain in ends or (base is None and dataflow_of(run) == history.flow.name):
            before = ends.get(chain, 0)
            if begin != before:
                yield f"{source} of {run} is to read from {begin} on, and what was before it ended at {before}"
        ends[chain] = end
        files = history.listings.ever(source)[-1][begin:end]
        if sorted(file for split in splits for file in split) != sorted(files):
            yield f"{source} of {run} is to read {splits}, and {files} are from {begin} to {end}"


def published_epochs_have_each_file_once(history: History) -> Iterator[str]:
    """Invariant 14: what the published epochs have read of a source that goes on; no table of ranges is asked."""
    runs = history.ledger.runs() if history.listings.going else {}
    for partition, result in history.ledger.current.items() if runs else ():
        by = history.ledger.attempts[result.attempt]
        if by.is_restored or not (runs[partition.run].closed_at and history.ledger.is_valid(partition)):
            continue
        for source, split in history.engine.made[result.attempt].splits.items():
            history.read_by[partition.run, source, by.subtask] = tuple(split)
    readers: dict[tuple[str, str, str], str] = {}
    for (run, source, _), files in history.read_by.items():
        for file in files if source in history.listings.going else ():
            other = readers.setdefault((dataflow_of(run), source, file), run)
            if other != run:
                yield f"{file} of {source} was published by {other} and by {run}"


def copied_by(history: History, run: str, source: str, subtask: int) -> str | None:
    """Return the attempt that was first to copy what a source has for a subtask; None where there is no copy."""
    recorded = history.ledger.recorded.get((run, source), [])
    split = recorded[subtask] if subtask < len(recorded) else None
    if not isinstance(split, dict) or COPY_ID not in split:
        return None
    dataflow, epoch = dataflow_of(run), epoch_of_run(run)
    folder = result_folder(dataflow, epoch, source, SOURCE_COPY, subtask, split[COPY_ID])
    data = history.files.get(f"{folder}/{COPY_NAME}")
    return None if data is None else from_json(StageCopy, data).attempt


def a_copied_source_is_read_once(history: History) -> Iterator[str]:
    """Invariant 1: each valid result of a run was made of what the first attempt has copied, which stays."""
    ledger = history.ledger
    for partition, result in ledger.current.items() if history.listings.sources else ():
        is_gone = ledger.runs()[partition.run].run_id in history.deleted
        if is_gone or ledger.attempts[result.attempt].is_restored or not ledger.is_valid(partition):
            continue
        made, subtask = history.engine.made[result.attempt], ledger.attempts[result.attempt].subtask
        for source in made.splits:
            if not history.topology_of(partition.run).dataflow.stage(source).keeps_copy:
                continue
            first = copied_by(history, partition.run, source, subtask)
            if first is None:
                yield f"{partition.id} of {result.attempt} is valid, and what {source} has given is not copied any more"
            elif history.engine.made[first].own[source] != made.own[source]:
                yield f"{partition.id} of {result.attempt} is valid, and {source} gave {first} other rows"
