"""Writes the record of a run to the store.

Invariant: the record is written from the ledger's row alone, after the transaction that pins the run or takes its pin
away, and before an attempt of it computes: a ledger that is lost at any moment can be rebuilt. A process that is killed
in between leaves the record due; the next begin or upkeep writes it. No transaction is open while the store is asked.

Of two records that are due, that of the later epoch is written first: the ranges of its sources were forgotten before
those of the earlier one, and go on from them in the store until then.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Conflict
from weir.execution.run_state import CLOSE, AttemptState
from weir.formats.codec import to_json
from weir.formats.paths import record_path
from weir.formats.run_record import RecordedSeal, RunRecord
from weir.ledger.attempts import attempts_ever_of
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.reads import resolved_inputs
from weir.ledger.sources import corrections_of, ranges_of
from weir.store.catalogue import stored_record
from weir.topology.ids import RunId

ROUNDS = 10
"""How often the pin of a run may change while its record is being written."""


def owe_record(session: Session, row: RunRow, *, abandons: bool = True) -> None:
    """Note that the record of a run is to be written; all its attempts so far are listed as abandoned.

    They are not where only the epoch before has changed, of which none has read anything (`abandons=False`).
    """
    row.is_record_due = True
    if abandons:
        attempts = session.scalars(select(AttemptRow.id).where(AttemptRow.run == row.id))
        row.abandoned = sorted({*attempts, *(row.abandoned or ())})


def write_record(services: Services, run: str) -> None:
    """Write the record of a run if it is due, after those of later epochs that are.

    Raises Retryable, and Conflict if its pin changes again and again.
    """
    with services.ledger.transaction() as session:
        row = session.get(RunRow, run)
        if row is None or not row.is_record_due:
            return
        later = _due(session, row.dataflow, row.epoch)
    for each in [*later, run]:
        _write_due(services, each)


def write_records(services: Services, dataflow: str) -> int:
    """Write the records of a dataflow that killed processes left due; return their number. Raises Retryable."""
    with services.ledger.transaction() as session:
        due = _due(session, dataflow)
    for run in due:
        _write_due(services, run)
    return len(due)


def _due(session: Session, dataflow: str, after: str = "") -> list[RunId]:
    """Return the runs of epochs `after` one whose records are due, newest first."""
    query = select(RunRow.id).where(RunRow.dataflow == dataflow, RunRow.epoch > after, RunRow.expired_at.is_(None))
    return list(session.scalars(query.where(RunRow.is_record_due).order_by(RunRow.epoch.desc())))


def _write_due(services: Services, run: str) -> None:
    for _ in range(ROUNDS):
        with services.ledger.transaction() as session:
            row = session.get(RunRow, run)
            if row is None or not row.is_record_due:
                return
            record = record_of(session, row)
        if _write(services, record):
            return
    raise Conflict.of("coordination.record_keeps_changing", run=run, rounds=ROUNDS)


def _write(services: Services, record: RunRecord) -> bool:
    """Write a record; return whether the ledger still says the same."""
    before = stored_record(services.store, record.dataflow, record.epoch)
    abandoned = tuple(sorted({*record.abandoned, *(before.abandoned if before else ())}))
    revision = services.ledger.seen(record.dataflow)
    data = to_json(replace(record, abandoned=abandoned, revision=revision, ledger=services.ledger.id()))
    services.store.replace(record_path(record.dataflow, record.epoch), data)
    services.store_id()  # or it was written below a mount point whose disk is gone
    with services.ledger.transaction(record.dataflow) as session:
        row = session.get_one(RunRow, record.run)
        row.is_record_due = record_of(session, row) != record
        if not row.is_record_due:
            row.abandoned = list(abandoned)
        return not row.is_record_due


def record_of(session: Session, row: RunRow) -> RunRecord:
    """Return the record of a run as the ledger has it."""
    return RunRecord(
        run=row.id,
        dataflow=row.dataflow,
        epoch=row.epoch,
        interval=(_iso(row.interval_start), _iso(row.interval_end)),
        dag_id=row.dag_id,
        run_id=row.run_id,
        task_prefix=row.task_prefix,
        parameters=row.parameters,
        pinned=row.pinned,
        predecessor=row.predecessor,
        created_at=_iso(row.created_at),
        abandoned=tuple(row.abandoned or ()),
        archive=row.archive or "",
        restored_in=row.restored_in,
        ranges=ranges_of(session, row.id),
        corrected=corrections_of(session, row.id),
        datasets=tuple(resolved_inputs(session, row.id)),
        seal=_seal(row),
        closed_clears=closed_clears(session, row.id),
    )


def closed_clears(session: Session, run: str) -> int:
    """Return how often a person had cleared tasks of a run when it was last closed; 0 if it never was.

    It is -1 if an earlier DagRun was: of the present one Airflow counts the clears from 0.
    """
    closes = [row for row in attempts_ever_of(session, run, CLOSE) if row.state == AttemptState.COMMITTED.value]
    own = [row.clear_number for row in closes if row.is_of_dag_run]
    return max(own, default=-1 if closes else 0)


def _seal(row: RunRow) -> RecordedSeal | None:
    if row.sealed_at is None:
        return None
    return RecordedSeal(at=_iso(row.sealed_at), why=row.sealed_why or "", clears=row.sealed_clears or 0)


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
