"""Invariants of quality gates: no bad rows pass, and no input is suspected without a cause.

Invariant: whether rows are bad is seen in what was put into them, not in what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulator.dataflows import AND, ANY_ROWS, BLAMES
from tests.simulator.history.history import History
from tests.simulator.rows import is_bad

from weir.dataflow.quality import Policy, When
from weir.dataflow.stage import Stage
from weir.execution.run_state import CLOSE
from weir.topology.regions import RegionId

QUARANTINED: Final = "quarantined"


def nothing_bad_passes_a_gate(history: History) -> Iterator[str]:
    """A committed attempt has no bad rows in any stage that is always checked."""
    for row in history.ledger.new_commits:
        for stage in _gated(history, row.run, row.run_region[1]):
            if not row.is_restored and _always_refuses(stage) and _made_bad(history, row.id, stage):
                yield f"{row.id} of {row.region} has committed, and the rows of {stage.name} are bad"


def what_is_in_quarantine_is_bad(history: History) -> Iterator[str]:
    """No good rows are refused, and no refused result is current."""
    for result in history.ledger.new_results:
        if result.state != QUARANTINED:
            continue
        region = history.ledger.attempts[result.attempt].run_region[1]
        if result.is_current:
            yield f"{result.partition.id} of {result.attempt} was refused, and is current"
        if not any(_made_bad(history, result.attempt, each) for each in _gated(history, result.run, region)):
            yield f"{result.partition.id} of {result.attempt} was refused, and nothing of its region is bad"


def only_suspected_inputs_are_quarantined(history: History) -> Iterator[str]:
    """Only inputs of regions whose rows are refused in the same transaction, and whose gates suspect these inputs."""
    ledger = history.ledger
    refused = {ledger.attempts[each.attempt].run_region for each in ledger.new_results if each.state == QUARANTINED}
    read = {
        partition
        for where in refused
        for partition in history.epochs.inputs_of(where)
        if partition.id.stage in _suspected(history, *where)
    }
    for result in ledger.newly_suspected:
        if result.partition not in read:
            yield f"{result.partition.id} of {result.attempt} is suspected, and no gate suspects it"


def _gated(history: History, run: str, region: RegionId) -> list[Stage]:
    """The stages of a region whose rows are checked."""
    if region == CLOSE:
        return []
    return [stage for stage in history.topology_of(run).stages_of(region.name) if stage.gates]


def _always_refuses(stage: Stage) -> bool:
    return any(gate.when is When.ALWAYS and gate.policy is not Policy.WARN for gate in stage.gates)


def _suspected(history: History, run: str, region: RegionId) -> set[str]:
    """Return the stages whose results a region's gates suspect; for an input in the same plan, all that it reads."""
    flow = history.topology_of(run).dataflow
    found: set[str] = set()
    for stage in _gated(history, run, region):
        suites = [each.suite for each in stage.gates if each.policy is Policy.BACKTRACK and each.suite != ANY_ROWS]
        exchanges = [stage.exchanges[name] for suite in suites for name in suite.removeprefix(BLAMES).split(AND)]
        while exchanges:
            each = exchanges.pop()
            if each.joins_plan:
                exchanges += flow.stage(each.stage).exchanges.values()
            else:
                found.add(each.stage)
    return found


def _made_bad(history: History, attempt: str, stage: Stage) -> bool:
    return is_bad(history.engine.made[attempt].contents.get(stage.name, ""))
