"""The driver of one attempt of a region: begin, compute, evaluate, commit, and what follows a commit.

Invariant: only the coordinator decides. The driver takes the steps in their order, and says what an error of the
computation means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from weir.attempts.coordinator import Coordinator
from weir.attempts.notes import (
    try_to_annotate,
    try_to_note_begin,
    try_to_note_wait,
    try_to_withdraw_note,
)
from weir.attempts.ports import TaskEngine, TaskPorts
from weir.attempts.steps import (
    Heartbeat,
    end_without_result,
    read_report,
    ready_outcome,
    settle,
    try_to_have_run_closed,
    write_job,
)
from weir.code.generation_rules import RepairCode, short
from weir.coordination.settled import CLEARS, Due
from weir.coordination.values import (
    Adopted,
    Awaiting,
    BeginOutcome,
    BeginRequest,
    Begun,
    Committed,
    Evaluated,
    NotInRecord,
    PassedOver,
    TaskKey,
)
from weir.errors import Conflict, Fenced, InputUnreadable, ResultUnavailable, Retryable
from weir.execution.failure_class import FailureClass, classify
from weir.execution.failure_words import WARNED


def run_attempt(
    task: TaskPorts,
    engine: TaskEngine,
    dataflow: str,
    request: Callable[[], BeginRequest],
) -> dict[str, Any]:
    """Deliver pending clears, begin, compute, evaluate, commit, settle; return the summary for Airflow's UI.

    `request` describes the try. Raises what `TaskPorts.wait`, `fail` and `skip` raise, and what `weir.errors` says.
    """
    settle(task, dataflow, CLEARS)
    described = request()
    engine.prepare()
    outcome = ready_outcome(task, lambda: _begin(task, engine, described))
    match outcome:
        case Begun():
            try_to_have_run_closed(task, described)
            try_to_note_begin(task, described.key, outcome.attempt)
            engine.connect()
            return _compute(task, engine, described.key, outcome)
        case Adopted():
            try_to_have_run_closed(task, described)
            try_to_withdraw_note(
                task, dataflow, described.key, described.try_number, may_have_waited=outcome.attempt.has_waited
            )
            task.log("An earlier try has committed this result, and the task was not cleared since: adopted")
            return dict(outcome.summary)
        case _:
            return end_without_result(task, described.key, outcome)


def _begin(task: TaskPorts, engine: TaskEngine, request: BeginRequest) -> BeginOutcome:
    """Begin, and stop the Spark work of earlier attempts: it would compete for memory and outlive its region."""
    outcome = task.coordinator.begin(request, task.airflow)
    if isinstance(outcome, (NotInRecord, PassedOver)):
        return outcome
    if isinstance(outcome, Awaiting):
        try_to_note_wait(task, request, outcome)
    for work in outcome.interrupt:
        if not work.session_url:
            continue
        task.log(f"Stopping the Spark work of attempt {work.attempt}, session {work.session_id}")
        try:
            engine.interrupt(work)
        except Retryable as error:
            # Its session has most likely ended with the server. If it has not, the fenced attempt cannot commit.
            task.log(f"That server does not answer: {error}")
    return outcome


def _compute(task: TaskPorts, engine: TaskEngine, key: TaskKey, begun: Begun) -> dict[str, Any]:
    attempt, job, coordinator = begun.attempt, begun.job, task.coordinator
    write_job(coordinator.services.store, job)
    task.log(
        f"Attempt {attempt.id} of {attempt.region} computes at {attempt.session_url}, session {attempt.session_id}"
    )
    heartbeat = Heartbeat(task, engine, begun)
    with task.heartbeats(heartbeat.beat):
        with older_code_told(begun), inputs_suspected(coordinator, begun), heartbeat.computing():
            engine.run(job, attempt.session_id, task.log)
        evaluated = coordinator.evaluate(begun, read_report(coordinator.services.store, job))
        committed = coordinator.commit(begun, evaluated.report, task.airflow)
    after_commit(task, key, begun, evaluated, committed)
    return dict(committed.summary)


@contextmanager
def older_code_told(begun: Begun) -> Iterator[None]:
    """Add to a failure of older code than is deployed which versions they are, and how the stage gets the newer.

    Older code may fail for what newer code knows of: another signature, other columns, a newer Python.
    """
    try:
        yield
    except Exception as error:
        code, deployed = begun.attempt.code, begun.attempt.deployed
        is_its_own = classify(error) in (FailureClass.APPLICATION, FailureClass.FATAL)
        if is_its_own and code is not None and code.version != deployed:
            clear = f": clear a subtask of {begun.attempt.region.name} in Airflow to run the whole stage with it"
            is_kept = begun.run.dataflow.repair_code is RepairCode.AS_IT_WAS
            error.add_note(
                f"This try ran version {short(code.version)} of the code; version {short(deployed)} is deployed"
                f"{'' if is_kept else clear}"
            )
        raise


@contextmanager
def inputs_suspected(coordinator: Coordinator, begun: Begun) -> Iterator[None]:
    """Check the inputs where a computation fails, and raise ResultUnavailable if one is lost or damaged.

    An input that Spark could not read, but that the store has as recorded, was away only for a moment: InputUnreadable.
    """
    try:
        yield
    except InputUnreadable as error:
        coordinator.check_inputs(begun)
        raise InputUnreadable.of("attempts.input_is_back", error=error) from error
    except (Conflict, Fenced, Retryable):
        raise
    except Exception as error:
        try:
            coordinator.check_inputs(begun)
        except ResultUnavailable as unavailable:
            raise unavailable from error
        raise


def after_commit(task: TaskPorts, key: TaskKey, begun: Begun, evaluated: Evaluated, committed: Committed) -> None:
    """Note what happened, then settle what follows from the commit. No failure here undoes it."""
    try_to_withdraw_note(task, begun.run.dataflow.name, key, begun.attempt.try_number)
    _note_warnings(task, key, begun, evaluated)
    early = (begun.run.id,) if begun.run.dataflow.publishes_early else ()
    settle(task, begun.run.dataflow.name, Due(clears=committed.owed > 0, runs=committed.touched, early=early))


def _note_warnings(task: TaskPorts, key: TaskKey, begun: Begun, evaluated: Evaluated) -> None:
    warnings = (*evaluated.notes, *([begun.code_note] if begun.code_note else ()))
    if not warnings:
        return
    for warning in warnings:
        task.log(f"Committed, with a warning: {warning}")
    try_to_annotate(task, key, f"{WARNED}{'; '.join(warnings)}")
