"""Complete checkpoints in the order of epochs: the closing task waits for the run of the epoch before.

Invariant: a completed checkpoint never names a file of an epoch whose own checkpoint is not complete. The wait ends:
where Airflow will run no task that the earlier run needs, the task fails with the command that resumes it.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from weir.coordination.airflow import Clearer
from weir.coordination.evidence import require_closes_known
from weir.coordination.registered import Registered, require_newest
from weir.coordination.services import Services
from weir.coordination.values import Awaiting
from weir.errors import Misconfigured
from weir.execution.airflow_words import NOT_IN_AIRFLOW
from weir.execution.run_state import CLOSE
from weir.ledger.database.tables import DataflowRow, PendingClearRow, RestoreRow, RunRow
from weir.ledger.runs import Run, run_by_id, topology_of
from weir.recovery.awaiting import clear_item, still_to_run, wait_for
from weir.topology.ids import RunRef
from weir.topology.regions import RegionId

_OVER = ("success", "skipped", *NOT_IN_AIRFLOW)
"""Airflow's states of a task instance that will not run by itself; a failed one is left to the user."""


def await_predecessor(services: Services, registered: Registered, clearer: Clearer) -> Awaiting | None:
    """Wait until the run of the epoch before is closed; None where it is. Raises Misconfigured or Retryable."""
    run = registered.run
    with services.ledger.transaction() as session:
        before = awaited_predecessor(session, run)
        if before is None:
            return None
        earlier = run_by_id(session, before, registered.topology)
    _require_progress(services, earlier, clearer)
    with services.ledger.transaction(run.dataflow.name) as session:
        if awaited_predecessor(session, run) is None:
            return None
        row = require_newest(session, run, CLOSE, registered.attempt.id)
        message = f"checkpoints complete in the order of epochs: waiting until run {before} is closed"
        return wait_for(row, message, registered, services.now())


def awaited_predecessor(session: Session, run: Run) -> str | None:
    """Return the run of the epoch before where it has to be closed before this one; None where it has not, or is."""
    before = run.predecessor_run
    if before is None or not run.dataflow.keeps_state:
        return None
    return None if is_complete(session, before) else before


def is_complete(session: Session, run: str) -> bool:
    """Report whether a run is closed, so that its checkpoint is complete, or needs no checkpoint (any more)."""
    row = session.get(RunRow, run)
    if row is None or row.closed_at is not None or row.expired_at is not None:
        return True
    if row.pinned is not None and not topology_of(row.pinned).dataflow.keeps_state:
        return True
    restored = select(RestoreRow.id).where(RestoreRow.dataflow == row.dataflow, RestoreRow.epoch == row.epoch)
    return session.scalar(restored.limit(1)) is not None


def _require_progress(services: Services, earlier: Run, clearer: Clearer) -> None:
    """Start the earlier run if it is queued after this one, and require that it will be closed.

    Raises LedgerBehind where the ledger has lost that it was.
    """
    with services.ledger.transaction() as session:
        item = clear_item(session, earlier, CLOSE)
    (answer,) = clearer.inspect([item])
    if answer.state is None:
        clearer.start(earlier.dag_id, earlier.run_id)
    if answer.state not in _OVER:
        return
    name = earlier.dataflow.name
    with services.ledger.transaction() as session:
        if is_complete(session, earlier.id) or _is_owed(session, earlier):
            return
        seen, to_ask = _revision(session, name), _open_regions(session, earlier)
    if still_to_run(services, earlier, to_ask, clearer):
        return
    with services.ledger.transaction() as session:
        if _revision(session, name) != seen:
            return  # what has ended since Airflow answered may have another task cleared
    require_closes_known(services, name, clearer)
    raise Misconfigured.of("state.predecessor_stuck", earlier_id=earlier.id, state=answer.state, run_id=earlier.run_id)


def _is_owed(session: Session, run: Run) -> bool:
    """Report whether a task of a run, or of an earlier one, has yet to be cleared."""
    up_to = select(RunRow.id).where(_is_up_to(run))
    owed = select(PendingClearRow.id).where(PendingClearRow.run.in_(up_to), PendingClearRow.settled_at.is_(None))
    return session.scalar(owed.limit(1)) is not None


def _open_regions(session: Session, run: Run) -> list[RegionId]:
    """Return all tasks of a run and of the earlier ones that are open, too: it may need any of them."""
    is_open = RunRow.closed_at.is_(None) & RunRow.expired_at.is_(None) & ~RunRow.is_passed_over
    runs = [
        run_by_id(session, each, run.topology)
        for each in session.scalars(select(RunRow.id).where(_is_up_to(run), is_open))
    ]
    return [region.in_run(RunRef(each.id)) for each in runs for region in (*each.topology.region_ids(), CLOSE)]


def _is_up_to(run: Run) -> ColumnElement[bool]:
    return (RunRow.dataflow == run.dataflow.name) & (RunRow.epoch <= run.epoch)


def _revision(session: Session, dataflow: str) -> int:
    return session.get_one(DataflowRow, dataflow).revision
