"""Complete checkpoints in the order of epochs: the closing task waits for the run of the epoch before.

Invariant: a completed checkpoint never names a file of an epoch whose own checkpoint is not complete. The wait ends:
where no process is working on the earlier run, the task fails with the command that resumes it.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.airflow import ClearAnswer, Clearer
from weir.coordination.evidence import require_closes_known
from weir.coordination.registered import Registered, require_newest
from weir.coordination.services import Services
from weir.coordination.values import Awaiting
from weir.errors import Message, Misconfigured
from weir.execution.airflow_words import MISSING, NOT_IN_AIRFLOW
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.attempts import LIVE, newest_attempts
from weir.ledger.database.tables import AttemptRow, PendingClearRow, RestoreRow, RunRow
from weir.ledger.runs import Run, run_by_id, topology_of
from weir.recovery.awaiting import clear_item, wait_for

_UNFINISHED = (*LIVE, AttemptState.RETRYING.value)

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
        return wait_for(row, message, registered)


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
    with services.ledger.transaction() as session:
        if is_complete(session, earlier.id):
            return
        busy = [clear_item(session, run_by_id(session, each), CLOSE) for each in _busy(session, earlier.id, answer)]
    # Of a deleted DagRun nothing runs, whatever state the ledger last had its attempts in.
    if busy and any(each.state != MISSING for each in clearer.inspect(busy)):
        return
    require_closes_known(services, earlier.dataflow.name, clearer)
    raise Misconfigured(
        Message("state.predecessor_stuck", earlier_id=earlier.id, state=answer.state, run_id=earlier.run_id)
    )


def _busy(session: Session, run: str, closing: ClearAnswer) -> list[str]:
    """Return the runs, this one and earlier ones, of which a task runs, or will run, by the ledger."""
    row = session.get_one(RunRow, run)
    up_to = list(session.scalars(select(RunRow.id).where(RunRow.dataflow == row.dataflow, RunRow.epoch <= row.epoch)))
    owed = select(PendingClearRow.run).where(PendingClearRow.run.in_(up_to), PendingClearRow.settled_at.is_(None))
    # The newest try of a region: an earlier try keeps the state in which it ended. No other try follows one of the
    # closing task that a user has marked.
    tries = {each: [newest[-1] for newest in newest_attempts(session, each).values()] for each in up_to}
    unfinished = (
        each
        for each in up_to
        if any(row.state in _UNFINISHED and not _is_over(row, run, closing) for row in tries[each])
    )
    return sorted({*session.scalars(owed), *unfinished})


def _is_over(row: AttemptRow, run: str, closing: ClearAnswer) -> bool:
    """Report whether an attempt is a try of the closing task of `run` that Airflow calls over."""
    return row.run == run and row.region == CLOSE.name and row.try_number <= closing.try_number
