"""Have a ledger that has lost commits of a dataflow catch up with the store.

Invariant 11: until it has, nothing of the dataflow is committed, published or deleted. What the store has and the
ledger does not know is entered by the rules of `weir ledger rebuild`; what the ledger knows, it keeps. Attempts that
were running cannot commit any more. Runs that then lack something owe a clear of their closing task, which has it made.

Invariant 7: it may be interrupted anywhere, and several processes may do so at once: the mark that the ledger is behind
ends in the transaction that enters all.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from weir.coordination.importing import stop_running
from weir.coordination.services import Services
from weir.execution.run_state import CLOSE
from weir.ledger.clears import add_pending_clear
from weir.ledger.database.tables import DataflowRow, RunRow
from weir.ledger.housekeeping import CAUGHT_UP, note_done
from weir.ledger.runs import ensure_dataflow, run_by_id, runs_of, topology_of
from weir.ledger.snapshot import newest_try, run_state
from weir.rebuild.checkpoints import enter_pins_of_all
from weir.rebuild.rebuild import Rebuilt, RebuiltRun, enter_stored, in_store, present_store
from weir.recovery.rules.staleness import clears_later_epochs

_REASON = "weir: the ledger had lost commits of this run and has caught up with the store: the run is closed again"


def catch_up(services: Services, dataflow: str) -> str | None:
    """Have the ledger catch up with the store, and say what it had not known; None if another process has done so.

    Raises Misconfigured where there is no store, and Retryable.
    """
    store_id = present_store(services)
    with services.ledger.catching_up():
        with services.ledger.transaction(dataflow) as session:
            ensure_dataflow(session, dataflow, store_id).is_behind = True
            stop_running(session, dataflow, services.now())
        enter_pins_of_all(services, store_id)
        stored = in_store(services, dataflow)
        with services.ledger.transaction(dataflow) as session:
            if not session.get_one(DataflowRow, dataflow).is_behind:
                return None
            were_closed = {row.id for row in runs_of(session, dataflow) if row.closed_at is not None}
            built = enter_stored(session, services, dataflow, stored, is_catching_up=True)
            owing = (
                each for each in built.runs if _owes_close(session, services, each, was_closed=each.run in were_closed)
            )
            to_close = ", ".join(each.run for each in owing)
            note_done(session, CAUGHT_UP, dataflow, services.now())
    return _described(built, to_close)


def _described(built: Rebuilt, to_close: str) -> str:
    changed = ", ".join(each.run for each in built.runs if each.is_changed)
    found = f"results or versions of {changed}" if changed else "no results"
    closed = f"; {to_close} are closed again" if to_close else ""
    notes = "".join(f"; {each}" for each in built.notes)
    return (
        f"The ledger had lost commits of dataflow {built.dataflow}, and has caught up with the store (lineage "
        f"{built.lineage}): it had not known {found}{closed}. What was running begins again{notes}"
    )


def _owes_close(session: Session, services: Services, built: RebuiltRun, *, was_closed: bool) -> bool:
    """Add the clear of the closing task of a run that lacks something, or whose close may be lost."""
    row = session.get_one(RunRow, built.run)
    if row.pinned is None or not row.has_dag_run or row.expired_at is not None:
        return False
    if built.missing:
        row.closed_at = None
    if row.deleted_at is not None:
        return False
    is_open = built.is_outdated or row.closed_at is None
    if not is_open or not (built.is_changed or _may_be_closed(session, row, built, was_closed=was_closed)):
        return False
    expected = newest_try(session, row.id, CLOSE)
    add_pending_clear(session, run_by_id(session, row.id), CLOSE, expected, _REASON, services.now())
    return True


def _may_be_closed(session: Session, row: RunRow, built: RebuiltRun, *, was_closed: bool) -> bool:
    """Report whether a run of which the store knew nothing new is to be closed again.

    All of its regions have committed. One that was closed is only if Weir follows changes of the epoch before.
    """
    topology = topology_of(row.pinned or {})
    state = run_state(session, run_by_id(session, row.id))
    has_all = all(each in state.results for region in built.missing for each in topology.outputs(region))
    return has_all and (not was_closed or clears_later_epochs(topology))
