"""Recomputes bad results of a run before a task of it has missed them.

Invariant: a repair is a failover plan, applied and recorded like that of `weir plan RUN --apply`. It covers only bad
results that are current: not those that were released or recomputed meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from weir.coordination.services import Services
from weir.errors import Conflict, Loss, Misconfigured
from weir.formats.notification import Event, Subject, person_event
from weir.ledger.database.tables import RunRow
from weir.ledger.outbox import tell
from weir.ledger.runs import Run, run_by_id
from weir.recovery.failovers import FailoverKind, record_failover
from weir.recovery.inputs import losses_by_partition
from weir.recovery.planning import plan_by_looking
from weir.recovery.questions import Answer, apply_answer, planned_now
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.decision import Failure
from weir.recovery.rules.plan import Plan, StepKind

_ATTEMPTS = 3
"""How often planning is repeated if the run changes meanwhile."""


class RepairOutcome(Enum):
    """The decision about a run with bad results."""

    REPAIRED = "is recomputed"
    LEFT = "is left to a person"


@dataclass(frozen=True, slots=True)
class Repair:
    """The repair of a run with bad results: how many task instances are to be cleared (`owed`), or why none is."""

    run: str
    answer: RepairOutcome
    owed: int
    said: str

    def __str__(self) -> str:
        """A sentence."""
        return f"{self.run} {self.answer.value}: {self.said}"


def repair(services: Services, run: str, losses: Iterable[Loss], unpublished: str = "", by: str = "") -> Repair:
    """Record the pending clears of a plan that recomputes lost results, or publishes again.

    `unpublished` says what is wrong with the run's published version; empty if nothing is. `by` is the person who asks
    for it, where that is known. Raises Retryable.
    """
    with services.ledger.transaction() as session:
        row = session.get_one(RunRow, run)
        if row.deleted_at is not None:
            return _left(run, "Airflow has no such DagRun any more, and nothing can be cleared there")
        if row.pinned is None:
            return _left(run, "its topology is to be pinned anew: clear its tasks in Airflow, so that they begin again")
        named = run_by_id(session, run)
    found = tuple(losses)
    cause = "; ".join([*(str(each) for each in found), *filter(None, [unpublished])])
    failure = Failure(
        failed=None,
        losses=losses_by_partition(found, run),
        occasion=Occasion.REPAIR,
        cause=cause,
        largest=services.recovery.largest_plan,
        unpublished=unpublished,
    )
    for _ in range(_ATTEMPTS):
        try:
            answer = Answer(named, *plan_by_looking(services, named, failure))
            return _applied(services, answer, by)
        except Misconfigured as error:
            return _left(run, str(error))
        except Conflict:
            continue
    return _left(run, f"it changed {_ATTEMPTS} times while its repair was planned; `weir plan {run} --apply`")


def _applied(services: Services, answer: Answer, by: str) -> Repair:
    run, plan = answer.run.id, answer.plan
    if plan.held_back:
        with services.ledger.transaction(answer.run.dataflow.name) as session:
            plan = planned_now(session, answer)
            record_failover(session, answer.run, plan, services.now(), FailoverKind.HELD_BACK, None)
            tell(session, _held_back(answer.run, plan), services.now())
        return _left(run, f"{plan.held_back}. `weir plan {run}` shows the plan, and `weir plan {run} --apply` does it")
    owed = apply_answer(services, answer, FailoverKind.SCRUB, by)
    joined = plan.of(StepKind.JOINED)
    if not owed and not joined:
        return _left(run, f"nothing has to run again ({plan.summary()})")
    return Repair(run, RepairOutcome.REPAIRED, owed, plan.summary())


def _held_back(run: Run, plan: Plan) -> Event:
    """Return that damaged results wait for a person; the same ones are told of once."""
    cause = hashlib.sha256(plan.cause.encode()).hexdigest()[:12]
    text = (
        f"{plan.cause}: nothing of {run.id} was recomputed, since {plan.held_back}. `weir plan {run.id}` shows the "
        f"plan, and `weir plan {run.id} --apply` applies it"
    )
    of = Subject(run.dataflow.name, run.epoch, run.id)
    return person_event("repair_held_back", of, (run.id, cause), text, cause=plan.cause)


def _left(run: str, why: str) -> Repair:
    return Repair(run, RepairOutcome.LEFT, 0, why)
