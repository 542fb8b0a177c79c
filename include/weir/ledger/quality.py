"""Checks: what suites have found in results, kept a run, partition and attempt.

Invariant: a check is written down once, with all that its verdict was made from, whether the result was committed or
not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from weir.ledger.models import RunRow
from weir.ledger.quality_models import QualityCheckRow
from weir.ledger.runs import Run
from weir.quality.check import BUILT_IN, CheckReport, Outcome, Why
from weir.results.codec import expectation_results_to_plain
from weir.results.manifest import RULE, InputRead

KNOWN_DIGESTS = 20
"""How many digests that have passed a job is told of."""

_KNOWN = (Outcome.PASSED.value, Outcome.SAME.value)


@dataclass(frozen=True, slots=True)
class Blamed:
    """An input partition that was distrusted, as it was read."""

    run: str
    stage: str
    subtask: int
    layout: str
    attempt: str
    digest: str

    def is_equal_to(self, other: Blamed) -> bool:
        """Whether it is the same partition with the same rows, made by another attempt."""
        return self.attempt != other.attempt and replace(self, attempt=other.attempt) == other

    @staticmethod
    def of(read: InputRead) -> Blamed:
        """What was read of an input."""
        return Blamed(read.run, read.stage, read.subtask, read.layout, read.attempt, read.digest)


def record_checks(
    session: Session,
    run: Run,
    by_attempt: str,
    reports: Sequence[CheckReport],
    now: datetime,
    blamed: Mapping[int, Iterable[Blamed]] | None = None,
) -> None:
    """Write down what an attempt of `run` has found; `blamed` are the inputs that are distrusted, by report."""
    epochs = {run.id: run.epoch}
    for each in {report.run for report in reports} - {"", run.id}:
        epochs[each] = session.get_one(RunRow, each).epoch
    of_runs = [report if report.run else replace(report, run=run.id) for report in reports]
    enter_checks(session, run.dataflow.name, epochs, by_attempt, of_runs, now, blamed)


def enter_checks(
    session: Session,
    dataflow: str,
    epochs: Mapping[str, str],
    by_attempt: str,
    reports: Sequence[CheckReport],
    now: datetime,
    blamed: Mapping[int, Iterable[Blamed]] | None = None,
) -> None:
    """Write down what was found in results of any runs, by `by_attempt` or by nobody's; `epochs` are the runs'."""
    for number, report in enumerate(reports):
        distrusted = (blamed or {}).get(number, ())
        session.add(
            QualityCheckRow(
                dataflow=dataflow,
                run=report.run,
                epoch=epochs[report.run],
                by_attempt=by_attempt,
                blamed=[asdict(each) for each in distrusted],
                checked_at=now,
                **_columns(report, by_attempt),
            )
        )
    session.flush()


def _columns(report: CheckReport, by_attempt: str) -> dict[str, Any]:
    return {
        "stage": report.stage,
        "subtask": report.subtask,
        "layout": report.layout,
        "attempt": report.attempt or by_attempt,
        "suite": report.suite,
        "fingerprint": report.fingerprint,
        "why": report.why.value,
        "policy": report.policy.value,
        "outcome": report.outcome.value,
        "digest": report.digest,
        "rows": report.rows,
        "results": expectation_results_to_plain(report.results),
        "seconds": report.seconds,
    }


def has_checks(session: Session, by_attempt: str) -> bool:
    """Whether what an attempt has found is written down."""
    return bool(session.scalar(select(exists().where(QualityCheckRow.by_attempt == by_attempt))))


def was_checked(session: Session, attempt: str, stage: str, subtask: int, layout: str) -> bool:
    """Whether the first reader of a restored partition has checked it: what then failed is in quarantine."""
    query = select(
        exists().where(
            QualityCheckRow.attempt == attempt,
            QualityCheckRow.stage == stage,
            QualityCheckRow.subtask == subtask,
            QualityCheckRow.layout == layout,
            QualityCheckRow.suite == BUILT_IN,
            QualityCheckRow.why == Why.RESTORED.value,
            QualityCheckRow.outcome == Outcome.PASSED.value,
        )
    )
    return bool(session.scalar(query))


def passed_digests(
    session: Session, dataflow: str, stage: str, subtask: int, suite: str, fingerprint: str
) -> tuple[str, ...]:
    """The newest digests of a subtask's rows that have passed a suite as it is.

    By a digest that does not count all values nobody knows that rows are the same.
    """
    newest = func.max(QualityCheckRow.id)
    query = (
        select(QualityCheckRow.digest)
        .where(
            QualityCheckRow.dataflow == dataflow,
            QualityCheckRow.stage == stage,
            QualityCheckRow.subtask == subtask,
            QualityCheckRow.suite == suite,
            QualityCheckRow.fingerprint == fingerprint,
            QualityCheckRow.outcome.in_(_KNOWN),
            ~QualityCheckRow.digest.contains(RULE),
        )
        .group_by(QualityCheckRow.digest)
        .order_by(newest.desc())
        .limit(KNOWN_DIGESTS)
    )
    return tuple(session.scalars(query))


def failed_checks(session: Session, by_attempts: Iterable[str]) -> dict[str, list[QualityCheckRow]]:
    """What has failed of what attempts have looked at, by attempt."""
    query = select(QualityCheckRow).where(
        QualityCheckRow.by_attempt.in_(list(by_attempts)), QualityCheckRow.outcome == Outcome.FAILED.value
    )
    found: dict[str, list[QualityCheckRow]] = {}
    for row in session.scalars(query.order_by(QualityCheckRow.id)):
        found.setdefault(row.by_attempt, []).append(row)
    return found


def blamed_before(session: Session, run: str, stage: str) -> frozenset[Blamed]:
    """The input partitions that were distrusted in a run because of a stage, whichever subtask of it has read them."""
    query = select(QualityCheckRow).where(
        QualityCheckRow.run == run,
        QualityCheckRow.stage == stage,
        QualityCheckRow.outcome == Outcome.FAILED.value,
    )
    return frozenset(each for row in session.scalars(query) for each in blamed_by(row))


def blamed_by(row: QualityCheckRow) -> tuple[Blamed, ...]:
    """The input partitions that were distrusted because of a check."""
    return tuple(Blamed(**each) for each in row.blamed)
