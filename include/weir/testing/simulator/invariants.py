"""DESIGN 9's invariants, as functions over what can be seen of a simulation.

Invariant: each function yields what breaks it, as text, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from weir.recovery.run_state import CLOSE
from weir.testing.simulator.engine import Nature, content_of
from weir.testing.simulator.sight import Clear, Failover, Partition, Read, Result
from weir.topology.regions import RegionId

if TYPE_CHECKING:
    from weir.testing.simulator.witness import Witness


def one_attempt_a_try_becomes_current(witness: Witness) -> Iterator[str]:
    """Invariant 2."""
    sight = witness.sight
    for row in sight.new_commits:
        other = witness.committed_tries.setdefault((*row.whose, row.try_number), row.id)
        if other != row.id:
            yield f"{row.id} and {other} are both committed for try {row.try_number} of {row.region}[{row.subtask}]"


def a_fenced_attempt_changes_nothing(witness: Witness) -> Iterator[str]:
    """Invariant 2: only the newest attempt commits, and none that has ended before."""
    sight = witness.sight
    for row in sight.new_commits:
        newer = [
            each.id for each in sight.attempts.values() if each.whose == row.whose and each.try_number > row.try_number
        ]
        if newer:
            yield f"{row.id} has committed though {', '.join(newer)} had begun"
        known = sight.before.get(row.id)
        if known is not None and known.state != "running":
            yield f"{row.id} has committed though it was {known.state}"
    committed = {row.id for row in sight.new_commits}
    for result in sight.new_results:
        if result.attempt not in committed:
            yield f"a result of {result.attempt} is current, which has not committed just now"


def results_of_a_region_are_of_one_attempt(witness: Witness) -> Iterator[str]:
    """Invariant 2."""
    found: dict[tuple[str, RegionId], set[str]] = {}
    for partition, result in witness.sight.current.items():
        region = witness.topology.producer(partition.id)
        found.setdefault((partition.run, region), set()).add(result.attempt)
    for (_, region), attempts in found.items():
        if len(attempts) > 1:
            yield f"the current results of {region} are those of {', '.join(sorted(attempts))}"


def a_commit_was_made_from_what_is_current(witness: Witness) -> Iterator[str]:
    """Invariant 3."""
    sight = witness.sight
    for row in sight.new_commits:
        for read in sight.reads[row.id]:
            found = sight.current.get(read.partition)
            if found is None or found.digest != read.digest or found.state == "quarantined":
                yield f"{row.id} of {row.region} has committed, but read {_short(read)} and {_shown(found)} is current"


def nobody_reads_what_is_not_finished_and_valid(witness: Witness) -> Iterator[str]:
    """Invariant 3: what a begin claims to read is so at that instant."""
    sight = witness.sight
    for lease in sight.new_leases:
        result = sight.results[lease.result]
        if not result.is_current or not sight.is_good(result.partition):
            valid = "valid" if sight.is_valid(result.partition) else "not valid"
            yield f"{lease.holder} reads {_shown(result)}, which is {result.state}, {valid}"


def a_valid_result_is_what_its_inputs_give(witness: Witness) -> Iterator[str]:
    """Invariants 1 and 3: computed again from what is current now, it is the same."""
    sight = witness.sight
    if not sight.results_changed:
        return
    for partition, result in sight.current.items():
        if sight.is_valid(partition):
            expected = _again(witness, partition, result)
            found = witness.engine.made[result.attempt].contents[result.stage]
            if found != expected:
                yield f"{_shown(result)} is valid, but its present inputs do not give it"


def _again(witness: Witness, partition: Partition, result: Result) -> str:
    made, topology = witness.engine.made[result.attempt], witness.topology
    region = topology.producer(partition.id)
    contents: dict[str, str] = {}
    for stage in topology.stages_of(region.name):
        read = [contents[each.stage] for each in stage.exchanges.values() if each.stage in contents]
        for each in topology.inputs(region):
            if each.stage == stage.name:
                read += [_content(witness, Partition(partition.run, one)) for one in each.partitions]
        nature = witness.engine.natures.get(stage.name, Nature.FINE)
        own = made.own[stage.name]
        contents[stage.name] = content_of(stage.name, region.subtask, nature, own, read) if stage.function else read[0]
    return contents[result.stage]


def _content(witness: Witness, partition: Partition) -> str:
    current = witness.sight.current[partition]
    return witness.engine.made[current.attempt].contents[current.stage]


def a_clear_has_a_cause(witness: Witness) -> Iterator[str]:
    """Invariant 5: what need not run again is not cleared."""
    for clear in witness.sight.new_clears:
        if clear.failover is None and not _reads_something_else(witness, clear):
            yield f"{clear.region}[{clear.subtask}] is to be cleared after try {clear.expected_try}: {clear.reason}"


def _reads_something_else(witness: Witness, clear: Clear) -> bool:
    sight = witness.sight
    run, region = clear.whose
    committed = sight.committed(run, region)
    if committed is None:
        return False
    reads = sight.reads[committed.id]
    if region == CLOSE:
        return any(_differs(witness, read) or _was_lost(witness, read) for read in reads)
    return any(_differs(witness, read) for read in reads)


def _differs(witness: Witness, read: Read) -> bool:
    found = witness.sight.current.get(read.partition)
    return found is None or found.digest != read.digest


def _was_lost(witness: Witness, read: Read) -> bool:
    """Whether the very files that were published are gone."""
    found = witness.sight.current.get(read.partition)
    return found is not None and found.attempt != read.attempt


def a_plan_names_what_must_run_again(witness: Witness) -> Iterator[str]:
    """Invariant 5."""
    for failover in witness.sight.new_failovers:
        kinds = {step["region"]: step["kind"] for step in failover.steps()}
        required = _required(witness, failover, kinds)
        for region in required:
            is_known = kinds.get(str(region)) in (RERUN, JOINED)
            if not is_known and not witness.sight.is_at_work(failover.run, region):
                yield f"{region} must run again, but the plan of failover {failover.id} says {kinds.get(str(region))}"
            joins = kinds.get(str(region)) == JOINED
            if joins and not witness.sight.is_at_work(failover.run, region):
                yield f"failover {failover.id} joins the repair of {region}, where nobody is at work"
        allowed = {str(region) for region in required}
        for name, kind in kinds.items():
            if kind == RERUN and name not in allowed:
                yield f"the plan of failover {failover.id} re-runs {name}, which need not"


def what_is_spared_is_not_cleared(witness: Witness) -> Iterator[str]:
    """Invariant 5: a failover clears what its plan says will re-run, all of it, and nothing else."""
    sight = witness.sight
    for failover in sight.new_failovers:
        wanted = {step["region"] for step in failover.steps() if step["kind"] == RERUN}
        owed = {f"{row.region}[{row.subtask}]" for row in sight.owed() if row.run == failover.run}
        own = {f"{row.region}[{row.subtask}]" for row in sight.new_clears if row.failover == failover.id}
        if not own <= wanted or not wanted <= owed:
            yield f"failover {failover.id} is to re-run {sorted(wanted)}, and owes the clears of {sorted(owed)}"


RERUN: Final = "will re-run"
JOINED: Final = "is under repair already"


def _required(witness: Witness, failover: Failover, kinds: dict[str, str]) -> list[RegionId]:
    """The producers of what is not there or not valid, and theirs; a region at work finds out itself."""
    sight, topology = witness.sight, witness.topology
    failed = RegionId(failover.region, failover.subtask)
    found: list[RegionId] = []
    open_regions = [failed]
    while open_regions:
        region = open_regions.pop()
        if region != failed and kinds.get(str(region)) == JOINED:
            continue
        for partition in witness.inputs_of(region):
            producer = topology.producer(partition)
            if not sight.is_good(Partition(failover.run, partition)) and producer not in found:
                found.append(producer)
                open_regions.append(producer)
    return found


def _short(read: Read) -> str:
    return f"{read.partition.id} of {read.attempt} ({read.digest})"


def _shown(result: Result | None) -> str:
    return "nothing" if result is None else f"{result.partition.id} of {result.attempt} ({result.digest})"


AFTER_EACH_TRANSACTION: Final[tuple[Callable[[Witness], Iterator[str]], ...]] = (
    one_attempt_a_try_becomes_current,
    a_fenced_attempt_changes_nothing,
    results_of_a_region_are_of_one_attempt,
    a_commit_was_made_from_what_is_current,
    nobody_reads_what_is_not_finished_and_valid,
    a_valid_result_is_what_its_inputs_give,
    a_clear_has_a_cause,
    a_plan_names_what_must_run_again,
    what_is_spared_is_not_cleared,
)
