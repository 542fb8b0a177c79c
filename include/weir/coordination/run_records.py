"""Writing the record of a run.

Invariant: a pin is in the store before the ledger commits it, so that a ledger that is lost at any moment can be built
again with it. It is written inside the ledger's transaction: two first begins of an epoch must not mix.
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


def write_record(services: Services, session: Session, row: RunRow) -> None:
    """Put the record of a run that is pinned now, or no more, into the store; all its attempts so far are abandoned.

    Raises Misconfigured if the store has another record of a run that this ledger does not know.
    """
    path = record_path(row.dataflow, row.epoch)
    before = _record(services, path)
    _require_own(before, row)
    known = set(session.scalars(select(AttemptRow.id).where(AttemptRow.run == row.id)))
    record = RunRecord(
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
        abandoned=tuple(sorted(known.union(before.abandoned if before else ()))),
    )
    services.store.replace(path, run_record_to_json(record))


def _record(services: Services, path: str) -> RunRecord | None:
    try:
        return run_record_from_json(services.store.read(path))
    except NotFound:
        return None


def _require_own(before: RunRecord | None, row: RunRow) -> None:
    """Refuse to mix the results of two topologies: a pin is only ever replaced after it was given up."""
    if before is None or before.pinned is None or row.pinned is None:
        return
    if json.dumps(before.pinned, sort_keys=True) != json.dumps(row.pinned, sort_keys=True):
        raise Misconfigured(
            f"the store has results of run {row.id}, made by another form of its dataflow, that this ledger does not "
            f"know: was the ledger lost? Type `weir ledger rebuild {row.dataflow}`, and `weir run adopt {row.id}` to "
            "compute the run by the present dataflow"
        )


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
