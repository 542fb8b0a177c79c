"""Books failed tries in the ledger, with what follows from them.

Whether and when they run again is decided by `weir.restarts.answer`; a missing input is planned as a recovery. A user's
policy may override the decision about a failure of the application afterwards.

Invariant 7: a failure, its plan and the clears of the plan are one transaction.

Invariant 6: the half-written output of a failed attempt is removed manifests first, and only after its failure was
recorded, so that it cannot commit any more; no other attempt ever uses its names. A completed copy is kept: the next
try resumes from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.airflow import Clearer
from weir.coordination.services import Services, attempt_folder
from weir.coordination.values import FailedTry
from weir.errors import Conflict, DiskFull, Fault, ResultUnavailable, Retryable, WeirError
from weir.execution.failure_class import FailureClass, cause_of, classify
from weir.execution.failure_words import message_of
from weir.execution.labels import built_in_labels
from weir.execution.run_state import CLOSE, AttemptState
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
from weir.recovery.reconcile import add_clear_of_closing, note_later
from weir.recovery.rules.decision import Failure
from weir.recovery.rules.plan import Plan
from weir.restarts.answer import (
    COUNTED,
    Action,
    FailureDecision,
    Failures,
    by_budget,
    decide_again,
    hopeless,
    unregistered,
)
from weir.restarts.delays import UNDECIDED_DELAY
from weir.restarts.strategy import RestartStrategy
from weir.secrecy import without_secrets
from weir.store.errors import NotFound
from weir.topology.ids import RunId
from weir.topology.regions import RegionId

ABANDONED = (AttemptState.RETRYING.value, AttemptState.FAILED.value)
"""The states of an attempt that has failed and will never commit."""


def fail(services: Services, failed: FailedTry, airflow: Callable[[], Clearer]) -> FailureDecision:
    """Book the failure of a try and decide. Raises Retryable if the ledger or the store does not answer."""
    error, failure = failed.error, classify(failed.error)
    with services.ledger.transaction() as session:
        row = _attempt(session, failed)
        run = None if row is None else run_by_id(session, row.run)
    if row is None or run is None:
        return _book_unregistered(services, failed, failure)
    if row.state not in LIVE:
        return hopeless(error) if _is_refused(row, failure) else _already_ended(row)
    if isinstance(error, ResultUnavailable):
        try:
            return _backtrack(services, run, row, error, airflow)
        except (Retryable, Conflict) as unplanned:
            # If it were not recorded, the next begin would take the process for killed.
            failure, error = classify(unplanned), unplanned
    with services.ledger.transaction(failed.dataflow) as session:
        decision = _book(session, services, row.id, failure, error, failed.strategy)
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
    key = failed.key
    tries = tries_of_task(failed.dataflow, key.dag_id, key.run_id, key.task_id, key.map_index)
    is_it = (AttemptRow.try_number == failed.try_number) & AttemptRow.ti_id.in_((failed.ti_id, ""))
    return session.scalar(tries.where(is_it))  # a rebuilt ledger does not know the id


def _book_unregistered(services: Services, failed: FailedTry, failure: FailureClass) -> FailureDecision:
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
    decision = unregistered(failed.error, failure)
    with services.ledger.transaction(failed.dataflow) as session:
        record_failed_begin(session, row)
        if decision.action is Action.FAIL:
            event = _never_begun(row)
            of = RunId(event.of.run or f"{row.dag_id}/{row.run_id}")
            tell_incident(session, of, event, services.now(), clear_number=failed.clear_number)
    return decision


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
                return _book_plan(session, services, run, row.id, decided.answer, error)
        asked = with_answers(services, store_id, run, decided, airflow)
    raise Conflict.of("attempts.run_keeps_changing", rounds=ROUNDS, failed=failed)


def _book_plan(
    session: Session, services: Services, run: Run, attempt: str, plan: Plan, error: ResultUnavailable
) -> FailureDecision:
    failure, row = FailureClass.BACKTRACK, _end(session, services, attempt, FailureClass.BACKTRACK, error, str(error))
    if isinstance(row, FailureDecision):
        return row
    if plan.held_back or plan.impossible:
        record_failover(session, run, plan, services.now(), FailoverKind.HELD_BACK, row)
        # If this answer is lost, a repeated call returns the text.
        row.error = _held_back(run, plan)
        decision = FailureDecision(action=Action.FAIL, reason=row.error, attempt=row.id, failure=failure)
    else:
        counted = failures_of(session, row, failure)
        decision = by_budget(failure, _summary(plan, error), counted, services.recovery.budgets)
    if decision.action is Action.FAIL:
        give_up(session, services, row)
    else:
        apply_plan(session, services, run, plan, FailoverKind.LOSS, row)
    return decision


def give_up(session: Session, services: Services, row: AttemptRow) -> None:
    """Record that a failed attempt is followed by no other one; clears and a notification follow from that.

    The closing tasks of its run and of later ones are cleared that are open and would call themselves closed.
    """
    row.state = AttemptState.FAILED.value
    why = f"{RegionId(row.region, row.subtask)} has failed for good"
    add_clear_of_closing(session, services, row.run, why)
    note_later(session, services, run_by_id(session, row.run))
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


def _book(
    session: Session,
    services: Services,
    attempt: str,
    failure: FailureClass,
    error: BaseException,
    strategy: RestartStrategy,
) -> FailureDecision:
    row = _end(session, services, attempt, failure, error, message_of(error))
    if isinstance(row, FailureDecision):
        return row
    counted = failures_of(session, row, failure, strategy)
    decision = decide_again(failure, error, counted, strategy, services.recovery.budgets)
    if decision.action is Action.FAIL:
        give_up(session, services, row)
    return decision


def _end(
    session: Session, services: Services, attempt: str, failure: FailureClass, error: BaseException, message: str
) -> AttemptRow | FailureDecision:
    """End the attempt with its failure; return the decision about one that has already ended, and leave it as it is."""
    row = session.get(AttemptRow, attempt)
    if row is None or row.state not in LIVE:
        return _already_ended(row)
    cause, message = cause_of(error), without_secrets(message)
    end(row, AttemptState.RETRYING, services.now(), failure=failure, cause=cause, error=message)
    row.labels = built_in_labels(failure, error)
    drop_leases(session, attempt)
    return row


def _already_ended(row: AttemptRow | None) -> FailureDecision:
    """Decide about an attempt that has already been ended, or that a rebuilt ledger does not know."""
    if row is None:
        reason = "the ledger was rebuilt, and does not know the attempt"
        return FailureDecision(action=Action.RETRY, delay_seconds=UNDECIDED_DELAY, reason=reason)
    if row.state == AttemptState.FAILED.value:
        return FailureDecision(action=Action.FAIL, reason=row.error or "the attempt had failed before")
    # It has committed or was fenced: the next try reuses the commit, or raises.
    return FailureDecision(action=Action.RETRY, delay_seconds=1, reason=f"attempt {row.id} is {row.state} already")


def failures_of(
    session: Session, row: AttemptRow, failure: FailureClass, strategy: RestartStrategy | None = None
) -> Failures:
    """Return the failures of a task that count, of which the newest is of this class, for a decision."""
    region = RegionId(row.region, row.subtask)
    tries = attempts_of(session, row.run, region)
    is_limited = strategy is not None and strategy.limits.per_run is not None
    return Failures(
        attempt=row.id,
        run=row.run,
        task=f"{row.run} {region}",
        used=len(failures_since_clear(tries, [failure], or_commit=True)),
        own=_milliseconds(failures_since_clear(tries, COUNTED)),
        of_run=_failures_of_run(session, row.run) if is_limited else (),
    )


def _failures_of_run(session: Session, run: str) -> list[int]:
    """Return when tasks of a run have failed since a person last cleared one of them, and so has seen the run."""
    regions = newest_attempts(session, run).values()
    seen = [row.began_at for rows in regions for row in rows if row.origin == Origin.CLEARED_BY_PERSON.value]
    failures = (at for rows in regions for at in failures_since_clear(rows, COUNTED))
    return _milliseconds(at for at in failures if not seen or at >= max(seen))


def _milliseconds(times: Iterable[datetime]) -> list[int]:
    return sorted(int(at.timestamp() * 1000) for at in times)


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


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """What a user's policy says: `action` is None where it leaves the decision; `reason` is logged."""

    action: Action | None = None
    reason: str = ""
    delay_seconds: float = 0.0


def override(services: Services, dataflow: str, decision: FailureDecision, answer: PolicyAnswer) -> FailureDecision:
    """Override a decision that may be overridden. Raises Retryable.

    A retry that the strategy had refused restarts other regions, where the dataflow is declared so.
    """
    if answer.action is None:
        return replace(decision, reason=f"{decision.reason}; {answer.reason}") if answer.reason else decision
    with services.ledger.transaction(dataflow) as session:
        row = session.get(AttemptRow, decision.attempt)
        if row is None or row.state not in ABANDONED:
            return decision
        was_refused = row.state == AttemptState.FAILED.value
        if answer.action is Action.FAIL:
            give_up(session, services, row)
        else:
            row.state = AttemptState.RETRYING.value
            withdraw(session, _failed_for_good(session.get_one(RunRow, row.run), row).id)
            if was_refused:
                restart_others(session, services, run_by_id(session, row.run), row, FailureClass.APPLICATION)
    reason = f"{answer.reason}; {decision.reason}"
    return replace(decision, action=answer.action, delay_seconds=answer.delay_seconds, reason=reason)


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
