"""Which subtasks restart after a failure, as Flink's RestartPipelinedRegionFailoverStrategy.

Invariant: the set is closed. With a region it holds the producer of every input that cannot be read, and every
consumer. Each group of an exchange is looked at once a decision, so that all-to-all exchanges cost m + n.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from weir.dataflow.failover import Consumers
from weir.errors import Internal
from weir.topology.graph import JobGraph, Regions

__all__ = ["Consumers", "JobPartition", "RestartSet", "restart_set", "tasks_to_restart"]


@dataclass(frozen=True, slots=True, order=True)
class JobPartition:
    """The partition of one producer subtask in the exchange at a place of the graph; written `from->to:k#i`."""

    exchange: int
    subtask: int


@dataclass(frozen=True, slots=True)
class RestartSet:
    """Vertices in ascending order: those that restart, and those that do if what they read changes."""

    restarted: tuple[int, ...]
    if_changed: tuple[int, ...]


def restart_set(
    graph: JobGraph,
    regions: Regions,
    failed: int,
    *,
    consumers: Consumers,
    missing: Set[JobPartition] = frozenset(),
    lost: JobPartition | None = None,
) -> RestartSet:
    """Return what restarts when `failed` has failed, by either rule for consumers; otherwise as `tasks_to_restart`."""
    everything = tasks_to_restart(graph, regions, failed, missing=missing, lost=lost)
    if consumers is Consumers.ALWAYS:
        return RestartSet(everything, ())
    search = _Search(graph, regions, _by_exchange(missing, lost), forward=False)
    certain = {vertex for region in search.closure(regions.of[failed]) for vertex in regions.members[region]}
    return RestartSet(tuple(sorted(certain)), tuple(vertex for vertex in everything if vertex not in certain))


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
    if not 0 <= failed < graph.size:
        raise Internal(f"vertex {failed} has failed, but the graph has the vertices 0 to {graph.size - 1} only")
    involved = _Search(graph, regions, _by_exchange(missing, lost), forward=True).closure(regions.of[failed])
    return tuple(sorted(v for region in involved for v in regions.members[region] if v not in created))


def _by_exchange(missing: Set[JobPartition], lost: JobPartition | None) -> dict[int, list[int]]:
    gone: dict[int, list[int]] = {}
    for partition in missing | {lost} if lost else missing:
        gone.setdefault(partition.exchange, []).append(partition.subtask)
    return gone


class _Search:
    """One decision: a breadth-first search over regions that visits each group once a direction."""

    def __init__(self, graph: JobGraph, regions: Regions, gone: dict[int, list[int]], *, forward: bool) -> None:
        self._graph = graph
        self._regions = regions
        self._gone = gone
        self._forward = forward
        self._consumed: set[tuple[int, int]] = set()
        self._produced: set[tuple[int, int]] = set()

    def closure(self, start: int) -> set[int]:
        involved = {start}
        waiting = [start]
        for region in waiting:
            for vertex in self._regions.members[region]:
                for other in self._pulled_in_by(vertex):
                    neighbour = self._regions.of[other]
                    if neighbour not in involved:
                        involved.add(neighbour)
                        waiting.append(neighbour)
        return involved

    def _pulled_in_by(self, vertex: int) -> Iterator[int]:
        stage = self._graph.stage_start[vertex]
        for place in self._graph.reads[stage]:
            yield from self._producers_to_repeat(place, vertex)
        for place in self._graph.writes[stage] if self._forward else ():
            wiring = self._graph.exchanges[place]
            group = wiring.group_of_producer(vertex)
            if (place, group) not in self._produced:
                self._produced.add((place, group))
                yield from wiring.groups[group].consumers

    def _producers_to_repeat(self, place: int, vertex: int) -> Iterator[int]:
        wiring = self._graph.exchanges[place]
        if wiring.edge.type.re_consumable and place not in self._gone:
            return
        group = wiring.group_of_consumer(vertex)
        if (place, group) in self._consumed:
            return
        self._consumed.add((place, group))
        producers = wiring.groups[group].producers
        if not wiring.edge.type.re_consumable:
            yield from producers
            return
        for subtask in self._gone[place]:
            if wiring.producers[subtask] in producers:
                yield wiring.producers[subtask]
