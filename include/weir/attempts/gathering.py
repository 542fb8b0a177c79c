"""Gathers the inputs of an attempt: the second half of a begin.

Invariant 3: one transaction checks that the current results are those that were probed, and takes the read leases on
them; if a result has changed meanwhile, the inputs are probed again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from weir.coordination.airflow import Clearer
from weir.coordination.evidence import look_for_results
from weir.coordination.registered import Gathered, Registered
from weir.coordination.services import Services
from weir.coordination.values import Awaiting
from weir.errors import Conflict, Fault, Fenced, ResultUnavailable
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, AttemptState, RunState
from weir.ledger.attempts import attempts_of, count_wait
from weir.ledger.database.tables import AttemptRow
from weir.ledger.leases import take_leases
from weir.ledger.results import record_found, record_losses
from weir.ledger.snapshot import run_state
from weir.recovery.awaiting import awaited_status, still_to_run, wait_for
from weir.recovery.inputs import Probed, Sorted, expired_producers, probe_partitions, sort_inputs
from weir.topology.regions import PartitionId, RegionId

ROUNDS = 10
"""How often the inputs may change during a begin before it raises Conflict."""


def gather(services: Services, registered: Registered, clearer: Clearer) -> Gathered | Awaiting:
    """Probe all inputs and take read leases on them.

    Raises ResultUnavailable with all losses, Retryable if the store or Airflow does not answer, Misconfigured if a
    producer was skipped or no longer exists, and Conflict if the inputs change in each round.
    """
    store_id, region = services.store_id(), registered.attempt.region
    seen = _with_lost_outputs(services, registered, store_id)
    void, cleared = frozenset[RegionId](), frozenset[RegionId]()
    for _ in range(ROUNDS):
        state, seen = seen or _present(services, registered, void, cleared), None
        inputs = sort_inputs(state, region)
        to_come = still_to_run(services, registered.run, expired_producers(state, inputs), clearer)
        if to_come - cleared:
            cleared |= to_come
            continue
        probed = probe_partitions(services, store_id, state, inputs.to_probe)
        if inputs.awaited and not (inputs.losses or probed.losses):
            regions = frozenset().union(*inputs.awaited.values())
            status = awaited_status(services, registered.run, regions, clearer)
            if status.has_changed or status.void - void:
                void |= status.void
                continue
        answer = _answer(services, registered, state, inputs, probed)
        for manifest in probed.manifests.values():
            services.ledger.saw(manifest.dataflow, manifest.revision)
        if isinstance(answer, ResultUnavailable):
            _look_for(services, answer)
            raise answer
        if answer is not None:
            return answer
    raise Conflict.of("attempts.inputs_keep_changing", region=region, rounds=ROUNDS)


def _look_for(services: Services, missing: ResultUnavailable) -> None:
    """Look in the store for results that were never committed by the ledger. Raises LedgerBehind."""
    never = defaultdict(list)
    for loss in missing.losses:
        if loss.fault is Fault.NEVER_COMMITTED:
            never[loss.run].append(PartitionId(loss.stage, loss.subtask, loss.layout))
    for run, partitions in never.items():
        look_for_results(services, run, partitions)


def _present(
    services: Services,
    registered: Registered,
    void: frozenset[RegionId] = frozenset(),
    cleared: frozenset[RegionId] = frozenset(),
) -> RunState:
    with services.ledger.transaction() as session:
        return replace(run_state(session, registered.run, registered.topology), void=void, cleared=cleared)


def _with_lost_outputs(services: Services, registered: Registered, store_id: str) -> RunState | None:
    """Probe the results that the region has committed before: a published file that is gone must be published again.

    Returns the state of the run at the probe; None where a result was found lost.
    """
    region = registered.attempt.region
    state = _present(services, registered)
    outputs = () if region == CLOSE else registered.topology.outputs(region)
    own = [each for each in outputs if _is_finished(state, each)]
    losses = probe_partitions(services, store_id, state, own).losses if own else {}
    if not losses:
        return state
    with services.ledger.transaction(registered.run.dataflow.name) as session:
        record_losses(session, losses.values(), services.now())
    return None


def _is_finished(state: RunState, partition: PartitionId) -> bool:
    return partition in state.results and state.results[partition].state is PartitionState.FINISHED


def _answer(
    services: Services, registered: Registered, state: RunState, inputs: Sorted, probed: Probed
) -> Gathered | Awaiting | ResultUnavailable | None:
    """Record the answer of the probe; None if the run has changed since the store was probed."""
    now = services.now()
    with services.ledger.transaction(registered.run.dataflow.name) as session:
        present = run_state(session, registered.run, registered.topology)
        present = replace(present, void=state.void, cleared=state.cleared)
        row = _require_newest(session, registered)
        if _differs(state, present, registered.attempt.region, inputs):
            return None
        record_found(session, [state.results[each] for each in probed.manifests], now)
        losses = (*inputs.losses.values(), *probed.losses.values())
        if losses:
            record_losses(session, probed.losses.values(), now)
            return ResultUnavailable(losses)
        if inputs.awaited:
            return _wait(row, inputs.awaited, present, registered, now)
        if registered.attempt.region != CLOSE:  # which may still wait for its targets
            count_wait(session, row, now)
        take_leases(session, [present.results[each].result for each in probed.manifests], registered.attempt.id, now)
        return Gathered(present, probed.manifests)


def _require_newest(session: Session, registered: Registered) -> AttemptRow:
    newest = next(reversed(attempts_of(session, registered.run.id, registered.attempt.region)), None)
    if newest is None:
        raise Fenced.of("attempts.attempt_unknown", region=registered.attempt.region)
    is_same = newest.id == registered.attempt.id and newest.session_id == registered.attempt.session_id
    if not is_same or newest.state != AttemptState.RUNNING.value:
        raise Fenced.of(
            "attempts.attempt_superseded",
            attempt_id=registered.attempt.id,
            region=registered.attempt.region,
            newest_id=newest.id,
            state=newest.state,
        )
    return newest


def _differs(before: RunState, now: RunState, region: RegionId, inputs: Sorted) -> bool:
    """Report whether the run has other attempts, states or awaited regions now, so that the answer would differ."""
    if _identities(before, inputs.to_probe) != _identities(now, inputs.to_probe):
        return True
    again = sort_inputs(now, region)
    return (again.to_probe, set(again.awaited), set(again.losses)) != (
        inputs.to_probe,
        set(inputs.awaited),
        set(inputs.losses),
    )


_Identity = tuple[int, PartitionState] | None
"""The number and the state of a current result; None where there is none."""


def _identities(state: RunState, partitions: Iterable[PartitionId]) -> dict[PartitionId, _Identity]:
    found = {each: state.results.get(each) for each in partitions}
    return {each: (result.result, result.state) if result else None for each, result in found.items()}


def _wait(
    row: AttemptRow,
    awaited: Mapping[PartitionId, frozenset[RegionId]],
    state: RunState,
    registered: Registered,
    now: datetime,
) -> Awaiting:
    regions = {region for regions in awaited.values() for region in regions}
    partitions = ", ".join(str(each) for each in sorted(awaited))
    known = [state.region(each) for each in regions]
    failed = ", ".join(sorted(str(each.region) for each in known if each.has_failed))
    named = ", ".join(sorted(map(str, regions)))
    reason = f"waiting for {named}, which compute {partitions}"
    if failed:
        reason = f"waiting for {named}: {failed} failed for good; look at the log, correct the cause, clear it"
    return wait_for(row, reason, registered, now)
