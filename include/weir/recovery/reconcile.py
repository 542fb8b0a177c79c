"""Compares what has to run again with what is decided already, and decides the rest: the end of a transaction.

A transaction writes facts: results, attempts, losses, versions of code. What follows from them in a run, and in the
next epoch, is derived here from the ledger alone, whichever transaction it was.

Invariant 7: the clears that follow from a commit are recorded in its transaction, also those in other runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.code.generation_rules import RepairCode
from weir.coordination.services import Services
from weir.dataflow.notifications import EventKind
from weir.dataflow.targets import Target
from weir.execution.failure_class import FailureClass
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, AttemptState, CurrentResult, ReadResult, RegionState, Results, RunState
from weir.ledger.attempts import Origin, attempts_of, newest_attempts
from weir.ledger.clears import add_pending_clear, add_pending_clears
from weir.ledger.database.tables import AttemptRow, ResultEventRow, ResultRow, RunRow
from weir.ledger.deliveries import targets_without
from weir.ledger.failed_begins import failed_begins_of, region_of_begin
from weir.ledger.outbox import open_incidents
from weir.ledger.publications import published_versions
from weir.ledger.reads import reads_of
from weir.ledger.runs import Run, has_later, mark_closed, open_again_after, run_by_id
from weir.ledger.snapshot import (
    began_without,
    committed_attempt,
    layouts_read_of,
    read_sets_of,
    readers_in_other_runs,
    regions_of,
    run_state,
)
from weir.recovery.failovers import tell_healed
from weir.recovery.rules.staleness import (
    Change,
    changes_of,
    clears_consumers,
    clears_later_epochs,
    of_a_former_epoch,
    of_older_versions,
    older_than_siblings,
    stale_consumers,
)
from weir.topology.ids import RunId
from weir.topology.regions import PartitionId, RegionId, Topology

_NOT_PUBLISHED = (PartitionState.LOST.value, PartitionState.QUARANTINED.value)
"""The states of published results that are to be published again, even if the new content is equal."""


def reconcile(
    session: Session,
    services: Services,
    run: Run,
    state: RunState,
    written: Collection[PartitionId] = (),
    code: RepairCode = RepairCode.AS_IT_WAS,
    *,
    is_as_restored: bool = False,
) -> int:
    """Add the clears that are due by the present `state` of `run` and not decided yet, and return their number.

    What later epochs have read is compared with what the transaction has `written`, by stage and layout. `code` is the
    code that they run. Whether the run is closed is recorded, too, unless none of its tasks is called for, since it is
    as a restore has made it; and so it is for later runs. The closing tasks that are cleared for it are counted.
    """
    is_followed = has_later(session, run)
    owed = _add_later(session, services, run, state, written, code) if is_followed else 0
    due = older_than_siblings(state)  # under each failover strategy: a stage of two codes is valid under none
    if clears_consumers(state.topology):
        # Also of running consumers, which may have been marked a success manually; one that runs is not cleared.
        unknown = _of_unknown_results(session, run, state, written)
        due = {**_why_close_again(session, run, state), **unknown, **stale_consumers(state), **due}
    if clears_later_epochs(state.topology):
        due = {**of_older_versions(state), **of_a_former_epoch(state), **due}
    wanted = {region: (state.region(region).newest_try, reason) for region, reason in due.items()}
    add_pending_clears(session, run, wanted, services.now())
    if not is_as_restored:
        owed += note_whether_closed(session, services, run, state.topology)
    if is_followed:
        owed += note_later(session, services, run)
    return owed + len(wanted)


def _of_unknown_results(
    session: Session, run: Run, state: RunState, written: Iterable[PartitionId]
) -> dict[RegionId, str]:
    """Return the readers of what was `written` that had committed before the ledger was rebuilt, without their results.

    Their manifests are gone: nobody knows what they had read, and what is published may have been made of it.
    """
    found: dict[RegionId, str] = {}
    if state.region(CLOSE).newest_state is not AttemptState.COMMITTED:
        return found
    for partition in written:
        for region in state.consumers(partition):
            known = state.region(region)
            has_results = any(each in state.results for each in state.outputs(region))
            if not (has_results or known.is_running or known.has_failed):
                found.setdefault(
                    region, f"weir: {partition} is new; what {region} had made is not in the store any more"
                )
    closing = committed_attempt(session, run.id, CLOSE) if found else None
    return found if closing is not None and closing.origin == Origin.REBUILT.value else {}


def _why_close_again(session: Session, run: Run, state: RunState) -> dict[RegionId, str]:
    """Return the closing task and the reason if what it has published is not what the run has now, or is not there."""
    known = state.region(CLOSE)
    outputs = {each for each in state.results if each.is_of_own_run and each.stage in state.topology.sinks}
    newer = {each for each in outputs if state.results[each].result > known.newest_result}
    committed = committed_attempt(session, run.id, CLOSE) if newer and known.newest_try else None
    if committed is None:
        return {}
    why = next(_why_outdated(session, run, state, newer, reads_of(session, committed.id, run.id)), None)
    return {} if why is None else {CLOSE: why}


def _why_outdated(
    session: Session, run: Run, state: RunState, newer: set[PartitionId], published: Sequence[ReadResult]
) -> Iterator[str]:
    """Yield why what was published is not what the run has now, as some of its sinks' results are `newer`."""
    reads = [read for read in published if read.partition in newer]
    reads = [read for read in reads if read.attempt != state.results[read.partition].attempt]
    for _, reason in changes_of(state.topology, reads, state.results):
        yield reason
    for partition in sorted(newer.difference(read.partition for read in published)):
        yield _is_new(state.results[partition])[1]
    for partition in _not_written(state.topology, (read.partition for read in published)):
        yield f"weir: {partition} is not written any more"
    for partition, what in _not_published(session, reads):
        yield f"weir: the published files of {partition} were {what} and have been recomputed"
    for version, target in _without_target(session, run.id, state.topology):
        yield f"weir: {version} is not for {target}, which the run has now"


def _without_target(session: Session, run: RunId, topology: Topology) -> Iterator[tuple[str, Target]]:
    """Yield targets of sinks that a run has since it was pinned anew, and the published versions that are not there."""
    targets = {each: found for each in topology.sinks if (found := topology.dataflow.stage(each).targets)}
    for sink, version in published_versions(session, run).items() if targets else ():
        for target in targets_without(session, run, sink, version, targets[sink]) if sink in targets else ():
            yield f"version {version} of {sink}", target


def _not_written(topology: Topology, published: Iterable[PartitionId]) -> list[PartitionId]:
    """Return what was published of sinks that have fewer subtasks since the run was moved to another declaration."""
    written = {(sink, layout.id) for sink in topology.sinks for layout in topology.layouts_of(sink)}
    present = {each for place in written for each in topology.partitions_of(*place)}
    return sorted(each for each in published if each.stage in topology.sinks and each not in present)


def _not_published(session: Session, reads: Sequence[ReadResult]) -> Iterator[tuple[PartitionId, str]]:
    """Yield the published results whose files were gone or in doubt when they were replaced, and what they were."""
    query = (
        select(ResultRow.attempt, ResultRow.stage, ResultRow.subtask, ResultRow.layout, ResultEventRow.state)
        .join(ResultEventRow, ResultEventRow.result == ResultRow.id)
        .where(
            ResultRow.attempt.in_({read.attempt for read in reads}),
            ResultRow.state != PartitionState.FINISHED.value,
            ResultEventRow.state.in_(_NOT_PUBLISHED),
        )
    )
    found = {tuple(place): state for *place, state in session.execute(query)}
    for read in reads:
        partition = read.partition
        state = found.get((read.attempt, partition.stage, partition.subtask, partition.layout))
        if state is not None:
            yield partition, state


def _add_later(
    session: Session, services: Services, run: Run, state: RunState, written: Iterable[PartitionId], code: RepairCode
) -> int:
    """Add the clears of the next epoch, which reads over `previous`; later epochs follow from its own commit.

    An epoch that is only to be marked is stale from now on, and is not cleared.
    """
    owed = 0
    for other, stale in stale_in_later_runs(session, run, state.topology, state.results, written).items():
        session.get_one(RunRow, other).closed_at = None
        later = run_by_id(session, other, state.topology)
        if not clears_later_epochs(later.topology):
            continue
        known = regions_of(session, other)
        wanted = {
            region: (of.newest_try, reason.replace("weir: ", f"weir: in run {run.id} ", 1))
            for region, (number, reason) in stale.items()
            if number > (of := known.get(region, RegionState(region=region))).newest_result
        }
        add_pending_clears(session, later, wanted, services.now(), code=code)
        owed += len(wanted)
    return owed


def stale_in_later_runs(
    session: Session, run: Run, topology: Topology, results: Results, written: Iterable[PartitionId]
) -> dict[RunId, dict[RegionId, Change]]:
    """Return the regions of later runs that have read other content of `run` than `results`, with the newest changes.

    What they have read of the stages and layouts of `written` is compared.

    They read all partitions of a stage: one that was not there has changed what they would read, and so has one that a
    run with fewer subtasks does not write any more. So it has if there was no state at all, which `weir run adopt`
    gives a run later, and Weir clears later epochs: their results stay valid. What all subtasks of a stage have read is
    compared once.
    """
    stale: dict[RunId, dict[RegionId, Change]] = defaultdict(dict)
    made = {each: new for each, new in results.items() if each.is_of_own_run}
    stages = {each.stage for each in written}
    of_former = _read_in_former_layouts(session, run, topology, made, stages)
    for later, region, change in (*_changes_of_places(session, run, topology, made, written), *of_former):
        # Of the others a clear may have been decided, of which no try has begun yet.
        stale[later][region] = _newest([stale[later].get(region, change), change])
    return stale


def _changes_of_places(
    session: Session, run: Run, topology: Topology, results: Results, written: Iterable[PartitionId]
) -> Iterator[tuple[RunId, RegionId, Change]]:
    # This run's topology does not have its later readers: a later run may be pinned to a newer dataflow.
    for place in sorted({(each.stage, each.layout) for each in written}):
        present = {each: new for each, new in results.items() if (each.stage, each.layout) == place}
        if not present:
            continue
        newest = _newest(map(_is_new, present.values()))
        found = {}
        for name, read in read_sets_of(session, run.id, *place).items():
            members = {each.partition for each in read.members}
            missed, gone = sorted(present.keys() - members), sorted(members.difference(topology.partitions_of(*place)))
            changes = [*changes_of(topology, read.members, present), *(_is_new(present[each]) for each in missed)]
            changes += [(newest[0], f"weir: {each} is not written any more") for each in gone]
            if changes:
                found[name] = _newest(changes)  # what has begun since has seen the others
        for reader in readers_in_other_runs(session, run.id, *place) if found else ():
            if reader.read_set in found:
                yield reader.run, reader.region, found[reader.read_set]
        without = began_without(session, run, *place) if place[0] in topology.states else ()
        for later, of_later, region in without:
            if clears_later_epochs(of_later):
                yield later, region, newest


def _read_in_former_layouts(
    session: Session, run: Run, topology: Topology, results: Results, stages: Iterable[str]
) -> Iterator[tuple[RunId, RegionId, Change]]:
    """Yield what has read stages in layouts that a run was moved away from.

    Whether their rows have changed can't be told from digests of other layouts. A state is read in its own one alone.
    """
    if not session.get_one(RunRow, run.id).abandoned:
        return  # it was never moved
    for stage in sorted(each for each in stages if each not in topology.states):
        newest = max((new.result for each, new in results.items() if each.stage == stage), default=0)
        read = layouts_read_of(session, run.id, stage) if newest else ()
        for layout in sorted(each for each in read if not topology.writes(stage, each)):
            for reader in readers_in_other_runs(session, run.id, stage, layout):
                yield reader.run, reader.region, (newest, f"weir: {stage} is not written in layout {layout} any more")


def _newest(changes: Iterable[Change]) -> Change:
    return max(changes, key=lambda change: change[0])


def _is_new(result: CurrentResult) -> Change:
    return result.result, f"weir: {result.partition} is new"


def add_clear_of_closing(session: Session, services: Services, name: str, why: str) -> bool:
    """Clear a closing task that has succeeded, since no task makes what its run lacks; report whether it is to be.

    A run that was closed is open again if results of it became stale, or are to be published again. What Weir has
    cleared to recompute them is no leaf of the DagRun: without the closing task, which fails then, Airflow would call
    the DagRun a success.
    """
    run = run_by_id(session, name)
    return session.get_one(RunRow, run.id).closed_at is None and _clear_closing(session, services, run, why)


def _clear_closing(session: Session, services: Services, run: Run, why: str) -> bool:
    """Clear the closing task of an open run if it has succeeded, and report whether it is to be."""
    closing = attempts_of(session, run.id, CLOSE)
    has_closed = bool(closing) and closing[-1].state == AttemptState.COMMITTED.value
    if not has_closed or not clears_consumers(run.topology):
        return False
    reason = f"weir: {why}, and this run is no longer closed"
    add_pending_clear(session, run, CLOSE, closing[-1].try_number, reason, services.now())
    return True


def note_whether_closed(session: Session, services: Services, run: Run, topology: Topology) -> int:
    """Record whether all results of a closed run are valid and published, so that readers need not derive it again.

    The closing task of one that is not, and that waits for an earlier run in which a task has failed for good, is
    cleared: it waits for that run, and until then Airflow does not call the DagRun a success. Return the number of
    clears.
    """
    session.flush()
    closing, is_closed, why = committed_attempt(session, run.id, CLOSE), False, ""
    if closing is not None:
        state = run_state(session, run, topology)
        is_closed = _is_whole(state) and not outdated_publication(session, run, state, closing)
        why = "" if is_closed or state.region(CLOSE).is_running else _failed_before(state)
    mark_closed(session, run.id, services.now() if is_closed else None)
    _end_incidents(session, services, run, is_closed=is_closed)
    return int(bool(why) and _clear_closing(session, services, run, why))


def _failed_before(state: RunState) -> str:
    """Say which task of an earlier run has failed for good, if results of the run wait for such a run; else ""."""
    if not clears_later_epochs(state.topology):
        return ""  # a later epoch is left to a person
    own = (each for region in state.region_ids() for each in state.outputs(region))
    if all(region.is_of_own_run for each in own for region in state.awaited_for(each)):
        return ""
    earlier = ((region, known) for region, known in state.regions.items() if not region.is_of_own_run)
    failed = min((region for region, known in earlier if known.has_failed and region.name != CLOSE.name), default=None)
    return "" if failed is None else f"{failed} has failed for good"


def note_later(session: Session, services: Services, run: Run) -> int:
    """Record for later runs that were closed whether they are so again: what they have read may be valid again.

    A run is open, too, if something of it commits while an earlier run is repaired. No task of its own has to run
    where that gives what has been read. Where it will not be given, since a task of the earlier run has failed for
    good, the closing task is cleared. Return the number of clears.
    """
    later = [run_by_id(session, other, run.topology) for other in open_again_after(session, run)]
    read = (each for each in later if each.topology.reads_previous)
    return sum(note_whether_closed(session, services, each, each.topology) for each in read)


def _end_incidents(session: Session, services: Services, run: Run, *, is_closed: bool) -> None:
    """End the incidents that a commit has mended: what failed for good has run again, or the run is whole again."""
    for incident in open_incidents(session, run.id):
        match EventKind(incident.kind):
            case EventKind.PERSON_NEEDED:
                is_over = not _has_failed(session, run)
            case EventKind.FAILED_OVER:
                is_over = is_closed and tell_healed(session, run.id, incident.failover, incident.event, services.now())
            case _:
                is_over = False
        if is_over:
            session.delete(incident)


def _has_failed(session: Session, run: Run) -> bool:
    """Report whether a task of a run stands failed for good, maybe before it was registered."""
    newest = {region: tries[-1] for region, tries in newest_attempts(session, run.id).items()}
    if any(row.state == AttemptState.FAILED.value for row in newest.values()):
        return True
    for begin in failed_begins_of(session, run.dataflow.name, run.dag_id, run.run_id):
        since = newest.get(region_of_begin(begin))
        if begin.failure == FailureClass.FATAL.value and (since is None or since.try_number < begin.try_number):
            return True
    return False


def outdated_publication(session: Session, run: Run, state: RunState, closing: AttemptRow) -> str:
    """Return how what `closing` has published differs from the results of its run; empty if it does not."""
    published = {read.partition: read.digest for read in reads_of(session, closing.id, run.id)}
    for partition in sorted(each for each in state.results if each.is_of_own_run):
        digest = published.get(partition)
        if digest is None and partition.stage in state.topology.sinks:
            return f"{partition} was not there when try {closing.try_number} of {CLOSE.name} published"
        if digest not in (None, state.results[partition].digest):
            return f"{partition} has changed since try {closing.try_number} of {CLOSE.name} published it"
    for partition in _not_written(state.topology, published):
        return f"{partition} is not written any more since try {closing.try_number} of {CLOSE.name} published it"
    for version, target in _without_target(session, run.id, state.topology):
        return f"{version} is not for {target}, which the run has since it was moved to another declaration"
    return ""


def _is_whole(state: RunState) -> bool:
    return all(state.is_valid(each) for region in state.region_ids() for each in state.outputs(region))
