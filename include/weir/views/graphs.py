"""The graph of a run: its stages, regions and exchanges, and how each subtask of a region stands."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from sqlalchemy.orm import Session

from weir.dataflow.stage import Exchange, Stage
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, AttemptState, CurrentResult, RunState
from weir.ledger.attempts import awaited_by, newest_attempts
from weir.ledger.database.tables import AttemptRow
from weir.ledger.runs import Run
from weir.recovery.failovers import seconds_of
from weir.topology.regions import PartitionId, RegionId, Topology


class SubtaskStatus(Enum):
    """How the result of a subtask of a region stands."""

    VALID = "valid"
    RELEASED = "released"
    """Valid, and no longer needed: its files are deleted."""
    RUNNING = "running"
    """It is computed for the first time."""
    RECOMPUTING = "recomputing"
    """It is computed again, or is about to be."""
    WAITING = "waiting"
    """Its task waits for what another one computes."""
    MISSING = "missing"
    """Nothing has been computed yet."""
    STALE = "stale"
    """What it was computed from, or its code, is no longer that of the run."""
    LOST = "lost"
    """Its files are missing or damaged."""
    QUARANTINED = "quarantined"
    """A check has found it suspect: nothing reads it."""
    FAILED = "failed"
    """Its task has failed for good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNode:
    """A stage, which a state is, too; `gates` are the suites that check it, `targets` where a sink goes."""

    name: str
    kind: str
    function: str
    gates: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskNode:
    """A subtask of a region. Rows and bytes are those of its current results in all layouts, seconds of their attempt.

    `since` is when its newest attempt began or ended; None, as are `attempt` and `seconds`, where there is none.
    `generation` counts the versions of its task's code in the run, from 1 on. `error` is why it has failed, or waits.
    """

    subtask: int
    map_index: int
    status: SubtaskStatus
    try_number: int
    attempt: str | None
    state: str | None
    since: datetime | None
    rows: int
    bytes: int
    seconds: float | None
    code: str | None
    generation: int | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionNode:
    """A region: the stages that one task computes, and its subtasks."""

    name: str
    task_id: str
    parallelism: int
    stages: tuple[StageNode, ...]
    subtasks: tuple[SubtaskNode, ...]

    @property
    def rows(self) -> int:
        """The rows of its current results, in all layouts."""
        return sum(each.rows for each in self.subtasks)

    @property
    def bytes(self) -> int:
        """The bytes of its current results, in all layouts."""
        return sum(each.bytes for each in self.subtasks)

    @property
    def is_of_later_code(self) -> bool:
        """Whether any of it was computed by other code than its task had first in the run."""
        return any(each > 1 for each in self.generations)

    @property
    def generations(self) -> tuple[int, ...]:
        """The versions of code that its newest attempts have run, in order, counted from 1 on."""
        return tuple(sorted({each.generation for each in self.subtasks if each.generation is not None}))

    @property
    def worst(self) -> SubtaskStatus:
        """The status that a person has to see first."""
        return max((each.status for each in self.subtasks), key=list(SubtaskStatus).index)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeEdge:
    """An exchange from a stage to its reader. Rows and bytes are those of the result that is read, where one is stored.

    Of a blocking exchange they are None where no such result is current; of all others they are None.
    """

    producer: str
    reader: str
    kind: str
    by: tuple[str, ...]
    is_broadcast: bool
    is_pointwise: bool
    rows: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGraph:
    """The regions of a run, producers first, its closing task, and the exchanges between its stages."""

    regions: tuple[RegionNode, ...]
    close_task_id: str
    close: SubtaskNode
    exchanges: tuple[ExchangeEdge, ...]


def graph_of(session: Session, run: Run, state: RunState, missed: Collection[PartitionId] = ()) -> RunGraph:
    """Return the graph of a run in a state of it; `missed` are results that the store was found not to have."""
    if missed:
        lost = {at: replace(found, state=PartitionState.LOST) for at, found in state.results.items() if at in missed}
        state = replace(state, results={**state.results, **lost})
    newest = {region: rows[-1] for region, rows in newest_attempts(session, run.id).items()}
    topology = run.topology
    regions = tuple(
        RegionNode(
            name=region.name,
            task_id=run.task_prefix + region.name,
            parallelism=region.parallelism,
            stages=tuple(_stage(each) for each in topology.stages_of(region.name)),
            subtasks=tuple(
                _subtask(state, each, region.map_index(each.subtask), newest.get(each)) for each in region.ids()
            ),
        )
        for region in topology.regions
    )
    edges = tuple(
        _edge(topology, state, stage, exchange)
        for stage in topology.dataflow.stages
        for exchange in stage.exchanges.values()
    )
    return RunGraph(
        regions=regions,
        close_task_id=run.task_prefix + CLOSE.name,
        close=_subtask(state, CLOSE, -1, newest.get(CLOSE)),
        exchanges=edges,
    )


def _stage(stage: Stage) -> StageNode:
    return StageNode(
        name=stage.name,
        kind=stage.kind.value,
        function=stage.function,
        gates=tuple(each.suite for each in stage.gates),
        targets=tuple(map(str, stage.targets)),
    )


def _edge(topology: Topology, state: RunState, reader: Stage, exchange: Exchange) -> ExchangeEdge:
    read: list[CurrentResult] | None = None
    if exchange.is_boundary:
        layout = topology.layout_read(reader.name, exchange).id
        partitions = topology.partitions_of(exchange.stage, layout)
        read = [found for each in partitions if (found := state.results.get(each)) is not None] or None
    return ExchangeEdge(
        producer=exchange.stage,
        reader=reader.name,
        kind=exchange.kind.value,
        by=exchange.keys,
        is_broadcast=exchange.broadcast,
        is_pointwise=exchange.pointwise,
        rows=None if read is None else sum(each.rows for each in read),
        bytes=None if read is None else sum(each.bytes for each in read),
    )


def _subtask(state: RunState, region: RegionId, map_index: int, row: AttemptRow | None) -> SubtaskNode:
    results = _results(state, region)
    return SubtaskNode(
        subtask=region.subtask,
        map_index=map_index,
        status=_status_of_close(state) if region == CLOSE else _status(state, region),
        try_number=0 if row is None else row.try_number,
        attempt=None if row is None else row.id,
        state=None if row is None else row.state,
        since=None if row is None else row.ended_at or row.began_at,
        rows=sum(each.rows for each in results),
        bytes=sum(each.bytes for each in results),
        seconds=None if row is None or row.ended_at is None else seconds_of(row),
        code=None if row is None else row.code,
        generation=None if row is None else row.generation,
        error=None if row is None else awaited_by(row) or row.error,
    )


def _results(state: RunState, region: RegionId) -> list[CurrentResult]:
    outputs = () if region == CLOSE else state.outputs(region)
    return [found for each in outputs if (found := state.results.get(each)) is not None]


def _status(state: RunState, region: RegionId) -> SubtaskStatus:
    known, results, outputs = state.region(region), _results(state, region), state.outputs(region)
    if known.is_running:
        is_waiting = known.newest_state is AttemptState.WAITING and not known.is_to_be_cleared
        again = SubtaskStatus.RECOMPUTING if results or known.under_repair else SubtaskStatus.RUNNING
        return SubtaskStatus.WAITING if is_waiting else again
    if all(map(state.is_done, outputs)) if outputs else known.ended_try:
        is_released = outputs and all(each.state is PartitionState.RELEASED for each in results)
        return SubtaskStatus.RELEASED if is_released else SubtaskStatus.VALID
    return SubtaskStatus.FAILED if known.has_failed else _status_of_results(results, len(outputs))


def _status_of_results(results: Collection[CurrentResult], wanted: int) -> SubtaskStatus:
    """Return the status of a region of which nothing runs, and whose results are not all valid."""
    states = {each.state for each in results}
    if PartitionState.QUARANTINED in states:
        return SubtaskStatus.QUARANTINED
    if PartitionState.LOST in states:
        return SubtaskStatus.LOST
    return SubtaskStatus.STALE if wanted and len(results) == wanted else SubtaskStatus.MISSING


def _status_of_close(state: RunState) -> SubtaskStatus:
    known = state.region(CLOSE)
    if known.is_running:
        return SubtaskStatus.WAITING if known.newest_state is AttemptState.WAITING else SubtaskStatus.RUNNING
    if known.has_failed:
        return SubtaskStatus.FAILED
    return SubtaskStatus.VALID if known.ended_try else SubtaskStatus.MISSING


def counted(statuses: Iterable[SubtaskStatus]) -> dict[SubtaskStatus, int]:
    """Return how many there are of each status that there is, the most urgent last."""
    found = list(statuses)
    return {each: found.count(each) for each in SubtaskStatus if each in found}
