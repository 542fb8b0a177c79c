"""Which dataflows and runs of the ledger belong to a DAG and a DagRun of Airflow."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.database.tables import FailedBeginRow, RunRow
from weir.ledger.runs import run_key
from weir.topology.ids import RunId


def dataflows_of_dag(session: Session, dag_id: str) -> list[str]:
    """Return the dataflows of which a DAG has runs: more than one where it has groups of tasks for each."""
    query = select(RunRow.dataflow).where(RunRow.dag_id == dag_id).distinct().order_by(RunRow.dataflow)
    return list(session.scalars(query))


def runs_of_dag_run(session: Session, dag_id: str, run_id: str) -> list[RunId]:
    """Return the runs that a DagRun computes, one for each dataflow of its DAG."""
    query = select(RunRow.id).where(RunRow.dag_id == dag_id, RunRow.run_id == run_id).order_by(RunRow.id)
    return list(session.scalars(query))


def dag_runs_of(session: Session, dag_id: str, dataflow: str) -> dict[RunId, str]:
    """Return the ids that the runs of a dataflow have in Airflow, of those of this DAG."""
    query = select(RunRow.id, RunRow.run_id).where(RunRow.dag_id == dag_id, RunRow.dataflow == dataflow)
    return dict(session.execute(query).tuples().all())


def run_of_task(session: Session, dag_id: str, run_id: str, task_id: str) -> RunId | None:
    """Return the run that a task of a DagRun belongs to, by the group of its id; None where the ledger has none.

    A run of which every try failed before it was registered has the name by which such tries are found.
    """
    query = select(RunRow.id, RunRow.task_prefix).where(RunRow.dag_id == dag_id, RunRow.run_id == run_id)
    of = {run: prefix for run, prefix in session.execute(query).tuples() if task_id.startswith(prefix)}
    if not of:
        return _run_never_begun(session, dag_id, run_id, task_id)
    return max(of, key=lambda run: len(of[run]))


def _run_never_begun(session: Session, dag_id: str, run_id: str, task_id: str) -> RunId | None:
    query = select(FailedBeginRow.dataflow, FailedBeginRow.epoch).where(
        FailedBeginRow.dag_id == dag_id, FailedBeginRow.run_id == run_id, FailedBeginRow.task_id == task_id
    )
    for dataflow, epoch in session.execute(query.limit(1)).tuples():
        return RunId(run_id) if epoch is None else run_key(dataflow, epoch)
    return None
