"""Invariants of recovery plans (invariant 5).

Invariant: the regions that must run again are derived from the ledger's tables, not by the code that plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from tests.simulator.history.epochs import RunRegion
from tests.simulator.history.history import History
from tests.simulator.history.ledger_view import Failover, LedgerView, Partition, place_of
from tests.simulator.invariants.clears import BY_HAND, made_by

from weir.dataflow.dataflow import FailoverStrategy
from weir.execution.run_state import CLOSE
from weir.ledger.runs import dataflow_of
from weir.topology.regions import RegionId

RERUN: Final = "rerun"
JOINED: Final = "joined"
HELD_BACK: Final = "held back"

SCRUB: Final = "scrub"

LOSS: Final = ("loss", HELD_BACK, BY_HAND)
"""The failovers that were requested because a result is missing."""


def a_plan_names_what_must_run_again(history: History) -> Iterator[str]:
    """All that must run again is in the plan, or running; nothing else is to run again."""
    ledger = history.ledger
    for failover in ledger.new_failovers:
        kinds = {_where(step): step["kind"] for step in failover.steps()}
        missed = _missed(history, failover, kinds) if failover.kind in LOSS else {}
        missed |= dict.fromkeys(_outdated(history, failover) if failover.kind == BY_HAND else ())
        rerun = {where for where, kind in kinds.items() if kind == RERUN}
        # Scrubbing plans for what it has found damaged, though the plan is held back; nothing has asked for all inputs.
        is_asked = failover.region or failover.kind == BY_HAND
        for where in missed if is_asked else ():
            is_named = kinds.get(where) in (RERUN, JOINED) or _is_unknown(history, failover, where)
            if not is_named and not ledger.is_running(*where):
                yield f"{_named(where)} must run again, but the plan of failover {failover.id} says {kinds.get(where)}"
        for where, kind in kinds.items():
            if kind == JOINED and not _is_coming(history, failover, where):
                yield f"failover {failover.id} joins {_named(where)}, which is not running"
        failed = failover.run, RegionId(failover.region, failover.subtask) if failover.region else CLOSE
        allowed = missed.keys() | _following(history, failover, {failed, *rerun}) | _given_up(history, failover)
        # A failed attempt is believed, though the input that it missed may be back, and one that a person has to clear.
        to_come = {each for each, kind in kinds.items() if kind == JOINED and _is_yet_to_come(history, failover, each)}
        allowed |= _lost_to(history, {failed, *rerun, *to_come} if failover.region else rerun)
        allowed |= _away_from(history, rerun) | _found_by_scrubbing(history, failover)
        allowed |= {each for each in rerun if _has_yet_to_read(history, *each)}
        for where in rerun - allowed:
            yield f"the plan of failover {failover.id} re-runs {_named(where)}, which need not"
        yield from _left_out(history, failover, kinds, {failed, *rerun})


def what_is_spared_is_not_cleared(history: History) -> Iterator[str]:
    """A failover clears what its plan says will re-run, all of it, and nothing else; a held back one clears nothing."""
    ledger = history.ledger
    for failover in ledger.new_failovers:
        wanted = {_where(step) for step in failover.steps() if step["kind"] == RERUN}
        owed = {row.run_region for row in ledger.pending_clears()}
        own = {row.run_region for row in ledger.new_clears if row.failover == failover.id}
        is_done = not own if failover.kind == HELD_BACK else own <= wanted <= owed
        if not is_done:
            said, found = ([_named(each) for each in sorted(some)] for some in (wanted, owed))
            yield f"failover {failover.id} is to re-run {said}, and the pending clears are of {found}"


def _where(step: dict[str, Any]) -> RunRegion:
    name, _, rest = step["region"].rpartition("[")
    return step["run"], RegionId(name, int(rest.rstrip("]")))


def _named(where: RunRegion) -> str:
    return f"{where[1]} of {where[0]}"


def _is_coming(history: History, failover: Failover, where: RunRegion) -> bool:
    """Report whether a region runs or will, by the ledger or by what Airflow has told."""
    newest, cleared = history.ledger.newest(*where), history.cleared_in_airflow
    is_cleared = where in cleared and cleared[where] == (newest and newest.id)
    return history.ledger.is_running(*where) or is_cleared or _is_yet_to_come(history, failover, where)


def _is_yet_to_come(history: History, failover: Failover, where: RunRegion) -> bool:
    """Report whether a region has failed for good, so that a person is asked, or has yet to start in an earlier run."""
    has_begun = where in history.ledger.regions()
    return _has_ended_as(history.ledger, *where, "failed") if has_begun else where[0] < failover.run


def _is_unknown(history: History, failover: Failover, where: RunRegion) -> bool:
    """Report whether only an earlier run that has not begun would have a region, which grows with the next deploy."""
    is_of_both = where[1] == CLOSE or where[1] in history.topology_of(failover.run).region_ids()
    return where[0] < failover.run and not is_of_both and not history.epochs.is_pinned(where[0])


def _missed(history: History, failover: Failover, kinds: dict[RunRegion, str]) -> dict[RunRegion, None]:
    """Return the producers of lost and invalid inputs, and theirs; a running region detects its own losses."""
    ledger = history.ledger
    failed = failover.run, RegionId(failover.region, failover.subtask) if failover.region else CLOSE
    found: dict[RunRegion, None] = {}
    # A plan that a person applies re-runs finally failed regions, too: they miss released inputs.
    open_regions = [failed, *_given_up(history, failover)]
    owed = {row.run_region for row in ledger.pending_clears()}  # the plan that is to clear one names what it misses
    while open_regions:
        where = open_regions.pop()
        is_awaited = where in owed or not _is_yet_to_come(history, failover, where)
        if where != failed and kinds.get(where) == JOINED and is_awaited:
            continue
        for partition in _with_siblings(history, history.epochs.inputs_of(where)):
            producer = history.epochs.producer(partition)
            is_good = ledger.is_valid_alone(partition) and (
                ledger.current[partition].state == "finished" or history.is_back(ledger.current[partition])
            )
            if (
                producer in found
                or is_good
                or _has_served(history, where, partition)
                or _is_to_begin(history, failover, partition)
                or _is_suspended(history, failover, partition)
            ):
                continue
            found[producer] = None
            open_regions.append(producer)
    return found


def _outdated(history: History, failover: Failover) -> set[RunRegion]:
    """Return the closing task if it has published other content than its run's results are now."""
    ledger, closing = history.ledger, (failover.run, CLOSE)
    committed = ledger.committed(*closing)
    read = ledger.reads.get(committed.id, ()) if committed is not None else ()
    current = ((each, ledger.current.get(each.partition)) for each in read)
    is_outdated = any(result is not None and result.digest != each.digest for each, result in current)
    return {closing} if is_outdated and _has_ended_as(ledger, *closing, "committed", "failed") else set()


def _with_siblings(history: History, partitions: Iterable[Partition]) -> Iterator[Partition]:
    """Yield partitions, and those of their stages that older code has made."""
    for partition in partitions:
        yield partition
        yield from history.ledger.behind(partition)


def _has_served(history: History, where: RunRegion, partition: Partition) -> bool:
    """Report whether a released result is not missing: the closing task does not read it."""
    sinks, ledger = history.topology_of(partition.run).sinks, history.ledger
    is_done = ledger.is_valid_alone(partition) and ledger.current[partition].state in ("finished", "released")
    return where[1] == CLOSE and partition.id.stage not in sinks and is_done


def _lost_to(history: History, rerun: set[RunRegion]) -> set[RunRegion]:
    """Return the producers of inputs recorded as lost, of the regions that run again."""
    current = history.ledger.current
    return {
        history.epochs.producer(partition)
        for where in rerun
        for partition in history.epochs.inputs_of(where)
        if (found := current.get(partition)) is not None and found.state == "lost"
    }


def _away_from(history: History, rerun: set[RunRegion]) -> set[RunRegion]:
    """Return the producers of inputs that are not there, or not valid, of the regions that run again."""
    return {
        history.epochs.producer(partition)
        for where in rerun
        for partition in history.epochs.inputs_of(where)
        if (where[1] != CLOSE or _is_unfound(history, partition)) and not history.ledger.is_good(partition)
    }


def _is_unfound(history: History, partition: Partition) -> bool:
    """Report whether a rebuild has not found a valid result, or has fenced what made one: a close misses it."""
    ledger, producer = history.ledger, history.epochs.producer(partition)
    was_made = ledger.committed(*producer) is not None or _has_ended_as(ledger, *producer, "fenced")
    return partition not in ledger.current and was_made


def _has_yet_to_read(history: History, run: str, region: RegionId) -> bool:
    """Report whether a region has read fewer subtasks of the run before than that has since it was created again."""
    there, reads = set(history.epochs.previous_inputs((run, region))), history.ledger.reads
    read = {each.partition for attempt in made_by(history, run, region) for each in reads.get(attempt, ())}
    known = {place_of(each) for each in read}
    return any(place_of(each) in known and each not in read for each in there)


def _found_by_scrubbing(history: History, failover: Failover) -> set[RunRegion]:
    """Return the producers of the results of a run that were found damaged or lost, or are not valid.

    Published files that are gone have to be published again, even if they come out equal.
    """
    is_held_back = failover.kind == HELD_BACK and not failover.region  # no task has asked for it
    if failover.kind != SCRUB and not is_held_back:
        return set()
    ledger, sinks = history.ledger, history.topology_of(failover.run).sinks
    there = [each for each in ledger.current if each.run == failover.run]
    lost = [each for each in there if ledger.current[each].state in ("lost", "quarantined")]
    bad = {*lost, *(each for each in there if not ledger.is_valid(each))}
    closing = {(failover.run, CLOSE)} if any(each.id.stage in sinks for each in lost) else set()
    return {history.epochs.producer(each) for each in bad} | closing


def _is_to_begin(history: History, failover: Failover, partition: Partition) -> bool:
    """Report whether a person asks before the producer and its consumers have begun."""
    known, (run, producer) = history.ledger.regions(), history.epochs.producer(partition)
    begun = [producer, *history.topology_of(run).consumers(partition.id), CLOSE]
    is_asked = failover.kind == BY_HAND and run == failover.run
    return is_asked and not any((run, each) in known for each in begun)


def _is_suspended(history: History, failover: Failover, partition: Partition) -> bool:
    """Report whether a result is there, and is valid again if running regions give the same as before."""
    ledger = history.ledger
    result = ledger.current.get(partition)
    if result is None or result.state != "finished" or ledger.is_running(*history.epochs.producer(partition)):
        return False
    return _waits(history, failover, ledger, partition)


def _waits(history: History, failover: Failover, ledger: LedgerView, partition: Partition) -> bool:
    result = ledger.current.get(partition)
    if any(ledger.is_running(*history.epochs.producer(each)) for each in ledger.behind(partition)):
        return True
    for read in () if result is None else ledger.reads.get(result.attempt, ()):
        if not ledger.holds(read):
            producer = history.epochs.producer(read.partition)
            if ledger.is_running(*producer) or _is_yet_to_come(history, failover, producer):
                return True
            if _waits(history, failover, ledger, read.partition):
                return True
    return False


def _following(history: History, failover: Failover, rerun: set[RunRegion]) -> set[RunRegion]:
    """Return the regions that may run again with `rerun`, as the dataflow declares."""
    found = {(failover.run, CLOSE)} if failover.kind in LOSS else set()
    if history.strategy is FailoverStrategy.INDIVIDUAL:
        return found if failover.kind == BY_HAND else set()
    if history.strategy is FailoverStrategy.FULL:
        found |= {where for where in history.begun() if where[0] == failover.run}
    waiting = [where for where in rerun if where[1] != CLOSE]
    while waiting:
        for consumer in _restarting(history, waiting.pop(), failover.run):
            if consumer not in found:
                found.add(consumer)
                waiting += [consumer] if consumer[1] != CLOSE else []
    return found


def _given_up(history: History, failover: Failover) -> set[RunRegion]:
    """Return the finally failed regions: a plan that a person applies re-runs them, too."""
    if failover.kind != BY_HAND:
        return set()
    of_run = {row.run_region for row in history.ledger.attempts.values() if row.run == failover.run}
    return {each for each in of_run if _has_ended_as(history.ledger, *each, "failed")}


def _restarting(history: History, producer: RunRegion, planned: str = "") -> Iterator[RunRegion]:
    """Yield the consumers that always restart with a region, also those of the next epoch that have a result.

    What a rebuild has fenced has begun, too: Airflow may try it again or not. So has what has failed in the run that is
    `planned` for.
    """
    run, region = producer
    topology = history.topology_of(run)
    always = [each for each in topology.outputs(region) if history.restarts_consumers(each.stage)]
    for partition in always:
        yield from ((run, consumer) for consumer in topology.consumers(partition))
        if partition.stage in topology.sinks:
            yield run, CLOSE
    if always and topology.reads_previous:
        mine, previous_inputs = {Partition(run, each) for each in always}, history.epochs.previous_inputs
        for other in history.begun_later(run):
            has_begun = _has_result(history, *other) or _has_ended_as(history.ledger, *other, "fenced")
            has_begun |= other[0] == planned
            if has_begun and not mine.isdisjoint(previous_inputs(other)) and not _is_of_former_epoch(history, *other):
                yield other


def _is_of_former_epoch(history: History, run: str, region: RegionId) -> bool:
    """Report whether a region has read an epoch that is not the one before any more: it runs again for that.

    A rebuild does not even make current what it had made.
    """
    committed = history.ledger.committed(run, region)
    made = made_by(history, run, region) or ({committed.id} if committed is not None else set())
    reads = (each for attempt in made for each in history.ledger.reads.get(attempt, ()))
    others = {each.partition.run for each in reads} - {run, history.ledger.run_before.get(run)}
    return any(dataflow_of(each) == dataflow_of(run) for each in others)


def _has_result(history: History, run: str, region: RegionId) -> bool:
    """Report whether a region has a current result: else what misses it has it computed."""
    outputs = () if region == CLOSE else history.topology_of(run).outputs(region)
    return any(Partition(run, each) in history.ledger.current for each in outputs)


def _is_given(history: History, run: str, region: RegionId) -> bool:
    """Report whether all current results of a region were restored: these have read nothing."""
    outputs = () if region == CLOSE else history.topology_of(run).outputs(region)
    ledger = history.ledger
    made = {ledger.current[each].attempt for each in (Partition(run, one) for one in outputs) if each in ledger.current}
    return bool(made) and all(ledger.attempts[each].is_restored for each in made)


def _has_ended_as(ledger: LedgerView, run: str, region: RegionId, *states: str) -> bool:
    newest = ledger.newest(run, region)
    return newest is not None and newest.state in states


def _left_out(
    history: History, failover: Failover, kinds: dict[RunRegion, str], rerun: set[RunRegion]
) -> Iterator[str]:
    """Yield the regions that always restart and that the plan leaves out; later runs decide for themselves."""
    if history.strategy is FailoverStrategy.INDIVIDUAL:
        return
    ledger = history.ledger
    known = {each for each in rerun if each[0] <= failover.run and each[1] != CLOSE and each[1].name}
    always = {each for where in known for each in _restarting(history, where)}
    if history.strategy is FailoverStrategy.FULL and (rerun or failover.region):
        begun = {each for each in history.begun() if each[0] == failover.run and each[1] != CLOSE}
        # A person clears what has failed for good; what a rebuild has fenced is tried again by Airflow.
        always |= {each for each in begun if not _has_ended_as(ledger, *each, "failed", "fenced")}
    deleted = {run for run, row in ledger.runs().items() if row.run_id in history.deleted}
    for where in (each for each in always - rerun if each[0] not in deleted):
        committed = ledger.committed(*where)
        is_made = committed is not None and not _is_given(history, *where)
        if is_made and kinds.get(where) != JOINED and not ledger.is_running(*where):
            yield f"{_named(where)} always restarts, but the plan of failover {failover.id} says {kinds.get(where)}"
