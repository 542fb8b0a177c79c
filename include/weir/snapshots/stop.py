"""Stops a dataflow after the epochs that have begun, so that it can be changed, and has it go on.

Invariant: the ledger says after which epoch it stops, before anything is waited for: no task of a later one begins,
whether its DagRun exists or not, until the dataflow is started again. So each command may be killed, and typed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.airflow import AirflowStates
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.ledger.database.tables import DataflowRow, RunRow
from weir.ledger.names import SHOWN, require_dataflow
from weir.ledger.runs import newest_pinned, topology_of
from weir.recovery.rules.standing import Stand
from weir.recovery.standing import Asked, all_standings
from weir.topology.ids import Epoch, RunId
from weir.wording import first_few

SECONDS = 5.0
"""How often it is looked whether the epochs have ended."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A dataflow of which no epoch begins any more after `epoch`, and the DAG that was paused."""

    dataflow: str
    epoch: Epoch
    dag_id: str
    keeps_state: bool


def stop(
    services: Services,
    dataflow: str,
    airflow: AirflowStates,
    said: Callable[[str], None],
    wait: Callable[[float], None],
) -> Stopped:
    """Have a dataflow stop after the epochs that have begun, wait until they are closed, and pause its DAG.

    `said` is told what is waited for, and `wait` waits so many seconds. Raises Misconfigured where an epoch does not go
    on by itself, or for a dataflow of which none has begun; it stays marked then, and another call goes on. Raises
    Retryable where Airflow or the ledger does not answer.
    """
    epoch, dag_id, keeps_state = _mark(services, dataflow)
    told = ""
    while waited := _open_until(services, dataflow, epoch):
        _require_progress(services, dataflow, waited, airflow)
        if (text := f"waiting until {first_few(waited, SHOWN)} is closed") != told:
            said(told := text)
        wait(SECONDS)
    airflow.pause(dag_id, is_paused=True)
    return Stopped(dataflow, epoch, dag_id, keeps_state)


def _mark(services: Services, dataflow: str) -> tuple[Epoch, str, bool]:
    with services.ledger.transaction() as session:
        require_dataflow(session, dataflow)
    with services.ledger.transaction(dataflow) as session:
        row = session.get_one(DataflowRow, dataflow)
        newest, dag_id = _newest(session, dataflow)
        row.stopped_after = row.stopped_after or newest
        pinned = newest_pinned(session, dataflow)
        return row.stopped_after, dag_id, pinned is not None and topology_of(pinned).dataflow.keeps_state


def _newest(session: Session, dataflow: str) -> tuple[Epoch, str]:
    """Return the newest epoch that has begun, and the DAG that computes it. Raises Misconfigured."""
    begun = (RunRow.dataflow == dataflow) & RunRow.is_pinned & RunRow.has_dag_run
    query = select(RunRow.epoch, RunRow.dag_id).where(begun).order_by(RunRow.epoch.desc()).limit(1)
    found = session.execute(query).tuples().first()
    if found is None:
        raise Misconfigured.of("snapshots.nothing_to_stop", dataflow=dataflow)
    return found


def _open_until(services: Services, dataflow: str, epoch: Epoch) -> list[RunId]:
    """Return the runs of epochs up to this one that are not closed, oldest first."""
    with services.ledger.transaction() as session:
        of_dataflow = (RunRow.dataflow == dataflow) & (RunRow.epoch <= epoch) & RunRow.closed_at.is_(None)
        rows = session.scalars(select(RunRow).where(of_dataflow).order_by(RunRow.epoch))
        return [each.id for each in rows if each.has_dag_run and each.expired_at is None and not each.is_passed_over]


def _require_progress(services: Services, dataflow: str, runs: list[RunId], airflow: AirflowStates) -> None:
    found = all_standings(services, runs, Asked(airflow=airflow)).values()
    stopped = [each for each in found if each.stand is Stand.STOPPED]
    if stopped and not any(each.root.stand is not Stand.STOPPED for each in found):
        raise Misconfigured.of("snapshots.stop_awaits", dataflow=dataflow, why=[str(each) for each in stopped[:SHOWN]])


def start(services: Services, dataflow: str, airflow: AirflowStates) -> str:
    """Have a dataflow that was stopped go on, and return the id of its DAG, which is paused no more.

    Raises Misconfigured for a dataflow that is not stopped, and Retryable or Misconfigured of Airflow.
    """
    with services.ledger.transaction() as session:
        require_dataflow(session, dataflow)
    with services.ledger.transaction(dataflow) as session:
        row = session.get_one(DataflowRow, dataflow)
        if row.stopped_after is None:
            raise Misconfigured.of("snapshots.not_stopped", dataflow=dataflow)
        row.stopped_after = None
        dag_id = _newest(session, dataflow)[1]
    airflow.pause(dag_id, is_paused=False)
    return dag_id
