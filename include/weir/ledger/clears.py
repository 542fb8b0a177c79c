"""Stores pending clears: task instances that are still to be cleared in Airflow.

Invariant 7: a pending clear is recorded in the transaction of the decision, and is delivered once Airflow is seen to
have followed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import ColumnElement, bindparam, exists, func, insert, select, update
from sqlalchemy.orm import Session

from weir.code.generation_rules import RepairCode
from weir.execution.run_state import CLOSE
from weir.ledger.database.tables import AttemptRow, FailoverRow, PendingClearRow, RunRow
from weir.ledger.results import newest_result
from weir.ledger.runs import Run
from weir.topology.ids import RunId
from weir.topology.regions import RegionId

_ANY_OPEN = select(PendingClearRow.__table__.c.id).where(PendingClearRow.__table__.c.settled_at.is_(None)).limit(1)
_OPEN = select(PendingClearRow).where(PendingClearRow.settled_at.is_(None)).order_by(PendingClearRow.id)

_OPEN_OF_RUN = select(
    PendingClearRow.id, PendingClearRow.region, PendingClearRow.subtask, PendingClearRow.expected_try
).where(PendingClearRow.run == bindparam("run"), PendingClearRow.settled_at.is_(None))

_DECIDED_AGAIN = (
    update(PendingClearRow)
    .where(PendingClearRow.id.in_(bindparam("numbers", expanding=True)))
    .values(newest_result=newest_result(), code=func.coalesce(bindparam("new_code"), PendingClearRow.code))
    .execution_options(synchronize_session=False)
)

_OPEN_OF = _OPEN.where(PendingClearRow.dataflow == bindparam("dataflow"))
"""Built once: each task runs this query when it begins, and mostly finds nothing."""


def add_pending_clear(
    session: Session,
    run: Run,
    region: RegionId,
    expected_try: int,
    reason: str,
    now: datetime,
    code: RepairCode = RepairCode.AS_IT_WAS,
) -> None:
    """Record once that the task instance of `region` is to be cleared if it still has `expected_try`."""
    add_pending_clears(session, run, {region: (expected_try, reason)}, now, code=code)


def add_pending_clears(
    session: Session,
    run: Run,
    wanted: Mapping[RegionId, tuple[int, str]],
    now: datetime,
    failover: int | None = None,
    code: RepairCode = RepairCode.AS_IT_WAS,
) -> None:
    """Record once that task instances are to be cleared that still have the expected try, each with the reason.

    `code` is the code that the tries after the clears run: the newest, too, where that is decided of a pending clear.
    """
    if not wanted:
        return
    known = {tuple(named): number for number, *named in session.execute(_OPEN_OF_RUN, {"run": run.id})}
    always = {
        "dataflow": run.dataflow.name,
        "run": run.id,
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "failover": failover,
        "created_at": now,
        "code": None if code is RepairCode.AS_IT_WAS else code.value,
    }
    new, again = [], []
    for region, (expected_try, reason) in wanted.items():
        if (number := known.get((region.name, region.subtask, expected_try))) is not None:
            again.append(number)
        else:
            task_id, map_index = task_of(session, run, region)
            of = {"region": region.name, "subtask": region.subtask, "task_id": task_id, "map_index": map_index}
            new.append({**always, **of, "expected_try": expected_try, "reason": reason})
    if again:
        session.execute(_DECIDED_AGAIN, {"numbers": again, "new_code": always["code"]})
    if new:
        session.execute(insert(PendingClearRow).values(newest_result=newest_result()), new)


def task_of(session: Session, run: Run, region: RegionId) -> tuple[str, int]:
    """Return the task instance of a region, by the dataflow that the run is pinned to.

    A task that was mapped when its DagRun was created keeps its indexes when it is no longer mapped: then the index is
    that of the tries of this DagRun. A task instance without an index is deleted when the task becomes mapped.
    """
    task_id = run.task_prefix + region.name
    index = -1 if region == CLOSE else run.topology.region(region.name).map_index(region.subtask)
    return task_id, index if index >= 0 else _index_begun(session, run, region)


def _index_begun(session: Session, run: Run, region: RegionId) -> int:
    query = (
        select(AttemptRow.map_index)
        .where(
            AttemptRow.run == run.id,
            AttemptRow.region == region.name,
            AttemptRow.subtask == region.subtask,
            AttemptRow.is_of_dag_run,
        )
        .order_by(AttemptRow.try_number.desc())
        .limit(1)
    )
    known = session.scalar(query)
    return -1 if known is None else known


def open_clears(session: Session, dataflow: str | None = None) -> list[PendingClearRow]:
    """Return the pending clears, oldest first."""
    if session.connection().execute(_ANY_OPEN).first() is None:
        return []
    if dataflow is None:
        return list(session.scalars(_OPEN))
    return list(session.scalars(_OPEN_OF, {"dataflow": dataflow}))


def is_cleared_for_newest(session: Session, run: str, region: RegionId, after_try: int) -> bool:
    """Report whether a person has applied a plan that clears a try of a region, or a later one, for the newest code."""
    query = select(PendingClearRow.id).where(
        PendingClearRow.run == run,
        PendingClearRow.region == region.name,
        PendingClearRow.subtask == region.subtask,
        PendingClearRow.expected_try >= after_try,
        PendingClearRow.code == RepairCode.NEWEST.value,
    )
    return session.scalar(query.limit(1)) is not None


def pending_clears(session: Session, dataflow: str) -> int:
    """Return how many clears of a dataflow Airflow has yet to carry out."""
    query = select(func.count()).where(PendingClearRow.dataflow == dataflow, PendingClearRow.settled_at.is_(None))
    return session.scalar(query) or 0


def has_clear_missed(session: Session, committed: AttemptRow) -> bool:
    """Report whether the newest clear by Weir of a commit that was found in the store did not know of it.

    It asked for what was missing. One that an attempt of a later lineage has decided knew of it: between two lineages
    a ledger catches up.
    """
    query = (
        select(FailoverRow.id, AttemptRow.lineage)
        .select_from(PendingClearRow)
        .outerjoin(FailoverRow, FailoverRow.id == PendingClearRow.failover)
        .outerjoin(AttemptRow, AttemptRow.id == FailoverRow.attempt)
        .where(
            PendingClearRow.run == committed.run,
            PendingClearRow.region == committed.region,
            PendingClearRow.subtask == committed.subtask,
            PendingClearRow.expected_try >= committed.try_number,
            PendingClearRow.sends > 0,
        )
        .order_by(PendingClearRow.id.desc())
        .limit(1)
    )
    newest = session.execute(query).first()
    return newest is not None and newest.id is not None and (newest.lineage or 0) <= committed.lineage


def expect_again(session: Session, run: str, region: RegionId, try_number: int) -> None:
    """Note that a try is what came of the delivered clears of later ones, which Airflow has lost: no other comes."""
    of_region = (PendingClearRow.run == run) & (PendingClearRow.region == region.name)
    session.execute(
        update(PendingClearRow)
        .where(
            of_region,
            PendingClearRow.subtask == region.subtask,
            PendingClearRow.expected_try >= try_number,
            PendingClearRow.settled_at.is_not(None),
        )
        .values(expected_try=try_number - 1)
    )


def owe_again(session: Session, dataflow: str) -> None:
    """Have Airflow, which may have lost them, asked again for the delivered clears that no try has come of."""
    session.execute(
        update(PendingClearRow)
        .where(PendingClearRow.dataflow == dataflow, PendingClearRow.sends > 0, *_without_try())
        .values(settled_at=None)
    )


def cleared_without_try(session: Session, dataflow: str | None) -> dict[RunId, set[RegionId]]:
    """Return the regions that were cleared, and of which no newer try has begun, by run that is not closed."""
    is_open = RunRow.closed_at.is_(None) & RunRow.is_pinned & RunRow.has_dag_run & RunRow.expired_at.is_(None)
    query = select(RunRow.id).where(is_open)
    runs = session.scalars(query if dataflow is None else query.where(RunRow.dataflow == dataflow)).all()
    found: dict[RunId, set[RegionId]] = defaultdict(set)
    if runs:
        for row in session.scalars(select(PendingClearRow).where(PendingClearRow.run.in_(runs), *_without_try())):
            found[RunId(row.run)].add(RegionId(row.region, row.subtask))
    return found


def _without_try() -> tuple[ColumnElement[bool], ...]:
    of_region = (
        (AttemptRow.run == PendingClearRow.run)
        & (AttemptRow.region == PendingClearRow.region)
        & (AttemptRow.subtask == PendingClearRow.subtask)
    )
    newer = exists().where(of_region, AttemptRow.is_of_dag_run, AttemptRow.try_number > PendingClearRow.expected_try)
    return PendingClearRow.settled_at.is_not(None), PendingClearRow.is_void.is_(False), ~newer


def clears_of_run(session: Session, run: str) -> list[PendingClearRow]:
    """Return all clears of a run, pending or delivered."""
    return list(session.scalars(select(PendingClearRow).where(PendingClearRow.run == run).order_by(PendingClearRow.id)))
