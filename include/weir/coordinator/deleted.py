"""Runs that were deleted in Airflow.

Invariant: a run is taken for deleted only if Airflow says so and still knows its DAG; whoever begins in it, or an
Airflow that knows it again, proves the contrary.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select

from weir.coordinator.clearing import Clearer
from weir.coordinator.services import Services
from weir.errors import WeirError
from weir.ledger.models import RunRow
from weir.ledger.restores import NO_DAG
from weir.ledger.sweeping import runs_to_sweep


def note_deleted_runs(services: Services, clearer: Clearer, dataflow: str, since: datetime | None) -> list[str]:
    """Write down which runs Airflow has no more, and say so; it is asked for each that is not expired.

    With `since`, for those only in which something has happened since then.
    """
    is_airflows = (RunRow.dataflow == dataflow) & (RunRow.dag_id != NO_DAG)
    query = select(RunRow).where(is_airflows, RunRow.expired_at.is_(None)).order_by(RunRow.epoch)
    with services.ledger.transaction() as session:
        asked = set(runs_to_sweep(session, dataflow, since))
        runs = [row for row in session.scalars(query) if row.id in asked]
    found: dict[str, bool] = {}
    try:
        for row in runs:
            answer = clearer.exists(row.dag_id, row.run_id)
            if answer is not None and answer is (row.deleted_at is not None):
                found[row.id] = answer
    except WeirError as error:
        return [f"Airflow was not asked which runs of {dataflow} it has no more: {error}"]
    return _note(services, dataflow, {row.id: row for row in runs}, found)


def _note(services: Services, dataflow: str, seen: dict[str, RunRow], found: dict[str, bool]) -> list[str]:
    if not found:
        return []
    said = []
    with services.ledger.transaction(dataflow) as session:
        for run, is_there in found.items():
            row = session.get_one(RunRow, run)
            if (row.dag_id, row.run_id) != (seen[run].dag_id, seen[run].run_id):
                continue  # another DagRun has taken its epoch over meanwhile
            row.deleted_at = None if is_there else services.now()
            row.released_at = None  # what was to stay may go
            what = "is there again" if is_there else "was deleted: what is left of its results goes after orphan_age"
            said.append(f"DagRun {row.run_id} of DAG {row.dag_id} ({run}) {what}")
    return said
