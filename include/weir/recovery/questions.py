"""Answers `weir plan`: plans what would run again now, or after a failure or a loss; and applies the plan.

Invariant: planning changes nothing; the plan that is applied is the plan that was shown, or none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from weir.code.generation_rules import RepairCode
from weir.coordination.airflow import Clearer
from weir.coordination.reuse import results_to_take
from weir.coordination.services import Services
from weir.errors import Conflict, Fault, Loss, Misconfigured
from weir.execution.run_state import CLOSE, RunState
from weir.ledger.names import SHOWN, similar, unknown_task
from weir.ledger.results import record_losses
from weir.ledger.runs import Run, named_run, run_by_id
from weir.ledger.snapshot import committed_attempt, run_state
from weir.recovery.applying import apply_plan
from weir.recovery.failovers import FailoverKind
from weir.recovery.inputs import losses_by_partition
from weir.recovery.planning import decide_now, plan_by_looking
from weir.recovery.reconcile import outdated_publication
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.decision import Failure
from weir.recovery.rules.plan import Plan, StepKind
from weir.topology.regions import RegionId
from weir.wording import first_few

_AS_IF = "as if it were gone"
_NAME = re.compile(r"^(?P<name>[^\[\]]+)(\[(?P<index>\d{1,9})\])?$")


@dataclass(frozen=True, slots=True)
class Question:
    """A run by name, a task to fail (None: plan the run's missing results), and partitions to assume lost.

    `code` is the code that the regions run which the plan clears. `cleared` are tasks that Airflow runs again: they
    compute, unless they are cleared `by_weir`. Without `looks`, what is finished by the ledger is taken to be in the
    store.
    """

    run: str
    fail: str | None = None
    lost: tuple[str, ...] = ()
    code: RepairCode = RepairCode.AS_IT_WAS
    cleared: tuple[RegionId, ...] = ()
    looks: bool = True
    by_weir: bool = True


@dataclass(frozen=True, slots=True)
class Answer:
    """The plan of a run, and the failure that gives it again."""

    run: Run
    plan: Plan
    failure: Failure


def ask(services: Services, question: Question, airflow: Callable[[], Clearer] | None = None) -> Answer:
    """Plan; Airflow, if it can be asked, tells what a person has cleared.

    Raises Misconfigured for names that the run does not have, and Retryable or Conflict as planning does.
    """
    with services.ledger.transaction() as session:
        run = run_by_id(session, named_run(session, question.run).id)
        state = run_state(session, run)
        closing = None if question.fail or question.lost else committed_attempt(session, run.id, CLOSE)
        unpublished = "" if closing is None else outdated_publication(session, run, state, closing)
    failed = None if question.fail is None else region_named(run, question.fail)
    losses = losses_by_partition((each for text in question.lost for each in _gone(state, text)), run.id)
    asked = Failure(
        failed=failed,
        losses=losses,
        occasion=Occasion.QUESTION,
        cause=_cause(failed, question),
        largest=services.recovery.largest_plan,
        code=question.code,
        cleared=frozenset(question.cleared),
        unpublished=unpublished,
    )
    plan, failure = plan_by_looking(services, run, asked, airflow, looks=question.looks)
    if run.dataflow.reuses_any and question.by_weir:
        restarted = [each.region for each in plan.of(StepKind.RERUN)]
        with services.ledger.transaction() as session:
            plan = plan.with_takes(results_to_take(session, run, restarted, asked.cleared))
    return Answer(run, plan, failure)


def _cause(failed: RegionId | None, question: Question) -> str:
    causes = ["what the run misses" if failed is None else f"{failed} fails"]
    cleared = [f"a clear in Airflow of {first_few(question.cleared, SHOWN)}"] if question.cleared else []
    return ", and ".join([*(cleared or causes), *(f"{each} is gone" for each in question.lost)])


def region_named(run: Run, text: str) -> RegionId:
    """Return the region of TASK or TASK[INDEX]; the name may be that of a stage of the region."""
    found = regions_named(run, text)
    if len(found) > 1:
        name = _NAME.sub(r"\g<name>", text)
        raise Misconfigured.of("recovery.subtask_not_named", region=found[0].name, parallelism=len(found), name=name)
    return found[0]


def regions_named(run: Run, text: str) -> tuple[RegionId, ...]:
    """Return the region of TASK[INDEX], or all of TASK; the name may be that of a stage of the region."""
    found = _NAME.match(text)
    name = (found["name"] if found else text).removeprefix(run.task_prefix)
    if name == CLOSE.name:
        return (CLOSE,)
    known = {stage: region for region in run.topology.regions for stage in (region.name, *region.stages)}
    if name not in known:
        names = [*(each.name for each in run.topology.regions), CLOSE.name]
        raise unknown_task(run.id, text, name, names)
    region, index = known[name], found["index"] if found else None
    if index is None:
        return tuple(RegionId(region.name, subtask) for subtask in range(region.parallelism))
    asked = RegionId(region.name, int(index))
    if not run.topology.knows(asked):
        raise Misconfigured.of(
            "recovery.subtask_unknown", region=region.name, parallelism=region.parallelism - 1, index=index
        )
    return (asked,)


def _gone(state: RunState, text: str) -> list[Loss]:
    """Return assumed losses of STAGE[SUBTASK], or of all subtasks of STAGE, in all layouts."""
    found = _NAME.match(text)
    stage = found["name"] if found else text
    index = int(found["index"]) if found and found["index"] else None
    known = [
        partition
        for region in state.region_ids()
        for partition in state.outputs(region)
        if partition.stage == stage and index in (None, partition.subtask)
    ]
    if not known:
        written = sorted({each.stage for region in state.region_ids() for each in state.outputs(region)})
        raise Misconfigured.of(
            "recovery.result_unknown", run=state.run, text=text, similar=similar(stage, written, "writes")
        )
    missing = [each for each in known if each not in state.results]
    if missing:
        raise Misconfigured.of("recovery.result_not_computed", missing=missing[0], run=state.run)
    return [
        Loss(state.run, each.stage, each.subtask, each.layout, state.results[each].attempt, Fault.MISSING, _AS_IF)
        for each in known
    ]


def apply_answer(services: Services, answer: Answer, kind: FailoverKind = FailoverKind.BY_HAND, by: str = "") -> int:
    """Add the clears of a plan and return their number; `by` is the person who applies it, where that is known.

    Raises Conflict if the run has changed since it was planned.
    """
    run = answer.run
    with services.ledger.transaction(run.dataflow.name) as session:
        record_losses(session, _found(answer.failure), services.now())
        plan = planned_now(session, answer)
        if plan.impossible:
            raise Misconfigured.of("recovery.input_is_lost_for_good", run_id=run.id, impossible=plan.impossible)
        if not plan.of(StepKind.RERUN):
            return 0
        apply_plan(session, services, run, plan, kind, by=by)
    return len(plan.of(StepKind.RERUN))


def planned_now(session: Session, answer: Answer) -> Plan:
    """Return a plan as it is now. Raises Conflict if it clears other tries than the answer says."""
    plan = decide_now(session, answer.run, answer.failure).answer
    if not isinstance(plan, Plan) or not plan.does_the_same(answer.plan):
        raise Conflict.of("recovery.run_changed", run_id=answer.run.id)
    return plan


def _found(failure: Failure) -> list[Loss]:
    """Return the losses that were found in the store, without the assumed ones."""
    return [each for each in failure.losses.values() if each.detail != _AS_IF]
