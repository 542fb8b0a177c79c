"""Resolves what the sources of a task read, before anything else of it begins.

Invariants: the splits of a source in a run are resolved by one attempt and used by all later ones. A source that goes
on begins where the epoch before is recorded to end: it waits until that is recorded, in the ledger and in the store,
and never for more of that epoch. What it reads itself is in the store before a row of it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from weir.code.functions import check_call, load
from weir.coordination.airflow import Clearer
from weir.coordination.positions import loaded_position, stored_position
from weir.coordination.registered import Registered
from weir.coordination.run_records import write_record, write_records
from weir.coordination.services import Services
from weir.coordination.source_copies import is_any_copied, with_copy_ids
from weir.coordination.values import Awaiting
from weir.dataflow import Stage
from weir.dataflow.resolving import NotReady, ResolveContext, Resolved, checked_position, checked_splits
from weir.errors import Conflict, Message, Misconfigured, Retryable
from weir.execution.run_state import CLOSE
from weir.formats.run_record import RecordedRange
from weir.intervals import interval_of
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.runs import Run, run_by_id, topology_of
from weir.ledger.sources import Before, before, fix_range, fix_splits, forget_unread_splits, range_of, splits_of
from weir.recovery.awaiting import awaited_status, require_running, wait_for
from weir.recovery.datasets import shadowed_run
from weir.topology.ids import RunId, RunRef
from weir.topology.regions import RegionId, Topology

SplitsOf = Callable[[Services, Run, Stage, str], list[Any]]
"""Finds the splits of all subtasks of a source that has a resolver, for an attempt."""

ROUNDS = 10
"""How often the epoch before may change while a source is resolved."""


def resolve_context(run: Run, stage: Stage, services: Services) -> ResolveContext:
    """Return what a resolver of a source gets."""
    return ResolveContext(
        dataflow=run.dataflow.name,
        epoch=run.epoch,
        interval=interval_of(*run.interval),
        zone=run.zone,
        parallelism=stage.parallelism,
        parameters=run.parameters,
        options=stage.options,
        connection=services.look_ups.connection,
        variable=services.look_ups.variable,
    )


def splits_for(services: Services, run: Run, stage: Stage, attempt: str) -> list[Any]:
    """Return the splits that the subtasks of the source `stage` read.

    Raises Misconfigured if the resolver cannot be found or does not return one JSON value per subtask, and Fenced if
    the attempt has ended meanwhile: its run may be pinned to another parallelism by now.
    """
    with services.ledger.transaction() as session:
        known = splits_of(session, run.id, stage.name)
    if known is None:
        if stage.goes_on:
            raise Conflict.of("recovery.range_forgotten", stage=stage.name, run=run.id)
        splits = _splits_shadowed(services, run, stage)
        splits = resolve(stage, resolve_context(run, stage, services)) if splits is None else splits
        resolved = with_copy_ids(services, stage, splits)
        with services.ledger.transaction(run.dataflow.name) as session:
            require_running(session, attempt, f"the splits of {stage.name}")
            known = fix_splits(session, run.id, stage.name, resolved, attempt, services.now())
    return known


def resolve(stage: Stage, context: ResolveContext) -> list[Any]:
    """Call a source's resolver and return the split of each subtask.

    Raises Misconfigured if it cannot be found or called, or returns anything else, and Retryable of a source that goes
    on and is not ready; its own errors pass through.
    """
    if stage.goes_on:
        found = resolve_range(stage, context)
        if isinstance(found, NotReady):
            raise Retryable.of("recovery.source_not_ready", stage=stage.name, reason=found.reason)
        return list(found.splits)
    owner, answer = _asked(stage, context)
    return checked_splits(answer, owner, context.parallelism)


def resolve_range(stage: Stage, context: ResolveContext) -> Resolved | NotReady:
    """Call the resolver of a source that goes on. Raises as `resolve`."""
    owner, answer = _asked(stage, context)
    if isinstance(answer, NotReady):
        return answer
    if not isinstance(answer, Resolved):
        raise Misconfigured.of("recovery.not_resolved", owner=owner, found=type(answer).__name__)
    splits = checked_splits(answer.splits, owner, context.parallelism)
    found = Resolved(splits, checked_position(answer.position, owner))
    if context.recorded is not None and found.position != context.recorded.position:
        raise Misconfigured.of("recovery.range_not_kept", owner=owner)
    return found


def _asked(stage: Stage, context: ResolveContext) -> tuple[str, Any]:
    owner = f"resolver {stage.resolve} of source {stage.name}"
    resolver = load(str(stage.resolve), owner)
    check_call(resolver, owner, ("ctx",), ())
    return owner, resolver(context)


def forget_uncopied(services: Services, registered: Registered) -> None:
    """Have the sources of a task that are copied resolved anew, where nothing is copied yet, and nothing was read.

    So is every other source, when the attempt is registered: before the store can be asked for a copy. Raises
    Retryable.
    """
    run, region = registered.run, registered.attempt.region
    kept = [] if region == CLOSE else [each for each in registered.topology.stages_of(region.name) if each.keeps_copy]
    if not kept:
        return
    with services.ledger.transaction() as session:
        known = {each.name: splits_of(session, run.id, each.name) for each in kept}
    free = [each.name for each in kept if not is_any_copied(services, run, each, known[each.name] or ())]
    if any(known[each] is not None for each in free):
        with services.ledger.transaction(run.dataflow.name) as session:
            forget_unread_splits(session, run, region, registered.attempt.id, free)


def _splits_shadowed(services: Services, run: Run, stage: Stage) -> list[Any] | None:
    """Return what a source reads in the run that its own is a shadow of; None where that has none declared alike."""
    with services.ledger.transaction() as session:
        alike = _stage_shadowed(session, run, stage)
        return None if alike is None else splits_of(session, alike[0], stage.name)


def _range_shadowed(
    services: Services, run: Run, stage: Stage, known: RecordedRange | None, last: RecordedRange | None
) -> Resolved | None:
    """Return the same of a source that goes on: it begins where its `last` range ended, or it is its first.

    `known` is what the run is recorded to read, which is divided anew. Raises Misconfigured for another beginning.
    """
    with services.ledger.transaction() as session:
        alike = _stage_shadowed(session, run, stage)
        shadowed = None if alike is None else range_of(session, alike[0], stage.name)
        if alike is None or shadowed is None:
            return None
        base = next((each for name in alike[1].names if (each := range_of(session, shadowed.base, name))), None)
    found, begins, ends = (_loaded(services, each) for each in (shadowed, base, last))
    if known is not None:
        is_same = found is not None and found.position == loaded_position(services, known.position)
        return found if is_same else None
    if ends is not None and (begins is None or begins.position != ends.position):
        raise Misconfigured.of(
            "recovery.shadow_begins_elsewhere",
            stage=stage.name,
            run=run.id,
            shadowed=alike[0],
            base=shadowed.base or "nothing",
            dataflow=run.dataflow.name,
        )
    return found


def _stage_shadowed(session: Session, run: Run, stage: Stage) -> tuple[RunId, Stage] | None:
    """Return the run that a run is a shadow of, and its source that is declared as `stage`; None where it has none."""
    shadowed = shadowed_run(run)
    row = None if shadowed is None else session.get(RunRow, shadowed)
    if row is None or row.pinned is None:
        return None
    stages = topology_of(row.pinned).dataflow.stages
    return next(((row.id, each) for each in stages if _resolves(each) == _resolves(stage)), None)


def _resolves(stage: Stage) -> tuple[object, ...]:
    return stage.name, stage.resolve, stage.options, stage.parallelism, stage.goes_on


# Sources that go on


def resolve_sources(services: Services, registered: Registered, clearer: Clearer) -> Awaiting | None:
    """Resolve and record what the sources of a task that go on read; return what is to be awaited before that.

    Raises as `splits_for`, Misconfigured where the epoch before will not be resolved, and Conflict if it changes again
    and again.
    """
    run = registered.run
    going = _going(registered.topology, registered.attempt.region)
    for stage in going:
        waiting = _resolve_source(services, registered, stage, clearer)
        if waiting is not None:
            return waiting
    if going:
        write_record(services, run.id)
    return None


def _going(topology: Topology, region: RegionId) -> list[Stage]:
    return [] if region == CLOSE else [each for each in topology.stages_of(region.name) if each.goes_on]


def _resolve_source(services: Services, registered: Registered, stage: Stage, clearer: Clearer) -> Awaiting | None:
    for _ in range(ROUNDS):
        with services.ledger.transaction() as session:
            known = range_of(session, registered.run.id, stage.name)
            last = before(session, registered.run, stage)
        if known is not None and known.pinned_to == registered.run.pinned_to:
            return None
        if known is None and last is not None and last.range is None:
            waiting = _await_range(services, registered, stage, last, clearer)
            if waiting is None:
                continue
            return waiting
        try:
            return _record(services, registered, stage, known, last)
        except Conflict:
            continue
    raise Conflict.of("recovery.range_keeps_changing", stage=stage.name, rounds=ROUNDS)


def with_previous(services: Services, run: Run, stage: Stage, context: ResolveContext) -> ResolveContext:
    """Return what a resolver gets in a trial: with what the epoch before has read, as far as that is recorded."""
    if not stage.goes_on:
        return context
    with services.ledger.transaction() as session:
        last = before(session, run, stage)
    return replace(context, previous=None if last is None else _loaded(services, last.range))


def _record(
    services: Services, registered: Registered, stage: Stage, known: RecordedRange | None, last: Before | None
) -> Awaiting | None:
    run = registered.run
    seen = None if last is None else last.range
    if known is not None and is_any_copied(services, run, stage, known.splits):
        if len(known.splits) != stage.parallelism:
            wanted = len(known.splits)
            raise Misconfigured.of("recovery.copies_not_divided", stage=stage.name, run=run.id, wanted=wanted)
        _fix(services, registered, stage, replace(known, pinned_to=run.pinned_to), seen)
        return None
    if last is not None:
        write_record(services, last.run)  # or a rebuilt ledger would not know from where this range goes on
    write_records(services, run.dataflow.name)  # or one of a later epoch would go on from where this range did end once
    context = replace(
        resolve_context(run, stage, services),
        previous=None if last is None else _loaded(services, last.range),
        recorded=_loaded(services, known),
        waited=_waited(services, registered),
    )
    found = _range_shadowed(services, run, stage, known, seen) or resolve_range(stage, context)
    if isinstance(found, NotReady):
        reason = Message("recovery.source_not_ready", stage=stage.name, reason=found.reason)
        waiting = _wait(services, registered, stage, reason)
        return replace(waiting, attempt="")  # the ledger does not tell when it is
    recorded = RecordedRange(
        splits=tuple(with_copy_ids(services, stage, found.splits)),
        position=known.position if known else stored_position(services, run.dataflow.name, found.position, seen),
        base="" if last is None else last.run,
        pinned_to=run.pinned_to,
        resolved_at=services.now().isoformat(),
    )
    _fix(services, registered, stage, recorded, seen)
    return None


def _fix(
    services: Services, registered: Registered, stage: Stage, recorded: RecordedRange, seen: RecordedRange | None
) -> None:
    with services.ledger.transaction(registered.run.dataflow.name) as session:
        require_running(session, registered.attempt.id, f"the splits of {stage.name}")
        fix_range(session, registered.run, stage, recorded, seen, registered.attempt.id)


def _loaded(services: Services, found: RecordedRange | None) -> Resolved | None:
    return None if found is None else Resolved(list(found.splits), loaded_position(services, found.position))


def awaits_range(session: Session, run: Run, region: RegionId) -> bool:
    """Report whether a source of a region waits for the epoch before to be resolved."""
    unknown = [each for each in _going(run.topology, region) if range_of(session, run.id, each.name) is None]
    found = [before(session, run, each) for each in unknown]
    return any(each is not None and each.range is None for each in found)


def _waited(services: Services, registered: Registered) -> timedelta:
    with services.ledger.transaction() as session:
        row = session.get(AttemptRow, registered.attempt.id)
        return timedelta(0) if row is None else max(services.now() - row.began_at, timedelta(0))


def _await_range(
    services: Services, registered: Registered, stage: Stage, last: Before, clearer: Clearer
) -> Awaiting | None:
    """Have the epoch before run, and wait until it has resolved the source; None where the ledger was corrected."""
    with services.ledger.transaction() as session:
        earlier = run_by_id(session, last.run, registered.run.topology)
    name = earlier.topology.logical_region_of(last.stage).name
    status = awaited_status(services, registered.run, [RegionId(name, 0).in_run(RunRef(last.run))], clearer)
    if status.has_changed:
        return None
    why = " (Airflow calls it a success, but nothing was read: clear it)" if status.void else ""
    return _wait(services, registered, stage, f"waiting for {last.run} to resolve source {last.stage}{why}")


def _wait(services: Services, registered: Registered, stage: Stage, reason: str) -> Awaiting:
    with services.ledger.transaction(registered.run.dataflow.name) as session:
        row = require_running(session, registered.attempt.id, f"the splits of {stage.name}")
        return wait_for(row, reason, registered, services.now())
