"""When result partitions may be released inside a job, as Flink's RegionPartitionGroupReleaseStrategy.

Invariant: a partition is named only while every region that holds one of its consumers is finished.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, repeat

from weir.errors import Internal
from weir.recovery.failover import JobPartition
from weir.topology.graph import JobGraph, Regions

_GroupKey = tuple[int, int]
"""An exchange, by its place, and one of its groups."""


class RegionRelease:
    """Follows which subtasks are finished; a region is finished when all of its subtasks are."""

    def __init__(self, graph: JobGraph, regions: Regions) -> None:
        self._graph = graph
        self._regions = regions
        self._stage_of = graph.stage_of
        self._reads = [
            [(place, graph.exchanges[place]) for place in reads if graph.exchanges[place].edge.type.re_consumable]
            for reads in graph.reads
        ]
        """The exchanges that each stage reads from the store, by place."""
        self._is_finished = bytearray(graph.size)
        self._left = [len(members) for members in regions.members]
        """How many subtasks of each region are not finished."""
        self._waits_for: dict[_GroupKey, int] = {}
        """How many unfinished regions consume a group: kept from when it first matters."""

    def unfinished(self, vertex: int) -> None:
        """Note that a subtask is to run again."""
        if not 0 <= vertex < len(self._is_finished):
            raise self._foreign(vertex)
        region = self._regions.of[vertex]
        if not self._is_finished[vertex]:
            return
        if not self._left[region]:
            for group in self._groups_read(region):
                if group in self._waits_for:
                    self._waits_for[group] += 1
        self._is_finished[vertex] = False
        self._left[region] += 1

    def finished(self, vertex: int) -> tuple[JobPartition, ...]:
        """Note that a subtask is finished, and return what may be released now, in ascending order.

        Finishing a finished region again names the same partitions again: releasing must be idempotent.
        """
        if not 0 <= vertex < len(self._is_finished):
            raise self._foreign(vertex)
        region = self._regions.of[vertex]
        left = left_before = self._left[region]
        if not self._is_finished[vertex]:
            self._is_finished[vertex] = True
            left = self._left[region] = left_before - 1
        if left:
            return ()
        released = []
        for group in self._groups_read(region):
            waits_for = self._waits_for.get(group)
            if waits_for is None:
                waits_for = self._waits_for[group] = self._consumers_left(group)
            elif left_before:
                waits_for = self._waits_for[group] = waits_for - 1
            if not waits_for:
                released.append(group)
        return tuple(chain.from_iterable(map(self._partitions, sorted(released)))) if released else ()

    def _foreign(self, vertex: int) -> Internal:
        return Internal(f"there is no vertex {vertex}: the graph has the vertices 0 to {self._graph.size - 1} only")

    def _groups_read(self, region: int) -> Collection[_GroupKey]:
        members = self._regions.members[region]
        if len(members) == 1:
            # Most regions of a batch job are one subtask: nothing to divide, and no group twice.
            vertex = members[0]
            reads = self._reads[self._stage_of[vertex]]
            return [(place, wiring.group_of_consumer(vertex)) for place, wiring in reads] if reads else ()
        return {
            (place, group)
            for stage, vertices in self._graph.by_stage(members)
            for place, wiring in self._reads[stage]
            for group in wiring.groups_of_consumers(vertices)
        }

    def _consumers_left(self, group: _GroupKey) -> int:
        """Count the regions that consume a group and are not finished."""
        place, number = group
        consumers = self._graph.exchanges[place].group(number).consumers
        return sum(1 for region in set(self._regions.of[consumers.start : consumers.stop]) if self._left[region])

    def _partitions(self, group: _GroupKey) -> Iterator[JobPartition]:
        place, number = group
        wiring = self._graph.exchanges[place]
        producers, first = wiring.group(number).producers, wiring.producers.start
        return map(JobPartition, repeat(place), range(producers.start - first, producers.stop - first))
