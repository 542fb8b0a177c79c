"""What must hold where rows are checked: bad ones stay behind the gate, and nobody is distrusted without a cause.

Invariant: whether rows are bad is seen in what was put into them, not in what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from weir.dataflow.quality import Policy, When
from weir.dataflow.stage import Stage
from weir.execution.run_state import CLOSE
from weir.testing.simulator.dataflows import AND, ANY_ROWS, BLAMES
from weir.testing.simulator.invariants.epochs import Where
from weir.testing.simulator.rows import is_bad
from weir.topology.regions import RegionId

if TYPE_CHECKING:
    from weir.testing.simulator.witness import Witness


QUARANTINED: Final = "quarantined"


def nothing_bad_passes_a_gate(witness: Witness) -> Iterator[str]:
    """What has committed has no bad rows in any stage that is always checked."""
    for row in witness.sight.new_commits:
        for stage in _gated(witness, row.run, row.whose[1]):
            if not row.is_restored and _always_refuses(stage) and _made_bad(witness, row.id, stage):
                yield f"{row.id} of {row.region} has committed, and the rows of {stage.name} are bad"


def what_is_in_quarantine_is_bad(witness: Witness) -> Iterator[str]:
    """Nobody refuses good rows; and what is refused is never current."""
    for result in witness.sight.new_results:
        if result.state != QUARANTINED:
            continue
        region = witness.sight.attempts[result.attempt].whose[1]
        if result.is_current:
            yield f"{result.partition.id} of {result.attempt} was refused, and is current"
        if not any(_made_bad(witness, result.attempt, each) for each in _gated(witness, result.run, region)):
            yield f"{result.partition.id} of {result.attempt} was refused, and nothing of its region is bad"


def who_is_distrusted_is_blamed(witness: Witness) -> Iterator[str]:
    """Only what was read by somebody whose rows are refused in the same transaction, and who blames an input."""
    sight = witness.sight
    refused = {sight.attempts[each.attempt].whose for each in sight.new_results if each.state == QUARANTINED}
    read = {
        partition
        for where in refused
        for partition in witness.epochs.inputs_of(where)
        if partition.id.stage in _blamed(witness, *where)
    }
    for result in sight.newly_distrusted:
        if result.partition not in read:
            yield f"{result.partition.id} of {result.attempt} is distrusted, and nobody blames it"


def is_refused(witness: Witness, where: Where) -> bool:
    """Whether a gate has refused what a region's newest try has made, for good."""
    newest = witness.sight.newest(*where)
    if newest is None or newest.state != "failed":
        return False
    results = witness.sight.results.values()
    return any(each.attempt == newest.id and each.state == QUARANTINED for each in results)


def _gated(witness: Witness, run: str, region: RegionId) -> list[Stage]:
    """The stages of a region whose rows are checked."""
    if region == CLOSE:
        return []
    return [stage for stage in witness.topology_of(run).stages_of(region.name) if stage.gates]


def _always_refuses(stage: Stage) -> bool:
    return any(gate.when is When.ALWAYS and gate.policy is not Policy.WARN for gate in stage.gates)


def _blamed(witness: Witness, run: str, region: RegionId) -> set[str]:
    """The stages whose results the gates of a region blame; an input in the same plan stands for all that it reads."""
    flow = witness.topology_of(run).dataflow
    found: set[str] = set()
    for stage in _gated(witness, run, region):
        suites = [each.suite for each in stage.gates if each.policy is Policy.BACKTRACK and each.suite != ANY_ROWS]
        exchanges = [stage.exchanges[name] for suite in suites for name in suite.removeprefix(BLAMES).split(AND)]
        while exchanges:
            each = exchanges.pop()
            if each.joins_plan:
                exchanges += flow.stage(each.stage).exchanges.values()
            else:
                found.add(each.stage)
    return found


def _made_bad(witness: Witness, attempt: str, stage: Stage) -> bool:
    return is_bad(witness.engine.made[attempt].contents.get(stage.name, ""))
