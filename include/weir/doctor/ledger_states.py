"""Whether the states of dataflows are checkpointed and compacted, as the ledger has it.

Invariant: one finding for each dataflow whose newest closed run keeps state; nothing is asked where it is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, inspect, select

from weir.doctor.finding import Finding, ok, warning
from weir.errors import Misconfigured
from weir.ledger.checkpoints import CheckpointStatus, is_retained
from weir.ledger.models import RunRow
from weir.ledger.runs import topology_of
from weir.ledger.state_models import CheckpointRow, CompactionRow, RestoreRow
from weir.results.codec import state_files_from_plain
from weir.state.files import runs_to_merge
from weir.state.retention import SnapshotKind
from weir.topology.regions import Topology

AREA = "ledger"
LONG_PENDING = timedelta(hours=1)
"""A closing task completes its checkpoint in seconds; what it left is given up within minutes, by upkeep."""


@dataclass(frozen=True, slots=True)
class StatesOfDataflow:
    """The states of a dataflow as its newest closed run has left them.

    `checkpoint` is the newest epoch that has one which is retained, `pending` since when one is begun and not complete;
    `is_restored` says that the run's state came from elsewhere and needs none. `runs` has of each state that was
    compacted in that run how many runs are to be merged, and how many should be at most.
    """

    dataflow: str
    epoch: str
    checkpoint: str | None
    is_restored: bool
    pending: datetime | None
    runs: dict[str, tuple[int, int]]


def states_of_dataflows(connection: Connection) -> Iterator[StatesOfDataflow]:
    """Ask for all dataflows that keep state; a ledger that is older than that has none."""
    if not inspect(connection).has_table(CheckpointRow.__tablename__):
        return
    newest = select(RunRow.dataflow, func.max(RunRow.epoch)).where(RunRow.closed_at.is_not(None))
    for dataflow, epoch in connection.execute(newest.group_by(RunRow.dataflow).order_by(RunRow.dataflow)).tuples():
        of_run = (RunRow.dataflow == dataflow) & (RunRow.epoch == epoch)
        run, pinned = connection.execute(select(RunRow.id, RunRow.pinned).where(of_run)).tuples().one()
        try:
            topology = None if pinned is None else topology_of(pinned)
        except Misconfigured:
            continue  # of a newer Weir, which the revision tells
        if topology is not None and topology.dataflow.keeps_state:
            yield _asked(connection, dataflow, epoch, run, topology)


def _asked(connection: Connection, dataflow: str, epoch: str, run: str, topology: Topology) -> StatesOfDataflow:
    own = (CheckpointRow.dataflow == dataflow) & (CheckpointRow.kind == SnapshotKind.CHECKPOINT.value)
    pending = CheckpointRow.status == CheckpointStatus.PENDING.value
    restored = select(RestoreRow.id).where(RestoreRow.dataflow == dataflow, RestoreRow.epoch == epoch)
    return StatesOfDataflow(
        dataflow,
        epoch,
        connection.scalar(select(func.max(CheckpointRow.epoch)).where(own, is_retained())),
        connection.scalar(restored.limit(1)) is not None,
        connection.scalar(select(func.min(CheckpointRow.triggered_at)).where(own, pending)),
        _runs(connection, run, topology),
    )


def _runs(connection: Connection, run: str, topology: Topology) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    limits = {state.name: state.runs for stage in topology.dataflow.stages for state in stage.states}
    query = select(CompactionRow.state, CompactionRow.files).where(CompactionRow.run == run)
    for name, files in connection.execute(query).tuples():
        if name in limits:
            most = max(found.get(name, (0, 0))[0], runs_to_merge(state_files_from_plain(files)))
            found[name] = most, limits[name]
    return found


def judge_states(states: StatesOfDataflow, now: datetime) -> Finding:
    """Judge the states of a dataflow."""
    name = f"states of {states.dataflow}"
    has_checkpoint = states.checkpoint is not None and states.checkpoint >= states.epoch
    if not has_checkpoint and not states.is_restored:
        return warning(
            AREA,
            name,
            f"the newest checkpoint is of {states.checkpoint or 'no epoch'}",
            expected=f"one of {states.epoch}, the newest closed run",
            mend=f"unpause the DAG weir_upkeep, which completes it; `weir verify {states.dataflow}` tells what is lost",
        )
    if states.pending is not None and now - states.pending > LONG_PENDING:
        return warning(
            AREA,
            name,
            f"a checkpoint that was begun at {states.pending:%Y-%m-%d %H:%M} UTC is not complete",
            expected="one that is complete, or given up",
            mend=f"look at weir_close of that run: `weir checkpoints {states.dataflow}`; unpause the DAG weir_upkeep",
        )
    many = [f"{state}: {runs} runs to merge" for state, (runs, most) in sorted(states.runs.items()) if runs > most]
    if many:
        return warning(
            AREA,
            name,
            "; ".join(many),
            expected=f"at most {', '.join(str(states.runs[each][1]) for each in sorted(states.runs))}",
            mend="raise the budget of the state in the DAG file: it is too small for what an epoch changes",
        )
    return ok(AREA, name, f"checkpointed up to {states.checkpoint or states.epoch}")
