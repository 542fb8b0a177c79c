"""Carrying a plan out: its record, and the clears that it owes.

Invariant 7: a failure, its plan and the clears that the plan owes are one transaction, in whichever runs they are.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.execution.failure_class import FailureClass
from weir.ledger.clears import add_pending_clear
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.runs import Run, run_by_id
from weir.recovery.failovers import FailoverKind, record_failover
from weir.recovery.planning import decide_now
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.decision import Failure
from weir.recovery.rules.plan import Plan, StepKind
from weir.topology.regions import RegionId, Topology

RESTARTING = frozenset({FailureClass.APPLICATION, FailureClass.KILLED})
"""The failures that, without a loss, restart others too where the dataflow says so."""


def apply_plan(
    session: Session, services: Services, run: Run, plan: Plan, kind: FailoverKind, row: AttemptRow | None = None
) -> int:
    """Record a plan and owe its clears; answers the failover's id. `row` is the attempt that failed, if one did."""
    failover = record_failover(session, run, plan, services.now(), kind, row)
    for step in plan.of(StepKind.RERUN):
        owner = run if step.region.is_of_own_run else run_by_id(session, step.region.run, run.topology)
        # What a closed run has made is not taken for valid any more without a look.
        session.get_one(RunRow, owner.id).closed_at = None
        region = RegionId(step.region.name, step.region.subtask)
        add_pending_clear(session, owner, region, step.after_try, f"weir: {step.reason}", services.now(), failover)
    return failover


def restart_others(session: Session, services: Services, run: Run, row: AttemptRow, failure: FailureClass) -> int:
    """After a failure that is to be retried, restart what the dataflow wants restarted with it; answers how many.

    With `failover="region"` and consumers that restart if something has changed that is nothing: a commit will tell.
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
    """Whether the failure of a region can restart others that miss nothing."""
    dataflow = topology.dataflow
    if dataflow.failover is not FailoverStrategy.REGION:
        return dataflow.failover is FailoverStrategy.FULL
    return dataflow.consumers is Consumers.ALWAYS or not all(stage.deterministic for stage in dataflow.stages)
