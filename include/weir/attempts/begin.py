"""Begins an attempt: registers it, reuses an earlier commit, gathers the inputs and describes the job.

Invariant: a process that was killed between its commit and its end costs nothing: the next try reuses the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sqlalchemy.orm import Session

from weir.attempts.gathering import gather
from weir.attempts.job import contents_of, reads_of_job, region_job
from weir.attempts.registration import enter, register_committed
from weir.attempts.rooms import AddChecks, Gates, Rooms
from weir.coordination.airflow import Clearer
from weir.coordination.registered import Gathered, Registered, summary_of
from weir.coordination.reuse import with_result_to_take
from weir.coordination.services import Services
from weir.coordination.values import Adopted, Awaiting, BeginOutcome, BeginRequest, Begun, InputFiles
from weir.execution.run_state import AttemptState, Obstacle, RunState
from weir.ledger.attempts import Origin, attempts_of, end
from weir.ledger.clears import has_clear_missed, is_cleared_for_newest
from weir.ledger.database.tables import AttemptRow
from weir.ledger.snapshot import committed_attempt, run_state
from weir.recovery.datasets import await_shadowed, resolve_datasets, with_datasets
from weir.recovery.inputs import probe_partitions
from weir.recovery.resolving import forget_uncopied, resolve_sources
from weir.state.assigned import assigned_states, check_states
from weir.topology.regions import RegionId


def begin(services: Services, rooms: Rooms, request: BeginRequest, clearer: Clearer) -> BeginOutcome:
    """Start a try of a region.

    Raises Fenced, ResultUnavailable with all losses of one probe, Misconfigured, QualityFailed, Retryable (also
    DiskFull and QuotaExceeded, before anything is computed), or Conflict.
    """
    registered = enter(services, request, clearer)
    if not isinstance(registered, Registered):
        return registered
    adopted = _adopt(services, rooms.gates, registered)
    if adopted is not None:
        return adopted
    if registered.is_committed:
        anew = register_committed(services, request, registered.attempt.id, clearer)
        if not isinstance(anew, Registered):
            return anew
        registered = anew
    forget_uncopied(services, registered)
    waiting = (
        await_shadowed(services, registered)
        or resolve_sources(services, registered, clearer)
        or resolve_datasets(services, registered)
    )
    if waiting is not None:
        return waiting
    own = gather(services, registered, clearer)
    gathered = own if isinstance(own, Awaiting) else with_datasets(services, registered, own, clearer)
    if isinstance(gathered, Awaiting):
        return gathered
    said = check_states(registered, gathered.state, gathered.manifests)
    add_checks = rooms.gates.open(registered, gathered, request)
    notes = rooms.files.make_room(registered, request.dataflow, _bytes_to_read(registered, gathered))
    return _begun(services, registered, gathered, add_checks, (*said, *notes), is_of_backfill=request.is_backfill)


def _bytes_to_read(registered: Registered, gathered: Gathered) -> int:
    """Estimate the bytes that the attempt reads: of each input the fraction that its key groups are."""
    total = 0.0
    for read in gathered.state.all_inputs(registered.attempt.region):
        for each in read.partitions:
            groups = read.key_groups_of(each)
            fraction = 1.0 if groups is None else (groups[1] - groups[0] + 1) / read.declared.max_parallelism
            total += fraction * gathered.manifests[each].bytes
    return int(total)


def _begun(
    services: Services,
    registered: Registered,
    gathered: Gathered,
    add_checks: AddChecks,
    notes: Sequence[str],
    *,
    is_of_backfill: bool,
) -> Begun:
    state, manifests = gathered.state, gathered.manifests
    inputs = state.all_inputs(registered.attempt.region)
    states = assigned_states(services, registered, state, manifests)
    job = region_job(services, registered, state, manifests, states)
    contents = partial(contents_of, state, inputs)
    job = add_checks(with_result_to_take(services, registered, job, contents, is_of_backfill=is_of_backfill))
    return Begun(
        attempt=registered.attempt,
        run=registered.run,
        topology=registered.topology,
        job=replace(job, notes=(*notes, *job.notes, *([registered.code_note] if registered.code_note else ()))),
        reads=reads_of_job(state, inputs, manifests),
        inputs=tuple(
            InputFiles(
                result=state.input_result(each).result,
                manifest=manifests[each],
                folder=state.input_result(each).folder,
                key_groups=read.key_groups_of(each),
                manifest_sha256=state.input_result(each).manifest_sha256,
            )
            for read in inputs
            for each in read.partitions
        ),
        interrupt=registered.interrupt,
        states=states,
        replaced={
            each: state.results[each]
            for each in registered.topology.outputs(registered.attempt.region)
            if each in state.results
        },
        code_note=registered.code_note,
    )


def _adopt(services: Services, gates: Gates, registered: Registered) -> Adopted | None:
    """Reuse the commit of an earlier try if its results are valid and present and the task was not cleared since.

    A commit that the ledger had lost, and found in the store, is reused after a clear by Weir that missed it, too.
    """
    if registered.origin not in (Origin.RETRY, Origin.CLEARED_BY_WEIR):
        return None
    with services.ledger.transaction() as session:
        state, candidate = _candidate(session, registered)
        if candidate is None or not gates.has_passed_all(session, registered, state):
            return None
    probed = probe_partitions(
        services, services.store_id(), state, registered.topology.outputs(registered.attempt.region)
    )
    if probed.losses:
        return None
    with services.ledger.transaction(registered.run.dataflow.name) as session:
        again, present = _candidate(session, registered)
        if present is None or present.id != candidate.id:
            return None
        row = attempts_of(session, registered.run.id, registered.attempt.region)[-1]
        if not registered.is_committed:
            end(row, AttemptState.ADOPTED, services.now())
            row.metrics = {"adopted": candidate.id}
        results = [again.results[each] for each in registered.topology.outputs(registered.attempt.region)]
    return Adopted(
        registered.attempt, {"adopted": candidate.id, **summary_of(results, probed.manifests)}, registered.interrupt
    )


def _candidate(session: Session, registered: Registered) -> tuple[RunState, AttemptRow | None]:
    run, region = registered.run, registered.attempt.region
    state = run_state(session, run, registered.topology)
    committed = committed_attempt(session, run.id, region)
    tries = attempts_of(session, run.id, region)
    if committed is None or tries[-1].id != registered.attempt.id or not _may_be_reused(session, committed, tries):
        return state, None
    outputs = registered.topology.outputs(region)
    good = all(set(state.obstacles(each)) <= {Obstacle.OLDER_SIBLING} for each in outputs)
    return state, committed if good else None


def _may_be_reused(session: Session, committed: AttemptRow, tries: Sequence[AttemptRow]) -> bool:
    """Report whether nobody has cleared the task since the commit, also where a try has failed in between."""
    present = tries[-1]
    region = RegionId(present.region, present.subtask)
    since = {row.origin for row in tries if row.try_number > committed.try_number}
    if present.origin == Origin.CLEARED_BY_WEIR.value:
        if committed.origin != Origin.REBUILT.value or Origin.CLEARED_BY_PERSON.value in since:
            return False
        is_for_newest = is_cleared_for_newest(session, present.run, region, committed.try_number)
        return not is_for_newest and has_clear_missed(session, committed)
    return committed.max_tries == present.max_tries and since <= {Origin.RETRY.value}
