"""Gives up the epoch before where nothing of it was ever committed and its DagRun was deleted.

Invariant: the epoch before changes only while nothing of it has been read, and only if Airflow definitely has no DagRun
of it, and none has begun since Airflow was asked. The new one is the newest earlier epoch that the ledger or Airflow
knows, as at the first begin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.airflow import Clearer
from weir.coordination.run_records import owe_record
from weir.coordination.services import Services
from weir.coordination.values import BeginRequest
from weir.errors import Conflict, Misconfigured, Retryable
from weir.ledger.attempts import attempts_known
from weir.ledger.database.tables import ResultRow, RunRow
from weir.ledger.epochs import require_sound_epoch
from weir.ledger.runs import NewRun, epoch_of, hand_over, newest_before, predecessor_of, run_by_id, run_key, topology_of
from weir.ledger.snapshot import run_state
from weir.recovery.adopt import free_run
from weir.recovery.reconcile import reconcile
from weir.topology.ids import Epoch, RunId

GONE = "its DagRun was deleted in Airflow before anything of it was committed"


@dataclass(frozen=True, slots=True)
class _Doubtful:
    """The run of the epoch before, of which nothing was committed, as the ledger has it."""

    id: RunId
    epoch: Epoch
    dag_id: str
    run_id: str
    is_deleted: bool
    is_pinned: bool
    attempts: frozenset[str]


def give_up_deleted_predecessors(
    services: Services, request: BeginRequest, new: Callable[[], NewRun], clearer: Clearer
) -> None:
    """Have the epoch go on from the newest earlier one that exists; `new` describes the DagRun that begins.

    Raises Retryable, Conflict or Misconfigured.
    """
    seen: set[RunId] = set()
    while (before := _doubtful(services, request)) is not None and before.id not in seen:
        seen.add(before.id)
        try:
            exists = clearer.exists(before.dag_id, before.run_id)
        except (Misconfigured, Retryable):
            return  # not known: the epoch before is awaited
        # Of a DAG with another name (it was renamed) Airflow may know nothing at all.
        is_gone = exists is False or (exists is None and before.dag_id != request.key.dag_id)
        if is_gone:
            _give_up(services, new(), before)
        elif exists and before.is_deleted:
            with services.ledger.transaction(request.dataflow.name) as session:
                session.get_one(RunRow, before.id).deleted_at = None


def _doubtful(services: Services, request: BeginRequest) -> _Doubtful | None:
    name, epoch = request.dataflow.name, epoch_of(request.interval[0])
    with services.ledger.transaction() as session:
        row = session.get(RunRow, run_key(name, epoch))
        pinned = request.dataflow.to_json() if row is None or row.pinned is None else row.pinned
        if not topology_of(pinned).follows_previous:
            return None
        is_fixed = row is not None and row.pinned is not None
        before = row.predecessor if row is not None and is_fixed else newest_before(session, name, epoch)
        found = None if before is None else session.get(RunRow, run_key(name, before))
        if found is None or not found.has_dag_run or found.expired_at is not None or _has_results(session, found):
            return None
        return _doubtful_of(session, found)


def _doubtful_of(session: Session, row: RunRow) -> _Doubtful:
    attempts = attempts_known(session, row.id)
    return _Doubtful(row.id, row.epoch, row.dag_id, row.run_id, row.deleted_at is not None, row.is_pinned, attempts)


def _has_results(session: Session, row: RunRow) -> bool:
    if row.pinned is None:
        return False
    query = select(ResultRow.id).where(ResultRow.run == row.id, ResultRow.is_current).limit(1)
    return session.scalar(query) is not None


def _give_up(services: Services, new: NewRun, before: _Doubtful) -> None:
    epoch = epoch_of(new.interval[0])
    with services.ledger.transaction(new.dataflow.name) as session:
        gone = session.get_one(RunRow, before.id)
        if _doubtful_of(session, gone) != before or _has_results(session, gone):
            return  # another DagRun of its interval has begun since Airflow was asked
        if new.previous is not None and epoch_of(new.previous.interval[0]) == before.epoch:
            if (new.previous.dag_id, new.previous.run_id) == (before.dag_id, before.run_id):
                raise Conflict.of("recovery.dag_run_deleted", run_id=before.run_id)
            if gone.pinned is not None:
                free_run(session, services, gone, GONE)
            hand_over(session, gone, new.previous.owner, new.task_prefix)
            return
        if gone.pinned is not None:
            free_run(session, services, gone, GONE)
        gone.deleted_at = gone.deleted_at or services.now()
        session.flush()
        row = session.get(RunRow, run_key(new.dataflow.name, epoch))
        if row is None or row.pinned is None or row.predecessor != before.epoch:
            return  # the first begin fixes the epoch before
        row.predecessor = predecessor_of(session, new, epoch, services.now())
        session.flush()
        is_backwards = new.previous is not None and new.previous.is_queued
        require_sound_epoch(session, row, topology_of(row.pinned).dataflow, is_backwards=is_backwards)
        owe_record(session, row, abandons=False)
        run = run_by_id(session, row.id)
        reconcile(session, services, run, run_state(session, run))
