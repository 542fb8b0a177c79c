"""One attempt of a region, as a task makes it (DESIGN 5): the one driver of the plugin, the fakes and the simulator.

Invariant: only the coordinator decides; this takes its steps in order, and says what follows from an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from weir.attempts.coordinator import Coordinator
from weir.attempts.ports import TaskEngine, TaskPorts
from weir.attempts.steps import (
    end_without_result,
    read_report,
    ready_outcome,
    renewed,
    try_to_annotate,
    try_to_deliver_clears,
    try_to_release,
    write_job,
)
from weir.coordination.values import (
    Adopted,
    Awaiting,
    BeginRequest,
    Begun,
    Committed,
    Exhausted,
    Judged,
    NotInRecord,
    TaskKey,
)
from weir.errors import Fenced, InputUnreadable, QualityFailed, ResultUnavailable, Retryable
from weir.formats.region_job import RegionReport


def run_attempt(
    task: TaskPorts,
    engine: TaskEngine,
    dataflow: str,
    request: Callable[[], BeginRequest],
    make_pages: Callable[[str], None],
) -> dict[str, Any]:
    """Deliver pending clears, begin, compute, evaluate, commit; answer the summary for Airflow's UI.

    `request` describes the try. `make_pages` makes the pages about what an attempt, given by its id, has violated.
    Raises what `TaskPorts.wait` and `fail` raise, and what `weir.errors` says.
    """
    try_to_deliver_clears(task, dataflow)
    asked = request()
    engine.prepare()
    outcome = ready_outcome(task, lambda: _begin(task, engine, asked))
    match outcome:
        case Begun():
            engine.connect()
            return _compute(task, engine, asked.key, outcome, make_pages)
        case Adopted():
            task.log("An earlier try has committed this result, and nobody has asked for it anew: adopted")
            return dict(outcome.summary)
        case _:
            return end_without_result(task, asked.key, outcome)


def _begin(
    task: TaskPorts, engine: TaskEngine, asked: BeginRequest
) -> Begun | Adopted | Awaiting | Exhausted | NotInRecord:
    outcome = task.coordinator.begin(asked, task.airflow)
    if not isinstance(outcome, NotInRecord):
        _interrupt_earlier(task, engine, outcome)
    return outcome


def _interrupt_earlier(task: TaskPorts, engine: TaskEngine, outcome: Begun | Adopted | Awaiting | Exhausted) -> None:
    """Stop the Spark work of earlier attempts, so that it neither competes for memory nor outlives its region."""
    for work in outcome.interrupt:
        if not work.session_url:
            continue
        task.log(f"Stopping the Spark work of attempt {work.attempt}, session {work.session_id}")
        try:
            engine.interrupt(work)
        except Retryable as error:
            # Gone, and the session with it. Should it live after all, a fenced attempt cannot commit.
            task.log(f"That server does not answer: {error}")


def _compute(
    task: TaskPorts, engine: TaskEngine, key: TaskKey, begun: Begun, make_pages: Callable[[str], None]
) -> dict[str, Any]:
    attempt, job, coordinator = begun.attempt, begun.job, task.coordinator
    write_job(coordinator.services.store, job)
    task.log(
        f"Attempt {attempt.id} of {attempt.region} computes at {attempt.session_url}, session {attempt.session_id}"
    )
    with renewed(coordinator, attempt, task.log), inputs_suspected(coordinator, begun):
        engine.run(job, attempt.session_id, task.log)
    evaluated = _evaluate(task, begun, read_report(coordinator.services.store, job), make_pages)
    committed = coordinator.commit(begun, evaluated.report, task.airflow)
    after_commit(task, key, begun, evaluated, committed)
    return dict(committed.summary)


@contextmanager
def inputs_suspected(coordinator: Coordinator, begun: Begun) -> Iterator[None]:
    """Check the inputs where a computation fails, and raise ResultUnavailable if one is lost or damaged.

    One that Spark could not read, and that the store has as recorded, was only away for a moment: InputUnreadable.
    """
    try:
        yield
    except InputUnreadable as error:
        coordinator.check_inputs(begun)
        raise InputUnreadable(
            f"{error}. By now it is there, as recorded: nothing is lost, and the task tries again"
        ) from error
    except (Fenced, Retryable):
        raise
    except Exception as error:
        try:
            coordinator.check_inputs(begun)
        except ResultUnavailable as unavailable:
            raise unavailable from error
        raise


def _evaluate(task: TaskPorts, begun: Begun, report: RegionReport, make_pages: Callable[[str], None]) -> Judged:
    """Evaluate what was written; make pages about rows that a person has to look at."""
    try:
        return task.coordinator.judge(begun, report)
    except QualityFailed as failed:
        if failed.is_final:  # what is tried again is not to wait for a page
            make_pages(begun.attempt.id)
        raise


def after_commit(task: TaskPorts, key: TaskKey, begun: Begun, evaluated: Judged, committed: Committed) -> None:
    """Note warnings, deliver the clears that the commit owes, release results. Whatever fails here undoes no commit."""
    _note_warnings(task, key, evaluated)
    if committed.owed:
        try_to_deliver_clears(task, begun.run.dataflow.name)
    try_to_release(task, begun.run.dataflow.name, committed.touched)


def _note_warnings(task: TaskPorts, key: TaskKey, evaluated: Judged) -> None:
    for each in evaluated.notes:
        task.log(f"Committed, with a warning: {each}")
    if evaluated.notes:
        try_to_annotate(task, key, f"Weir: committed, with a warning: {'; '.join(evaluated.notes)}")
