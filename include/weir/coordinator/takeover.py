"""A DagRun that was deleted in Airflow and made anew takes over its epoch.

Invariant 2, where tries are counted from 1 again: an epoch changes hands only if Airflow says that its DagRun is gone;
then nothing of it counts any more, in one transaction, and its attempts have numbers below any new one.
"""

from __future__ import annotations

from sqlalchemy.orm import Session

from weir.coordinator.adopt import free_run
from weir.coordinator.clearing import MISSING, Clearer, ClearItem
from weir.coordinator.registration import OfAnotherLife, Registered, region_of_task, register
from weir.coordinator.services import Services
from weir.coordinator.values import Awaiting, BeginRequest, Exhausted, NotInRecord
from weir.errors import Misconfigured
from weir.ledger.attempts import attempts_ever_of
from weir.ledger.deleted_runs import is_another_life, set_aside
from weir.ledger.models import RunRow
from weir.ledger.runs import EpochOwned, epoch_of, run_key
from weir.recovery.run_state import CLOSE

REASON = "its DagRun was deleted in Airflow, and another one took its epoch over"


def enter(
    services: Services, request: BeginRequest, clearer: Clearer
) -> Registered | Awaiting | Exhausted | NotInRecord:
    """Register an attempt, in the place of a DagRun that is no more if there was one.

    Raises Fenced if a newer try is registered and Misconfigured if another DagRun that exists owns the epoch.
    """
    try:
        return register(services, request)
    except EpochOwned as owned:
        if not _is_deleted(clearer, owned):
            raise
        _take(services, request, (owned.dag_id, owned.run_id))
    except OfAnotherLife:
        if not _is_present(clearer, request):
            raise
        _take(services, request, (request.key.dag_id, request.key.run_id))
    return register(services, request)


def _is_deleted(clearer: Clearer, owned: EpochOwned) -> bool:
    """Whether Airflow has the owner no more. A closing task is made with its DagRun, and goes with it."""
    item = ClearItem(owned.dag_id, owned.run_id, owned.task_prefix + CLOSE.name, -1, None)
    try:
        (answer,) = clearer.inspect([item])
        return answer.state == MISSING and clearer.start(owned.dag_id, owned.run_id) == MISSING
    except Misconfigured:  # not allowed to look at the owner's DAG
        return False


def _is_present(clearer: Clearer, request: BeginRequest) -> bool:
    """Whether this try is the one that Airflow has, so that a newer one in the ledger is of an earlier DagRun."""
    key = request.key
    (answer,) = clearer.inspect([ClearItem(key.dag_id, key.run_id, key.task_id, key.map_index, None)])
    return (answer.state, answer.try_number) == ("running", request.try_number)


def _take(services: Services, request: BeginRequest, owner: tuple[str, str]) -> None:
    run = run_key(request.dataflow.name, epoch_of(request.interval[0]))
    with services.ledger.transaction(request.dataflow.name) as session:
        row = session.get_one(RunRow, run)
        if (row.dag_id, row.run_id) != owner or not _is_in_the_way(session, row, request):
            return  # another task of the new DagRun was faster
        free_run(session, services, row, REASON)
        set_aside(session, run)


def _is_in_the_way(session: Session, row: RunRow, request: BeginRequest) -> bool:
    if row.run_id != request.key.run_id or row.dag_id != request.key.dag_id:
        return True
    region = region_of_task(row.task_prefix, request.key)
    return is_another_life(attempts_ever_of(session, row.id, region), request.try_number, request.ti_id)
