"""Invariants of pending clears (invariants 3 and 7).

Invariant: whether Airflow followed is worked out here from what the fake Airflow answered, not from the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulator.history.epochs import RunRegion
from tests.simulator.history.history import History
from tests.simulator.history.ledger_view import Attempt, Clear, Partition, Read

from weir.coordination.airflow import ClearAnswer
from weir.dataflow.dataflow import FailoverStrategy
from weir.execution.airflow_words import MISSING
from weir.execution.run_state import CLOSE
from weir.topology.regions import RegionId

ENDED: Final = ("committed", "adopted", "failed")
NOTHING_TO_CLEAR: Final = (MISSING, "removed", "skipped")
BY_WEIR: Final = "cleared by weir"
BY_PERSON: Final = "cleared by a person"
BY_HAND: Final = "by hand"
"""The kind of a failover by a plan that a person has applied."""
AFTER_FAILURE: Final = "failure"
"""The kind of one that a failure without a loss has led to."""
MOST_IN_VAIN: Final = 2
AT_REST: Final = (*NOTHING_TO_CLEAR, "success", "failed", "upstream_failed")


def a_commit_records_the_clears_that_follow_from_it(history: History) -> Iterator[str]:
    """In its own transaction: the clear of each finished consumer that had read something else."""
    ledger = history.ledger
    if history.strategy is FailoverStrategy.INDIVIDUAL:
        return
    for row in ledger.new_commits:
        owed = {each.run_region for each in ledger.pending_clears()}
        for run, consumer in _consumers(history, row):
            read = _read_something_else(history, row, run, consumer)
            if read is not None and (run, consumer) not in owed:
                yield f"{row.id} of {row.region} has committed; {consumer} of {run} read {read.attempt}, not cleared"


def _consumers(history: History, row: Attempt) -> set[RunRegion]:
    """Those of its own run, and those of later ones that may have read it."""
    (run, region), topology = row.run_region, history.topology_of(row.run)
    outputs = () if region == CLOSE else topology.outputs(region)
    found = {(run, consumer) for partition in outputs for consumer in topology.consumers(partition)}
    if any(each.stage in topology.sinks for each in outputs):
        found.add((run, CLOSE))
    if outputs and topology.reads_previous:
        found |= history.begun_later(run)
    return found


def _read_something_else(history: History, row: Attempt, run: str, consumer: RegionId) -> Read | None:
    """The first result of the region of `row` that the consumer read, and that is another one now."""
    ledger = history.ledger
    for read in (each for attempt in made_by(history, run, consumer) for each in ledger.reads.get(attempt, ())):
        found = ledger.current.get(read.partition)
        if found is not None and found.attempt == row.id and history.is_other(read, found):
            return read
    return None


def made_by(history: History, run: str, consumer: RegionId) -> set[str]:
    """Return the attempts that made the current results of a region: two where some of them were restored."""
    if consumer == CLOSE:
        committed = history.ledger.committed(run, CLOSE)
        return set() if committed is None else {committed.id}
    there = (Partition(run, each) for each in history.topology_of(run).outputs(consumer))
    return {history.ledger.current[each].attempt for each in there if each in history.ledger.current}


def nothing_is_cleared_again_and_again_in_vain(history: History) -> Iterator[str]:
    """What has failed for good after Weir's own clears waits for a person, who may have applied a plan.

    A commit may be what it waited for, if something from outside has led to it. In another lineage a person has rebuilt
    the ledger, or restored: what a gate had distrusted is read, and distrusted, again.
    """
    if any(_is_from_outside(history, row) for row in history.ledger.new_commits):
        return
    for clear in history.ledger.new_clears:
        plan = history.ledger.failovers.get(clear.failover or 0)
        if plan is not None and plan.kind == BY_HAND:
            continue
        rows = (row for row in history.ledger.attempts.values() if row.run_region == clear.run_region)
        tries = sorted((row for row in rows if row.try_number > 0), key=lambda row: row.try_number)
        failed = [row.id for row in tries[-MOST_IN_VAIN:] if (row.origin, row.state) == (BY_WEIR, "failed")]
        if len(failed) == MOST_IN_VAIN and len({history.ledger.attempts[each].lineage for each in failed}) == 1:
            yield f"{clear.region}[{clear.subtask}] of {clear.run} is cleared once more, though {failed} have failed"


def _is_from_outside(history: History, row: Attempt) -> bool:
    """Report whether a person has led to a commit, the loss of its files, or a failure that the strategy counts.

    A person's clear may bring back what others wait for: each subtask of an earlier epoch whose released state is
    computed again clears what reads all of them. Files that are gone, and failures that restart all, are as many as
    there are faults, and as the restart strategy of what fails allows.
    """
    ledger, where = history.ledger, row.run_region
    if row.origin == BY_PERSON:
        return True
    before = [
        each for each in ledger.clears.values() if each.run_region == where and each.expected_try < row.try_number
    ]
    if not before:
        return False
    cause = max(before)
    plan = ledger.failovers.get(cause.failover or 0)
    mine = {each.id for each in ledger.attempts.values() if each.run_region == where}
    lost = {each.attempt for each in ledger.results.values() if each.folder in history.damaged}
    tries = {id_ for id_ in mine & lost if ledger.attempts[id_].try_number == cause.expected_try}
    return bool(tries) or (plan is not None and plan.kind == AFTER_FAILURE)


def a_clear_is_settled_when_airflow_has_followed(history: History) -> Iterator[str]:
    """A clear is delivered only after Airflow has cleared, or a later try has begun or will begin."""
    for clear in history.ledger.newly_settled:
        if (
            clear.run in history.ledger.sealed
            or clear.run_id in history.recreated
            or clear.run in history.adopted
            or _is_set_aside(history, clear.run)
        ):
            continue  # the pending clears of the DagRun before, or of the run as it was pinned, are dropped
        if any(row.is_restored and row.run_region == clear.run_region for row in history.ledger.new_commits):
            continue  # it would have recomputed what is restored
        answers = history.answers.get((clear.run_id, clear.task_id, clear.map_index), ())
        if not any(_follows(history, clear, answer) for answer in answers):
            answered = ", ".join(f"{each.state} at try {each.try_number}" for each in answers) or "nothing"
            yield f"the clear of {clear.region}[{clear.subtask}] after try {clear.expected_try} is settled: {answered}"


def _is_set_aside(history: History, run: str) -> bool:
    """Report whether a run has just been taken for one that was created again: Airflow has lost all of its tries."""
    tries = [row.id for row in history.ledger.before.values() if row.run == run and row.try_number > 0]
    return bool(tries) and all(history.ledger.attempts[each].try_number < 1 for each in tries)


def _follows(history: History, clear: Clear, answer: ClearAnswer) -> bool:
    if answer.cleared or answer.state in NOTHING_TO_CLEAR:
        return answer.item.expected_try == clear.expected_try
    tries = [row for row in history.ledger.attempts.values() if row.run_region == clear.run_region]
    if answer.try_number > clear.expected_try:
        return answer.state not in AT_REST or any(row.try_number > clear.expected_try for row in tries)
    if answer.state in AT_REST:
        return False
    return answer.try_number < clear.expected_try or not any(
        row.try_number == clear.expected_try and row.state in ENDED for row in tries
    )
