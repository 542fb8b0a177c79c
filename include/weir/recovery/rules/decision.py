"""Decides which regions a failure restarts, before any of them is cleared.

Invariant 5: the plan that is decided, printed, recorded and applied is one object. It is decided in rounds without I/O;
a round returns either the plan or the partitions to probe in the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field

from weir.code.generation_rules import RepairCode
from weir.dataflow.dataflow import FailoverStrategy
from weir.errors import Fault, Loss
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, FINISHED, AttemptState, CurrentResult, RegionState, RunState
from weir.recovery.rules.backtrack import Backtracked, Lost, Occasion, backtrack
from weir.recovery.rules.consumers import Affected, LaterReaders, Readers, affected
from weir.recovery.rules.plan import SHOWN, ExpiredState, Plan, Step, StepKind
from weir.recovery.rules.staleness import clears_consumers
from weir.topology.ids import OWN_RUN, RunRef, run_ref
from weir.topology.regions import PartitionId, RegionId

SMALLEST_HELD_BACK = 4
"""A plan of fewer regions is applied, whatever their share of the run."""

_FAILED = "no attempt computes it now: it has failed for good, and its consumers wait until a person clears it"
_PENDING = "its clear is pending: the DAG weir_upkeep or the next task of this dataflow delivers it"
_OF_A_PROBE = (Fault.MISSING, Fault.DAMAGED)
_PUBLISHED = {Fault.DAMAGED: "damaged", Fault.STALE: "in quarantine"}
"""What has become of published files, where they are not gone."""


@dataclass(frozen=True, slots=True)
class NeedsProbe:
    """The decision depends on whether these partitions are available."""

    partitions: frozenset[PartitionId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The input of a decision: the region that failed (None: a person requested a plan of the run), and the cause.

    `intact` are partitions known to be available; `largest` is the share of the run's regions that losses of one probe
    may restart without a person's approval (1: all). `unpublished` describes an error in the published data of a run
    whose results are valid. `code` is the code that the restarted regions run. `cleared` are regions that Airflow runs
    again, whatever their results, and `why_cleared` the reason. As far as Airflow was asked, `runs_again` says of the
    producers of expired states whether it runs them again, and `exists` of those that replay whether it has them.
    """

    failed: RegionId | None
    losses: Mapping[PartitionId, Loss]
    intact: Set[PartitionId] = frozenset()
    occasion: Occasion = Occasion.LOSS
    cause: str = ""
    largest: float = 1.0
    later: LaterReaders = field(default_factory=dict)
    unpublished: str = ""
    code: RepairCode = RepairCode.AS_IT_WAS
    cleared: frozenset[RegionId] = frozenset()
    why_cleared: str = "it was cleared in Airflow"
    runs_again: Mapping[RegionId, bool] = field(default_factory=dict)
    exists: Mapping[RegionId, bool] = field(default_factory=dict)


@dataclass(slots=True)
class _Found:
    """The findings of a decision. `possible` produce lost results that are needed only if a consumer runs again."""

    back: Backtracked
    rerun: dict[RegionId, str]
    downstream: Affected
    possible: dict[RegionId, Lost] = field(default_factory=dict)
    missing: dict[RegionId, Lost] = field(default_factory=dict)
    """By region that may run again: a state that it needs, and that is expired."""
    siblings: dict[RegionId, tuple[RegionId, ...]] = field(default_factory=dict)
    """By region that runs again if newer code makes other results: the subtasks of its stage that run that code."""


def decide(state: RunState, failure: Failure) -> Plan | NeedsProbe:
    """Decide for each region whether it runs again. Raises MissingContext, and Misconfigured as RunState does."""
    readers = Readers(state, failure.later)
    found = _closure(state, failure, readers)
    if isinstance(found, NeedsProbe):
        return found
    steps = tuple(_step(state, readers, found, each) for each in _regions(state, found) if each != failure.failed)
    dataflow = state.topology.dataflow
    return Plan(
        failed=failure.failed,
        cause=failure.cause or "; ".join(str(loss) for loss in failure.losses.values()),
        steps=steps,
        run=state.run,
        strategy=dataflow.failover_strategy.value,
        consumers=dataflow.consumers.value,
        held_back=_held_back(state, failure, found),
        impossible=_impossible(found.back.expired.values()),
        expired=_oldest_expired(state, found.back),
        code=failure.code.value,
    )


def _impossible(missed: Collection[Lost]) -> str:
    """Return the reason why a plan cannot be applied; empty if it can."""
    if not missed:
        return ""
    shown = "; ".join(str(each) for each in list(missed)[:SHOWN])
    if any(each.is_gone for each in missed):
        return f"{shown}. A state that was released is computed again by its task, which Airflow does not have any more"
    return (
        f"{shown}. A state that was released is not recomputed, since that would take all epochs since the first; nor "
        "is one that was restored and is not as it was; nor is one that a dataflow has begun with"
    )


def _oldest_expired(state: RunState, found: Backtracked) -> ExpiredState | None:
    """Return the expired state that is needed of the earliest epoch; None where all that is needed can be had."""
    producers = frozenset(state.producer(partition) for partition in found.expired)
    states = [
        ExpiredState(
            lost.loss.run,
            state.run if lost.reader is None else lost.reader.run_id(state.run),
            partition in state.results and state.results[partition].fault == Fault.SUSPECTED.value,
            lost.is_gone,
            producers,
        )
        for partition, lost in found.expired.items()
    ]
    return min(states, key=lambda each: each.run, default=None)


def _closure(state: RunState, failure: Failure, readers: Readers) -> _Found | NeedsProbe:
    """Walk back to producers and forward to consumers until no region is added: a restarted region reads its inputs."""
    also = {each for each in failure.cleared if each != CLOSE}
    possible: dict[RegionId, Lost] = {}
    while True:
        back = _walked_back(state, failure, also)
        # After a failure without a loss no task probes the store: consumers will report what is missing.
        if back.unknown and failure.occasion is not Occasion.FAILURE:
            return NeedsProbe(frozenset(back.unknown))
        rerun = _certain(state, failure, back)
        restarted = rerun.keys() | {each for each in (failure.failed,) if each not in (None, CLOSE)}
        siblings = {} if failure.code is RepairCode.AS_IT_WAS else _siblings(state, readers, {*rerun, *also})
        downstream = (
            affected(state, restarted, readers, possible.keys() | siblings.keys())
            if clears_consumers(state.topology)
            else Affected()
        )
        rerun |= {
            each: f"{producer} runs again, and what reads it always restarts with it"
            for each, producer in downstream.always.items()
            if each != failure.failed
        }
        more = {each for each in rerun.keys() - back.causes.keys() - also if readers.is_known(each)}
        if more:
            also |= more
            continue
        perhaps = _perhaps(state, failure, [*downstream.maybe, *siblings], readers)
        if perhaps.unknown and failure.occasion is Occasion.QUESTION:
            return NeedsProbe(frozenset(perhaps.unknown))
        new = perhaps.causes.keys() - rerun.keys() - back.causes.keys() - possible.keys() - {failure.failed}
        new = {each for each in new if not state.is_coming(each)}
        if not new:
            missing = {each.reader: each for each in perhaps.expired.values() if each.reader is not None}
            return _Found(back, rerun, downstream, possible, missing, siblings)
        possible |= {each: perhaps.causes[each] for each in new}


def _walked_back(state: RunState, failure: Failure, also: Set[RegionId]) -> Backtracked:
    first: list[RegionId | None] = [*also]
    if failure.occasion is not Occasion.FAILURE:
        first.append(failure.failed)
    reporter = failure.failed if failure.occasion is Occasion.LOSS else None
    return backtrack(state, first, failure.losses, failure.intact, failure.occasion, reporter, also)


def _siblings(state: RunState, readers: Readers, rerun: Set[RegionId]) -> dict[RegionId, tuple[RegionId, ...]]:
    """Return the regions that have begun and are other subtasks of restarted ones, with these."""
    of: dict[tuple[RunRef, str], list[RegionId]] = {}
    for each in sorted(rerun):
        if readers.is_known(each):
            of.setdefault((each.run, each.name), []).append(each)
    return {
        each: tuple(of[run, each.name][:SHOWN])
        for run in {run for run, _ in of}
        for each in state.region_ids(run)
        if (run, each.name) in of
        and each not in rerun
        and state.region(each).newest_try
        and not state.region(each).is_running
    }


def _perhaps(state: RunState, failure: Failure, maybe: Iterable[RegionId], readers: Readers) -> Backtracked:
    """Return the losses of regions that may run again: the plan that a person requests shows also unknown inputs."""
    first = [each for each in maybe if readers.is_known(each)]
    return backtrack(state, first, failure.losses, failure.intact, Occasion.QUESTION)


def _certain(state: RunState, failure: Failure, found: Backtracked) -> dict[RegionId, str]:
    """Return the regions that run again whatever running regions commit, with the reason."""
    rerun = {
        region: str(lost)
        for region, lost in found.causes.items()
        if region != failure.failed and not state.is_coming(region)
    }
    rerun |= dict.fromkeys(failure.cleared, failure.why_cleared)
    if failure.failed is None and failure.occasion is Occasion.QUESTION:
        known = [state.region(each) for each in (*state.region_ids(), CLOSE)]
        rerun |= {each.region: _given_up(each) for each in known if each.has_failed}
    is_full = state.topology.dataflow.failover_strategy is FailoverStrategy.FULL
    is_full = is_full and (failure.failed is not None or bool(found.causes))
    for region in state.region_ids() if is_full else ():
        if state.region(region).newest_state in FINISHED and not state.region(region).is_running:
            rerun.setdefault(region, "failover is full: all that has begun runs again")
    if failure.failed is not None:
        rerun.pop(failure.failed, None)
    return rerun | _close_again(state, failure, found)


def _close_again(state: RunState, failure: Failure, found: Backtracked) -> dict[RegionId, str]:
    """Return the closing task and the reason if published files are missing or are not the published ones."""
    has_closed = state.region(CLOSE).newest_state in FINISHED and not state.region(CLOSE).is_running
    is_asked = failure.failed is None and failure.occasion is Occasion.QUESTION
    if failure.failed == CLOSE or not has_closed or not (is_asked or clears_consumers(state.topology)):
        return {}
    gone = [
        lost.loss
        for lost in found.causes.values()
        if lost.loss.stage in state.topology.sinks and lost.loss.run == state.run and _is_of_a_probe(state, lost.loss)
    ]
    if failure.unpublished or not gone:
        return {CLOSE: failure.unpublished} if failure.unpublished else {}
    what = _PUBLISHED.get(gone[0].fault, "gone")
    return {CLOSE: f"the published files of {gone[0].stage}[{gone[0].subtask}] are {what}"}


def _is_of_a_probe(state: RunState, loss: Loss) -> bool:
    """Report whether a probe of the files found the loss: a quarantined result is not the published one."""
    result = _result(state, loss)
    return loss.fault in _OF_A_PROBE or (result is not None and result.state is PartitionState.QUARANTINED)


def _given_up(known: RegionState) -> str:
    return f"try {known.newest_try} has failed for good"


def _regions(state: RunState, found: _Found) -> tuple[RegionId, ...]:
    """Return all regions of the run, affected regions of other runs, and the closing task if it has begun."""
    own = state.region_ids()
    closing = (CLOSE,) if state.region(CLOSE).newest_try else ()
    named = (*found.rerun, *found.back.causes, *found.back.suspended, *found.downstream.maybe, *found.possible)
    others = {each for each in named if not each.is_of_own_run}
    earlier = sorted(each for each in others if each.run < state.run)
    return (*earlier, *own, *closing, *sorted(others - set(earlier)))


def _step(state: RunState, readers: Readers, found: _Found, region: RegionId) -> Step:
    known = readers.state_of(region)
    if region in found.rerun:
        return Step(kind=StepKind.RERUN, region=region, after_try=known.newest_try, reason=found.rerun[region])
    if region in found.back.causes:
        reason = f"{found.back.causes[region]}; {_progress(known)}"
        return Step(kind=StepKind.JOINED, region=region, after_try=known.newest_try, reason=reason)
    if known.is_running:
        reason = f"{_progress(known)}; what it commits is compared with what was read"
        return Step(kind=StepKind.JOINED, region=region, after_try=known.newest_try, reason=reason)
    is_stale = region in found.back.suspended or _is_stale(state, readers, region)
    reasons, depends_on = _conditions(found, region)
    if depends_on:
        kind = StepKind.SUSPENDED if is_stale else StepKind.IF_CHANGED
        missing = f", but could not: {_impossible([found.missing[region]])}" if region in found.missing else ""
        return Step(
            kind=kind,
            region=region,
            after_try=known.newest_try,
            reason="; or ".join(reasons) + missing,
            depends_on=depends_on,
        )
    return Step(
        kind=StepKind.SPARED,
        region=region,
        after_try=known.newest_try,
        reason=_why_spared(state, known, is_stale=is_stale),
    )


def _progress(known: RegionState) -> str:
    """Say how far a region has come that the plan waits for."""
    if known.has_failed:
        return _FAILED
    if known.is_unended:
        return "it waits" if known.newest_state is AttemptState.WAITING else "it is running"
    if known.is_to_be_cleared:
        return _PENDING
    return "it is cleared, and its new try has not begun" if known.under_repair else "it has not begun"


def _conditions(found: _Found, region: RegionId) -> tuple[list[str], tuple[RegionId, ...]]:
    """Describe the conditions under which a region runs again, and return the regions that it depends on."""
    changing: tuple[RegionId, ...] = ()
    if region in found.downstream.maybe:
        changing = found.downstream.depends_on(region)
    elif region in found.back.suspended:
        changing = tuple(sorted(found.back.suspended[region]))
    reasons = [f"if the digest of {_named(changing)} changes"] if changing else []
    siblings = found.siblings.get(region, ())
    if siblings:
        reasons.append(f"if newer code is deployed, by which the digest of {_named(siblings)} changes")
        changing = tuple(dict.fromkeys((*changing, *siblings)))
    lost = found.possible.get(region)
    if lost is None or lost.reader is None:
        return reasons, changing
    return [*reasons, f"if {lost.reader} runs again, which misses {lost.loss}"], (*changing, lost.reader)


def _is_stale(state: RunState, readers: Readers, region: RegionId) -> bool:
    return any(each in state.results and not state.is_valid(each) for each in readers.outputs(region))


def _named(regions: tuple[RegionId, ...]) -> str:
    return str(regions[0]) if len(regions) == 1 else f"{', '.join(map(str, regions[:-1]))} or {regions[-1]}"


def _why_spared(state: RunState, known: RegionState, *, is_stale: bool) -> str:
    if not known.newest_try:
        return "it has not begun"
    if known.newest_state is AttemptState.FAILED:
        return _given_up(known)
    if is_stale:
        return "its result is stale: the task that needs it asks for it, the closing task at the latest"
    if not clears_consumers(state.topology):
        return "failover is individual: Weir clears nothing by itself"
    return "nothing it reads is recomputed"


def _held_back(state: RunState, failure: Failure, found: _Found) -> str:
    """Return the reason why a person must approve the plan; empty if none is needed."""
    missed = [lost.loss for region, lost in found.back.causes.items() if region in found.rerun]
    if missed and not clears_consumers(state.topology):
        return "failover is individual: Weir clears nothing by itself"
    lost = sum(loss.fault in _OF_A_PROBE and not _was_released(state, loss) for loss in missed)
    # Regions of this run and of runs with losses: complete earlier runs tell nothing about a store.
    runs = {OWN_RUN, *(region.run for region in found.back.causes if region in found.rerun)}
    regions = sum(len(state.region_ids(each)) for each in runs)
    is_few = lost < SMALLEST_HELD_BACK or lost <= failure.largest * regions
    if is_few or failure.largest >= 1 or state.topology.dataflow.failover_strategy is FailoverStrategy.FULL:
        return ""
    return (
        f"the results of {lost} of {regions} regions are lost at once, more than the share of {failure.largest:g} that "
        "[weir] largest_plan lets restart without a word: is it the right store, and all of it?"
    )


def _was_released(state: RunState, loss: Loss) -> bool:
    result = _result(state, loss)
    return result is not None and result.state is PartitionState.RELEASED


def _result(state: RunState, loss: Loss) -> CurrentResult | None:
    run = run_ref(loss.run, state.run)
    return state.results.get(PartitionId(loss.stage, loss.subtask, loss.layout, run))
