"""What must hold of recovery plans (DESIGN 9, invariant 5).

Invariant: what must run again is worked out here from the ledger's tables, not by the code that plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow.dataflow import FailoverStrategy
from weir.execution.run_state import CLOSE
from weir.testing.simulator.invariants.epochs import Where
from weir.testing.simulator.invariants.gates import is_refused
from weir.testing.simulator.invariants.sight import Failover, Partition, Sight
from weir.topology.regions import RegionId

if TYPE_CHECKING:
    from weir.testing.simulator.witness import Witness


RERUN: Final = "rerun"
JOINED: Final = "joined"
HELD_BACK: Final = "held back"
BY_HAND: Final = "by hand"

LOSS: Final = ("loss", HELD_BACK, BY_HAND)
"""The failovers that were asked for because something is not there."""


def a_plan_names_what_must_run_again(witness: Witness) -> Iterator[str]:
    """All that must run again is in the plan, or at work; nothing else is to run again."""
    sight = witness.sight
    for failover in sight.new_failovers:
        kinds = {_where(step): step["kind"] for step in failover.steps()}
        missed = _missed(witness, failover, kinds) if failover.kind in LOSS else {}
        rerun = {where for where, kind in kinds.items() if kind == RERUN}
        for where in missed:
            if kinds.get(where) not in (RERUN, JOINED) and not sight.is_at_work(*where):
                yield f"{_told(where)} must run again, but the plan of failover {failover.id} says {kinds.get(where)}"
        for where, kind in kinds.items():
            if kind == JOINED and not sight.is_at_work(*where) and not _is_yet_to_come(witness, failover, where):
                yield f"failover {failover.id} joins the work of {_told(where)}, where nobody is at work"
        failed = failover.run, RegionId(failover.region, failover.subtask)
        allowed = missed.keys() | _following(witness, failover, {failed, *rerun}) | _given_up(witness, failover)
        # What has failed is believed, though what it missed may be back by now.
        allowed |= _lost_to(witness, {failed, *rerun} if failover.region else rerun)
        for where in rerun - allowed:
            yield f"the plan of failover {failover.id} re-runs {_told(where)}, which need not"
        yield from _left_out(witness, failover, kinds, {failed, *rerun})


def what_is_spared_is_not_cleared(witness: Witness) -> Iterator[str]:
    """A failover clears what its plan says will re-run, all of it, and nothing else; a held back one clears nothing."""
    sight = witness.sight
    for failover in sight.new_failovers:
        wanted = {_where(step) for step in failover.steps() if step["kind"] == RERUN}
        owed = {row.whose for row in sight.owed()}
        own = {row.whose for row in sight.new_clears if row.failover == failover.id}
        is_done = not own if failover.kind == HELD_BACK else own <= wanted <= owed
        if not is_done:
            said, found = ([_told(each) for each in sorted(some)] for some in (wanted, owed))
            yield f"failover {failover.id} is to re-run {said}, and owes the clears of {found}"


def _where(step: dict[str, Any]) -> Where:
    name, _, rest = step["region"].rpartition("[")
    return step["run"], RegionId(name, int(rest.rstrip("]")))


def _told(where: Where) -> str:
    return f"{where[1]} of {where[0]}"


def _is_yet_to_come(witness: Witness, failover: Failover, where: Where) -> bool:
    """Whether a region is one of an earlier run, that Airflow has yet to start, or whose rows a gate has refused."""
    is_to_come = where not in witness.sight.regions() or is_refused(witness, where)
    return where[0] < failover.run and is_to_come


def _missed(witness: Witness, failover: Failover, kinds: dict[Where, str]) -> dict[Where, None]:
    """The producers of what is not there or not valid, and theirs; a region at work finds out itself."""
    sight = witness.sight
    failed = failover.run, RegionId(failover.region, failover.subtask) if failover.region else CLOSE
    found: dict[Where, None] = {}
    # What a person carries out runs again what has failed for good, too: that misses what was released.
    open_regions = [failed, *_given_up(witness, failover)]
    while open_regions:
        where = open_regions.pop()
        if where != failed and kinds.get(where) == JOINED and not _is_yet_to_come(witness, failover, where):
            continue
        for partition in witness.epochs.inputs_of(where):
            producer = witness.epochs.producer(partition)
            is_good = sight.is_good(partition) or (
                sight.is_valid(partition) and witness.is_back(sight.current[partition])
            )
            if (
                producer in found
                or is_good
                or _has_served(witness, where, partition)
                or _is_to_begin(witness, failover, partition)
                or _is_suspended(witness, partition)
            ):
                continue
            found[producer] = None
            open_regions.append(producer)
    return found


def _has_served(witness: Witness, where: Where, partition: Partition) -> bool:
    """To the closing task, and to the run as a whole, what was released is not missing."""
    sinks = witness.topology_of(partition.run).sinks
    return where[1] == CLOSE and partition.id.stage not in sinks and witness.sight.is_done(partition)


def _lost_to(witness: Witness, rerun: set[Where]) -> set[Where]:
    """The producers of what is recorded as lost and what a region reads that runs again."""
    current = witness.sight.current
    return {
        witness.epochs.producer(partition)
        for where in rerun
        for partition in witness.epochs.inputs_of(where)
        if (found := current.get(partition)) is not None and found.state == "lost"
    }


def _is_to_begin(witness: Witness, failover: Failover, partition: Partition) -> bool:
    """Whether a person asks before the producer has begun, and none of its readers has begun without it."""
    known, (run, producer) = witness.sight.regions(), witness.epochs.producer(partition)
    begun = [producer, *witness.topology_of(run).consumers(partition.id), CLOSE]
    is_asked = failover.kind == BY_HAND and run == failover.run
    return is_asked and not any((run, each) in known for each in begun)


def _is_suspended(witness: Witness, partition: Partition) -> bool:
    """Whether a result is there, and is right again if what is at work comes out as it was."""
    sight = witness.sight
    result = sight.current.get(partition)
    if result is None or result.state != "finished" or sight.is_at_work(*witness.epochs.producer(partition)):
        return False
    return _waits(witness, sight, partition)


def _waits(witness: Witness, sight: Sight, partition: Partition) -> bool:
    result = sight.current.get(partition)
    for read in () if result is None else sight.reads.get(result.attempt, ()):
        if not sight.holds(read):
            producer = witness.epochs.producer(read.partition)
            if sight.is_at_work(*producer) or _waits(witness, sight, read.partition):
                return True
    return False


def _following(witness: Witness, failover: Failover, rerun: set[Where]) -> set[Where]:
    """What may run again with `rerun`, by what the dataflow says."""
    if witness.strategy is FailoverStrategy.INDIVIDUAL:
        return set()
    found = {(failover.run, CLOSE)} if failover.kind in LOSS else set()
    if witness.strategy is FailoverStrategy.FULL:
        found |= {where for where in witness.sight.regions() if where[0] == failover.run}
    waiting = [where for where in rerun if where[1] != CLOSE]
    while waiting:
        for consumer in _restarting(witness, waiting.pop()):
            if consumer not in found:
                found.add(consumer)
                waiting += [consumer] if consumer[1] != CLOSE else []
    return found


def _given_up(witness: Witness, failover: Failover) -> set[Where]:
    """What a person has carried out runs again what has failed for good, too."""
    if failover.kind != BY_HAND:
        return set()
    rows = witness.sight.attempts.values()
    return {row.whose for row in rows if row.run == failover.run and row.state == "failed"}


def _restarting(witness: Witness, producer: Where) -> Iterator[Where]:
    """The consumers that always restart with a region, also those of the next epoch."""
    run, region = producer
    topology = witness.topology_of(run)
    always = [each for each in topology.outputs(region) if witness.restarts_consumers(each.stage)]
    for partition in always:
        yield from ((run, consumer) for consumer in topology.consumers(partition))
        if partition.stage in topology.sinks:
            yield run, CLOSE
    if always and topology.reads_previous:
        mine = {Partition(run, each) for each in always}
        for other in witness.sight.regions():
            if other[0] > run and not mine.isdisjoint(witness.epochs.previous_inputs(other)):
                yield other


def _left_out(witness: Witness, failover: Failover, kinds: dict[Where, str], rerun: set[Where]) -> Iterator[str]:
    """What always restarts, and the plan does not say so; what follows in later runs is decided there."""
    if witness.strategy is FailoverStrategy.INDIVIDUAL:
        return
    sight = witness.sight
    known = {each for each in rerun if each[0] <= failover.run and each[1] != CLOSE and each[1].name}
    always = {each for where in known for each in _restarting(witness, where)}
    if witness.strategy is FailoverStrategy.FULL and (rerun or failover.region):
        always |= {each for each in sight.regions() if each[0] == failover.run and each[1] != CLOSE}
    for where in always - rerun:
        committed = sight.committed(*where)
        if committed is not None and kinds.get(where) != JOINED and not sight.is_at_work(*where):
            yield f"{_told(where)} always restarts, but the plan of failover {failover.id} says {kinds.get(where)}"
