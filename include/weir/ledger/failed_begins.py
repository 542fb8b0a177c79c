"""Records tries that fail before they are registered: their run was never pinned, or a setting of theirs was wrong.

Invariant: such a try is no attempt: no restart strategy counts it, and it owns no epoch. A task instance has one row,
that of its newest such try; rows are deleted after `KEPT`.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, func, or_, select
from sqlalchemy.orm import Session

from weir.errors import Misconfigured
from weir.execution.failure_class import FailureClass
from weir.ledger.database.tables import AttemptRow, FailedBeginRow, RunRow
from weir.topology.regions import RegionId
from weir.wording import first_few

KEPT = timedelta(days=60)

SHOWN = 3
"""The largest number of runs that an error names."""


def record_failed_begin(session: Session, row: FailedBeginRow) -> None:
    """Record a try that failed before it was registered, instead of an earlier one of its task instance."""
    is_same = (
        (FailedBeginRow.run_id == row.run_id)
        & (FailedBeginRow.dag_id == row.dag_id)
        & (FailedBeginRow.task_id == row.task_id)
        & (FailedBeginRow.map_index == row.map_index)
    )
    # Those of other dataflows are not touched: no transaction locks two dataflows.
    is_old = (FailedBeginRow.dataflow == row.dataflow) & (FailedBeginRow.failed_at < row.failed_at - KEPT)
    session.execute(delete(FailedBeginRow).where(is_same | is_old))
    session.add(row)


def forget_failed_begins(session: Session, run: str) -> None:
    """Delete those of a DagRun that was deleted: one that is created again counts its tries from 1.

    A first try may have failed in either of them: it is kept, and is newer than none that has begun.
    """
    of = session.get_one(RunRow, run)
    is_same = (FailedBeginRow.dag_id == of.dag_id) & (FailedBeginRow.run_id == of.run_id)
    is_of_run = (FailedBeginRow.dataflow == of.dataflow) & is_same & (FailedBeginRow.try_number > 1)
    session.execute(delete(FailedBeginRow).where(is_of_run))


def failed_for_good(session: Session, newest: AttemptRow) -> int:
    """Return the newest try of a task instance after its newest attempt if that failed before it was registered.

    0 where there is none, or where Airflow tries again by itself.
    """
    query = (
        select(func.max(FailedBeginRow.try_number))
        .join(RunRow, (RunRow.dag_id == FailedBeginRow.dag_id) & (RunRow.run_id == FailedBeginRow.run_id))
        .where(
            RunRow.id == newest.run,
            FailedBeginRow.task_id == newest.task_id,
            FailedBeginRow.map_index == newest.map_index,
            FailedBeginRow.try_number > newest.try_number,
            FailedBeginRow.failure == FailureClass.FATAL.value,
        )
    )
    return session.scalar(query) or 0


def failed_begins(session: Session, dataflow: str | None = None) -> dict[tuple[str, str, str], list[FailedBeginRow]]:
    """Return the tries that failed before they were registered, of a dataflow or of all.

    They are those of each dataflow in a DagRun, by dataflow, DAG and run id, oldest first.
    """
    query = select(FailedBeginRow).order_by(FailedBeginRow.failed_at, FailedBeginRow.id)
    found: dict[tuple[str, str, str], list[FailedBeginRow]] = {}
    for row in session.scalars(query if dataflow is None else query.where(FailedBeginRow.dataflow == dataflow)):
        found.setdefault((row.dataflow, row.dag_id, row.run_id), []).append(row)
    return found


def failed_begins_of(session: Session, dataflow: str, dag_id: str, run_id: str) -> list[FailedBeginRow]:
    """Return those of a dataflow in a DagRun, oldest first: run ids are alike in all DAGs of one schedule."""
    query = select(FailedBeginRow).where(
        FailedBeginRow.dataflow == dataflow, FailedBeginRow.dag_id == dag_id, FailedBeginRow.run_id == run_id
    )
    return list(session.scalars(query.order_by(FailedBeginRow.failed_at, FailedBeginRow.id)))


def failed_begins_named(session: Session, name: str) -> list[FailedBeginRow]:
    """Return those of the run that is named DATAFLOW@EPOCH, or by Airflow's run id, oldest first.

    Raises Misconfigured for a run id of several dataflows.
    """
    dataflow, _, epoch = name.partition("@")
    is_of_epoch = (FailedBeginRow.dataflow == dataflow) & (FailedBeginRow.epoch == epoch)
    query = select(FailedBeginRow).where(or_(FailedBeginRow.run_id == name, is_of_epoch))
    found = list(session.scalars(query.order_by(FailedBeginRow.failed_at, FailedBeginRow.id)))
    if len({each.dataflow for each in found}) > 1:
        named = dict.fromkeys(f"{each.dataflow}@{each.epoch}" for each in found if each.epoch)
        raise Misconfigured.of("ledger.run_of_several_dataflows", name=name, first_few=first_few([*named], SHOWN))
    return found


def region_of_begin(row: FailedBeginRow) -> RegionId:
    """Return the region of the task instance; a task group is a prefix of its task id."""
    return RegionId(row.task_id.rpartition(".")[2], max(row.map_index, 0))
