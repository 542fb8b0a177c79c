"""Expire runs: delete manifests, records and history of runs that are old, or were deleted in Airflow.

Invariant: published versions stay, with the results they consist of. The run and its current results stay in the
ledger, released; clearing such a run in Airflow recomputes all of it. Of each partition the current result stays, with
the attempt that wrote it and its reads, so that validity and predecessors hold; of each region the newest attempt
stays, so that no older one can commit. Invariant 7: the ledger records first that the run is expired; its folder is
swept afterwards, as often as needed.

A run counts as deleted only if Airflow has no such DagRun and still has its DAG; an attempt that begins in it, or an
Airflow that has the DagRun again, undoes that.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime

from sqlalchemy import ColumnElement, bindparam, delete, select
from sqlalchemy.orm import Session

from weir.coordination.airflow import Clearer
from weir.coordination.services import Services
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import WeirError
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState
from weir.formats.paths import folder_of
from weir.ledger.attempts import LIVE
from weir.ledger.checkpoints import retained_of_run
from weir.ledger.database.tables import (
    AttemptRow,
    ConsumptionRow,
    FailoverRow,
    LeaseRow,
    PendingClearRow,
    ReadSetRow,
    ResultEventRow,
    ResultRow,
    RunRow,
)
from weir.ledger.leases import leased
from weir.ledger.outbox import forget_incidents
from weir.ledger.reads import forget_inputs
from weir.ledger.results import transition
from weir.ledger.sources import forget_copies
from weir.quality.check_queries import forget_checks
from weir.retention.deletion_queries import (
    last_event,
    published_folders,
    running_attempts,
    stored_results,
    unexpired_dag_runs,
)
from weir.retention.deletion_rules import why_expired
from weir.retention.release import delete_released, release
from weir.retention.sweep_report import Garbage, Kept, SweepReport, Swept
from weir.state.files_in_use import live_state_files
from weir.topology.ids import RunId

_UNDELETED = select(ResultRow.folder).where(
    ResultRow.run == bindparam("run"),
    ResultRow.state == PartitionState.RELEASED.value,
    ResultRow.deleted_at.is_(None),
)
"""The folders of the results of a run whose files are still there."""

_GONE = (PartitionState.RELEASED.value, PartitionState.SUPERSEDED.value)


def expire_runs(services: Services, dataflow: str, settings: RetentionSettings, report: SweepReport) -> None:
    """Expire the runs of a dataflow that are old enough, or deleted in Airflow. Raises Retryable."""
    with services.ledger.transaction() as session:
        due = _due(session, dataflow, settings, services.now())
    in_use = {folder_of(path) for path in live_state_files(services, dataflow)} if due and report.is_dry else set()
    for run, reason in due:
        decided = release(services, dataflow, [run], is_reclaiming=True, is_dry=report.is_dry)
        if report.is_dry:
            going = {each.stored.result for each in decided if each.is_released}
            with services.ledger.transaction() as session:
                is_expired = not _is_needed(session, run, services.now(), going, in_use)
        else:
            for each in delete_released(services, dataflow, [run]):
                report.deleted.append(Swept(Garbage.RELEASED, each.folder, each.bytes, each.reason))
            is_expired = _expire(services, dataflow, run, settings, reason)
        report.expired += [Kept(run, 0, reason)] if is_expired else []


def _expire(services: Services, dataflow: str, run: str, settings: RetentionSettings, reason: str) -> bool:
    now = services.now()
    with services.ledger.transaction(dataflow) as session:
        running, _ = running_attempts(session, run, settings, now)
        is_due = bool(_due(session, dataflow, settings, now, run)) and not running
        is_expired = is_due and not _is_needed(session, run, now)
        if is_expired:
            _note_expired(session, run, reason, now)
    return is_expired


def _due(
    session: Session, dataflow: str, settings: RetentionSettings, now: datetime, only: str | None = None
) -> list[tuple[RunId, str]]:
    """Return the runs, or `only` this one, whose manifests and records are due to expire, oldest first, and why."""
    may_be_due: ColumnElement[bool] = RunRow.deleted_at.is_not(None)
    if settings.expire_runs is not None:  # the last event in a run is not before it was created
        may_be_due |= RunRow.created_at <= now - settings.expire_runs
    query = select(RunRow).where(RunRow.dataflow == dataflow, RunRow.expired_at.is_(None), may_be_due)
    rows = session.scalars((query if only is None else query.where(RunRow.id == only)).order_by(RunRow.epoch))
    found = ((row.id, why_expired(last_event(session, row), row.deleted_at, settings, now)) for row in rows)
    return [(run, why) for run, why in found if why is not None]


def _is_needed(
    session: Session, run: str, now: datetime, going: Container[int] = (), in_use: Container[str] | None = None
) -> bool:
    """Report whether a due run cannot expire yet: a checkpoint or results of it are needed, or these are not deleted.

    A dry sweep names the results that are `going`, and the folders in which later states have files.
    """
    if retained_of_run(session, run) is not None or any(row.id not in going for row in _needed(session, run, now)):
        return True
    undeleted = session.scalars(_UNDELETED, {"run": run})
    return any(in_use is None or folder in in_use for folder in undeleted)


def _needed(session: Session, run: str, now: datetime) -> list[ResultRow]:
    published = published_folders(session, run)
    stored = [row for row in stored_results(session, run) if row.folder not in published]
    if session.get_one(RunRow, run).pinned is not None:
        return stored
    readers = leased(session, [row.id for row in stored], now)
    return [row for row in stored if row.is_current or row.id in readers]


def _note_expired(session: Session, run: str, reason: str, now: datetime) -> None:
    """Record that a run is expired, and delete its history from the ledger."""
    row = session.get_one(RunRow, run)
    published = published_folders(session, run)
    for result in stored_results(session, run):
        if result.folder not in published:  # its run is not pinned any more: they are not to be read
            transition(session, result, PartitionState.RELEASED, reason, now)
    session.flush()
    _forget_results(session, run, now)
    _forget_attempts(session, run)
    _forget_failovers(session, run)
    forget_incidents(session, run)
    forget_checks(session, run)
    forget_copies(session, run)
    forget_inputs(session, run)
    row.expired_at = now


def _forget_results(session: Session, run: str, now: datetime) -> None:
    rows = list(
        session.scalars(
            select(ResultRow).where(ResultRow.run == run, ResultRow.is_current.is_(False), ResultRow.state.in_(_GONE))
        )
    )
    read = leased(session, [row.id for row in rows], now)
    numbers = [row.id for row in rows if row.id not in read]
    for table, column in ((ResultEventRow, ResultEventRow.result), (LeaseRow, LeaseRow.result)):
        session.execute(delete(table).where(column.in_(numbers)))
    session.execute(delete(ResultRow).where(ResultRow.id.in_(numbers)))


def _forget_attempts(session: Session, run: str) -> None:
    rows = list(session.scalars(select(AttemptRow).where(AttemptRow.run == run).order_by(AttemptRow.try_number)))
    needed = set(session.scalars(select(ResultRow.attempt).where(ResultRow.run == run)))
    needed |= {row.id for row in rows if row.state in LIVE}
    needed |= set({(row.region, row.subtask): row.id for row in rows}.values())
    committed = [row for row in rows if row.state == AttemptState.COMMITTED.value]
    needed |= set({(row.region, row.subtask): row.id for row in committed}.values())
    gone = [row.id for row in rows if row.id not in needed]
    sets = set(session.scalars(select(ConsumptionRow.read_set).where(ConsumptionRow.attempt.in_(gone))))
    session.execute(delete(ConsumptionRow).where(ConsumptionRow.attempt.in_(gone)))
    still = set(session.scalars(select(ConsumptionRow.read_set).where(ConsumptionRow.read_set.in_(sets))))
    session.execute(delete(ReadSetRow).where(ReadSetRow.id.in_(sets - still)))
    session.execute(delete(AttemptRow).where(AttemptRow.id.in_(gone)))


def _forget_failovers(session: Session, run: str) -> None:
    """Delete delivered clears that newer tries have followed, and failovers without clears."""
    newest: dict[tuple[str, int], int] = {}
    query = select(AttemptRow.region, AttemptRow.subtask, AttemptRow.try_number).where(AttemptRow.run == run)
    for region, subtask, number in session.execute(query):
        newest[region, subtask] = max(number, newest.get((region, subtask), number))
    clears = list(session.scalars(select(PendingClearRow).where(PendingClearRow.run == run)))
    settled = [
        row.id
        for row in clears
        if row.settled_at is not None
        and max(row.expected_try, row.found_try or 0) < newest.get((row.region, row.subtask), 0)
    ]
    session.execute(delete(PendingClearRow).where(PendingClearRow.id.in_(settled)))
    owing = select(PendingClearRow.failover).where(PendingClearRow.failover.is_not(None))
    session.execute(delete(FailoverRow).where(FailoverRow.run == run, FailoverRow.id.not_in(owing)))


def note_deleted_runs(services: Services, clearer: Clearer, dataflow: str, since: datetime | None) -> list[str]:
    """Record which unexpired runs were deleted in Airflow; return lines for the log.

    With `since`, only runs with an event since then are looked up.
    """
    with services.ledger.transaction() as session:
        runs = unexpired_dag_runs(session, dataflow, since)
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
    lines = []
    with services.ledger.transaction(dataflow) as session:
        for run, is_there in found.items():
            row = session.get_one(RunRow, run)
            if (row.dag_id, row.run_id) != (seen[run].dag_id, seen[run].run_id):
                continue  # another DagRun owns its epoch now
            row.deleted_at = None if is_there else services.now()
            row.released_at = None  # what was to stay may go
            what = "exists again" if is_there else "was deleted: its results are deleted after orphan_age"
            lines.append(f"DagRun {row.run_id} of DAG {row.dag_id} ({run}) {what}")
    return lines
