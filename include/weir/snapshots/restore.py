"""Restore a checkpoint or savepoint, so that a dataflow resumes from it: `weir restore`.

Invariant: what is restored becomes current in one transaction, which starts a new lineage: no attempt that began before
can commit, and tasks that had read other state become stale and get pending clears. If the process is killed before
that, nothing has changed. What was written for it is deleted only once the ledger has answered that it was not
committed, in a transaction that begins after that of the restore has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.code.generation_rules import RepairCode, agreed
from weir.coordination.evidence import require_not_behind
from weir.coordination.import_rules import candidates
from weir.coordination.importing import enter_attempts, enter_results
from weir.coordination.positions import loaded_position, stored_position
from weir.coordination.run_records import write_record
from weir.coordination.services import Services
from weir.dataflow import Dataflow
from weir.dataflow.state_evolution import require_compatible
from weir.errors import Conflict, Misconfigured, Retryable
from weir.execution.run_state import RunState, coming_result
from weir.formats.checkpoint import Checkpoint
from weir.formats.manifest import Stored
from weir.formats.run_record import RecordedRange
from weir.ledger.attempts import free_number
from weir.ledger.code import forget_generations
from weir.ledger.database.tables import AttemptRow, DataflowRow, RestoreRow, RunRow
from weir.ledger.restores import FORK, SAME, last_restore, restores_of
from weir.ledger.runs import FIRST_LINEAGE, ensure_dataflow, run_by_id, run_key, topology_of
from weir.ledger.snapshot import run_state
from weir.ledger.sources import enter_range, range_of
from weir.recovery.reconcile import reconcile, stale_in_later_runs
from weir.snapshots.restore_report import PartitionPlan, Restored, StaleTask
from weir.snapshots.restored_results import (
    Place,
    RestoredPartition,
    copy_restored,
    discard_restored,
    restored_partitions,
    write_restored,
)
from weir.snapshots.restored_run import drop_clears, fence_all, restored_run, topology_for
from weir.snapshots.source import Source, find_source, renamed, require_retained, require_whole
from weir.topology.ids import AttemptId, Digest
from weir.topology.regions import PartitionId

ROUNDS = 3
"""How often a restore is planned again because tasks committed meanwhile."""


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A request to restore a dataflow from the number, name or folder of a checkpoint or savepoint.

    `fork` names a new dataflow that is to start from it. With `allows_non_restored` the next epoch may leave out
    states, as with Flink's allowNonRestoredState. `expected` is the hash of a dry run that somebody has seen.
    """

    dataflow: str
    source: str
    fork: str | None = None
    allows_non_restored: bool = False
    is_dry: bool = False
    expected: str | None = None

    @property
    def target(self) -> str:
        """The dataflow that resumes."""
        return self.fork or self.dataflow


@dataclass(frozen=True, slots=True)
class _Plan:
    """The changes that a restore makes to the ledger as it was read; `replaced` are the partitions that differ."""

    place: Place
    is_repinned: bool
    replaced: frozenset[PartitionId]
    report: Restored

    def is_like(self, other: _Plan) -> bool:
        """Report whether what is written for one plan is right for the other."""
        return self._decided == other._decided

    @property
    def _decided(self) -> tuple[object, ...]:
        return self.replaced, self.is_repinned, self.place.lineage, self.place.numbers


def restore(services: Services, request: RestoreRequest) -> Restored:
    """Restore a checkpoint or savepoint; nothing is changed where that fails, or where it is in effect already.

    Raises Misconfigured if it does not exist, is incomplete or not retained, is incompatible with the present dataflow,
    or if the fork has runs already; Retryable where store or ledger do not answer, LedgerBehind where the ledger has
    lost a fork of that name, and Conflict if tasks committed meanwhile in each round, or it would do something else
    than what is expected.
    """
    store_id = services.store_id()
    source = find_source(services, request.dataflow, request.source)
    _require_target(request, source.checkpoint)
    if request.fork is not None:
        require_not_behind(services, request.fork)  # it may have lost a fork of that name
    require_whole(source)
    for _ in range(ROUNDS - 1):
        try:
            return _restore(services, request, source, store_id)
        except Conflict:
            continue
    return _restore(services, request, source, store_id)


def _require_target(request: RestoreRequest, checkpoint: Checkpoint) -> None:
    if request.fork is None and checkpoint.dataflow != request.dataflow:
        raise Misconfigured.of(
            "snapshots.savepoint_of_another",
            dataflow=checkpoint.dataflow,
            wanted=request.dataflow,
            source=request.source,
        )
    if request.fork == checkpoint.dataflow:
        raise Misconfigured.of("snapshots.fork_of_itself", fork=request.fork)
    if request.fork is not None:
        Dataflow.from_json(renamed(checkpoint, request.fork).pinned)  # raises where that is no name of a dataflow


def _restore(services: Services, request: RestoreRequest, source: Source, store_id: str) -> Restored:
    with services.ledger.transaction() as session:
        plan = _plan(session, request, source)
    if request.is_dry or plan.report.is_in_effect:
        return plan.report
    partitions = restored_partitions(services, source, plan.place, plan.replaced)
    ranges = _ranges(services, request, source.checkpoint)
    try:
        copied = copy_restored(services, source, partitions)
        written = write_restored(services, partitions)
        with services.ledger.transaction(request.target) as session:
            ensure_dataflow(session, request.target, store_id)
            done = _commit(session, services, request, source, plan, partitions, written, ranges)
    except BaseException:
        if not _is_committed(services, request, source, plan, partitions):
            discard_restored(services, partitions)
            raise
        done = plan.report  # the connection broke after the commit
    with suppress(Retryable):  # the next begin or upkeep writes it
        write_record(services, run_key(request.target, source.checkpoint.epoch))
    return replace(done, copied_bytes=copied)


def _is_committed(
    services: Services, request: RestoreRequest, source: Source, plan: _Plan, partitions: Sequence[RestoredPartition]
) -> bool:
    """Report whether the ledger has the restore, and never will have it if it does not have it now.

    A commit whose answer was lost may still be going on in the server: a transaction of the same dataflow begins only
    when it has ended. Raises Retryable where that cannot be awaited: then a later sweep deletes the files. A restore
    that replaces nothing has no attempt, and that of another process from the same source is as good as this one.
    """
    with services.ledger.transaction(request.target) as session:
        if partitions:
            return session.get(AttemptRow, partitions[0].manifest.attempt) is not None
        row = last_restore(session, request.target, source.checkpoint.epoch, plan.place.lineage)
        return row is not None and row.source == _what(request, source)["source"]


def _plan(session: Session, request: RestoreRequest, source: Source) -> _Plan:
    """Plan the changes and what follows from them. Raises Misconfigured."""
    checkpoint = renamed(source.checkpoint, request.target)
    parts = checkpoint.parts
    wanted = {each: part.digest for each, part in parts.items()}
    run_id = run_key(request.target, checkpoint.epoch)
    row = session.get(RunRow, run_id)
    was_last = row is not None and _was_last(session, request, source)
    if not (was_last and request.fork is not None):  # else its runs are the fork's own
        _require_fitting(session, request, checkpoint)
    topology, is_repinned = topology_for(row, checkpoint, list(wanted))
    replaced, stale = frozenset(wanted), {}
    if row is not None:
        run = run_by_id(session, row.id, topology)
        if not is_repinned:
            state = run_state(session, run, topology)
            replaced = _of_one_code(
                state,
                {each: frozenset(part.versions) for each, part in parts.items()},
                {
                    each
                    for each, digest in wanted.items()
                    if not (state.is_good(each) and state.results[each].digest == digest)
                },
            )
        restored = {each: coming_result(each, AttemptId(""), Digest(wanted[each])) for each in replaced}
        stale = stale_in_later_runs(session, run, topology, restored, restored)
    is_in_effect = was_last and (request.fork is not None or not (replaced or is_repinned))
    lineage = _lineage(session, request.target)
    later = select(RunRow.id).where(RunRow.dataflow == request.target, RunRow.epoch > checkpoint.epoch)
    report = Restored(
        dataflow=request.target,
        source=str(source),
        epoch=checkpoint.epoch,
        lineage=lineage if is_in_effect else lineage + 1,
        partitions=tuple(
            PartitionPlan(each.stage, each.subtask, each.layout, digest, each in replaced)
            for each, digest in sorted(wanted.items())
        ),
        stale=tuple(
            StaleTask(run, str(region), reason.removeprefix("weir: "))
            for run, regions in sorted(stale.items())
            for region, (_, reason) in sorted(regions.items())
        ),
        later_runs=tuple(session.scalars(later.order_by(RunRow.epoch))),
        is_repinned=is_repinned,
        is_in_effect=is_in_effect,
    )
    if request.expected not in (None, report.hash):
        raise Conflict.of("snapshots.restore_changed", source=source)
    regions = {topology.producer(each) for each in replaced}
    numbers = {each: free_number(session, run_id, each) for each in regions}
    return _Plan(Place(request.target, topology, lineage + 1, numbers), is_repinned, replaced, report)


def _lineage(session: Session, dataflow: str) -> int:
    return session.scalar(select(DataflowRow.lineage).where(DataflowRow.name == dataflow)) or FIRST_LINEAGE


def _was_last(session: Session, request: RestoreRequest, source: Source) -> bool:
    """Report whether the same restore has begun the present lineage: an earlier try of this one, perhaps."""
    epoch, lineage = source.checkpoint.epoch, _lineage(session, request.target)
    row = last_restore(session, request.target, epoch, lineage)
    return row is not None and all(getattr(row, name) == value for name, value in _what(request, source).items())


def _of_one_code(
    state: RunState, versions: Mapping[PartitionId, frozenset[str]], differing: set[PartitionId]
) -> frozenset[PartitionId]:
    """Return the partitions to restore: those that differ, and their siblings where these are of other code."""
    found = set(differing)
    for stage in {each.stage for each in differing}:
        of_stage = [each for each in versions if each.stage == stage]
        kept = (versions[each] if each in differing else state.results[each].versions for each in of_stage)
        if not agreed(kept):
            found |= set(of_stage)
    return frozenset(found)


def _require_fitting(session: Session, request: RestoreRequest, checkpoint: Checkpoint) -> None:
    """Require that the snapshot is compatible with the dataflow that resumes from it, if that has had a run."""
    pinned = select(RunRow.pinned).where(RunRow.dataflow == request.target, RunRow.is_pinned, RunRow.has_dag_run)
    newest = session.scalar(pinned.order_by(RunRow.epoch.desc()).limit(1))
    if request.fork is not None:
        known = session.scalar(select(RunRow.id).where(RunRow.dataflow == request.fork).limit(1))
        if known is not None:
            raise Misconfigured.of("snapshots.fork_has_runs", fork=request.fork, known=known)
        # A ledger that has lost a fork learns of its restore from the store before it learns of its run.
        others = [row.epoch for row in restores_of(session, request.fork) if row.epoch != checkpoint.epoch]
        if others:
            raise Misconfigured.of("snapshots.fork_has_begun", fork=request.fork, epoch=others[0])
    if newest is None:
        return
    old = topology_of(checkpoint.pinned).dataflow
    left_out = _state_names(checkpoint) if request.allows_non_restored else ()
    require_compatible(
        old,
        topology_of(newest).dataflow,
        f"checkpoint {checkpoint.number} (epoch {checkpoint.epoch})",
        request.target,
        left_out,
    )


def _state_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    stages = topology_of(checkpoint.pinned).dataflow.stages
    return tuple(state.name for stage in stages for state in stage.states)


def _commit(
    session: Session,
    services: Services,
    request: RestoreRequest,
    source: Source,
    plan: _Plan,
    partitions: Sequence[RestoredPartition],
    written: Sequence[Stored],
    ranges: Mapping[str, RecordedRange],
) -> Restored:
    require_retained(session, source)
    present = _plan(session, request, source)
    if not present.is_like(plan):
        raise Conflict.of("snapshots.target_changed", target=request.target, source=source)
    dataflow = session.get_one(DataflowRow, request.target)
    dataflow.lineage += 1
    checkpoint = renamed(source.checkpoint, request.target)
    fenced = fence_all(session, services, request.target, dataflow.lineage)
    row = restored_run(session, services, checkpoint, str(source), is_repinned=plan.is_repinned)
    for stage, found in ranges.items():
        if range_of(session, row.id, stage) is None:  # else it is known, and later epochs may have gone on from it
            enter_range(session, row.id, stage, found)
    run = run_by_id(session, row.id)
    topology = plan.place.topology
    dropped = drop_clears(session, services, row.id, {each.region for each in partitions})
    made = candidates(topology, written)
    enter_attempts(session, row, topology, made, {})
    enter_results(session, row.id, made, services.now())
    # What follows a restore runs what is deployed: so does the restored run, where it has to compute anything.
    forget_generations(session, row.id)
    row.archive, row.restored_in, row.is_record_due = None, dataflow.lineage, True
    state = run_state(session, run, topology)
    replaced = [each.partition for each in partitions]
    is_as_restored = plan.is_repinned or not row.has_dag_run
    owed = reconcile(session, services, run, state, replaced, RepairCode.NEWEST, is_as_restored=is_as_restored)
    session.add(
        RestoreRow(
            dataflow=request.target,
            epoch=row.epoch,
            lineage=dataflow.lineage,
            restored_at=services.now(),
            **_what(request, source),
        )
    )
    return replace(present.report, lineage=dataflow.lineage, fenced=fenced, pending_clears=owed, dropped_clears=dropped)


def _ranges(services: Services, request: RestoreRequest, checkpoint: Checkpoint) -> dict[str, RecordedRange]:
    """Return where the sources of the run go on from, stored for the dataflow that resumes."""
    return {
        stage: RecordedRange(
            splits=tuple(cast("list[Any]", checkpoint.sources[stage])),
            position=stored_position(services, request.target, loaded_position(services, position), None),
            base="",
            pinned_to="",
            resolved_at=checkpoint.completed_at,
        )
        for stage, position in checkpoint.positions.items()
    }


def _what(request: RestoreRequest, source: Source) -> dict[str, Any]:
    """Return what the ledger records of a restore, wherever it goes and whenever."""
    return {
        "origin": source.checkpoint.dataflow,
        "number": source.checkpoint.number,
        "source": source.name[:500],
        "mode": SAME if request.fork is None else FORK,
        "left_out": list(_state_names(source.checkpoint)) if request.allows_non_restored else [],
    }
