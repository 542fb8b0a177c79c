"""Adds the clears that follow from a commit: of consumers of replaced results, and of siblings of older code.

Invariant 7: the clears that follow from a commit are recorded in its transaction, also those in other runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from weir.code.generation_rules import RepairCode, agreed, short, with_equal
from weir.coordination.services import Services
from weir.coordination.values import Begun
from weir.dataflow.notifications import EventKind
from weir.execution.failure_class import FailureClass
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, AttemptState, CurrentResult, RunState
from weir.ledger.attempts import attempts_of, newest_attempts
from weir.ledger.clears import add_pending_clear, add_pending_clears
from weir.ledger.code import equal_versions
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.failed_begins import failed_begins_of, region_of_begin
from weir.ledger.outbox import open_incidents
from weir.ledger.reads import reads_of
from weir.ledger.results import NewResult
from weir.ledger.runs import Run, has_later, mark_closed, run_by_id
from weir.ledger.snapshot import (
    began_without,
    committed_attempt,
    newest_tries,
    read_sets_of,
    readers_in_other_runs,
    run_state,
)
from weir.recovery.failovers import tell_healed
from weir.recovery.rules.staleness import Replacement, clears_consumers, clears_later_epochs, reasons, stale_consumers
from weir.topology.ids import RunId
from weir.topology.regions import PartitionId, RegionId, Topology

_NOT_PUBLISHED = (PartitionState.LOST, PartitionState.QUARANTINED)
"""The states of published results that are to be published again, even if the new content is equal."""

Replaced = Mapping[PartitionId, Replacement]


def add_clears_of_commit(
    session: Session, services: Services, begun: Begun, before: RunState, results: Sequence[NewResult]
) -> int:
    """Add the clears of all consumers that have read other content than a commit's, and return their number."""
    replaced = {
        each.partition: Replacement(each.partition, begun.attempt.id, each.digest, each.differs_from)
        for each in results
    }
    return add_clears_that_follow(session, services, begun.run, begun.topology, before, replaced)


def add_clears_that_follow(
    session: Session,
    services: Services,
    run: Run,
    topology: Topology,
    before: RunState,
    replaced: Replaced,
    code: RepairCode = RepairCode.AS_IT_WAS,
) -> int:
    """Add the clears that follow from replaced results of `run`, and return their number.

    `code` is the code that later epochs run.
    """
    owed = _in_other_runs(session, services, run, topology, replaced, code)
    if not clears_consumers(before.topology):
        return owed
    stale = stale_consumers(before, replaced)
    closing = _why_close_again(session, run, before, replaced)
    if closing is not None:
        stale[CLOSE] = closing
    # Also of running consumers, which may have been marked a success manually; one that runs is not cleared.
    wanted = {consumer: (before.region(consumer).newest_try, reason) for consumer, reason in stale.items()}
    add_pending_clears(session, run, wanted, services.now())
    return owed + len(stale)


def with_versions_declared_equal(
    session: Session, begun: Begun, before: RunState, results: Sequence[NewResult]
) -> list[NewResult]:
    """Return a commit's results; where siblings are of other code, with the versions that a person declared equal."""
    found = []
    for result in results:
        new = result
        if not _agrees(before, result):
            same = equal_versions(session, begun.run.dataflow.name, result.partition.stage)
            new = replace(result, versions=tuple(sorted(with_equal(frozenset(result.versions), same))))
        found.append(new)
    return found


def add_clears_of_siblings(
    session: Session, services: Services, begun: Begun, before: RunState, results: Sequence[NewResult], version: str
) -> int:
    """Add the clears of subtasks whose results are of older code, which would not make a commit's; return how many.

    They are added under each failover strategy: a stage of two codes is valid under none. A subtask with
    an unended attempt needs none: it commits with the new code, or gets Conflict and begins again with it. One that was
    cleared does: its try may have failed before it was registered.
    """
    reasons = {
        before.producer(other.partition): (
            f"weir: {begun.attempt.id} has computed {result.partition} with other code (version {short(version)}), and "
            "differently"
        )
        for result in results
        if not _agrees(before, result)
        for other in _siblings(before, result.partition)
        if version not in other.versions and not before.region(before.producer(other.partition)).is_unended
    }
    wanted = {region: (before.region(region).newest_try, reason) for region, reason in reasons.items()}
    add_pending_clears(session, begun.run, wanted, services.now())
    return len(reasons)


def _agrees(before: RunState, new: NewResult) -> bool:
    """Report whether one version makes a new result and all those of its stage in the run."""
    siblings = _siblings(before, new.partition)
    return not siblings or bool(agreed([frozenset(new.versions), *(each.versions for each in siblings)]))


def _siblings(before: RunState, partition: PartitionId) -> list[CurrentResult]:
    return [
        result
        for each, result in before.results.items()
        if each.is_of_own_run and each.stage == partition.stage and each.subtask != partition.subtask
    ]


def _why_close_again(session: Session, run: Run, before: RunState, replaced: Replaced) -> str | None:
    published = {each: new for each, new in replaced.items() if each.stage in before.topology.sinks}
    committed = committed_attempt(session, run.id, CLOSE) if published else None
    if committed is None:
        return None
    reads = [read for read in reads_of(session, committed.id, run.id) if read.partition in published]
    for reason in reasons(before.topology, reads, published):
        return reason
    for read in reads:
        old = before.results.get(read.partition)
        if old is not None and old.state in _NOT_PUBLISHED and old.attempt == read.attempt:
            return f"weir: the published files of {read.partition} were {old.state.value} and have been recomputed"
    return None


def _in_other_runs(
    session: Session, services: Services, run: Run, topology: Topology, replaced: Replaced, code: RepairCode
) -> int:
    """Add the clears of the next epoch, which reads over `previous`; later epochs follow from its own commit.

    An epoch that is only to be marked is stale from now on, and is not cleared.
    """
    owed = 0
    for other, stale in stale_in_other_runs(session, run, topology, replaced).items():
        session.get_one(RunRow, other).closed_at = None
        later = run_by_id(session, other, topology)
        if clears_later_epochs(later.topology):
            tries = newest_tries(session, other)
            located = {
                region: (tries.get(region, 0), reason.replace("weir: ", f"weir: in run {run.id} ", 1))
                for region, reason in stale.items()
            }
            add_pending_clears(session, later, located, services.now(), code=code)
            owed += len(stale)
    return owed


def stale_in_other_runs(
    session: Session, run: Run, topology: Topology, replaced: Replaced
) -> dict[RunId, dict[RegionId, str]]:
    """Return the regions of later runs that have read other content of `run`, by run, with the reasons.

    They read all partitions of a stage: one that was not there has changed what they would read. So it has if there was
    no state at all, which `weir run adopt` gives a run later, and Weir clears later epochs: their results stay valid.
    What all subtasks of a stage have read is compared once.
    """
    stale: dict[RunId, dict[RegionId, str]] = defaultdict(dict)
    # This run's topology does not have its later readers: a later run may be pinned to a newer dataflow.
    for place in sorted({(each.stage, each.layout) for each in replaced}) if has_later(session, run) else ():
        new = {each for each in replaced if (each.stage, each.layout) == place}
        found = {}
        for name, read in read_sets_of(session, run.id, *place).items():
            missed = new - {each.partition for each in read.members}
            why = [*reasons(topology, read.members, replaced), *(f"weir: {each} is new" for each in sorted(missed))]
            if why:
                found[name] = why[0]
        for reader in readers_in_other_runs(session, run.id, *place) if found else ():
            if reader.read_set in found:
                stale[reader.run][reader.region] = found[reader.read_set]
        for later, of_later, region in began_without(session, run, *place) if place[0] in topology.states else ():
            if clears_later_epochs(of_later):
                stale[later][region] = f"weir: {min(new)} is new"
    return stale


def add_clear_of_closing(session: Session, services: Services, row: AttemptRow) -> None:
    """Add the clear of a closing task that has succeeded, since an attempt in its run has failed finally.

    A run that was closed is open again if results of it became stale, or are to be published again. What Weir has
    cleared to recompute them is no leaf of the DagRun: without the closing task, which fails then, Airflow would call
    the DagRun a success.
    """
    run = run_by_id(session, row.run)
    closing = attempts_of(session, row.run, CLOSE)
    has_closed = bool(closing) and closing[-1].state == AttemptState.COMMITTED.value
    if has_closed and session.get_one(RunRow, row.run).closed_at is None and clears_consumers(run.topology):
        reason = f"weir: {RegionId(row.region, row.subtask)} has failed for good, and this run is no longer closed"
        add_pending_clear(session, run, CLOSE, closing[-1].try_number, reason, services.now())


def note_whether_closed(session: Session, services: Services, run: Run, topology: Topology) -> None:
    """Record whether all results of a closed run are valid and published, so that readers need not derive it again."""
    session.flush()
    closing, is_closed = committed_attempt(session, run.id, CLOSE), False
    if closing is not None:
        state = run_state(session, run, topology)
        is_closed = _is_whole(state) and not outdated_publication(session, run, state, closing)
    mark_closed(session, run.id, services.now() if is_closed else None)
    _end_incidents(session, services, run, is_closed=is_closed)


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
    return ""


def _is_whole(state: RunState) -> bool:
    return all(state.is_valid(each) for region in state.region_ids() for each in state.outputs(region))
