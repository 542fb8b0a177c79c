"""The run at whose end a dataflow goes on: the one that was there, or one that nobody ever computes.

Invariant: it is pinned to a dataflow that writes what is restored, and its record is in the store before the ledger
says so. Of attempts that began before the restore none can commit.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from weir.coordination.run_records import write_record
from weir.coordination.services import Services
from weir.dataflow.state import State
from weir.execution.run_state import AttemptState
from weir.formats.checkpoint import Checkpoint
from weir.ledger.attempts import end
from weir.ledger.database.tables import NO_DAG, AttemptRow, DataflowRow, OwedClearRow, RunRow
from weir.ledger.leases import drop_leases
from weir.ledger.runs import run_key, topology_of
from weir.recovery.adopt import free_run
from weir.state.checkpoint_content import keyed_states
from weir.state.file_rules import epoch_seconds
from weir.topology.regions import PartitionId, RegionId, Topology

PINNED_ANEW = "a checkpoint was restored that another form of the dataflow had made"


def topology_for(row: RunRow | None, checkpoint: Checkpoint, wanted: list[PartitionId]) -> tuple[Topology, bool]:
    """What the run is, or will be, pinned to, and whether that is another form of the dataflow than now.

    `checkpoint` is as one of the dataflow that goes on.
    """
    if row is not None and row.pinned is not None:
        present = topology_of(row.pinned)
        if _writes(present, wanted) and _keeps(present, checkpoint):
            return present, False
    return topology_of(checkpoint.pinned), row is not None


def _writes(topology: Topology, wanted: list[PartitionId]) -> bool:
    """Whether a topology has exactly these partitions of the stages that they are of."""
    groups = {(each.stage, each.layout) for each in wanted}
    if not all(topology.writes(*each) for each in groups):
        return False
    return {part for each in groups for part in topology.partitions_of(*each)} == set(wanted)


def _keeps(topology: Topology, checkpoint: Checkpoint) -> bool:
    """Whether a topology declares the keyed states as they were: by it rows of files are visible, as with a ttl.

    What is expected of their rows is none of that.
    """
    declared = {name: _as_read(state) for name, (state, _) in keyed_states(topology).items()}
    return all(declared.get(each.state.name) == _as_read(each.state) for each in checkpoint.states)


def _as_read(state: State) -> State:
    return replace(state, quality=(), grows=False)


def restored_run(
    session: Session, services: Services, checkpoint: Checkpoint, told: str, *, is_repinned: bool
) -> RunRow:
    """The run of the restored epoch, made or pinned anew where it has to be; `told` says what it is restored from."""
    run = run_key(checkpoint.dataflow, checkpoint.epoch)
    row = session.get(RunRow, run)
    if row is None:
        row = _new_run(session, services, checkpoint, told)
    elif is_repinned:
        if row.pinned is not None:
            free_run(session, services, row, PINNED_ANEW)
        row.pinned = checkpoint.pinned
        session.flush()
        write_record(services, session, row)
    elif row.expired_at is not None:
        row.expired_at = None
        session.flush()
        write_record(services, session, row)
    row.released_at = None
    return row


def _new_run(session: Session, services: Services, checkpoint: Checkpoint, told: str) -> RunRow:
    start = datetime.fromtimestamp(epoch_seconds(checkpoint.epoch), UTC)
    query = select(func.max(RunRow.epoch)).where(
        RunRow.dataflow == checkpoint.dataflow, RunRow.epoch < checkpoint.epoch
    )
    row = RunRow(
        id=run_key(checkpoint.dataflow, checkpoint.epoch),
        dataflow=checkpoint.dataflow,
        epoch=checkpoint.epoch,
        interval_start=start,
        interval_end=start,
        dag_id=NO_DAG,
        run_id=f"restored from {told}"[:250],
        task_prefix="",
        pinned=checkpoint.pinned,
        parameters={},
        predecessor=session.scalar(query),
        created_at=services.now(),
        closed_at=services.now(),
    )
    session.add(row)
    dataflow = session.get_one(DataflowRow, checkpoint.dataflow)
    dataflow.first_epoch = min(dataflow.first_epoch or row.epoch, row.epoch)
    after = (RunRow.dataflow == row.dataflow, RunRow.epoch > row.epoch)
    follower = session.scalar(select(func.min(RunRow.epoch)).where(*after))
    if follower is not None:
        session.execute(
            update(RunRow)
            .where(RunRow.dataflow == row.dataflow, RunRow.epoch == follower)
            .values(predecessor=row.epoch)
        )
    session.flush()
    write_record(services, session, row)
    return row


def fence_all(session: Session, services: Services, dataflow: str, lineage: int) -> tuple[str, ...]:
    """Let no attempt that has begun commit any more: those at work begin anew as another try; answers which they are.

    One that only waits has read nothing yet: it goes on in the new lineage.
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
        end(row, AttemptState.RETRYING, services.now(), error="a checkpoint was restored while it was at work")
        drop_leases(session, row.id)
        fenced.append(row.id)
    return tuple(fenced)


def drop_clears(session: Session, services: Services, run: str, regions: set[RegionId]) -> int:
    """Let nothing that is owed make anew what was just restored; answers how many clears that are."""
    dropped = 0
    for row in session.scalars(select(OwedClearRow).where(OwedClearRow.run == run)):
        if RegionId(row.region, row.subtask) in regions:
            row.is_void = True
            if row.settled_at is None:
                row.settled_at, row.outcome = services.now(), "not needed: its state was restored"
                dropped += 1
    return dropped
