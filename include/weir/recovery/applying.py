"""Applies plans: records a plan as a failover, with its pending clears.

Invariant 7: a failure, its plan and the clears of the plan are one transaction, also where they are in several runs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from sqlalchemy.orm import Session

from weir.code.generation_rules import RepairCode
from weir.coordination.services import Services
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.execution.failure_class import FailureClass
from weir.ledger.clears import add_pending_clears
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.outbox import note_acted
from weir.ledger.runs import Run, run_by_id
from weir.recovery.failovers import FailoverKind, record_failover
from weir.recovery.planning import decide_now
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.decision import Failure
from weir.recovery.rules.plan import Plan, StepKind
from weir.topology.ids import OWN_RUN, RunRef
from weir.topology.regions import RegionId, Topology

RESTARTING = frozenset({FailureClass.APPLICATION, FailureClass.KILLED})
"""The classes of failures that, without a loss, restart other regions where the dataflow is declared so."""


def apply_plan(
    session: Session,
    services: Services,
    run: Run,
    plan: Plan,
    kind: FailoverKind,
    row: AttemptRow | None = None,
    by: str = "",
) -> int:
    """Record a plan and its clears, and return the failover's id.

    `row` is the failed attempt, if there is one; `by` is the person who applies the plan, where that is known.
    """
    applied = f", applied by {by}" if by else ""
    plan = replace(plan, cause=plan.cause + applied)
    failover, code = record_failover(session, run, plan, services.now(), kind, row), RepairCode(plan.code)
    by_run: dict[RunRef, dict[RegionId, tuple[int, str]]] = defaultdict(dict)
    for step in plan.of(StepKind.RERUN):
        by_run[step.region.run][step.region.in_run(OWN_RUN)] = (step.after_try, f"weir: {step.reason}{applied}")
    for of, wanted in by_run.items():
        owner = run if of == OWN_RUN else run_by_id(session, of, run.topology)
        if kind is FailoverKind.BY_HAND:
            note_acted(session, owner.id)
        # The results of a closed run are no longer taken for valid without a check.
        session.get_one(RunRow, owner.id).closed_at = None
        add_pending_clears(session, owner, wanted, services.now(), failover, code)
    return failover


def restart_others(session: Session, services: Services, run: Run, row: AttemptRow, failure: FailureClass) -> int:
    """Restart the regions that the dataflow restarts with a failed one, and return how many.

    With `failover="region"` and consumers that restart only after a change there are none before the next commit.
    """
    if failure not in RESTARTING or not restarts_others(run.topology):
        return 0
    cause = f"{failure.value}: {row.error}"
    asked = Failure(failed=RegionId(row.region, row.subtask), losses={}, occasion=Occasion.FAILURE, cause=cause)
    plan = decide_now(session, run, asked).answer
    if not isinstance(plan, Plan) or not plan.of(StepKind.RERUN):
        return 0
    apply_plan(session, services, run, plan, FailoverKind.FAILURE, row)
    return len(plan.of(StepKind.RERUN))


def restarts_others(topology: Topology) -> bool:
    """Report whether the failure of a region can restart regions that have all their inputs."""
    dataflow = topology.dataflow
    if dataflow.failover_strategy is not FailoverStrategy.REGION:
        return dataflow.failover_strategy is FailoverStrategy.FULL
    return dataflow.consumers is Consumers.ALWAYS or not all(stage.deterministic for stage in dataflow.stages)
