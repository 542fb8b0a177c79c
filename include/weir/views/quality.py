"""The recorded checks of data quality, and their expectations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from weir.formats.checks import CheckOutcome, ExpectationResult
from weir.formats.codec import from_plain
from weir.ledger.database.columns import taken
from weir.ledger.database.tables import QualityCheckRow
from weir.quality.check_queries import NOT_RIGHT, checks_of_task, newest_checks_of_dag


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFilter:
    """Selects checks; None is any. `epochs` limits them to that many of the newest epochs."""

    dataflow: str | None = None
    run: str | None = None
    stage: str | None = None
    suite: str | None = None
    epochs: int | None = None
    is_violated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckView:
    """The findings of a suite in a partition; `by_attempt` has checked it (empty: no attempt of a run has).

    `blamed` are the suspected input partitions.
    """

    dataflow: str
    run: str
    epoch: str
    stage: str
    subtask: int
    attempt: str
    by_attempt: str
    suite: str
    fingerprint: str
    why: str
    policy: str
    outcome: str
    digest: str
    rows: int
    results: tuple[ExpectationResult, ...]
    blamed: list[dict[str, Any]]
    seconds: float
    checked_at: datetime

    @property
    def violated(self) -> list[ExpectationResult]:
        """The expectations that are not met."""
        return [each for each in self.results if not each.success]

    @property
    def is_same(self) -> bool:
        """Whether rows with the same digest had passed before, so that they were not checked again."""
        return self.outcome == CheckOutcome.SAME.value

    @property
    def checked_by(self) -> str:
        """The attempt that has checked it, if it is another one than has made it."""
        return self.by_attempt if self.by_attempt != self.attempt else ""


def find_checks(session: Session, asked: CheckFilter) -> list[CheckView]:
    """Return the selected checks, by dataflow and epoch, the newest last."""
    query = _matching(asked)
    if asked.epochs is not None:
        newest = _newest_epochs(session, asked)
        query = query.where(QualityCheckRow.epoch.in_(newest))
    rows = session.scalars(query.order_by(QualityCheckRow.dataflow, QualityCheckRow.epoch, QualityCheckRow.id))
    return [_view(row) for row in rows]


def checks_of_dag(session: Session, dag_id: str, most: int, *, is_violated: bool = False) -> list[CheckView]:
    """Return the newest checks of and by the runs of a DAG, the newest last."""
    return _views(newest_checks_of_dag(session, dag_id, most, NOT_RIGHT if is_violated else None))


def checks_of_task_instance(
    session: Session, dag_id: str, run_id: str, task_id: str, map_index: int
) -> list[CheckView]:
    """Return the checks by all tries of a task instance, the newest last."""
    return _views(checks_of_task(session, dag_id, run_id, task_id, map_index))


def _views(newest_first: Sequence[QualityCheckRow]) -> list[CheckView]:
    return [_view(row) for row in reversed(newest_first)]


def _view(row: QualityCheckRow) -> CheckView:
    return taken(CheckView, row, results=from_plain("expectation results", tuple[ExpectationResult, ...], row.results))


def _matching(asked: CheckFilter) -> Select[Any]:
    wanted = {"dataflow": asked.dataflow, "run": asked.run, "stage": asked.stage, "suite": asked.suite}
    query = select(QualityCheckRow)
    for name, value in wanted.items():
        if value is not None:
            query = query.where(getattr(QualityCheckRow, name) == value)
    return query.where(QualityCheckRow.outcome.in_(NOT_RIGHT)) if asked.is_violated else query


def _newest_epochs(session: Session, asked: CheckFilter) -> list[str]:
    epochs = _matching(asked).with_only_columns(QualityCheckRow.epoch).distinct()
    return list(session.scalars(epochs.order_by(QualityCheckRow.epoch.desc()).limit(asked.epochs)))


def matching(
    checks: Iterable[CheckView], type_: str | None, column: str | None, *, is_violated: bool
) -> Iterator[tuple[CheckView, ExpectationResult]]:
    """Yield the expectations of checks that are of this type, and about this column; None is any."""
    for check in checks:
        for result in check.violated if is_violated else check.results:
            if type_ in (None, result.type) and (column is None or column in _columns(result)):
                yield check, result


def _columns(result: ExpectationResult) -> tuple[Any, ...]:
    names = ("column", "column_A", "column_B")
    return (*(result.kwargs.get(name) for name in names), *(result.kwargs.get("column_list") or ()))
