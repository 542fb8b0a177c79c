"""Registers attempts in the ledger: the first half of a begin.

Invariant 2: a try is registered once and only if no newer try is; registration fences all older attempts of its region.

Airflow's database may have lost commits, too: a try begins again that is registered, maybe with another task instance
id, or a newer one is registered. If Airflow calls it the present one, it is the successor of these: they are fenced and
numbered below 1, unless one has a current result, which becomes that of this try.

A DagRun that was deleted in Airflow and created again has tries from 1 again. The ownership of an epoch is transferred
to it only if Airflow reports the earlier DagRun as deleted. The transfer is one transaction: it takes all results of
the earlier DagRun out of use and numbers its attempts below 1.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.attempts.choosing_code import ArchiveNeeded, Archives, ChosenCode, choose_code, pin_archive
from weir.attempts.failure import failures_of, give_up
from weir.coordination.airflow import Clearer, ClearItem
from weir.coordination.evidence import look_for_attempts, require_epoch_before_known
from weir.coordination.registered import Registered
from weir.coordination.run_records import owe_record, write_record
from weir.coordination.services import Services, region_folder, require_connections
from weir.coordination.values import (
    Attempt,
    Awaiting,
    BeginRequest,
    Exhausted,
    NotBegun,
    NotInRecord,
    PassedOver,
    SparkWork,
    region_of_task,
)
from weir.errors import Conflict, Fenced, Message, Misconfigured
from weir.execution.airflow_words import MISSING
from weir.execution.failure_class import FailureClass
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.attempts import LIVE, Origin, attempts_ever_of, attempts_known, end, free_number, origin_of
from weir.ledger.clears import expect_again, owe_again
from weir.ledger.code import forget_generations
from weir.ledger.database.tables import AttemptRow, DataflowRow, RunRow
from weir.ledger.epochs import require_interval
from weir.ledger.ledger import lost_commits
from weir.ledger.outbox import note_acted
from weir.ledger.reads import forget_reads
from weir.ledger.restores import require_after_restore
from weir.ledger.results import newest_result
from weir.ledger.runs import (
    EpochOwned,
    NewRun,
    Run,
    epoch_of,
    is_of_earlier_incarnation,
    own_epoch,
    run_by_id,
    run_key,
    set_aside,
    topology_of,
)
from weir.ledger.snapshot import newest_try
from weir.ledger.sources import forget_unread_splits
from weir.recovery.adopt import free_run
from weir.recovery.applying import restart_others
from weir.recovery.predecessor import give_up_deleted_predecessors, lift, passed_over, sealed_run
from weir.restarts.answer import by_strategy
from weir.store.catalogue import stored_record
from weir.topology.regions import RegionId, Topology

ROUNDS = 10
"""How often the run may be taken from its dataflow while a task of it begins."""

STOPPED_SECONDS = 60.0
"""How often a task of an epoch after which its dataflow was stopped looks whether that goes on."""

LOST = "Airflow has lost this try: another one begins in its place"

REASON = "its DagRun was deleted in Airflow, and another one owns its epoch now"


class OtherHistory(Fenced):
    """The ledger has this try, or a newer one: of a newer process, of another DagRun, or one that Airflow has lost."""

    def __init__(self, newest: str, reason: str) -> None:
        self.newest = newest
        super().__init__(reason)


def enter(services: Services, request: BeginRequest, clearer: Clearer) -> Registered | NotBegun:
    """Register an attempt, and transfer the ownership of the epoch from a DagRun that was deleted.

    Returns PassedOver if another DagRun of the DAG exists and has the same data interval, or the run is sealed. Raises
    Fenced if a newer try is registered, and Misconfigured if one of another DAG owns the epoch, or the DagRun's data
    interval is none.
    """
    require_interval(request.interval, request.key.dag_id, request.key.run_id, request.schedule)
    give_up_deleted_predecessors(services, request, lambda: _new_run(services, request, services.store_id()), clearer)
    try:
        return register(services, request)
    except EpochOwned as owned:
        seen = _attempts_seen(services, request)
        if not _is_deleted(clearer, owned):
            if owned.is_repeated:
                return PassedOver(_not_owner(request, owned))
            raise
        _take(services, request, (owned.dag_id, owned.run_id), seen)
    except OtherHistory as other:
        seen = _attempts_seen(services, request)
        if not _is_present(clearer, request):
            raise
        if _is_of_same_dag_run(services, request, clearer):
            return _register_anew(services, request, other.newest, may_adopt=True)
        _take(services, request, (request.key.dag_id, request.key.run_id), seen)
    return register(services, request)


def _attempts_seen(services: Services, request: BeginRequest) -> frozenset[str]:
    with services.ledger.transaction() as session:
        return attempts_known(session, run_key(request.dataflow.name, epoch_of(request.interval[0])))


def register_committed(
    services: Services, request: BeginRequest, committed: str, clearer: Clearer
) -> Registered | NotBegun:
    """Register a try that has committed, which Airflow has lost, and whose results cannot be used any more, anew.

    Raises Fenced unless Airflow runs this try now, and otherwise as `register`.
    """
    if not _is_present(clearer, request):
        raise Fenced.of(
            "attempts.already_committed",
            try_number=request.try_number,
            task_id=request.key.task_id,
            committed=committed,
        )
    return _register_anew(services, request, committed, may_adopt=False)


def _register_anew(services: Services, request: BeginRequest, newest: str, *, may_adopt: bool) -> Registered | NotBegun:
    """Register a try as the successor of those that Airflow has lost, of which `newest` is one.

    Airflow was asked after `newest` had been found. A try that has begun since is not lost: it is the one that counts.
    """
    work = _succeed(services, request, newest, may_adopt=may_adopt)
    found = register(services, request)
    return replace(found, interrupt=(*work, *found.interrupt)) if isinstance(found, Registered) else found


def _is_deleted(clearer: Clearer, owned: EpochOwned) -> bool:
    """Report whether the owner was deleted in Airflow: a closing task is created and deleted with its DagRun.

    Raises EpochOwned where the account must not look.
    """
    item = ClearItem(owned.dag_id, owned.run_id, owned.task_prefix + CLOSE.name, -1, None)
    try:
        (answer,) = clearer.inspect([item])
        return answer.state == MISSING and clearer.exists(owned.dag_id, owned.run_id) is not True
    except Misconfigured:  # not allowed to look at the owner's DAG
        raise owned from None


def _not_owner(request: BeginRequest, owned: EpochOwned) -> str:
    epoch = epoch_of(request.interval[0])
    return (
        f"epoch {epoch} of dataflow {request.dataflow.name} belongs to run {owned.run_id}, which has the same data "
        f"interval: nothing to do. Clear {owned.run_id} to compute the epoch again. Or delete it, once no task of it "
        f"runs, and clear {request.key.run_id}, which then computes the epoch in its place"
    )


def _is_present(clearer: Clearer, request: BeginRequest) -> bool:
    """Report whether Airflow runs this try now, so that it does not have the one in the ledger any more."""
    key = request.key
    (answer,) = clearer.inspect([ClearItem(key.dag_id, key.run_id, key.task_id, key.map_index, None)])
    is_running = (answer.state, answer.try_number) == ("running", request.try_number)
    return is_running and answer.ti_id in ("", request.ti_id)


def _is_of_same_dag_run(services: Services, request: BeginRequest, clearer: Clearer) -> bool:
    """Report whether Airflow still has a try that began before those that are in the way of this one.

    Each try of a task instance has an id of its own: a DagRun that was created again has none of the earlier one.
    """
    run = run_key(request.dataflow.name, epoch_of(request.interval[0]))
    with services.ledger.transaction() as session:
        query = select(AttemptRow).where(AttemptRow.run == run, AttemptRow.is_of_dag_run, AttemptRow.ti_id != "")
        rows = list(session.scalars(query))
    own = [row for row in rows if (row.task_id, row.map_index) == (request.key.task_id, request.key.map_index)]
    newest = max((row.began_at for row in own), default=None)
    rows = [row for row in rows if newest is not None and row.began_at <= newest]
    known = {row.ti_id for row in rows}
    key, tasks = request.key, sorted({(row.task_id, row.map_index) for row in rows})
    items = [ClearItem(key.dag_id, key.run_id, task_id, map_index, None) for task_id, map_index in tasks]
    return request.ti_id in known or any(answer.ti_id in known for answer in clearer.inspect(items))


def _succeed(services: Services, request: BeginRequest, newest: str, *, may_adopt: bool) -> list[SparkWork]:
    """Number all attempts below 1 that have the number of a try, or a newer one, and return their Spark work.

    With `may_adopt`, one whose results are current becomes this try, unless a person has cleared the task since. Raises
    Fenced if a try has begun after `newest`.
    """
    run_id = run_key(request.dataflow.name, epoch_of(request.interval[0]))
    with services.ledger.transaction(request.dataflow.name) as session:
        run = run_by_id(session, run_id)
        region = region_of_task(run.task_prefix, request.key)
        every = [row for row in attempts_ever_of(session, run.id, region) if row.is_of_dag_run]
        if every and every[-1].id != newest:
            raise Fenced.of(
                "attempts.too_late_for_success", try_number=request.try_number, region=region, every_id=every[-1].id
            )
        lost = [row for row in every if row.try_number >= request.try_number]
        older = [row for row in every if row.try_number < request.try_number]
        clears = (request.max_tries, request.clear_number)
        is_cleared = bool(older) and origin_of(session, run.id, region, older, clears) is not Origin.RETRY
        kept = None
        for row in reversed(lost):
            is_same = row.ti_id == request.ti_id or not is_cleared
            if may_adopt and kept is None and is_same and row.state == AttemptState.COMMITTED.value:
                kept = row
                continue
            row.try_number = free_number(session, run.id, region)
            session.flush()
        expect_again(session, run.id, region, request.try_number)
        owe_again(session, request.dataflow.name)
        if kept is not None:
            kept.try_number, kept.ti_id = request.try_number, request.ti_id
            kept.max_tries, kept.clear_number = request.max_tries, request.clear_number
        work = [_work(run, row) for row in lost if row.state == AttemptState.RUNNING.value]
        for row in lost:
            if row.state in LIVE:
                end(row, AttemptState.FENCED, services.now(), error=LOST)
        return work


def _take(services: Services, request: BeginRequest, owner: tuple[str, str], seen: Set[str]) -> None:
    """Free the run of a DagRun that was deleted; `seen` are the attempts of the run before Airflow was asked.

    Raises Conflict if another one has begun: this process may have slept meanwhile, while the DagRun was created again.
    """
    run = run_key(request.dataflow.name, epoch_of(request.interval[0]))
    with services.ledger.transaction(request.dataflow.name) as session:
        row = session.get_one(RunRow, run)
        if (row.dag_id, row.run_id) != owner or not _is_in_the_way(session, row, request):
            return  # another task of the new DagRun was faster
        if attempts_known(session, run) != seen:
            raise Conflict.of("attempts.dag_run_begun", run=run)
        free_run(session, services, row, REASON)
        set_aside(session, run)
        if row.sealed_at is not None:
            lift(session, services, row)


def _is_in_the_way(session: Session, row: RunRow, request: BeginRequest) -> bool:
    if row.run_id != request.key.run_id or row.dag_id != request.key.dag_id:
        return True
    region = region_of_task(row.task_prefix, request.key)
    return is_of_earlier_incarnation(attempts_ever_of(session, row.id, region), request.try_number, request.ti_id)


def register(services: Services, request: BeginRequest) -> Registered | NotBegun:
    """Register the attempt, once the run is pinned and its record is in the store.

    Returns Exhausted if the try before was killed and the restart strategy allows no further one. Raises Fenced if a
    newer try is registered and Misconfigured if another DagRun owns the epoch.
    """
    store_id = services.store_id()
    archives = Archives(services, request.dataflow.name, request.deployed) if request.deployed is not None else None
    has_looked = False
    for _ in range(ROUNDS):
        try:
            with suppress(_RecordDue):
                found = _register(services, request, store_id, archives, has_looked=has_looked)
                break
            _pin(services, request, store_id, archives)
        except ArchiveNeeded as needed:
            needed.fetch()
        except _Sealed:
            if note := passed_over(services, request):
                return PassedOver(note)
        except _TriesUnknown as unknown:
            look_for_attempts(services, unknown.run.id, unknown.region, unknown.run.topology.outputs(unknown.region))
            has_looked = True
    else:
        raise Conflict.of("attempts.moved_too_often", run_id=request.key.run_id, rounds=ROUNDS)
    if archives is None or not isinstance(found, Registered):
        return found
    return _with_present_archive(services, archives, found)


def _with_present_archive(services: Services, archives: Archives, registered: Registered) -> Registered:
    """Make sure that the code of an attempt is in the store. Raises Misconfigured or Retryable."""
    attempt = registered.attempt
    if attempt.code is None:
        return registered
    code = archives.present(attempt.code, attempt.deployed)
    if code == attempt.code:
        return registered
    with services.ledger.transaction(registered.run.dataflow.name) as session:
        row = session.get(AttemptRow, attempt.id)
        if row is None:
            raise Fenced.of("attempts.attempt_unknown", region=attempt.region)
        archives.enter(session, code.archive, code.path)
        row.archive = code.archive
    return replace(registered, attempt=replace(attempt, code=code))


class _RecordDue(Exception):
    """The record of the run has to be written first, outside of the transaction."""


def _stopped(session: Session, request: BeginRequest) -> Awaiting | None:
    """Return that a person has stopped the dataflow after an earlier epoch."""
    row = session.get(DataflowRow, request.dataflow.name)
    if row is None or row.stopped_after is None or epoch_of(request.interval[0]) <= row.stopped_after:
        return None
    reason = Message("attempts.dataflow_stopped", dataflow=row.name, epoch=row.stopped_after)
    return Awaiting(STOPPED_SECONDS, reason, is_for_target=True)


class _Sealed(Exception):
    """The run is sealed, and maybe the seal is to be lifted first, in a transaction of its own."""


class _TriesUnknown(Exception):
    """Airflow has counted more tries than the ledger knows: they failed before they began, or it has lost commits."""

    def __init__(self, run: Run, region: RegionId) -> None:
        self.run, self.region = run, region
        super().__init__()


def _register(
    services: Services, request: BeginRequest, store_id: str, archives: Archives | None, *, has_looked: bool
) -> Registered | NotBegun:
    def not_pinned(_row: RunRow) -> None:
        raise _RecordDue

    with services.ledger.transaction(request.dataflow.name) as session:
        require_after_restore(session, request.dataflow.name, epoch_of(request.interval[0]))
        if (stopped := _stopped(session, request)) is not None:
            return stopped
        if sealed_run(session, request) is not None:
            raise _Sealed
        run = own_epoch(session, _new_run(services, request, store_id), services.now(), not_pinned)
        row = session.get_one(RunRow, run.id)
        if row.is_record_due or (archives is not None and row.archive is None):
            raise _RecordDue
        region = _region_of(run, run.topology, request)
        if region is None:
            return NotInRecord(_not_in_record(run, request))
        if not has_looked and region != CLOSE and request.try_number > newest_try(session, run.id, region) + 1:
            raise _TriesUnknown(run, region)
        return _enter(session, services, request, run, run.topology, region, archives)


def _pin(services: Services, request: BeginRequest, store_id: str, archives: Archives | None) -> None:
    """Pin the run and its code, unless they are, and write its record.

    A closing task may be the first that begins: it pins no code. Raises Misconfigured if a connection of a target or
    source does not exist: not only when all is computed.
    """
    require_connections(services.connections, request.dataflow)
    dataflow, epoch = request.dataflow.name, epoch_of(request.interval[0])
    stored = stored_record(services.store, dataflow, epoch)
    is_known_to_store = stored is not None and stored.pinned is not None
    if topology_of(request.dataflow.to_json()).follows_previous:
        require_epoch_before_known(services, dataflow, epoch)
    with services.ledger.transaction(dataflow) as session:

        def on_pin(row: RunRow) -> None:
            if is_known_to_store and not row.is_record_due and not _has_attempts(session, row.id):
                raise lost_commits(dataflow, Message("attempts.run_unknown_to_ledger", run=row.id))
            row.archive = None
            forget_generations(session, row.id)
            owe_record(session, row)

        run = own_epoch(session, _new_run(services, request, store_id), services.now(), on_pin)
        if archives is not None:
            pin_archive(session, session.get_one(RunRow, run.id), archives)
    write_record(services, run_key(dataflow, epoch))


def _has_attempts(session: Session, run: str) -> bool:
    return session.scalar(select(AttemptRow.id).where(AttemptRow.run == run).limit(1)) is not None


def _new_run(services: Services, request: BeginRequest, store_id: str) -> NewRun:
    return NewRun(
        dataflow=request.dataflow,
        interval=request.interval,
        dag_id=request.key.dag_id,
        run_id=request.key.run_id,
        task_prefix=request.task_prefix,
        parameters=dict(request.parameters),
        store_id=store_id,
        small_result=services.small_result,
        previous=request.previous,
        zone=request.zone,
        cadence=request.cadence,
        failover=services.recovery.failover,
    )


def _not_in_record(run: Run, request: BeginRequest) -> str:
    index = f"[{request.key.map_index}]" if request.key.map_index >= 0 else ""
    return (
        f"run {run.id} is pinned to the dataflow of its first begin, which has no {request.key.task_id}{index}: "
        f"nothing to do. `weir run adopt {run.id}` moves the run to the current dataflow"
    )


def _enter(
    session: Session,
    services: Services,
    request: BeginRequest,
    run: Run,
    topology: Topology,
    region: RegionId,
    archives: Archives | None,
) -> Registered | Awaiting | Exhausted:
    ever = attempts_ever_of(session, run.id, region)
    row = _resumed(ever, request, region)
    earlier = [each for each in ever if each.is_of_dag_run]
    older = [each for each in earlier if each is not row]
    origin = (
        Origin(row.origin)
        if row
        else origin_of(session, run.id, region, older, (request.max_tries, request.clear_number))
    )
    if request.clear_number:
        note_acted(session, run.id, request.clear_number)
    interrupt = _fence(older, origin, services, run)
    if row is not None and row.state == AttemptState.COMMITTED.value and region != CLOSE:
        return Registered(_attempt(run, region, row, None), run, topology, Origin.RETRY, interrupt, is_committed=True)
    chosen = (
        None
        if archives is None
        else choose_code(session, archives, run, topology, region, origin, older, request.max_tries)
    )
    is_new = row is None
    if row is None:
        row = _new_row(services, request, run, region, origin)
        session.add(row)
    elif row.state == AttemptState.COMMITTED.value:
        forget_reads(session, row.id)
    row.lineage, row.newest_result = run.lineage, newest_result()
    row.state, row.ti_id, row.session_id = AttemptState.RUNNING.value, request.ti_id, str(services.new_uuid())
    row.session_url = request.session_url
    if chosen is not None:
        row.code, row.archive, row.generation = chosen.code.version, chosen.code.archive, chosen.generation
    session.flush()
    if region != CLOSE:
        resolved = [each for each in topology.stages_of(region.name) if each.resolve is not None]
        forget_unread_splits(session, run, region, row.id, [each.name for each in resolved if not each.keeps_copy])
    waiting = None
    if origin is Origin.RETRY and _was_killed(older):
        waiting = _obey_strategy(session, row, older[-1], services, request, interrupt, is_new=is_new)
    if is_new and _was_killed(older) and origin is Origin.RETRY and not isinstance(waiting, Exhausted):
        restart_others(session, services, run, older[-1], FailureClass.KILLED)
    if waiting is not None:
        return waiting
    attempt = _attempt(run, region, row, chosen)
    return Registered(attempt, run, topology, origin, interrupt, "" if chosen is None else chosen.note)


def _attempt(run: Run, region: RegionId, row: AttemptRow, chosen: ChosenCode | None) -> Attempt:
    return Attempt(
        id=row.id,
        run=run.id,
        region=region,
        try_number=row.try_number,
        lineage=run.lineage,
        session_id=row.session_id,
        session_url=row.session_url,
        code=None if chosen is None else chosen.code,
        generation=0 if chosen is None else chosen.generation,
        deployed="" if chosen is None else chosen.deployed,
        has_waited=row.waits > 0,
        is_by_person=row.origin == Origin.CLEARED_BY_PERSON.value,
        clear_number=row.clear_number,
    )


def _resumed(earlier: list[AttemptRow], request: BeginRequest, region: RegionId) -> AttemptRow | None:
    """Return the row of this try if it was waiting, or has committed, which Airflow has lost; None for a new try."""
    newest = earlier[-1] if earlier else None
    if newest is None or newest.try_number < request.try_number:
        return None
    if is_of_earlier_incarnation(earlier, request.try_number, request.ti_id):
        raise OtherHistory(
            newest.id,
            Message("attempts.of_another_dag_run", try_number=request.try_number, region=region),
        )
    is_same = (newest.try_number, newest.ti_id) == (request.try_number, request.ti_id)
    if is_same and newest.state in (AttemptState.WAITING.value, AttemptState.COMMITTED.value):
        return newest
    raise OtherHistory(
        newest.id,
        Message(
            "attempts.too_late",
            try_number=request.try_number,
            region=region,
            newest=newest.try_number,
            newest_id=newest.id,
            state=newest.state,
        ),
    )


def _new_row(services: Services, request: BeginRequest, run: Run, region: RegionId, origin: Origin) -> AttemptRow:
    return AttemptRow(
        id=services.attempt_id(request.try_number),
        run=run.id,
        region=region.name,
        subtask=region.subtask,
        task_id=request.key.task_id,
        map_index=request.key.map_index,
        try_number=request.try_number,
        max_tries=request.max_tries,
        clear_number=request.clear_number,
        lineage=run.lineage,
        origin=origin.value,
        began_at=services.now(),
        waits=0,
    )


def _fence(older: list[AttemptRow], origin: Origin, services: Services, run: Run) -> tuple[SparkWork, ...]:
    """End the attempts that are still live in the ledger; the newest is booked as killed unless it was cleared."""
    work = []
    for row in older:
        if row.state == AttemptState.WAITING.value:
            end(row, AttemptState.FENCED, services.now())
        elif row.state == AttemptState.RUNNING.value:
            work.append(_work(run, row))
            killed = origin is Origin.RETRY and row is older[-1]
            if killed:
                lost = (
                    f"the process of try {row.try_number} ended without a result (killed, reset by Airflow's "
                    "scheduler, or its machine was lost)"
                )
                end(row, AttemptState.RETRYING, services.now(), failure=FailureClass.KILLED, error=lost)
            else:
                end(row, AttemptState.FENCED, services.now())
    return tuple(work)


def _work(run: Run, row: AttemptRow) -> SparkWork:
    folder = region_folder(run, row.region, row.subtask, row.id)
    return SparkWork(row.id, row.session_url, row.session_id, folder)


def _was_killed(older: list[AttemptRow]) -> bool:
    return bool(older) and older[-1].failure == FailureClass.KILLED.value


def _obey_strategy(
    session: Session,
    row: AttemptRow,
    killed: AttemptRow,
    services: Services,
    request: BeginRequest,
    interrupt: tuple[SparkWork, ...],
    *,
    is_new: bool,
) -> Awaiting | Exhausted | None:
    """Apply the restart strategy to the failure of a predecessor that was killed before it could do so itself.

    The first begin of a try has booked that, and waits. Airflow has waited for one that begins again: when that was is
    told by the clock of another machine.
    """
    failures = failures_of(session, killed, FailureClass.KILLED, request.restart)
    answer = by_strategy(FailureClass.KILLED, request.restart, failures)
    if answer.refusal is not None:
        error = f"{killed.error}; recovery is suppressed by {answer.reason}"
        end(row, AttemptState.FAILED, services.now(), failure=FailureClass.FATAL, error=error)
        give_up(session, services, row)
        return Exhausted(error, interrupt)
    seconds = answer.delay_seconds
    if not is_new or seconds <= 0:
        return None
    row.state = AttemptState.WAITING.value
    return Awaiting(seconds, f"{killed.error}; restarting after {seconds:g} s ({answer.reason})", interrupt)


def _region_of(run: Run, topology: Topology, request: BeginRequest) -> RegionId | None:
    region = region_of_task(run.task_prefix, request.key)
    return region if region == CLOSE or topology.knows(region) else None
