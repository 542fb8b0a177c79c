"""Ledger queries for quality checks: record what suites have found in results, and query it.

Invariant: a check is recorded once, with everything that its outcome rests on, whether the result was committed or
not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from sqlalchemy import ColumnElement, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from weir.formats.checks import BUILT_IN, CheckOutcome, CheckReason, CheckReport
from weir.formats.manifest import RULE, Manifest
from weir.ledger.database.tables import AttemptRow, QualityCheckRow, RunRow
from weir.ledger.runs import Run
from weir.typed_json import plain

KNOWN_DIGESTS = 20
"""How many digests that have passed a job receives."""

_PASSED = (CheckOutcome.PASSED.value, CheckOutcome.SAME.value)

NOT_RIGHT = (CheckOutcome.FAILED.value, CheckOutcome.WARNED.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectedInput:
    """An input partition that was suspected of bad data, as it was read."""

    run: str
    stage: str
    subtask: int
    layout: str
    attempt: str
    digest: str

    def is_equal_to(self, other: SuspectedInput) -> bool:
        """Report whether it is the same partition with the same rows, written by another attempt."""
        return self.attempt != other.attempt and replace(self, attempt=other.attempt) == other


def record_checks(
    session: Session,
    run: Run,
    by_attempt: str,
    reports: Sequence[CheckReport],
    now: datetime,
    suspected: Mapping[int, Iterable[SuspectedInput]] | None = None,
) -> None:
    """Record the checks of an attempt of `run`; `suspected` are the suspected inputs, by index of the report."""
    epochs: dict[str, str] = {run.id: run.epoch}
    for other in {report.run for report in reports if report.run} - {run.id}:
        epochs[other] = session.get_one(RunRow, other).epoch
    of_runs = [report if report.run else replace(report, run=run.id) for report in reports]
    enter_checks(session, run.dataflow.name, epochs, by_attempt, of_runs, now, suspected)


def enter_checks(
    session: Session,
    dataflow: str,
    epochs: Mapping[str, str],
    by_attempt: str,
    reports: Sequence[CheckReport],
    now: datetime,
    suspected: Mapping[int, Iterable[SuspectedInput]] | None = None,
) -> None:
    """Record checks of results of any runs; `by_attempt` is empty if no attempt made them; `epochs` are the runs'."""
    for number, report in enumerate(reports):
        inputs = (suspected or {}).get(number, ())
        session.add(
            QualityCheckRow(
                dataflow=dataflow,
                run=report.run,
                epoch=epochs[report.run],
                by_attempt=by_attempt,
                blamed=[asdict(each) for each in inputs],
                checked_at=now,
                attempt=report.attempt or by_attempt,
                why=report.why.value,
                policy=report.policy.value,
                outcome=report.outcome.value,
                results=plain(report.results),
                **{name: getattr(report, name) for name in _AS_REPORTED},
            )
        )
    session.flush()


_AS_REPORTED = ("stage", "subtask", "layout", "suite", "fingerprint", "digest", "rows", "seconds")


def has_checks(session: Session, by_attempt: str) -> bool:
    """Report whether the checks of an attempt are recorded."""
    return bool(session.scalar(select(exists().where(QualityCheckRow.by_attempt == by_attempt))))


def was_checked(session: Session, restored: Manifest) -> bool:
    """Report whether a reader of a restored partition has checked it; a partition that failed is in quarantine."""
    query = select(
        exists().where(
            QualityCheckRow.attempt == restored.attempt,
            QualityCheckRow.stage == restored.stage,
            QualityCheckRow.subtask == restored.subtask,
            QualityCheckRow.layout == restored.layout,
            QualityCheckRow.suite == BUILT_IN,
            QualityCheckRow.why == CheckReason.RESTORED.value,
            QualityCheckRow.outcome == CheckOutcome.PASSED.value,
        )
    )
    return bool(session.scalar(query))


def passed_digests(
    session: Session, dataflow: str, stage: str, subtask: int, suite: str, fingerprint: str
) -> tuple[str, ...]:
    """Return the newest digests of a subtask's rows that have passed a suite in its present version.

    Digests with a rule are left out: they do not cover all values, so equal digests do not mean equal rows.
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
            QualityCheckRow.outcome.in_(_PASSED),
            ~QualityCheckRow.digest.contains(RULE),
        )
        .group_by(QualityCheckRow.digest)
        .order_by(newest.desc())
        .limit(KNOWN_DIGESTS)
    )
    return tuple(session.scalars(query))


def failed_checks(session: Session, by_attempts: Iterable[str]) -> dict[str, list[QualityCheckRow]]:
    """Return the failed checks of some attempts, by attempt."""
    query = select(QualityCheckRow).where(
        QualityCheckRow.by_attempt.in_(list(by_attempts)), QualityCheckRow.outcome == CheckOutcome.FAILED.value
    )
    found: dict[str, list[QualityCheckRow]] = {}
    for row in session.scalars(query.order_by(QualityCheckRow.id)):
        found.setdefault(row.by_attempt, []).append(row)
    return found


def previously_suspected(session: Session, run: str, stage: str) -> frozenset[SuspectedInput]:
    """Return the inputs that were suspected in a run because of a stage, whichever of its subtasks has read them."""
    query = select(QualityCheckRow).where(
        QualityCheckRow.run == run,
        QualityCheckRow.stage == stage,
        QualityCheckRow.outcome == CheckOutcome.FAILED.value,
    )
    return frozenset(each for row in session.scalars(query) for each in suspected_inputs(row))


def suspected_inputs(row: QualityCheckRow) -> tuple[SuspectedInput, ...]:
    """Return the inputs that were suspected because of a check."""
    return tuple(SuspectedInput(**each) for each in row.blamed)


def checks_of_task(session: Session, dag_id: str, run_id: str, task_id: str, map_index: int) -> list[QualityCheckRow]:
    """Return the checks by all tries of a task instance, the newest first."""
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


def newest_checks_of_dag(
    session: Session, dag_id: str, most: int, outcomes: Collection[str] | None = None
) -> list[QualityCheckRow]:
    """Return the newest checks of and by the runs of a DAG, with one of these outcomes, the newest first."""
    query = select(QualityCheckRow).where(_of_dag(dag_id))
    query = query if outcomes is None else query.where(QualityCheckRow.outcome.in_(outcomes))
    return list(session.scalars(query.order_by(QualityCheckRow.id.desc()).limit(most)))


def _of_dag(dag_id: str) -> ColumnElement[bool]:
    runs = select(RunRow.id).where(RunRow.dag_id == dag_id)
    tries = select(AttemptRow.id).where(AttemptRow.run.in_(runs))
    return or_(QualityCheckRow.run.in_(runs), QualityCheckRow.by_attempt.in_(tries))


def forget_checks(session: Session, run: str) -> None:
    """Delete the checks of an expired run."""
    session.execute(delete(QualityCheckRow).where(QualityCheckRow.run == run))
