"""Invariants of results that count without being computed or checked again (invariant 3).

Invariant: whether a result is valid is derived from the tables; whether a person has cleared is what persons did.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulator.history.history import History
from tests.simulator.history.ledger_view import Attempt, Partition, Result


def an_adopted_result_is_valid_and_wanted(history: History) -> Iterator[str]:
    """At the adoption the results are valid and present, and no person has cleared the task since their commit."""
    ledger = history.ledger
    for row in ledger.attempts.values():
        before = ledger.before.get(row.id)
        if row.state != "adopted" or (before is not None and before.state == "adopted"):
            continue
        for partition in (Partition(row.run, each) for each in history.topology_of(row.run).outputs(row.run_region[1])):
            found = ledger.current.get(partition)
            if found is None or found.state != "finished" or not ledger.is_valid_alone(partition):
                yield f"{row.id} of {row.region} adopts {partition.id}, which is not valid, or not there"
            elif _is_cleared_since(history, row, found):
                yield f"{row.id} of {row.region} adopts {partition.id} of {found.attempt}, which a person had cleared"


def _is_cleared_since(history: History, row: Attempt, adopted: Result) -> bool:
    """Report whether a person has cleared the task between the adopted result and the try that adopts it.

    A process of a try that was cleared while it ran may adopt: Airflow does not heed it, and starts another try.
    """
    run_id, since = history.ledger.runs()[row.run].run_id, _newest_try_at(history, adopted.attempt)
    return run_id not in history.recreated and any(
        (key.run_id, key.task_id, key.map_index) == (run_id, row.task_id, row.map_index)
        and since <= at < row.try_number
        for key, at in history.cleared
    )


def _newest_try_at(history: History, attempt: str) -> int:
    """Return the number of an attempt; of a restored one that of the newest try before: it replaces what that gave."""
    ledger, made = history.ledger, history.ledger.attempts[attempt]
    if not made.is_restored:
        return made.try_number
    tries = [row for row in ledger.attempts.values() if row.run_region == made.run_region]
    seen = ledger.first_seen
    return max((row.try_number for row in tries if seen[row.id] < seen[attempt]), default=0)


def a_closed_run_has_read_what_is_current(history: History) -> Iterator[str]:
    """A run counts as closed only while its results have read what is current: later runs do not ask again."""
    ledger = history.ledger
    if not ledger.results_changed:
        return
    closed = {row.id for row in ledger.runs().values() if row.closed_at is not None}
    for partition, result in ledger.current.items():
        for read in ledger.reads.get(result.attempt, ()) if partition.run in closed else ():
            found = ledger.current.get(read.partition)
            if found is not None and found.digest != read.digest:
                yield f"{partition.run} counts as closed, and {partition.id} read {read.digest}, not {found.digest}"
