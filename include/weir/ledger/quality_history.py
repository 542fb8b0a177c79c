"""What checks have found over epochs, and where the pages about them are.

Invariant: to look changes nothing. A page is noted after it is in the store, and forgotten before it leaves it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, or_, select, update
from sqlalchemy.orm import Session

from weir.ledger.models import AttemptRow, RunRow
from weir.ledger.quality_models import QualityCheckRow
from weir.quality.check import Outcome, Why

_NOT_RIGHT = (Outcome.FAILED.value, Outcome.WARNED.value)


@dataclass(frozen=True, slots=True)
class ChecksAsked:
    """Which checks a person asks about; None is any. `epochs` is how many of the newest."""

    dataflow: str | None = None
    run: str | None = None
    stage: str | None = None
    suite: str | None = None
    epochs: int | None = None
    is_violated: bool = False


def checks_asked(session: Session, asked: ChecksAsked) -> list[QualityCheckRow]:
    """The checks that are asked about, by dataflow and epoch, the newest last."""
    query = _matching(asked)
    if asked.epochs is not None:
        newest = _newest_epochs(session, asked)
        query = query.where(QualityCheckRow.epoch.in_(newest))
    return list(session.scalars(query.order_by(QualityCheckRow.dataflow, QualityCheckRow.epoch, QualityCheckRow.id)))


def _matching(asked: ChecksAsked) -> Select[Any]:
    wanted = {"dataflow": asked.dataflow, "run": asked.run, "stage": asked.stage, "suite": asked.suite}
    query = select(QualityCheckRow)
    for name, value in wanted.items():
        if value is not None:
            query = query.where(getattr(QualityCheckRow, name) == value)
    return query.where(QualityCheckRow.outcome.in_(_NOT_RIGHT)) if asked.is_violated else query


def _newest_epochs(session: Session, asked: ChecksAsked) -> list[str]:
    epochs = _matching(asked).with_only_columns(QualityCheckRow.epoch).distinct()
    return list(session.scalars(epochs.order_by(QualityCheckRow.epoch.desc()).limit(asked.epochs)))


def checks_of_task(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> list[QualityCheckRow]:
    """All that the tries of a task instance have looked at, the newest first."""
    tries = (
        select(AttemptRow.id)
        .join(RunRow, RunRow.id == AttemptRow.run)
        .where(
            RunRow.dag_id == dag_id,
            RunRow.run_id == run_id,
            AttemptRow.task_id == task_id,
            AttemptRow.map_index == map_index,
        )
    )
    query = select(QualityCheckRow).where(QualityCheckRow.by_attempt.in_(tries))
    return list(session.scalars(query.order_by(QualityCheckRow.id.desc())))


def newest_checks_of_dag(session: Session, dag_id: str, most: int) -> list[QualityCheckRow]:
    """The newest checks of the runs that a DAG has, and of what these have read; the newest first."""
    query = select(QualityCheckRow).where(_of_dag(dag_id))
    return list(session.scalars(query.order_by(QualityCheckRow.id.desc()).limit(most)))


def check_of_dag(session: Session, dag_id: str, number: int) -> QualityCheckRow | None:
    """A check by its number, if its run is of this DAG, or a task of this DAG has made it."""
    return session.scalar(select(QualityCheckRow).where(QualityCheckRow.id == number, _of_dag(dag_id)))


def _of_dag(dag_id: str) -> ColumnElement[bool]:
    runs = select(RunRow.id).where(RunRow.dag_id == dag_id)
    tries = select(AttemptRow.id).where(AttemptRow.run.in_(runs))
    return or_(QualityCheckRow.run.in_(runs), QualityCheckRow.by_attempt.in_(tries))


def may_have_page(row: QualityCheckRow) -> bool:
    """Whether there is anything to be shown: what was found, and not only that equal rows had passed."""
    return row.outcome != Outcome.SAME.value and row.why != Why.REBUILT.value


# Pages


def without_page(
    session: Session, most: int, *, runs: Collection[str] | None = None, by_attempt: str | None = None
) -> list[QualityCheckRow]:
    """The oldest checks that have no page: of some runs or of all; of an attempt only those that are not right.

    As `may_have_page` says.
    """
    query = select(QualityCheckRow).where(
        QualityCheckRow.page.is_(None),
        QualityCheckRow.outcome != Outcome.SAME.value,
        QualityCheckRow.why != Why.REBUILT.value,
    )
    if runs is not None:
        query = query.where(QualityCheckRow.run.in_(runs))
    if by_attempt is not None:
        query = query.where(QualityCheckRow.by_attempt == by_attempt, QualityCheckRow.outcome.in_(_NOT_RIGHT))
    return list(session.scalars(query.order_by(QualityCheckRow.id).limit(most)))


def with_page(session: Session, dataflow: str, most: int) -> list[QualityCheckRow]:
    """The newest checks of a dataflow that have a page, the newest first."""
    query = select(QualityCheckRow).where(QualityCheckRow.dataflow == dataflow, QualityCheckRow.page.is_not(None))
    return list(session.scalars(query.order_by(QualityCheckRow.id.desc()).limit(most)))


def note_page(session: Session, number: int, path: str) -> bool:
    """Write down where the page about a check is; answers whether the check is still known."""
    done = session.execute(update(QualityCheckRow).where(QualityCheckRow.id == number).values(page=path))
    return bool(getattr(done, "rowcount", 0))


def forget_checks(session: Session, run: str) -> None:
    """Forget what was found in a run that is expired."""
    session.execute(delete(QualityCheckRow).where(QualityCheckRow.run == run))
