"""Says what would restart in a job graph that a file describes (weir.flink.job_graph_file has the format).

Invariant: the engine that decides in production answers, about the job graph declared as a dataflow of which everything
has committed. Only for a job graph that Weir cannot run does the reference of Flink's algorithm answer, and the answer
says so.

Declares a job graph as a dataflow, and has the production engine decide what a failure restarts in it.

Invariant: each exchange of the job graph has partitions of its own, as in Flink. Exchanges that a dataflow would read
from the same files are kept apart: by a key of their own, or, if they are pointwise, by a stage that copies their
producer inside its region.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from weir.dataflow import Dataflow, Exchange, Stage, blocking, pipelined, sink, source
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.errors import Misconfigured
from weir.flink.job_graph import JobGraph, PartitionType, Regions, Wiring, pipelined_regions
from weir.flink.job_graph_file import JobTopology, TaskFailure, partition
from weir.flink.restart_set import JobPartition, RestartSet, restart_set
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.committed_run import committed_run, decided
from weir.recovery.rules.plan import StepKind
from weir.topology.regions import PartitionId, RegionId, Topology

VERSION = 1


@dataclass(frozen=True, slots=True)
class JobGraphPlan:
    """The answer as JSON values; `not_runnable` says why Weir cannot run the job graph, empty if it can."""

    answer: dict[str, Any]
    not_runnable: str

    def note(self) -> str:
        """Say that Flink's algorithm has answered instead of Weir's engine, and why; empty if it has not."""
        if not self.not_runnable:
            return ""
        return f"Weir cannot run this job graph, so the answer is that of Flink's algorithm: {self.not_runnable}"


class _Decider(Protocol):
    regions: Regions

    def restart_set(self, failed: int, missing: Set[JobPartition], lost: JobPartition | None) -> RestartSet: ...


class _Reference:
    """Flink's algorithm for any job graph."""

    def __init__(self, graph: JobGraph, consumers: Consumers, strategy: FailoverStrategy) -> None:
        self._graph, self._consumers, self._strategy = graph, consumers, strategy
        self.regions = pipelined_regions(graph)

    def restart_set(self, failed: int, missing: Set[JobPartition], lost: JobPartition | None) -> RestartSet:
        return restart_set(
            self._graph,
            self.regions,
            failed,
            consumers=self._consumers,
            strategy=self._strategy,
            missing=missing,
            lost=lost,
        )


def plan_of_job_graph(
    topology: JobTopology,
    failures: Sequence[TaskFailure],
    consumers: Consumers,
    strategy: FailoverStrategy = FailoverStrategy.REGION,
) -> JobGraphPlan:
    """Answer what each failure would restart.

    `restarts` has one object a failure: `task`, `lost`; `tasks`, their `count` and `regions` that will re-run; under
    `if_changed` those that will if what they read changes; under `by_hand` those that a person has to clear first
    (strategy `individual`); `spared`, how many tasks are not touched. `regions` counts all regions, `region_members`
    names their tasks. Raises Misconfigured for a task that does not exist.
    """
    decider, not_runnable = _decider(topology.graph, consumers, strategy)
    vertices = {name: vertex for vertex, name in enumerate(topology.graph.names)}
    answer = {
        "version": VERSION,
        "strategy": strategy.value,
        "consumers": consumers.value,
        "restarts": [_restart(topology, decider, vertices, failure) for failure in failures],
        "regions": len(decider.regions.members),
        "region_members": [_named(topology, members) for members in decider.regions.members],
    }
    return JobGraphPlan(answer, not_runnable)


def _decider(graph: JobGraph, consumers: Consumers, strategy: FailoverStrategy) -> tuple[_Decider, str]:
    """Return who answers, and why Weir's engine does not, if it does not."""
    try:
        return DeclaredJobGraph(graph, consumers, strategy), ""
    except Misconfigured as error:
        return _Reference(graph, consumers, strategy), str(error)


def _restart(
    topology: JobTopology, decider: _Decider, vertices: Mapping[str, int], failure: TaskFailure
) -> dict[str, Any]:
    if failure.task not in vertices:
        raise Misconfigured(
            f"there is no task {failure.task!r}: write it like join#1; there are {_shown(topology.graph.names)}"
        )
    lost = None if failure.lost is None else partition(topology.graph, failure.lost)
    decided = decider.restart_set(vertices[failure.task], topology.missing, lost)
    return {
        "task": failure.task,
        "lost": failure.lost,
        "count": len(decided.restarted),
        **_tasks_and_regions(topology, decider.regions, decided.restarted),
        "if_changed": _tasks_and_regions(topology, decider.regions, decided.if_changed),
        "by_hand": _tasks_and_regions(topology, decider.regions, decided.by_hand),
        "spared": topology.graph.size - sum(map(len, (decided.restarted, decided.if_changed, decided.by_hand))),
    }


def _tasks_and_regions(topology: JobTopology, regions: Regions, vertices: Sequence[int]) -> dict[str, Any]:
    chosen = sorted({regions.of[vertex] for vertex in vertices})
    return {
        "tasks": _named(topology, vertices),
        "regions": [_named(topology, regions.members[region]) for region in chosen],
    }


def _named(topology: JobTopology, vertices: Iterable[int]) -> list[str]:
    return [topology.graph.names[vertex] for vertex in vertices]


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


_NAME = "job_graph"
_FUNCTION = "job:graph"
_KEY_GROUPS = 128


class DeclaredJobGraph:
    """A job graph as a dataflow, in a run of which every region has committed.

    Raises Misconfigured for a job graph that Weir cannot run: its message says why, in the names of the job graph.
    """

    def __init__(self, graph: JobGraph, consumers: Consumers, strategy: FailoverStrategy) -> None:
        self._graph = graph
        self._strategy = strategy
        self._topology = Topology(_dataflow(graph, consumers, strategy))
        self._state = committed_run(self._topology)
        self._members = {region: self._vertices_of(region) for region in self._topology.region_ids()}
        members = sorted(self._members.values())
        number = {vertex: place for place, vertices in enumerate(members) for vertex in vertices}
        self.regions = Regions(tuple(number[vertex] for vertex in range(graph.size)), tuple(members))

    def restart_set(self, failed: int, missing: Set[JobPartition], lost: JobPartition | None) -> RestartSet:
        """Return what restarts when the vertex `failed` fails, and the partitions of `missing` and `lost` are gone."""
        region = self._region_of(failed)
        gone = self._partitions({*missing, *({lost} if lost else ())})
        plan = decided(self._state, region, gone, Occasion.QUESTION)
        rerun = [step.region for step in plan.of(StepKind.RERUN)]
        if_changed = self._vertices(step.region for step in plan.of(StepKind.IF_CHANGED))
        if self._strategy is FailoverStrategy.INDIVIDUAL:
            # Weir clears nothing by itself: the plan names what a person clears.
            return RestartSet(self._vertices([region]), if_changed, by_hand=self._vertices(rerun))
        return RestartSet(self._vertices([region, *rerun]), if_changed)

    def _region_of(self, vertex: int) -> RegionId:
        stage = self._graph.stage_of[vertex]
        first = self._graph.subtasks[self._graph.stages[stage].name].start
        return self._topology.region_of(_stage(stage), vertex - first)

    def _vertices_of(self, region: RegionId) -> tuple[int, ...]:
        stages = set(self._topology.region(region.name).stages)
        return tuple(
            subtasks.start + region.subtask
            for place, subtasks in enumerate(self._graph.subtasks.values())
            if _stage(place) in stages
        )

    def _vertices(self, regions: Iterable[RegionId]) -> tuple[int, ...]:
        return tuple(sorted(vertex for region in regions for vertex in self._members[region]))

    def _partitions(self, gone: Iterable[JobPartition]) -> Iterator[PartitionId]:
        """Return the lost partitions as the dataflow names them, without pipelined ones, whose loss changes nothing."""
        for each in gone:
            wiring = self._graph.exchanges[each.exchange]
            if wiring.edge.type is PartitionType.PIPELINED:
                continue
            reader = _stage(self._graph.stage_of[wiring.consumers.start])
            exchange = self._topology.dataflow.stage(reader).exchanges[_argument(each.exchange)]
            yield PartitionId(exchange.stage, each.subtask, self._topology.layout_read(reader, exchange).id)


# The declaration


def _dataflow(graph: JobGraph, consumers: Consumers, strategy: FailoverStrategy) -> Dataflow:
    """Declare the stages by their places: a job graph's names may be any text."""
    inputs: list[dict[str, Exchange]] = [{} for _ in graph.stages]
    copies: list[Stage] = []
    for place, wiring in enumerate(graph.exchanges):
        _expect_declarable(place, wiring)
        producer = _stage(graph.stage_of[wiring.producers.start])
        if wiring.edge.type is PartitionType.PIPELINED:
            exchange = pipelined(producer)
        elif wiring.size == 1:
            exchange = blocking(producer, by=_argument(place))  # each consumer reads each partition
        else:
            copies.append(Stage(f"{producer}_{place}", _FUNCTION, [pipelined(producer)], len(wiring.producers)))
            exchange = blocking(copies[-1], pointwise=True)
        inputs[graph.stage_of[wiring.consumers.start]][_argument(place)] = exchange
    stages = [_declared(place, inputs[place], each.parallelism) for place, each in enumerate(graph.stages)]
    sinks = [sink(_stage(place), f"{_stage(place)}_out") for place, writes in enumerate(graph.writes) if not writes]
    most = max((each.parallelism for each in graph.stages), default=1)
    try:
        return Dataflow(
            _NAME,
            [*stages, *copies, *sinks],
            max_parallelism=max(most, _KEY_GROUPS),
            consumers=consumers,
            failover=strategy,
        )
    except Misconfigured as error:
        raise Misconfigured(_in_names_of(graph, str(error))) from error


def _expect_declarable(place: int, wiring: Wiring) -> None:
    edge = wiring.edge
    where = f"exchange {place} ({edge.producer}->{edge.consumer})"
    is_by_index = wiring.size == len(wiring.producers) == len(wiring.consumers)
    if edge.type is PartitionType.HYBRID_FULL:
        raise Misconfigured(
            f"{where} is hybrid_full, which separates two regions in Flink; in Weir it is `cached`, inside one region"
        )
    if edge.type is PartitionType.PIPELINED and not is_by_index:
        raise Misconfigured(f"{where} is pipelined, but does not join equal parallelisms subtask to subtask")
    if wiring.size > 1 and not is_by_index:
        raise Misconfigured(f"{where} is pointwise between unequal parallelisms")


def _declared(place: int, inputs: Mapping[str, Exchange], parallelism: int) -> Stage:
    if not inputs:
        return source(_stage(place), _FUNCTION, parallelism=parallelism)
    return Stage(_stage(place), _FUNCTION, inputs, parallelism)


def _stage(place: int) -> str:
    return f"s{place}"


def _argument(place: int) -> str:
    return f"e{place}"


def _in_names_of(graph: JobGraph, problem: str) -> str:
    def named(found: re.Match[str]) -> str:
        return graph.stages[int(found[1])].name

    return " ".join(re.sub(r"\bs(\d+)(?:_\w+)?\b", named, problem).split())
