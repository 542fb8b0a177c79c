"""Writes the record of a run to the store.

Invariant: the pinned dataflow is in the store before the ledger commits it, so that a ledger that is lost at any moment
can be rebuilt. It is written inside the ledger's transaction, so that two first begins of an epoch cannot mix.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.formats.codec import run_record_from_json, run_record_to_json
from weir.formats.paths import record_path
from weir.formats.run_record import RunRecord
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.store.errors import NotFound


def write_record(services: Services, session: Session, row: RunRow, *, abandons: bool = True) -> None:
    """Write the record of a run after its pin has changed; all its attempts so far are listed as abandoned.

    They are not where only the epoch before has changed, of which none has read anything (`abandons=False`).

    Raises Misconfigured if the store has another record of a run that this ledger does not know.
    """
    path = record_path(row.dataflow, row.epoch)
    before = _record(services, path)
    _require_own(before, row)
    known = set(session.scalars(select(AttemptRow.id).where(AttemptRow.run == row.id))) if abandons else set()
    abandoned = tuple(sorted(known.union(before.abandoned if before else ())))
    services.store.replace(path, run_record_to_json(record_of(row, abandoned)))


def record_of(row: RunRow, abandoned: tuple[str, ...] = ()) -> RunRecord:
    """Return the record of a run as the ledger has it; `abandoned` are the attempts from before its pin."""
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
        abandoned=abandoned,
    )


def _record(services: Services, path: str) -> RunRecord | None:
    try:
        return run_record_from_json(services.store.read(path))
    except NotFound:
        return None


def _require_own(before: RunRecord | None, row: RunRow) -> None:
    """Refuse to mix the results of two topologies: a pin is replaced only after it was removed."""
    if before is None or before.pinned is None or row.pinned is None:
        return
    if json.dumps(before.pinned, sort_keys=True) != json.dumps(row.pinned, sort_keys=True):
        raise Misconfigured(
            f"the store has results of run {row.id}, computed by another version of its dataflow, that this ledger "
            f"does not know: was the ledger lost? Type `weir ledger rebuild {row.dataflow}`, and `weir run adopt "
            f"{row.id}` to move the run to the current dataflow"
        )


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
