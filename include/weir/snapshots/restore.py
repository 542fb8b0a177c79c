"""Going on from a checkpoint or savepoint: `weir restore`.

Invariant: what is restored becomes current in one transaction, which starts a new lineage: no attempt that began before
can commit, and whoever had read other state is stale and owed its clear. Killed before that, nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.dataflow import Dataflow
from weir.dataflow.state_evolution import require_compatible
from weir.errors import Conflict, Misconfigured
from weir.formats.checkpoint import Checkpoint
from weir.ledger.database.tables import AttemptRow, DataflowRow, RestoreRow, RunRow
from weir.ledger.restores import FORK, SAME
from weir.ledger.runs import ensure_dataflow, run_by_id, run_key, topology_of
from weir.ledger.snapshot import run_state
from weir.recovery.consequences import note_whether_closed, owe_what_follows, stale_in_other_runs
from weir.recovery.rules.staleness import Replacement
from weir.snapshots.restored_results import (
    RestoredPartition,
    commit_restored,
    copy_restored,
    discard_restored,
    partitions_in,
    restored_partitions,
)
from weir.snapshots.restored_run import drop_clears, fence_all, restored_run, topology_for
from weir.snapshots.source import OpenStore, Source, find_source, named, require_retained, require_whole
from weir.topology.regions import PartitionId, Topology

ROUNDS = 3
"""How often the world may change under a restore before it gives way."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asks for: the dataflow, and the number, name or folder of what it goes on from.

    `fork` names the dataflow that is to begin with it. `allows_non_restored`: the next epoch may do without states.
    """

    dataflow: str
    source: str
    fork: str | None = None
    allows_non_restored: bool = False
    is_dry: bool = False

    @property
    def target(self) -> str:
        """The dataflow that goes on."""
        return self.fork or self.dataflow


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What becomes of a partition: it is restored, or it is as it should be already."""

    partition: PartitionId
    digest: str
    is_restored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was restored, or would be.

    `fenced` are attempts that may not commit any more. `stale` are the tasks of later runs that begin anew, each with
    the reason; `later` are all runs behind the epoch, oldest first, which follow as far as their state comes out
    otherwise. `owed` counts clears, `dropped` those that are not needed any more.
    """

    dataflow: str
    source: str
    epoch: str
    lineage: int
    partitions: tuple[PartitionPlan, ...]
    stale: tuple[str, ...]
    later: tuple[str, ...]
    is_repinned: bool
    fenced: tuple[str, ...] = ()
    owed: int = 0
    dropped: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be done by the ledger as it was; `replaced` are the partitions that are not as they should be."""

    topology: Topology
    is_repinned: bool
    replaced: frozenset[PartitionId]
    told: Restored


def restore(services: Services, wish: Wish, open_store: OpenStore) -> Restored:
    """Let a dataflow go on from a checkpoint or savepoint; nothing is changed where it cannot.

    Raises Misconfigured for what does not exist, is not whole or not kept, does not fit the present dataflow or is in
    the way;
    Retryable where store or ledger do not answer, and Conflict if tasks committed meanwhile again and again.
    """
    store_id = services.store_id()
    source = find_source(services, wish.dataflow, wish.source, open_store)
    _require_sensible(wish, source.checkpoint)
    require_whole(source)
    for _ in range(ROUNDS - 1):
        try:
            return _restore(services, wish, source, store_id)
        except Conflict:
            continue
    return _restore(services, wish, source, store_id)


def _require_sensible(wish: Wish, checkpoint: Checkpoint) -> None:
    if wish.fork is None and checkpoint.dataflow != wish.dataflow:
        raise Misconfigured(
            f"this is a savepoint of {checkpoint.dataflow}, not of {wish.dataflow}: `weir restore "
            f"{checkpoint.dataflow} {wish.source} --as {wish.dataflow}` lets {wish.dataflow} begin with it"
        )
    if wish.fork == checkpoint.dataflow:
        raise Misconfigured(f"{wish.fork} is the dataflow that it was made by: leave --as out to restore it there")
    if wish.fork is not None:
        Dataflow.from_json(named(checkpoint, wish.fork).pinned)  # whether it may have that name


def _restore(services: Services, wish: Wish, source: Source, store_id: str) -> Restored:
    with services.ledger.transaction() as session:
        plan = _plan(session, wish, source)
    if wish.is_dry:
        return plan.told
    making = restored_partitions(services, source, wish.target, plan.topology, plan.replaced)
    try:
        copied = copy_restored(services, source, making)
        with services.ledger.transaction(wish.target) as session:
            ensure_dataflow(session, wish.target, store_id)
            return _commit(session, services, wish, source, plan, making, copied)
    except BaseException:
        if _is_committed(services, making):
            return plan.told  # the connection broke behind the commit
        discard_restored(services, making)
        raise


def _is_committed(services: Services, making: Sequence[RestoredPartition]) -> bool:
    """Whether the ledger knows what was made. Raises Retryable: then nothing is deleted, and a sweep does it later."""
    with services.ledger.transaction() as session:
        return any(session.get(AttemptRow, each.manifest.attempt) is not None for each in making[:1])


def _plan(session: Session, wish: Wish, source: Source) -> _Plan:
    """What is to be done, and what follows from it. Raises Misconfigured."""
    checkpoint = named(source.checkpoint, wish.target)
    wanted = partitions_in(checkpoint)
    _require_fitting(session, wish, checkpoint)
    row = session.get(RunRow, run_key(wish.target, checkpoint.epoch))
    topology, is_repinned = topology_for(row, checkpoint, list(wanted))
    replaced, stale = frozenset(wanted), {}
    if row is not None:
        run = run_by_id(session, row.id, topology)
        if not is_repinned:
            state = run_state(session, run, topology)
            replaced = frozenset(
                each
                for each, digest in wanted.items()
                if not (state.is_good(each) and state.results[each].digest == digest)
            )
        stale = stale_in_other_runs(
            session, run, topology, {each: Replacement(each, "", wanted[each]) for each in replaced}
        )
    lineage = session.scalar(select(DataflowRow.lineage).where(DataflowRow.name == wish.target)) or 0
    later = select(RunRow.id).where(RunRow.dataflow == wish.target, RunRow.epoch > checkpoint.epoch)
    told = Restored(
        dataflow=wish.target,
        source=str(source),
        epoch=checkpoint.epoch,
        lineage=lineage + 1,
        partitions=tuple(PartitionPlan(each, digest, each in replaced) for each, digest in sorted(wanted.items())),
        stale=tuple(
            f"{region} of {run}: {reason.removeprefix('weir: ')}" for (run, region), reason in sorted(stale.items())
        ),
        later=tuple(session.scalars(later.order_by(RunRow.epoch))),
        is_repinned=is_repinned,
    )
    return _Plan(topology, is_repinned, replaced, told)


def _require_fitting(session: Session, wish: Wish, checkpoint: Checkpoint) -> None:
    """Check what is restored against the dataflow that goes on from it, as far as that has ever begun."""
    pinned = select(RunRow.pinned).where(RunRow.dataflow == wish.target, RunRow.pinned.is_not(None), RunRow.has_dag_run)
    newest = session.scalar(pinned.order_by(RunRow.epoch.desc()).limit(1))
    if wish.fork is not None:
        known = session.scalar(select(RunRow.id).where(RunRow.dataflow == wish.fork).limit(1))
        if known is not None:
            raise Misconfigured(
                f"dataflow {wish.fork} has runs already ({known}): a fork begins with what is restored. Name another"
            )
    if newest is None:
        return
    old = topology_of(checkpoint.pinned).dataflow
    left_out = _state_names(checkpoint) if wish.allows_non_restored else ()
    require_compatible(
        old,
        topology_of(newest).dataflow,
        f"checkpoint {checkpoint.number} (epoch {checkpoint.epoch})",
        wish.target,
        left_out,
    )


def _state_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    stages = topology_of(checkpoint.pinned).dataflow.stages
    return tuple(state.name for stage in stages for state in stage.states)


def _commit(
    session: Session,
    services: Services,
    wish: Wish,
    source: Source,
    plan: _Plan,
    making: Sequence[RestoredPartition],
    copied: int,
) -> Restored:
    require_retained(session, source)
    again = _plan(session, wish, source)
    if (again.replaced, again.is_repinned) != (plan.replaced, plan.is_repinned):
        raise Conflict(f"{wish.target} has changed while {source} was being restored")
    dataflow = session.get_one(DataflowRow, wish.target)
    dataflow.lineage += 1
    checkpoint = named(source.checkpoint, wish.target)
    fenced = fence_all(session, services, wish.target, dataflow.lineage)
    row = restored_run(session, services, checkpoint, str(source), is_repinned=plan.is_repinned)
    run = run_by_id(session, row.id)
    before = run_state(session, run, plan.topology)
    dropped = drop_clears(session, services, row.id, {each.region for each in making})
    results = commit_restored(session, services, row, making, dataflow.lineage)
    attempts = {each.partition: each.manifest.attempt for each in making}
    replaced = {each.partition: Replacement(each.partition, attempts[each.partition], each.digest) for each in results}
    owed = owe_what_follows(session, services, run, plan.topology, before, replaced)
    if row.has_dag_run:
        note_whether_closed(session, services, run, plan.topology)
    session.add(_row(services, wish, source, dataflow.lineage))
    told = again.told
    return Restored(
        dataflow=told.dataflow,
        source=told.source,
        epoch=told.epoch,
        lineage=dataflow.lineage,
        partitions=told.partitions,
        stale=told.stale,
        later=told.later,
        is_repinned=told.is_repinned,
        fenced=fenced,
        owed=owed,
        dropped=dropped,
        copied_bytes=copied,
    )


def _row(services: Services, wish: Wish, source: Source, lineage: int) -> RestoreRow:
    return RestoreRow(
        dataflow=wish.target,
        epoch=source.checkpoint.epoch,
        lineage=lineage,
        origin=source.checkpoint.dataflow,
        number=source.checkpoint.number,
        source=source.name[:500],
        mode=SAME if wish.fork is None else FORK,
        left_out=list(_state_names(source.checkpoint)) if wish.allows_non_restored else [],
        restored_at=services.now(),
    )
