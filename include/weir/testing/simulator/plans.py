"""What must hold of recovery plans (DESIGN 9, invariant 5).

Invariant: what must run again is worked out here from the ledger's tables, not by the code that plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from weir.dataflow.failover import FailoverStrategy
from weir.recovery.run_state import CLOSE
from weir.testing.simulator.sight import Failover, Partition, Sight
from weir.topology.regions import PartitionId, RegionId

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
    for failover in witness.sight.new_failovers:
        kinds = {RegionId(*_parsed(step["region"])): step["kind"] for step in failover.steps()}
        missed = _missed(witness, failover, kinds) if failover.kind in LOSS else {}
        rerun = {region for region, kind in kinds.items() if kind == RERUN}
        for region in missed:
            if kinds.get(region) not in (RERUN, JOINED) and not witness.sight.is_at_work(failover.run, region):
                yield f"{region} must run again, but the plan of failover {failover.id} says {kinds.get(region)}"
        for region, kind in kinds.items():
            if kind == JOINED and not witness.sight.is_at_work(failover.run, region):
                yield f"failover {failover.id} joins the work of {region}, where nobody is at work"
        failed = RegionId(failover.region, failover.subtask)
        allowed = missed.keys() | _following(witness, failover, {failed, *rerun}) | _given_up(witness, failover)
        allowed |= _lost_to(witness, failover, rerun)
        for region in rerun - allowed:
            yield f"the plan of failover {failover.id} re-runs {region}, which need not"
        yield from _left_out(witness, failover, kinds, {failed, *rerun})


def what_is_spared_is_not_cleared(witness: Witness) -> Iterator[str]:
    """A failover clears what its plan says will re-run, all of it, and nothing else; a held back one clears nothing."""
    sight = witness.sight
    for failover in sight.new_failovers:
        wanted = {step["region"] for step in failover.steps() if step["kind"] == RERUN}
        owed = {f"{row.region}[{row.subtask}]" for row in sight.owed() if row.run == failover.run}
        own = {f"{row.region}[{row.subtask}]" for row in sight.new_clears if row.failover == failover.id}
        is_done = not own if failover.kind == HELD_BACK else own <= wanted <= owed
        if not is_done:
            yield f"failover {failover.id} is to re-run {sorted(wanted)}, and owes the clears of {sorted(owed)}"


def _missed(witness: Witness, failover: Failover, kinds: dict[RegionId, str]) -> dict[RegionId, None]:
    """The producers of what is not there or not valid, and theirs; a region at work finds out itself."""
    sight, topology = witness.sight, witness.topology
    failed = RegionId(failover.region, failover.subtask) if failover.region else CLOSE
    found: dict[RegionId, None] = {}
    # What a person carries out runs again what has failed for good, too: that misses what was released.
    open_regions = [failed, *_given_up(witness, failover)]
    while open_regions:
        region = open_regions.pop()
        if region != failed and kinds.get(region) == JOINED:
            continue
        for partition in witness.inputs_of(region):
            producer = topology.producer(partition)
            whole = Partition(failover.run, partition)
            is_good = sight.is_good(whole) or (sight.is_valid(whole) and witness.is_back(sight.current[whole]))
            # To the closing task, and to the run as a whole, what was released is not missing.
            has_served = region == CLOSE and partition.stage not in topology.sinks and sight.is_done(whole)
            if (
                producer in found
                or is_good
                or has_served
                or _is_to_begin(witness, failover, partition)
                or _is_suspended(witness, failover.run, partition)
            ):
                continue
            found[producer] = None
            open_regions.append(producer)
    return found


def _lost_to(witness: Witness, failover: Failover, rerun: set[RegionId]) -> set[RegionId]:
    """The producers of what is gone and what a region reads that runs again."""
    current = witness.sight.current
    return {
        witness.topology.producer(partition)
        for region in rerun
        for partition in witness.inputs_of(region)
        if (found := current.get(Partition(failover.run, partition))) is not None and found.state == "lost"
    }


def _is_to_begin(witness: Witness, failover: Failover, partition: PartitionId) -> bool:
    """Whether a person asks before the producer has begun, and none of its readers has begun without it."""
    known, topology = witness.sight.regions(), witness.topology
    begun = [topology.producer(partition), *topology.consumers(partition), CLOSE]
    return failover.kind == BY_HAND and not any((failover.run, each) in known for each in begun)


def _is_suspended(witness: Witness, run: str, partition: PartitionId) -> bool:
    """Whether a result is there, and is right again if what is at work comes out as it was."""
    sight = witness.sight
    result = sight.current.get(Partition(run, partition))
    if result is None or result.state != "finished" or sight.is_at_work(run, witness.topology.producer(partition)):
        return False
    return _waits(witness, sight, run, partition)


def _waits(witness: Witness, sight: Sight, run: str, partition: PartitionId) -> bool:
    result = sight.current.get(Partition(run, partition))
    for read in () if result is None else sight.reads.get(result.attempt, ()):
        if not sight.holds(read):
            producer = witness.topology.producer(read.partition.id)
            if sight.is_at_work(run, producer) or _waits(witness, sight, run, read.partition.id):
                return True
    return False


def _following(witness: Witness, failover: Failover, rerun: set[RegionId]) -> set[RegionId]:
    """What may run again with `rerun`, by what the dataflow says."""
    if witness.strategy is FailoverStrategy.INDIVIDUAL:
        return set()
    found = {CLOSE} if failover.kind in LOSS else set()
    if witness.strategy is FailoverStrategy.FULL:
        found |= {region for run, region in witness.sight.regions() if run == failover.run}
    waiting = [region for region in rerun if region != CLOSE]
    while waiting:
        for consumer in _restarting(witness, waiting.pop()):
            if consumer not in found:
                found.add(consumer)
                waiting += [consumer] if consumer != CLOSE else []
    return found


def _given_up(witness: Witness, failover: Failover) -> set[RegionId]:
    """What a person has carried out runs again what has failed for good, too."""
    if failover.kind != BY_HAND:
        return set()
    rows = witness.sight.attempts.values()
    return {row.whose[1] for row in rows if row.run == failover.run and row.state == "failed"}


def _restarting(witness: Witness, producer: RegionId) -> Iterator[RegionId]:
    """The consumers that always restart with a region."""
    for partition in witness.topology.outputs(producer):
        if witness.restarts_consumers(partition.stage):
            yield from witness.topology.consumers(partition)
            if partition.stage in witness.topology.sinks:
                yield CLOSE


def _left_out(witness: Witness, failover: Failover, kinds: dict[RegionId, str], rerun: set[RegionId]) -> Iterator[str]:
    """What always restarts, and the plan does not say so."""
    if witness.strategy is FailoverStrategy.INDIVIDUAL:
        return
    sight = witness.sight
    always = {each for region in rerun if region != CLOSE and region.name for each in _restarting(witness, region)}
    if witness.strategy is FailoverStrategy.FULL and (rerun or failover.region):
        always |= {region for run, region in sight.regions() if run == failover.run and region != CLOSE}
    for region in always - rerun:
        committed = sight.committed(failover.run, region)
        if committed is not None and kinds.get(region) != JOINED and not sight.is_at_work(failover.run, region):
            yield f"{region} always restarts, but the plan of failover {failover.id} says {kinds.get(region)}"


def _parsed(text: str) -> tuple[str, int]:
    name, _, rest = text.rpartition("[")
    return name, int(rest.rstrip("]"))
