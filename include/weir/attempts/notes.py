"""Notes at task instances and DagRuns, which Airflow's UI shows.

Invariants: a green task shows no failure of an earlier try, and a failed one shows why it failed. A DagRun that Airflow
calls a success is closed, or its note says that it is not; one that has healed says what was lost and what it took. A
note of a person's, which does not begin as Weir's do, stays, below Weir's words. No note has a secret in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from weir.attempts.ports import Airflow, Log, TaskPorts
from weir.coordination.airflow import ClearAnswer, ClearItem
from weir.coordination.services import Services
from weir.coordination.values import Attempt, Awaiting, BeginRequest, TaskKey, region_of_task
from weir.errors import Retryable, WeirError
from weir.execution.failure_words import (
    BY_PERSON,
    SAYS,
    PastFailure,
    PastTries,
    note_of_failure,
    noted,
    own_part,
    succeeded,
    waited,
)
from weir.execution.run_state import CLOSE, DONE, AttemptState
from weir.ledger.attempts import Origin, newest_attempts, tries_of_task
from weir.ledger.database.tables import AttemptRow, FailoverRow, RunRow
from weir.ledger.runs import epoch_of, run_key
from weir.ledger.snapshot import committed_attempt
from weir.recovery.past_failovers import failovers_of_run, told
from weir.recovery.rules.plan import Plan, StepKind
from weir.recovery.standing import Asked, standing_of
from weir.restarts.delays import FIRST_WAIT
from weir.secrecy import without_secrets
from weir.topology.ids import RunId
from weir.topology.regions import RegionId

NOT_CLOSED: Final = f"{SAYS}this run is not closed, and nothing was published of it. "

MARKED: Final = f"{SAYS}marked as a success by hand, after a failure: "
"""How the note begins of a failed task that is green without a result."""

_HAVE_FAILED: Final = (AttemptState.FAILED.value, AttemptState.RETRYING.value)

_ALL: Final = "Clear the whole run, and it is closed"

_REASONS: Final = {
    "skipped": f"Airflow skipped its closing task when the run was marked by hand. {_ALL}",
    "success": f"Its closing task was marked as a success by hand. {_ALL}",
}
"""Why a DagRun that is a success is not closed, by Airflow's state of its closing task."""

_MOST: Final = 200
"""The largest number of open runs of a dataflow that upkeep looks at, newest first."""

_IS_UNTOLD: Final = FailoverRow.is_told.is_(False)

_MOST_ASKED: Final = 60
"""The largest number of tasks that a wait asks Airflow for, oldest run first."""


def try_to_annotate(task: TaskPorts, key: TaskKey, note: str) -> None:
    """Set the task instance's note; where that fails, the task ends as it would with the note."""
    annotate_or_log(lambda: task.airflow, key, note, task.log)


def annotate_or_log(airflow: Callable[[], Airflow], key: TaskKey, note: str, log: Log) -> None:
    """Set the task instance's note, or log why there is none; to get at Airflow may fail, too."""
    try:
        annotate(airflow(), key, note)
    except WeirError as error:
        log(f"No note was left at the task instance: {error}")


def annotate(airflow: Airflow, key: TaskKey, note: str, seen: str | None = None) -> None:
    """Set Weir's words in the task instance's note, and try once more where Airflow does not answer.

    `seen` is the note that stands there; without it Airflow is asked. Raises Retryable, Misconfigured. Upkeep leaves
    the notes of failures that are still missing.
    """
    note = without_secrets(note)  # before it is cut: half a secret does not look like one
    try:
        _set(airflow, key, note, seen)
    except Retryable:
        _set(airflow, key, note, seen)


def _set(airflow: Airflow, key: TaskKey, note: str, seen: str | None) -> None:
    before = airflow.note(key) if seen is None else seen
    if (after := noted(note, before)) != before:
        airflow.annotate(key, after)


def try_to_note_wait(task: TaskPorts, request: BeginRequest, awaiting: Awaiting) -> None:
    """Set the task instance's note to what it waits for and how that stands, where a person has left none.

    Not for a wait that is most often over in seconds, nor for a restart's delay.
    """
    if not awaiting.is_for_target and (not awaiting.attempt or awaiting.seconds <= FIRST_WAIT):
        return
    key = request.key
    try:
        seen = task.airflow.note(key)
        if seen and not seen.startswith(SAYS):
            return
        reason = awaiting.reason if awaiting.is_for_target else _why_it_waits(task, request, awaiting)
        annotate(task.airflow, key, f"{SAYS}{reason}", seen)
    except WeirError as error:
        task.log(f"No note was left at the task instance: {error}")


def _why_it_waits(task: TaskPorts, request: BeginRequest, awaiting: Awaiting) -> str:
    """Return what the task waits for, since when, whether that goes on by itself, and what to do if not."""
    run = run_key(request.dataflow.name, epoch_of(request.interval[0]))
    region = region_of_task(request.task_prefix, request.key)
    asked = Asked(airflow=task.airflow, most=_MOST_ASKED)
    found = standing_of(task.coordinator.services, run, asked, only=region)
    if found is None or not (found.waits_for is not None or awaiting.reason in found.reason):
        return awaiting.reason
    return found.as_note()


def try_to_note_begin(task: TaskPorts, key: TaskKey, attempt: Attempt) -> None:
    """Replace the note that the task waits, or that it had failed before a person cleared it; notes of others stay."""
    if not attempt.has_waited and not attempt.is_by_person:
        return
    try:
        seen = task.airflow.note(key)
        if own_part(seen).startswith(SAYS):  # the note of a clear says why this try runs
            note = waited(task.coordinator.services.now()) if attempt.has_waited else BY_PERSON
            annotate(task.airflow, key, note, seen)
    except WeirError as error:
        task.log(f"An old note is still at the task instance: {error}")


def try_to_withdraw_note(
    task: TaskPorts, dataflow: str, key: TaskKey, try_number: int, *, may_have_waited: bool = False
) -> None:
    """Say what had happened before this try succeeded, in place of what an earlier try, a clear or a wait has noted.

    A try that was killed could leave no note, and gets one now; notes of others stay.
    """
    if try_number <= 1 and not may_have_waited:
        return
    try:
        seen = task.airflow.note(key)
        own = own_part(seen)
        if seen and not own:
            return
        past = _past_tries(task.coordinator.services, dataflow, key, try_number) if try_number > 1 else PastTries()
        note = succeeded(own, past)
        if own and not note and try_number <= 1:
            note = waited(task.coordinator.services.now())
        annotate(task.airflow, key, note, seen)
    except WeirError as error:
        task.log(f"The note of an earlier try is still at the task instance: {error}")


def _past_tries(services: Services, dataflow: str, key: TaskKey, try_number: int) -> PastTries:
    """Return what has become of a task instance since it last committed before a try. Raises Retryable."""
    found: list[AttemptRow] = []
    is_by_person = False
    tries = tries_of_task(dataflow, key.dag_id, key.run_id, key.task_id, key.map_index)
    with services.ledger.transaction() as session:
        up_to_it = tries.where(AttemptRow.try_number.between(1, try_number)).order_by(AttemptRow.try_number)
        for row in session.scalars(up_to_it):
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


def try_to_note_close(task: TaskPorts, run: RunId, key: TaskKey, *, was_cleared: bool) -> None:
    """Remove the note that the DagRun is not closed, and say what has healed in it; a person's note stays."""
    try:
        if was_cleared:
            _say_closed(task.airflow, key)
        for line in _say_healed(task.coordinator.services, task.airflow, run):
            task.log(line)
    except WeirError as error:
        task.log(f"The DagRun's note is not up to date: {error}")


def _say_closed(airflow: Airflow, key: TaskKey) -> None:
    seen = airflow.seen_run(key.dag_id, key.run_id)
    if seen is not None and seen.note.startswith(NOT_CLOSED):
        airflow.annotate_run(key.dag_id, key.run_id, noted("", seen.note))


@dataclass(frozen=True, slots=True)
class _Failed:
    """The newest attempt of a region, which has failed, and its state; `note` is that of its failure."""

    attempt: str
    state: str
    region: RegionId
    item: ClearItem
    note: str


@dataclass(frozen=True, slots=True)
class _Open:
    """A run that the ledger does not call closed, its closing task, and its regions that have failed."""

    run: str
    close: ClearItem
    failed: tuple[_Failed, ...]

    @property
    def items(self) -> list[ClearItem]:
        """The task instances that are asked about."""
        return [self.close, *(each.item for each in self.failed)]


def annotate_open_runs(services: Services, airflow: Airflow) -> list[str]:
    """Leave the notes that are missing at runs that are not closed; return a line for the log for each.

    These are the notes of DagRuns and of failed tasks that a person's mark has made a success, and of failures whose
    task could not leave one. What cannot be asked or noted has a line, too, and keeps no other run from its notes.
    Raises Retryable if the ledger does not answer.
    """
    by_dag: dict[str, list[_Open]] = {}
    with services.ledger.transaction() as session:
        for each in _open_runs(session):
            by_dag.setdefault(each.close.dag_id, []).append(each)
    lines: list[str] = []
    for dag_id, runs in by_dag.items():
        try:
            answers = {each.item: each for each in airflow.inspect([item for of in runs for item in of.items])}
        except WeirError as error:
            lines.append(without_secrets(f"Notes may be missing in DAG {dag_id}: {error}"))
            continue
        for each in runs:
            try:
                lines.extend(_annotate(services, airflow, each, answers))
            except WeirError as error:
                where = f"DagRun {each.close.run_id} of DAG {dag_id}"
                lines.append(without_secrets(f"Notes may be missing in {where}: {error}"))
    return lines


def _open_runs(session: Session) -> Iterator[_Open]:
    is_open = RunRow.closed_at.is_(None) & RunRow.is_pinned & RunRow.has_dag_run
    is_there = RunRow.deleted_at.is_(None) & RunRow.expired_at.is_(None)
    for dataflow in session.scalars(select(RunRow.dataflow).where(is_open, is_there).distinct()).all():
        newest = select(RunRow).where(RunRow.dataflow == dataflow, is_open, is_there).order_by(RunRow.created_at.desc())
        for row in session.scalars(newest.limit(_MOST)):
            close = ClearItem(row.dag_id, row.run_id, row.task_prefix + CLOSE.name, -1, None)
            yield _Open(row.id, close, tuple(_failures(session, row)))


def _failures(session: Session, run: RunRow) -> Iterator[_Failed]:
    for region, tries in newest_attempts(session, run.id).items():
        row = tries[-1]
        if row.state in _HAVE_FAILED:
            item = ClearItem(run.dag_id, run.run_id, row.task_id, row.map_index, None)
            message, labels = row.error or "", row.labels or {}
            note = note_of_failure(message, message, labels, delay=None, kind=row.failure or "")
            yield _Failed(row.id, row.state, region, item, note)


def _annotate(
    services: Services, airflow: Airflow, found: _Open, answers: Mapping[ClearItem, ClearAnswer]
) -> Iterator[str]:
    """Leave the missing notes of one run, and yield a line for each. Raises Retryable or Misconfigured."""
    close = answers[found.close]
    if _is_unclosed(services, found.run, close) and _say_not_closed(airflow, close):
        yield f"DagRun {found.close.run_id} of DAG {found.close.dag_id} is a success, but is not closed"
    for each in found.failed:
        if _say_why_failed(services, airflow, found.run, each, answers[each.item].state):
            yield f"{each.item.task_id}[{each.item.map_index}] of {found.close.run_id} has a note of its failure now"


def _is_unclosed(services: Services, run: str, answer: ClearAnswer) -> bool:
    """Report whether Airflow will not run the closing task again, and this try of it has not closed the run."""
    if answer.state not in _REASONS:
        return False
    with services.ledger.transaction() as session:  # after Airflow's answer: a task commits before Airflow knows
        closing = committed_attempt(session, run, CLOSE)
        return closing is None or closing.try_number < answer.try_number


def _say_not_closed(airflow: Airflow, answer: ClearAnswer) -> bool:
    item, note = answer.item, NOT_CLOSED + _REASONS[str(answer.state)]
    seen = airflow.seen_run(item.dag_id, item.run_id)
    if seen is None or seen.state != "success" or seen.note.startswith(NOT_CLOSED):
        return False
    airflow.annotate_run(item.dag_id, item.run_id, noted(note, seen.note))
    annotate(airflow, _key(item), note)
    return True


def _say_why_failed(services: Services, airflow: Airflow, run: str, failed: _Failed, state: str | None) -> bool:
    """Note the failure at a task instance that is red and has no note, or that a person has marked as a success."""
    if state not in ("failed", "success"):
        return False
    seen = airflow.note(_key(failed.item))
    is_told = bool(seen) if state == "failed" else seen.startswith(MARKED) or not seen.startswith(SAYS)
    is_final = failed.state == AttemptState.FAILED.value
    if is_told or not (is_final or state == "success") or not _is_failed(services, run, failed):
        return False
    note = failed.note if state == "failed" else f"{MARKED}{failed.note.removeprefix(SAYS)}"
    annotate(airflow, _key(failed.item), note)
    return True


def annotate_healed_runs(services: Services, airflow: Airflow) -> list[str]:
    """Say at each DagRun that has healed what was lost and what it took; return a line for the log for each.

    These are closed runs with failovers of which nothing more comes, and of which no note was left. Raises Retryable if
    the ledger does not answer.
    """
    is_there = RunRow.closed_at.is_not(None) & RunRow.has_dag_run & RunRow.deleted_at.is_(None)
    healed = select(RunRow.id).join(FailoverRow, FailoverRow.run == RunRow.id).where(is_there, _IS_UNTOLD).distinct()
    with services.ledger.transaction() as session:
        runs = list(session.scalars(healed.limit(_MOST)))
    lines: list[str] = []
    for run in runs:
        try:
            lines.extend(_say_healed(services, airflow, run))
        except WeirError as error:
            lines.append(without_secrets(f"The note may be missing at run {run}: {error}"))
    return lines


def _say_healed(services: Services, airflow: Airflow, run: RunId) -> Iterator[str]:
    """Leave the note of a run that has healed, if it has none, and yield a line. Raises Retryable or Misconfigured."""
    with services.ledger.transaction() as session:
        if session.scalar(select(FailoverRow.id).where(FailoverRow.run == run, _IS_UNTOLD).limit(1)) is None:
            return
        row, failovers = session.get_one(RunRow, run), failovers_of_run(session, run)
        if row.closed_at is None or not all(each.is_over for each in failovers):
            return
        dag_id, run_id, dataflow = row.dag_id, row.run_id, row.dataflow
        note = without_secrets(f"{SAYS}{told(session, failovers)}")
    seen = airflow.seen_run(dag_id, run_id)
    if seen is not None:
        airflow.annotate_run(dag_id, run_id, noted(note, seen.note))
        yield f"The note of DagRun {run_id} of DAG {dag_id} says what has healed"
    with services.ledger.transaction(dataflow) as session:
        is_of_note = (FailoverRow.run == run) & (FailoverRow.id <= failovers[-1].id)
        session.execute(update(FailoverRow).where(is_of_note).values(is_told=True))


def _is_failed(services: Services, run: str, failed: _Failed) -> bool:
    """Report whether the attempt is still the region's newest, and has failed as before."""
    with services.ledger.transaction() as session:  # after Airflow's answer, as in `_is_unclosed`
        newest = newest_attempts(session, run).get(failed.region, [])
        return bool(newest) and (newest[-1].id, newest[-1].state) == (failed.attempt, failed.state)


def _key(item: ClearItem) -> TaskKey:
    return TaskKey(item.dag_id, item.run_id, item.task_id, item.map_index)
