"""Declares a job graph as a dataflow, and has the production engine decide what a failure restarts in it.

Invariant: each exchange of the job graph has partitions of its own, as in Flink. Exchanges that a dataflow would read
from the same files are kept apart: by a key of their own, or, if they are pointwise, by a stage that copies their
producer inside its region.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set

from tests.conformance.flink.job_graph import JobGraph, PartitionType, Regions, Wiring
from tests.conformance.flink.restart_set import JobPartition, RestartSet

from weir.dataflow import Dataflow, Exchange, Stage, blocking, pipelined, sink, source
from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.errors import Misconfigured
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.committed_run import committed_run, decided
from weir.recovery.rules.plan import StepKind
from weir.topology.regions import PartitionId, RegionId, Topology

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
