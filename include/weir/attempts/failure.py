"""Records failed tries and decides whether and when they run again.

A failure is decided by the restart strategy and the limits of failures, or by the budget of its class; a missing input
is planned as a recovery. A user policy may override the decision about a failure of the application afterwards.

Invariant 7: a failure, its plan and the clears of the plan are one transaction.

Invariant 6: the half-written output of a failed attempt is removed manifests first, and only after its failure was
recorded, so that it cannot commit any more; no other attempt ever uses its names. A completed copy is kept: the next
try resumes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from weir.coordination.airflow import Clearer
from weir.coordination.services import Services, attempt_folder
from weir.coordination.values import Action, FailedTry, FailureDecision, TaskKey
from weir.errors import Conflict, DiskFull, Fault, Message, ResultUnavailable, Retryable, WeirError
from weir.execution.failure_class import FailureClass, cause_of, classify, hopeless_cause
from weir.execution.failure_words import PastFailure, PastTries, message_of
from weir.execution.labels import built_in_labels
from weir.execution.run_state import CLOSE, DONE, AttemptState
from weir.formats.manifest import COPY_NAME
from weir.formats.notification import Event, Subject, person_event
from weir.formats.paths import COPY, manifest_path
from weir.ledger.attempts import (
    LIVE,
    Origin,
    attempts_of,
    end,
    failures_since_clear,
    newest_attempts,
    times_cleared,
    tries_of_task,
)
from weir.ledger.database.tables import AttemptRow, FailedBeginRow, FailoverRow, RunRow
from weir.ledger.failed_begins import record_failed_begin
from weir.ledger.leases import drop_leases
from weir.ledger.outbox import tell_incident, withdraw
from weir.ledger.results import record_losses
from weir.ledger.runs import Run, run_by_id, run_key
from weir.recovery.applying import apply_plan, restart_others
from weir.recovery.failovers import FailoverKind, record_failover
from weir.recovery.inputs import losses_by_partition
from weir.recovery.planning import ROUNDS, decide_now, with_answers
from weir.recovery.reconcile import add_clear_of_closing
from weir.recovery.rules.decision import Failure
from weir.recovery.rules.plan import Plan, StepKind
from weir.restarts.answer import Refusal, RestartDecision, decide_restart
from weir.restarts.delays import JITTER, PATIENCE, UNREGISTERED_DELAY
from weir.restarts.strategy import RestartStrategy, seeded_jitter
from weir.secrecy import without_secrets
from weir.store.errors import NotFound
from weir.topology.ids import RunId
from weir.topology.regions import RegionId

ABANDONED = (AttemptState.RETRYING.value, AttemptState.FAILED.value)
"""The states of an attempt that has failed and will never commit."""

COUNTED = (FailureClass.APPLICATION, FailureClass.KILLED)
"""The classes of failures that the restart strategy decides about."""

PATIENT_WITH = (FailureClass.ENVIRONMENT, FailureClass.ENGINE)
"""The classes of failures whose next try waits longer each time."""


def fail(services: Services, failed: FailedTry, airflow: Callable[[], Clearer]) -> FailureDecision:
    """Record the failure of a try and decide. Raises Retryable if the ledger or the store does not answer."""
    dataflow, error = failed.dataflow, failed.error
    failure = classify(error)
    if failure is FailureClass.FENCED:
        return FailureDecision(action=Action.NOTHING, delay_seconds=UNREGISTERED_DELAY, reason=f"fenced: {error}")
    with services.ledger.transaction() as session:
        row = _attempt(session, failed)
        run = None if row is None else run_by_id(session, row.run)
    if row is None or run is None:
        return _fail_unregistered(services, failed, failure)
    if row.state not in LIVE:
        return _hopeless(error) if _is_refused(row, failure) else already_ended(row)
    if isinstance(error, ResultUnavailable):
        try:
            return _backtrack(services, run, row, error, airflow)
        except (Retryable, Conflict) as unplanned:
            # If it were not recorded, the next begin would take the process for killed.
            failure, error = classify(unplanned), unplanned
    with services.ledger.transaction(dataflow) as session:
        if isinstance(error, Conflict):
            # Else a damaged result that the ledger calls finished would be read, and refused, again and again.
            record_losses(session, error.damaged, services.now())
        decision = book(session, services, row.id, failure, error, failed.strategy)
        booked = session.get(AttemptRow, row.id)
        if booked is not None and booked.state == AttemptState.RETRYING.value:
            restart_others(session, services, run, booked, failure)
    has_written = row.region != CLOSE.name and booked is not None and booked.state in ABANDONED
    if isinstance(error, DiskFull) and has_written:
        return replace(decision, reason=f"{decision.reason}; {discard(services, run, row)}")
    return decision


def _is_refused(row: AttemptRow, failure: FailureClass) -> bool:
    """Report whether a closing task has published, and then met what only a person can mend: a target refuses it."""
    is_published = row.region == CLOSE.name and row.state == AttemptState.COMMITTED.value
    return is_published and failure is FailureClass.FATAL


def _attempt(session: Session, failed: FailedTry) -> AttemptRow | None:
    is_it = (AttemptRow.try_number == failed.try_number) & AttemptRow.ti_id.in_((failed.ti_id, ""))
    return session.scalar(_of_task(failed.dataflow, failed.key).where(is_it))  # a rebuilt ledger does not know the id


def _of_task(dataflow: str, key: TaskKey) -> Select[AttemptRow]:
    return tries_of_task(dataflow, key.dag_id, key.run_id, key.task_id, key.map_index)


def _fail_unregistered(services: Services, failed: FailedTry, failure: FailureClass) -> FailureDecision:
    key = failed.key
    row = FailedBeginRow(
        dataflow=failed.dataflow,
        epoch=failed.epoch,
        dag_id=key.dag_id,
        run_id=key.run_id,
        task_id=key.task_id,
        map_index=key.map_index,
        try_number=failed.try_number,
        failed_at=services.now(),
        failure=failure.value,
        error=message_of(failed.error),
    )
    action = Action.FAIL if failure is FailureClass.FATAL else Action.RETRY
    with services.ledger.transaction(failed.dataflow) as session:
        record_failed_begin(session, row)
        if action is Action.FAIL:
            event = _never_begun(row)
            of = RunId(event.run or f"{row.dag_id}/{row.run_id}")
            tell_incident(session, of, event, services.now(), clear_number=failed.clear_number)
    reason = without_secrets(str(failed.error))
    return FailureDecision(action=action, delay_seconds=UNREGISTERED_DELAY, reason=reason, failure=failure)


def _never_begun(row: FailedBeginRow) -> Event:
    run = None if row.epoch is None else run_key(row.dataflow, row.epoch)
    return person_event(
        "begin_failed",
        Subject(row.dataflow, row.epoch, run),
        (row.dag_id, row.run_id, row.task_id, str(row.map_index), str(row.try_number)),
        f"{row.task_id} of {row.run_id} has failed for good before it began: {row.error}",
        dag_id=row.dag_id,
        run_id=row.run_id,
        task_id=row.task_id,
        map_index=row.map_index,
        error=row.error,
    )


def _backtrack(
    services: Services, run: Run, row: AttemptRow, error: ResultUnavailable, airflow: Callable[[], Clearer]
) -> FailureDecision:
    """Plan in rounds: decide, ask what the decision needs, decide again; record the plan."""
    store_id, largest = services.store_id(), services.recovery.largest_plan
    failed = RegionId(row.region, row.subtask)
    asked = Failure(failed=failed, losses=losses_by_partition(error.losses, run.id), largest=largest)
    for _ in range(ROUNDS):
        with services.ledger.transaction(run.dataflow.name) as session:
            record_losses(session, asked.losses.values(), services.now())
            decided = decide_now(session, run, asked)
            if isinstance(decided.answer, Plan) and not decided.unasked:
                return _end(session, services, run, row.id, decided.answer, error)
        asked = with_answers(services, store_id, run, decided, airflow)
    raise Conflict(Message("attempts.run_keeps_changing", rounds=ROUNDS, failed=failed))


def _end(
    session: Session, services: Services, run: Run, attempt: str, plan: Plan, error: ResultUnavailable
) -> FailureDecision:
    row = session.get(AttemptRow, attempt)
    if row is None or row.state not in LIVE:
        return already_ended(row)
    end(row, AttemptState.RETRYING, services.now(), failure=FailureClass.BACKTRACK, error=without_secrets(str(error)))
    row.labels = built_in_labels(FailureClass.BACKTRACK, error)
    drop_leases(session, attempt)
    attempts = attempts_of(session, run.id, RegionId(row.region, row.subtask))
    decision = from_budget(services, attempts, FailureClass.BACKTRACK, _summary(plan, error))
    if plan.held_back or plan.impossible:
        record_failover(session, run, plan, services.now(), FailoverKind.HELD_BACK, row)
        # If this answer is lost, a repeated call returns the text.
        row.error = _held_back(run, plan)
        decision = FailureDecision(
            action=Action.FAIL, delay_seconds=0, reason=row.error, attempt=row.id, failure=FailureClass.BACKTRACK
        )
    if decision.action is Action.FAIL:
        give_up(session, services, row)
        return decision
    apply_plan(session, services, run, plan, FailoverKind.LOSS, row)
    return decision


def give_up(session: Session, services: Services, row: AttemptRow) -> None:
    """Record that a failed attempt is followed by no other one; a clear and a notification follow from that."""
    row.state = AttemptState.FAILED.value
    add_clear_of_closing(session, services, row)
    event = _failed_for_good(session.get_one(RunRow, row.run), row)
    tell_incident(session, row.run, event, services.now(), clear_number=times_cleared(session, row.run))


def _failed_for_good(run: RunRow, row: AttemptRow) -> Event:
    region = RegionId(row.region, row.subtask)
    return person_event(
        "task_failed",
        Subject(run.dataflow, run.epoch, run.id),
        (row.id,),
        f"{region} of {run.id} has failed for good: {row.error}",
        attempt=row.id,
        dag_id=run.dag_id,
        run_id=run.run_id,
        task_id=row.task_id,
        map_index=row.map_index,
        error=row.error,
    )


def _summary(plan: Plan, error: ResultUnavailable) -> str:
    """Describe what runs again, and why inputs are suspected whose bytes are as recorded."""
    why = dict.fromkeys(loss.detail for loss in error.losses if loss.fault is Fault.SUSPECTED)
    return "; ".join([plan.summary(), *why])


def _held_back(run: Run, plan: Plan) -> str:
    if plan.impossible:
        return (
            f"nothing was restarted: running these tasks again cannot bring the input back, because {plan.impossible}"
        )
    return (
        f"nothing was restarted: {plan.held_back}. {plan.cause}. The plan: {plan.summary()}. `weir plan {run.id}` "
        f"shows all of it, and `weir plan {run.id} --apply` applies it, with the tasks that have failed"
    )


def book(
    session: Session,
    services: Services,
    attempt: str,
    failure: FailureClass,
    error: BaseException,
    strategy: RestartStrategy,
) -> FailureDecision:
    """End the attempt with its failure and decide; an attempt that has already ended is left as it is."""
    row = session.get(AttemptRow, attempt)
    if row is None or row.state not in LIVE:
        return already_ended(row)
    message, cause = message_of(error), cause_of(error)
    end(row, AttemptState.RETRYING, services.now(), failure=failure, cause=cause, error=message)
    row.labels = built_in_labels(failure, error)
    drop_leases(session, attempt)
    decision = _decide(session, services, row, failure, error, strategy)
    if decision.action is Action.FAIL:
        give_up(session, services, row)
    return decision


def _decide(
    session: Session,
    services: Services,
    row: AttemptRow,
    failure: FailureClass,
    error: BaseException,
    strategy: RestartStrategy,
) -> FailureDecision:
    message = message_of(error)
    region = RegionId(row.region, row.subtask)
    if failure is FailureClass.FATAL:
        return _hopeless(error, row.id)
    if services.recovery.budgets.limit_of(failure) is not None:
        return from_budget(services, attempts_of(session, row.run, region), failure, message)
    answer = restart_answer(session, strategy, row.run, region)
    action, reason = Action.RETRY, f"{answer.reason}: {message}"
    if answer.refusal is not None:
        action, reason = Action.FAIL, f"recovery is suppressed by {reason}"
    delay = answer.delay_ms / 1000
    return FailureDecision(
        action=action,
        delay_seconds=delay,
        reason=reason,
        attempt=row.id,
        failure=failure,
        refusal=answer.refusal,
        failures=answer.failures,
    )


def _hopeless(error: BaseException, attempt: str = "") -> FailureDecision:
    """Decide about an error that no other try can help; `attempt` is the one whose failure was recorded."""
    message, cause = message_of(error), hopeless_cause(error)
    because = "" if cause is None or message.startswith(cause) else f" ({cause})"
    reason = f"not recoverable by another try{because}: {message}"
    return FailureDecision(
        action=Action.FAIL, delay_seconds=0, reason=reason, attempt=attempt, failure=FailureClass.FATAL
    )


def from_budget(services: Services, attempts: list[AttemptRow], failure: FailureClass, message: str) -> FailureDecision:
    """Decide about the newest failure of a region by the budget of its class."""
    used, limit, newest = spent(attempts, failure), services.recovery.budgets.limit_of(failure) or 0, attempts[-1]
    if used > limit:
        reason = f"more than {limit} times {failure.value} since the last commit or clear: {message}"
        return FailureDecision(action=Action.FAIL, delay_seconds=0, reason=reason, attempt=newest.id, failure=failure)
    delay = patience(newest.run, RegionId(newest.region, newest.subtask), failure, used)
    return FailureDecision(
        action=Action.RETRY,
        delay_seconds=delay,
        reason=f"{failure.value} {used} of {limit}: {message}",
        attempt=newest.id,
        failure=failure,
    )


def already_ended(row: AttemptRow | None) -> FailureDecision:
    """Decide about an attempt that has already been ended, or that a rebuilt ledger does not know."""
    if row is None:
        return FailureDecision(
            action=Action.RETRY,
            delay_seconds=UNREGISTERED_DELAY,
            reason="the ledger was rebuilt, and does not know the attempt",
        )
    if row.state == AttemptState.FAILED.value:
        return FailureDecision(action=Action.FAIL, delay_seconds=0, reason=row.error or "the attempt had failed before")
    # It has committed or was fenced: the next try reuses the commit, or raises.
    return FailureDecision(action=Action.RETRY, delay_seconds=1, reason=f"attempt {row.id} is {row.state} already")


def restart_answer(session: Session, strategy: RestartStrategy, run: str, region: RegionId) -> RestartDecision:
    """Decide about the newest failure of `region` by the restart strategy and the limits of failures."""
    own = failures_since_clear(attempts_of(session, run, region), COUNTED)
    return decide_restart(
        strategy, _seed(run, region), _milliseconds(own), lambda: (run, _failures_of_run(session, run))
    )


def spent(attempts: Sequence[AttemptRow], failure: FailureClass) -> int:
    """Count a region's failures of a class since its last commit or its last clear by a person."""
    count = 0
    for row in attempts:
        if row.origin == Origin.CLEARED_BY_PERSON.value:
            count = 0
        if row.state == AttemptState.COMMITTED.value:
            count = 0
        elif row.failure == failure.value:
            count += 1
    return count


def patience(run: str, region: RegionId, failure: FailureClass, used: int) -> float:
    """Return the seconds before the next try after the failure of this number (from 1), with a jitter per region."""
    if failure not in PATIENT_WITH:
        return 0.0
    milliseconds = int(PATIENCE[min(used, len(PATIENCE)) - 1] * 1000)
    return (milliseconds + seeded_jitter(_seed(run, region))(used, int(milliseconds * JITTER))) / 1000


def _failures_of_run(session: Session, run: str) -> list[int]:
    """Return when tasks of a run have failed since a person last cleared one of them, and so has seen the run."""
    regions = newest_attempts(session, run).values()
    seen = [row.began_at for rows in regions for row in rows if row.origin == Origin.CLEARED_BY_PERSON.value]
    failures = (at for rows in regions for at in failures_since_clear(rows, COUNTED))
    return _milliseconds(at for at in failures if not seen or at >= max(seen))


def _milliseconds(times: Iterable[datetime]) -> list[int]:
    return sorted(int(at.timestamp() * 1000) for at in times)


def _seed(run: str, region: RegionId) -> str:
    return f"{run} {region}"


def discard(services: Services, run: Run, row: AttemptRow) -> str:
    """Remove the output folders of a failed attempt and describe the outcome."""
    try:
        for folder in _folders(run, row):
            services.store.delete(manifest_path(folder))
            services.store.delete_folder(folder)
        for folder in _copies(run, row):
            if not _is_complete(services, folder):
                services.store.delete_folder(folder)
    except WeirError as error:
        return f"what {row.id} has half written is still there: {error}"
    return f"what {row.id} had half written is removed"


def _folders(run: Run, row: AttemptRow) -> list[str]:
    topology = run.topology
    return [
        attempt_folder(run, stage.name, layout.id, row.subtask, row.id)
        for stage in topology.stages_of(row.region)
        for layout in topology.layouts_of(stage.name)
    ]


def _copies(run: Run, row: AttemptRow) -> list[str]:
    return [attempt_folder(run, stage, COPY, row.subtask, row.id) for stage in run.topology.copies_of(row.region)]


def _is_complete(services: Services, folder: str) -> bool:
    try:
        services.store.size(f"{folder}/{COPY_NAME}")
    except NotFound:
        return False
    return True


def may_be_overridden(decision: FailureDecision) -> bool:
    """Report whether a user policy may override the decision: a failure of the application below the limits."""
    return (
        bool(decision.attempt)
        and decision.failure is FailureClass.APPLICATION
        and decision.refusal is not Refusal.LIMIT
    )


def override(
    services: Services, dataflow: str, decision: FailureDecision, action: Action, delay_seconds: float, reason: str
) -> FailureDecision:
    """Override the decision about a recorded failure, if it may be overridden. Raises Retryable.

    A retry that the strategy had refused restarts other regions, where the dataflow is declared so.
    """
    if not may_be_overridden(decision):
        return decision
    with services.ledger.transaction(dataflow) as session:
        row = session.get(AttemptRow, decision.attempt)
        if row is None or row.state not in ABANDONED:
            return decision
        was_refused = row.state == AttemptState.FAILED.value
        if action is Action.FAIL:
            give_up(session, services, row)
        else:
            row.state = AttemptState.RETRYING.value
            withdraw(session, _failed_for_good(session.get_one(RunRow, row.run), row).id)
        if was_refused and action is Action.RETRY:
            restart_others(session, services, run_by_id(session, row.run), row, FailureClass.APPLICATION)
    return replace(decision, action=action, delay_seconds=delay_seconds, reason=reason)


def past_tries(services: Services, dataflow: str, key: TaskKey, try_number: int) -> PastTries:
    """Return what has become of a task instance since it last committed before a try. Raises Retryable."""
    found: list[AttemptRow] = []
    is_by_person = False
    with services.ledger.transaction() as session:
        tries = _of_task(dataflow, key).where(AttemptRow.try_number.between(1, try_number))
        for row in session.scalars(tries.order_by(AttemptRow.try_number)):
            is_by_person = is_by_person or row.origin == Origin.CLEARED_BY_PERSON.value
            if row.try_number < try_number and row.state in DONE:
                found.clear()
                is_by_person = False
            elif row.try_number < try_number and row.failure is not None:
                found.append(row)
        failovers = select(FailoverRow).where(FailoverRow.attempt.in_([row.id for row in found]))
        plans = {row.attempt: Plan.from_json(row.plan) for row in session.scalars(failovers)}
        failures = (
            PastFailure(failure=str(row.failure), error=row.error or "", again=_run_again(plans.get(row.id), row))
            for row in found
        )
        return PastTries(tuple(failures), is_by_person)


def _run_again(plan: Plan | None, row: AttemptRow) -> int:
    if plan is None or plan.held_back or plan.impossible:
        return 0
    own = RegionId(row.region, row.subtask)
    return sum(step.region != own for step in plan.of(StepKind.RERUN))


def label(services: Services, dataflow: str, attempt: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Add labels to those of a failed attempt and of its failover, and return all of them. Raises Retryable."""
    with services.ledger.transaction(dataflow) as session:
        row = session.get(AttemptRow, attempt)
        if row is None:
            return dict(labels)
        row.labels = {**labels, **(row.labels or {})}
        for failover in session.scalars(select(FailoverRow).where(FailoverRow.attempt == attempt)):
            failover.labels = row.labels
        return dict(row.labels)
