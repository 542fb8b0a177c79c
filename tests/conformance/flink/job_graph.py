"""Flink's job graph in full generality, and its pipelined regions: a reference for conformance.

In production weir.topology.regions divides a dataflow; tests hold it against this module.

Invariant: the regions divide all vertices, and no two regions depend on each other in a cycle. Edges are never
enumerated for all-to-all exchanges: an exchange is a few groups (producers, consumers), as Flink's
ConsumedPartitionGroup and ConsumerVertexGroup.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain

from tests.conformance.flink.components import UnionFind, strongly_connected
from tests.conformance.flink.wiring import pointwise_consumers, pointwise_producers

from weir.errors import Misconfigured


class Pattern(Enum):
    """Flink's DistributionPattern."""

    POINTWISE = "pointwise"
    ALL_TO_ALL = "all_to_all"


class PartitionType(Enum):
    """Flink's ResultPartitionType, as far as its answers are at hand."""

    PIPELINED = "pipelined"
    BLOCKING = "blocking"
    HYBRID_FULL = "hybrid_full"

    @property
    def joins_regions(self) -> bool:
        """Report whether it must be consumed while it is produced, so that both ends restart together."""
        return self is PartitionType.PIPELINED

    @property
    def re_consumable(self) -> bool:
        """Report whether it can be read again after it was produced."""
        return self is not PartitionType.PIPELINED


@dataclass(frozen=True, slots=True)
class JobVertex:
    """A stage of a job graph."""

    name: str
    parallelism: int


@dataclass(frozen=True, slots=True)
class JobEdge:
    """An exchange of a job graph; it has a partition of its own for each subtask of the producer."""

    producer: str
    consumer: str
    pattern: Pattern
    type: PartitionType


@dataclass(frozen=True, slots=True)
class Group:
    """Producers all of whose partitions are read by all of the consumers: ranges of vertex numbers."""

    producers: range
    consumers: range


class Wiring:
    """One exchange, with its ends as vertex numbers, as `size` groups of which each end belongs to exactly one.

    Groups are built on request: a pointwise exchange has as many as subtasks.
    """

    __slots__ = ("_by_producer", "consumers", "edge", "producers", "size")

    def __init__(self, edge: JobEdge, producers: range, consumers: range) -> None:
        self.edge = edge
        self.producers = producers
        self.consumers = consumers
        self._by_producer = len(producers) < len(consumers)
        self.size = 1 if edge.pattern is Pattern.ALL_TO_ALL else min(len(producers), len(consumers))

    def group(self, number: int) -> Group:
        """Return one of the groups, counted from 0 in the order of their subtasks."""
        s, t = len(self.producers), len(self.consumers)
        if self.size == 1:
            return Group(self.producers, self.consumers)
        if self._by_producer:
            read = pointwise_consumers(s, t, number)
            return Group(self.producers[number : number + 1], self.consumers[read.start : read.stop])
        reads = pointwise_producers(s, t, number)
        return Group(self.producers[reads.start : reads.stop], self.consumers[number : number + 1])

    def groups(self) -> Iterator[Group]:
        """Make all groups, in order."""
        return map(self.group, range(self.size))

    def group_of_producer(self, vertex: int) -> int:
        """Return the group that a producer's partition belongs to."""
        if self.size == 1:
            return 0
        subtask = vertex - self.producers.start
        if self._by_producer:
            return subtask
        return pointwise_consumers(len(self.producers), len(self.consumers), subtask).start

    def group_of_consumer(self, vertex: int) -> int:
        """Return the group that a consumer reads."""
        if self.size == 1:
            return 0
        subtask = vertex - self.consumers.start
        if not self._by_producer:
            return subtask
        return pointwise_producers(len(self.producers), len(self.consumers), subtask).start

    def groups_of_producers(self, vertices: Sequence[int]) -> Iterable[int]:
        """Return the groups that the partitions of some producers belong to."""
        return (0,) if self.size == 1 else map(self.group_of_producer, vertices)

    def groups_of_consumers(self, vertices: Sequence[int]) -> Iterable[int]:
        """Return the groups that some consumers read."""
        return (0,) if self.size == 1 else map(self.group_of_consumer, vertices)


class JobGraph:
    """Stages and exchanges; vertices (subtasks) are numbered through, stage by stage."""

    def __init__(self, stages: Sequence[JobVertex], edges: Sequence[JobEdge]) -> None:
        self.stages = tuple(stages)
        self.subtasks: dict[str, range] = {}
        self.size = 0
        for stage in self.stages:
            if stage.name in self.subtasks or stage.parallelism < 1:
                raise Misconfigured(f"stage {stage.name!r} is declared twice, or its parallelism is below 1")
            self.subtasks[stage.name] = range(self.size, self.size + stage.parallelism)
            self.size += stage.parallelism
        for edge in edges:
            for end in (edge.producer, edge.consumer):
                if end not in self.subtasks:
                    raise Misconfigured(f"an exchange names the stage {end!r}, which is not declared")
        self._edges = tuple(edges)
        self.exchanges = tuple(Wiring(e, self.subtasks[e.producer], self.subtasks[e.consumer]) for e in edges)

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """Return the exchanges (by place) that each stage (by place) consumes."""
        return self._by_stage_at(edge.consumer for edge in self._edges)

    @cached_property
    def writes(self) -> tuple[tuple[int, ...], ...]:
        """Return the exchanges (by place) that each stage (by place) produces."""
        return self._by_stage_at(edge.producer for edge in self._edges)

    def _by_stage_at(self, ends: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        places: dict[str, list[int]] = {name: [] for name in self.subtasks}
        for place, end in enumerate(ends):
            places[end].append(place)
        return tuple(map(tuple, places.values()))

    @cached_property
    def stage_of(self) -> list[int]:
        """Return the place of each vertex's stage."""
        return list(chain.from_iterable([place] * each.parallelism for place, each in enumerate(self.stages)))

    def by_stage(self, vertices: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Divide vertices (in ascending order) by stage; each stage is given by its place."""
        begin = 0
        while begin < len(vertices):
            stage = self.stage_of[vertices[begin]]
            end = bisect_left(vertices, self.subtasks[self.stages[stage].name].stop, begin)
            yield stage, vertices[begin:end]
            begin = end

    @cached_property
    def names(self) -> list[str]:
        """Return the name of each vertex, like `s0#1`."""
        return [f"{name}#{subtask}" for name, stage in self.subtasks.items() for subtask in range(len(stage))]


@dataclass(frozen=True, slots=True)
class Regions:
    """The regions of a graph: each vertex's region, and each region's vertices in ascending order."""

    of: tuple[int, ...]
    members: tuple[tuple[int, ...], ...]


def pipelined_regions(graph: JobGraph) -> Regions:
    """Divide the vertices as Flink's SchedulingPipelinedRegionComputeUtil does.

    First vertices are joined over exchanges that must be pipelined; then regions that depend on each other in a cycle
    over the other exchanges are merged, since each would wait for the other.
    """
    joined = UnionFind(graph.size)
    for wiring in graph.exchanges:
        if wiring.edge.type.joins_regions:
            _join(joined, wiring)
    return _regions(_merged_cycles(graph, joined.labels()))


def _join(joined: UnionFind, wiring: Wiring) -> None:
    if wiring.size == len(wiring.producers) == len(wiring.consumers):
        for producer, consumer in zip(wiring.producers, wiring.consumers, strict=True):
            joined.union(producer, consumer)
        return
    for group in wiring.groups():
        first = group.producers[0]
        for vertex in chain(group.producers[1:], group.consumers):
            joined.union(first, vertex)


def _merged_cycles(graph: JobGraph, region_of: list[int]) -> list[int]:
    suspects = _exchanges_on_cycles(graph)
    if not suspects:
        return region_of
    successors: list[list[int]] = [[] for _ in range(max(region_of) + 1)]
    for wiring in suspects:
        for group in wiring.groups():
            # One node stands for the group: reachability is the same, with m + n edges instead of m * n.
            successors.append(sorted({region_of[vertex] for vertex in group.consumers}))
            for region in {region_of[vertex] for vertex in group.producers}:
                successors[region].append(len(successors) - 1)
    component = strongly_connected(successors)
    return [component[region] for region in region_of]


def _exchanges_on_cycles(graph: JobGraph) -> list[Wiring]:
    """Return the boundary exchanges that could close a cycle: a cycle of regions is one of logical regions, too."""
    number = {stage.name: place for place, stage in enumerate(graph.stages)}
    joined = UnionFind(len(number))
    for wiring in graph.exchanges:
        if wiring.edge.type.joins_regions:
            joined.union(number[wiring.edge.producer], number[wiring.edge.consumer])
    successors: list[list[int]] = [[] for _ in number]
    boundaries = []
    for wiring in graph.exchanges:
        if not wiring.edge.type.joins_regions:
            ends = joined.find(number[wiring.edge.producer]), joined.find(number[wiring.edge.consumer])
            successors[ends[0]].append(ends[1])
            boundaries.append((wiring, ends))
    component = strongly_connected(successors)
    return [wiring for wiring, (producer, consumer) in boundaries if component[producer] == component[consumer]]


def _regions(label_of: Sequence[int]) -> Regions:
    numbers: dict[int, int] = {}
    region_of = tuple(numbers.setdefault(label, len(numbers)) for label in label_of)
    members: list[list[int]] = [[] for _ in numbers]
    for vertex, region in enumerate(region_of):
        members[region].append(vertex)
    return Regions(region_of, tuple(tuple(group) for group in members))
