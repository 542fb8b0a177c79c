"""Notes at task instances and DagRuns, which Airflow's UI shows.

Invariants: a green task shows no failure of an earlier try, and a failed one shows why it failed. A DagRun that Airflow
calls a success is closed, or its note says that it is not. A note of a person's stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.attempts.ports import Airflow, TaskPorts
from weir.coordination.airflow import ClearAnswer, ClearItem
from weir.coordination.services import Services
from weir.coordination.values import TaskKey
from weir.errors import Retryable, WeirError
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.attempts import newest_attempts
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.snapshot import committed_attempt
from weir.recovery.pending_clears import NOTE_LENGTH

SAYS: Final = "Weir: "
"""How the notes begin that a task leaves at its own task instance. Those of clears do not."""

NOT_CLOSED: Final = f"{SAYS}this run is not closed, and nothing was published of it. "

_ALL: Final = "Clear the whole run, and it is closed"

_REASONS: Final = {
    "skipped": f"Airflow skipped its closing task when the run was marked by hand. {_ALL}",
    "success": f"Its closing task was marked as a success by hand. {_ALL}",
}
"""Why a DagRun that is a success is not closed, by Airflow's state of its closing task."""

_MOST: Final = 200
"""The largest number of open runs of a dataflow that upkeep looks at, newest first."""


def try_to_annotate(task: TaskPorts, key: TaskKey, note: str) -> None:
    """Set the task instance's note; where that fails, the task ends as it would with the note."""
    try:
        annotate(task.airflow, key, note)
    except WeirError as error:
        task.log(f"No note was left at the task instance: {error}")


def annotate(airflow: Airflow, key: TaskKey, note: str) -> None:
    """Set the task instance's note, and try once more where Airflow does not answer. Raises Retryable, Misconfigured.

    Upkeep leaves the notes of failures that are still missing.
    """
    try:
        airflow.annotate(key, note)
    except Retryable:
        airflow.annotate(key, note)


def try_to_withdraw_note(task: TaskPorts, key: TaskKey, try_number: int) -> None:
    """Replace the note that an earlier try has left, since this one has succeeded; notes of others stay."""
    if try_number <= 1:
        return
    try:
        if task.airflow.note(key).startswith(SAYS):
            task.airflow.annotate(key, f"{SAYS}try {try_number} has succeeded; `weir why` shows the earlier ones")
    except WeirError as error:
        task.log(f"The note of an earlier try is still at the task instance: {error}")


def try_to_withdraw_run_note(task: TaskPorts, key: TaskKey) -> None:
    """Remove the note that the DagRun is not closed, and keep what a person has noted there."""
    try:
        seen = task.airflow.seen_run(key.dag_id, key.run_id)
        if seen is not None and seen.note.startswith(NOT_CLOSED):
            task.airflow.annotate_run(key.dag_id, key.run_id, seen.note.partition("\n\n")[2])
    except WeirError as error:
        task.log(f"The DagRun's note still says that it is not closed: {error}")


@dataclass(frozen=True, slots=True)
class _Open:
    """A run that the ledger does not call closed, its closing task, and its regions that have failed finally."""

    run: str
    close: ClearItem
    failed: tuple[AttemptRow, ...]


def annotate_open_runs(services: Services, airflow: Airflow) -> list[str]:
    """Leave the notes that are missing at runs that are not closed; return a line for the log for each.

    These are the notes of DagRuns that a person's mark has made a success, and of failures whose task could not leave
    one. Raises Retryable or Misconfigured.
    """
    with services.ledger.transaction() as session:
        found = list(_open_runs(session))
    answers = airflow.inspect([each.close for each in found])
    lines: list[str] = []
    for each, answer in zip(found, answers, strict=True):
        if _is_unclosed(services, each.run, answer) and _say_not_closed(airflow, answer):
            lines.append(f"DagRun {each.close.run_id} of DAG {each.close.dag_id} is a success, but is not closed")
        lines += _say_why_failed(airflow, each.failed, each.close)
    return lines


def _open_runs(session: Session) -> Iterator[_Open]:
    is_open = RunRow.closed_at.is_(None) & RunRow.is_pinned & RunRow.has_dag_run
    is_there = RunRow.deleted_at.is_(None) & RunRow.expired_at.is_(None)
    for row in session.scalars(select(RunRow).where(is_open, is_there).order_by(RunRow.created_at.desc()).limit(_MOST)):
        close = ClearItem(row.dag_id, row.run_id, row.task_prefix + CLOSE.name, -1, None)
        newest = (tries[-1] for tries in newest_attempts(session, row.id).values())
        failed = tuple(each for each in newest if each.state == AttemptState.FAILED.value and each.is_of_dag_run)
        yield _Open(row.id, close, failed)


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
    airflow.annotate_run(item.dag_id, item.run_id, f"{note}\n\n{seen.note}".rstrip()[:NOTE_LENGTH])
    airflow.annotate(TaskKey(item.dag_id, item.run_id, item.task_id, item.map_index), note)
    return True


def _say_why_failed(airflow: Airflow, failed: Iterable[AttemptRow], close: ClearItem) -> Iterator[str]:
    for row in failed:
        key = TaskKey(close.dag_id, close.run_id, row.task_id, row.map_index)
        if not airflow.note(key):
            airflow.annotate(key, f"{SAYS}{row.failure or 'failed'}, not tried again. {row.error}"[:NOTE_LENGTH])
            yield f"{row.task_id}[{row.map_index}] of {close.run_id} has a note of its failure now"
