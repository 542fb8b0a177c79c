"""Flink's RestartPipelinedRegionFailoverStrategy and RestartAllStrategy: the subtasks that restart after a failure.

A reference for conformance: in production weir.recovery.rules.decision decides, and tests hold it against this module.

Invariant: a region's set is closed. With a region it holds the producer of every input that cannot be read, and every
consumer. Each group of an exchange is looked at once a decision, so that all-to-all exchanges cost m + n.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from tests.conformance.flink.job_graph import JobGraph, Regions

from weir.dataflow.dataflow import Consumers, FailoverStrategy
from weir.errors import Internal


@dataclass(frozen=True, slots=True, order=True)
class JobPartition:
    """The partition of one producer subtask in the exchange at a place of the graph; written `from->to:k#i`."""

    exchange: int
    subtask: int


@dataclass(frozen=True, slots=True)
class RestartSet:
    """Vertices in ascending order: those that restart, and those that do if what they read changes.

    `by_hand` are those that a person has to restart first, where the strategy is to restart nothing but what failed.
    """

    restarted: tuple[int, ...]
    if_changed: tuple[int, ...] = ()
    by_hand: tuple[int, ...] = ()


def restart_set(
    graph: JobGraph,
    regions: Regions,
    failed: int,
    *,
    consumers: Consumers,
    strategy: FailoverStrategy = FailoverStrategy.REGION,
    missing: Set[JobPartition] = frozenset(),
    lost: JobPartition | None = None,
) -> RestartSet:
    """Return what restarts when `failed` has failed, by either rule for consumers; otherwise as `tasks_to_restart`."""
    _expect(graph, failed)
    if strategy is FailoverStrategy.FULL:
        return RestartSet(tuple(range(graph.size)))
    if strategy is FailoverStrategy.REGION and consumers is Consumers.ALWAYS:
        return RestartSet(tasks_to_restart(graph, regions, failed, missing=missing, lost=lost))
    search = _Search(graph, regions, _by_exchange(missing, lost), forward=False)
    restarted = _members(regions, search.closure(regions.of[failed]))
    if strategy is FailoverStrategy.INDIVIDUAL:
        alone = regions.members[regions.of[failed]]
        return RestartSet(alone, by_hand=_without(restarted, alone))
    everything = tasks_to_restart(graph, regions, failed, missing=missing, lost=lost)
    return RestartSet(tuple(restarted), if_changed=_without(everything, restarted))


def _without(vertices: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    left_out = set(others)
    return tuple(vertex for vertex in vertices if vertex not in left_out)


def tasks_to_restart(
    graph: JobGraph,
    regions: Regions,
    failed: int,
    *,
    missing: Set[JobPartition] = frozenset(),
    lost: JobPartition | None = None,
    created: Set[int] = frozenset(),
) -> tuple[int, ...]:
    """Return the vertices that restart when `failed` has failed, in ascending order.

    `missing` are partitions known to be gone, `lost` the one that the failed task did not find; it counts as gone for
    this decision only. Vertices in `created` have not been started, so they are not restarted either.
    """
    _expect(graph, failed)
    involved = _Search(graph, regions, _by_exchange(missing, lost), forward=True).closure(regions.of[failed])
    return tuple(vertex for vertex in _members(regions, involved) if vertex not in created)


def _expect(graph: JobGraph, failed: int) -> None:
    if not 0 <= failed < graph.size:
        raise Internal(f"vertex {failed} has failed, but the graph has the vertices 0 to {graph.size - 1} only")


def _members(regions: Regions, chosen: Set[int]) -> list[int]:
    return sorted(chain.from_iterable(map(regions.members.__getitem__, chosen)))


def _by_exchange(missing: Set[JobPartition], lost: JobPartition | None) -> dict[int, set[int]]:
    gone: dict[int, set[int]] = {}
    for partition in missing | {lost} if lost else missing:
        gone.setdefault(partition.exchange, set()).add(partition.subtask)
    return gone


class _Search:
    """One decision: a breadth-first search over regions that visits each group once a direction."""

    def __init__(self, graph: JobGraph, regions: Regions, gone: dict[int, set[int]], *, forward: bool) -> None:
        self._graph = graph
        self._regions = regions
        self._gone = gone
        self._forward = forward
        self._consumed: set[tuple[int, int]] = set()
        self._produced: set[tuple[int, int]] = set()
        self._ends: dict[int, bool] = {}

    def closure(self, start: int) -> set[int]:
        members = self._regions.members
        involved = {start}
        waiting = [start]
        for region in waiting:
            for stage, vertices in self._graph.by_stage(members[region]):
                for other, regions in self._pulled_in_by(stage, vertices):
                    new = set(regions) - involved
                    involved |= new
                    ends = self._ends_at(other)
                    waiting.extend(each for each in new if not ends or len(members[each]) > 1)
        return involved

    def _pulled_in_by(self, stage: int, vertices: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Return the regions that restart with some subtasks of a stage, in groups of one other stage each."""
        for place in self._graph.reads[stage]:
            if self._repeats(place):
                yield from self._producers_to_repeat(place, vertices)
        for place in self._graph.writes[stage] if self._forward else ():
            wiring = self._graph.exchanges[place]
            reader = self._graph.stage_of[wiring.consumers.start]
            for group in wiring.groups_of_producers(vertices):
                if (place, group) not in self._produced:
                    self._produced.add((place, group))
                    yield reader, self._regions_of(wiring.group(group).consumers)

    def _repeats(self, place: int) -> bool:
        """Report whether the restart of a consumer may restart producers of an exchange."""
        return place in self._gone or not self._graph.exchanges[place].edge.type.re_consumable

    def _ends_at(self, stage: int) -> bool:
        """Report whether subtasks of a stage restart nothing else: the search may skip a region of a single subtask."""
        known = self._ends.get(stage)
        if known is None:
            leads_on = self._forward and bool(self._graph.writes[stage])
            known = self._ends[stage] = not leads_on and not any(map(self._repeats, self._graph.reads[stage]))
        return known

    def _producers_to_repeat(self, place: int, consumers: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
        wiring = self._graph.exchanges[place]
        writer = self._graph.stage_of[wiring.producers.start]
        for group in wiring.groups_of_consumers(consumers):
            if (place, group) in self._consumed:
                continue
            self._consumed.add((place, group))
            producers = wiring.group(group).producers
            if not wiring.edge.type.re_consumable:
                yield writer, self._regions_of(producers)
                continue
            yield writer, [self._regions.of[vertex] for vertex in self._gone_among(place, producers)]

    def _gone_among(self, place: int, producers: range) -> Iterator[int]:
        """Return the lost partitions of a group, in time that is linear in the smaller of the two sets."""
        first, gone = self._graph.exchanges[place].producers.start, self._gone[place]
        if len(gone) < len(producers):
            return (first + subtask for subtask in gone if first + subtask in producers)
        return (vertex for vertex in producers if vertex - first in gone)

    def _regions_of(self, vertices: range) -> Sequence[int]:
        return self._regions.of[vertices.start : vertices.stop]
