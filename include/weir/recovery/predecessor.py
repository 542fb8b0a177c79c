"""Changes which epoch is the one before: of an epoch that was given up, and of one that is sealed or lifted.

An epoch is given up where nothing of it was ever committed and its DagRun was deleted. A person, or the deployment,
seals one that has failed for good: later epochs go on from the one before it, until a person clears a task of it.

Invariants:
- An epoch is given up only while nothing of it has been read, and only if Airflow definitely has no DagRun of it, and
  none has begun since Airflow was asked. The new one before is the newest earlier epoch that the ledger or Airflow
  knows, as at the first begin.
- A sealed run has no running attempt and no pending clear, and no try of it begins. What later epochs have read of it,
  or instead of it, is no input of theirs any more from the transaction on that seals or lifts it.
- What a sealed run was to read of a source that goes on is fixed: later epochs go on after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from weir.coordination.airflow import Clearer
from weir.coordination.run_records import owe_record
from weir.coordination.services import Services
from weir.coordination.values import BeginRequest, region_of_task
from weir.errors import Conflict, Message, Misconfigured, Retryable
from weir.ledger.attempts import Origin, attempts_ever_of, attempts_known, origin_of, times_cleared
from weir.ledger.database.tables import ResultRow, RunRow
from weir.ledger.epochs import require_sound_epoch
from weir.ledger.runs import (
    NewRun,
    epoch_of,
    hand_over,
    is_of_earlier_incarnation,
    newest_before,
    predecessor_of,
    run_by_id,
    run_key,
    topology_of,
)
from weir.ledger.snapshot import run_state
from weir.ledger.sources import fix_ranges
from weir.recovery.adopt import free_run, stop_run
from weir.recovery.reconcile import reconcile
from weir.topology.ids import Epoch, RunId

GONE = "its DagRun was deleted in Airflow before anything of it was committed"


@dataclass(frozen=True, slots=True)
class Sealed:
    """What sealing has done: the attempts that were fenced, the clears that were dropped, and the runs that go on.

    These have another epoch before them now.
    """

    fenced: tuple[str, ...]
    dropped: int
    followers: tuple[RunId, ...]


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
        is_backwards = new.previous is not None and new.previous.is_queued
        before_it = predecessor_of(session, new, epoch, services.now())
        _go_on_from(session, services, row, before_it, is_backwards=is_backwards)


# Sealed epochs


def seal(session: Session, services: Services, row: RunRow, why: str) -> Sealed:
    """Have later epochs go on from the epoch before a run, instead of from the run.

    Its results stay, and nothing reads them. The records of the runs that go on are due. Raises Misconfigured where a
    later epoch cannot go on from the epoch before, since a state has changed in between.
    """
    now = services.now()
    row.predecessor = before_sealed(session, row)
    fenced, dropped = stop_run(session, row.id, f"not needed: {why}", now)
    fix_ranges(session, row, now)
    row.sealed_at, row.sealed_why, row.sealed_clears = now, why, times_cleared(session, row.id)
    owe_record(session, row, abandons=False)
    session.flush()
    followers = session.scalars(_later(row).where(RunRow.predecessor == row.epoch)).all()
    for each in followers:
        _go_on_from(session, services, each, row.predecessor)
    return Sealed(fenced, dropped, tuple(each.id for each in followers if each.sealed_at is None))


def before_sealed(session: Session, row: RunRow) -> Epoch | None:
    """Return the epoch from which later ones go on where a run is sealed."""
    return row.predecessor if row.is_pinned else newest_before(session, row.dataflow, row.epoch)


def lift(session: Session, services: Services, row: RunRow) -> None:
    """Have later epochs go on from a sealed run again: what they have read instead of it is stale from now on."""
    row.sealed_at = row.sealed_why = row.sealed_clears = None
    owe_record(session, row, abandons=False)
    session.flush()
    before = RunRow.predecessor.is_(None) | (RunRow.predecessor < row.epoch)
    for each in session.scalars(_later(row).where(before)).all():
        _go_on_from(session, services, each, row.epoch)
    _go_on_from(session, services, row, row.predecessor)  # what was due of it when it was sealed


def _later(row: RunRow) -> Select[RunRow]:
    """Return the query of the later runs that have an epoch before them."""
    is_later = (RunRow.dataflow == row.dataflow) & (RunRow.epoch > row.epoch)
    has_begun = RunRow.is_pinned | RunRow.sealed_at.is_not(None)
    return select(RunRow).where(is_later, has_begun).order_by(RunRow.epoch)


def _go_on_from(
    session: Session, services: Services, row: RunRow, before: Epoch | None, *, is_backwards: bool = False
) -> None:
    """Record the epoch before a run, and decide what follows from that."""
    row.predecessor = before
    owe_record(session, row, abandons=False)
    session.flush()
    if row.sealed_at is not None or row.pinned is None or not row.has_dag_run:
        return
    require_sound_epoch(session, row, topology_of(row.pinned).dataflow, is_backwards=is_backwards)
    run = run_by_id(session, row.id)
    reconcile(session, services, run, run_state(session, run))


def sealed_run(session: Session, request: BeginRequest) -> RunRow | None:
    """Return the run of a try if it is sealed; the DagRun of another run of the epoch is no matter here."""
    row = session.get(RunRow, run_key(request.dataflow.name, epoch_of(request.interval[0])))
    is_own = row is not None and (row.dag_id, row.run_id) == (request.key.dag_id, request.key.run_id)
    return row if row is not None and is_own and row.sealed_at is not None else None


def passed_over(services: Services, request: BeginRequest) -> str:
    """Say why a try of a sealed run does not begin; empty where it begins.

    A person's clear lifts the seal, before anything else of the try is recorded. So does a DagRun that was created
    again.
    """
    with services.ledger.transaction(request.dataflow.name) as session:
        row = sealed_run(session, request)
        if row is None:
            return ""
        if not _is_by_person(session, row, request):
            return str(Message("recovery.run_sealed", run=row.id, at=row.sealed_at, why=row.sealed_why))
        lift(session, services, row)
    return ""


def _is_by_person(session: Session, row: RunRow, request: BeginRequest) -> bool:
    if request.clear_number > (row.sealed_clears or 0):  # Weir's clears do not count there
        return True
    region = region_of_task(row.task_prefix, request.key)
    ever = attempts_ever_of(session, row.id, region)
    if is_of_earlier_incarnation(ever, request.try_number, request.ti_id):
        return True
    earlier = [each for each in ever if each.is_of_dag_run]
    clears = (request.max_tries, request.clear_number)
    return origin_of(session, row.id, region, earlier, clears) is Origin.CLEARED_BY_PERSON
