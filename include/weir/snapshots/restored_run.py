"""Provide the run of the restored epoch: the existing run, or one that no DagRun computes.

Invariant: the run is pinned to a dataflow that writes what is restored, and its record is due from then on. No attempt
that began before the restore can commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.importing import enter_run
from weir.coordination.run_records import owe_record
from weir.coordination.services import Services
from weir.dataflow.state import State
from weir.execution.run_state import AttemptState
from weir.formats.checkpoint import Checkpoint
from weir.formats.run_record import RunRecord
from weir.ledger.attempts import end
from weir.ledger.database.tables import NO_DAG, AttemptRow, PendingClearRow, RunRow
from weir.ledger.leases import drop_leases
from weir.ledger.runs import CADENCE, ZONE, run_key, start_of, topology_of
from weir.recovery.adopt import free_run
from weir.state.checkpoint_content import keyed_states
from weir.topology.regions import PartitionId, RegionId, Topology

PINNED_ANEW = "a checkpoint was restored that another form of the dataflow had made"


def topology_for(row: RunRow | None, checkpoint: Checkpoint, wanted: list[PartitionId]) -> tuple[Topology, bool]:
    """Return the topology that the run is or will be pinned to, and whether that differs from its present one.

    `checkpoint` has the name of the dataflow that resumes.
    """
    if row is not None and row.pinned is not None:
        present = topology_of(row.pinned)
        if _writes(present, wanted) and _keeps(present, checkpoint):
            return present, False
    return topology_of(checkpoint.pinned), row is not None


def _writes(topology: Topology, wanted: list[PartitionId]) -> bool:
    """Report whether a topology writes exactly these partitions of their stages and layouts."""
    groups = {(each.stage, each.layout) for each in wanted}
    if not all(topology.writes(*each) for each in groups):
        return False
    return {part for each in groups for part in topology.partitions_of(*each)} == set(wanted)


def _keeps(topology: Topology, checkpoint: Checkpoint) -> bool:
    """Report whether a topology declares the keyed states as they were: the declaration, as of a ttl, decides on rows.

    Expectations of their rows are not compared.
    """
    declared = {name: _as_read(state) for name, (state, _) in keyed_states(topology).items()}
    return all(declared.get(each.state.name) == _as_read(each.state) for each in checkpoint.states)


def _as_read(state: State) -> State:
    return replace(state, quality=(), grows=False)


def restored_run(
    session: Session, services: Services, checkpoint: Checkpoint, source: str, *, is_repinned: bool
) -> RunRow:
    """Return the run of the restored epoch, created or pinned again where necessary; `source` names the snapshot."""
    run = run_key(checkpoint.dataflow, checkpoint.epoch)
    row = session.get(RunRow, run)
    if row is None:
        row = _new_run(session, services, checkpoint, source)
    elif is_repinned:
        pinned = _in_schedule_of(checkpoint.pinned, row.pinned)
        closed_at = row.closed_at
        if row.pinned is not None:
            free_run(session, services, row, PINNED_ANEW)
        row.pinned = pinned
        row.closed_at = closed_at  # none of its tasks is called for: the epoch is what the checkpoint says
        session.flush()
        owe_record(session, row)
    elif row.expired_at is not None:
        row.expired_at = None
        session.flush()
        owe_record(session, row)
    row.released_at = None
    return row


def _in_schedule_of(restored: Mapping[str, Any], own: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the restored record with the schedule of the run's own DagRun, which may be another than the origin's."""
    if own is None:
        return dict(restored)
    schedule = (ZONE, CADENCE)
    kept = {name: value for name, value in restored.items() if name not in schedule}
    return kept | {name: own[name] for name in schedule if name in own}


def _new_run(session: Session, services: Services, checkpoint: Checkpoint, source: str) -> RunRow:
    start = start_of(checkpoint.epoch).isoformat()
    there = (RunRow.dataflow == checkpoint.dataflow) & RunRow.sealed_at.is_(None)
    epochs = session.scalars(select(RunRow.epoch).where(there)).all()
    record = RunRecord(
        run=run_key(checkpoint.dataflow, checkpoint.epoch),
        dataflow=checkpoint.dataflow,
        epoch=checkpoint.epoch,
        interval=(start, start),
        dag_id=NO_DAG,
        run_id=f"restored from {source}"[:250],
        task_prefix="",
        parameters={},
        pinned=checkpoint.pinned,
        predecessor=max((each for each in epochs if each < checkpoint.epoch), default=None),
        created_at=services.now().isoformat(),
    )
    row, _ = enter_run(session, record)
    row.closed_at = services.now()
    after = min((each for each in epochs if each > row.epoch), default=None)
    if after is not None:
        session.get_one(RunRow, run_key(row.dataflow, after)).predecessor = row.epoch
    owe_record(session, row)
    return row


def fence_all(session: Session, services: Services, dataflow: str, lineage: int) -> tuple[str, ...]:
    """Fence all running attempts, whose tasks begin again as another try; return their ids.

    A waiting attempt has read nothing yet: it continues in the new lineage.
    """
    query = (
        select(AttemptRow)
        .join(RunRow, RunRow.id == AttemptRow.run)
        .where(
            RunRow.dataflow == dataflow,
            AttemptRow.state.in_((AttemptState.RUNNING.value, AttemptState.WAITING.value)),
        )
        .order_by(AttemptRow.id)
    )
    fenced = []
    for row in session.scalars(query):
        if row.state == AttemptState.WAITING.value:
            row.lineage = lineage
            continue
        end(row, AttemptState.RETRYING, services.now(), error="a checkpoint was restored while it was running")
        drop_leases(session, row.id)
        fenced.append(row.id)
    return tuple(fenced)


def drop_clears(session: Session, services: Services, run: str, regions: set[RegionId]) -> int:
    """Drop pending clears that would recompute restored regions; return how many."""
    dropped = 0
    for row in session.scalars(select(PendingClearRow).where(PendingClearRow.run == run)):
        if RegionId(row.region, row.subtask) in regions:
            row.is_void = True
            if row.settled_at is None:
                row.settled_at, row.outcome = services.now(), "not needed: its state was restored"
                dropped += 1
    return dropped
