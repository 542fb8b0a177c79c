"""When result partitions may be released inside a job, as Flink's RegionPartitionGroupReleaseStrategy.

Invariant: a partition is named only while every region that holds one of its consumers is finished.
"""

from __future__ import annotations

from weir.recovery.failover import JobPartition
from weir.topology.graph import JobGraph, Regions


class RegionRelease:
    """Follows which subtasks are finished; a region is finished when all of its subtasks are."""

    def __init__(self, graph: JobGraph, regions: Regions) -> None:
        self._graph = graph
        self._regions = regions
        self._unfinished = [set(members) for members in regions.members]
        self._waits_for: dict[tuple[int, int], set[int]] = {}

    def unfinished(self, vertex: int) -> None:
        """Note that a subtask is to run again."""
        region = self._regions.of[vertex]
        if not self._unfinished[region]:
            for group in self._groups_read(region):
                self._consumers_left(group).add(region)
        self._unfinished[region].add(vertex)

    def finished(self, vertex: int) -> tuple[JobPartition, ...]:
        """Note that a subtask is finished, and return what may be released now, in ascending order.

        Finishing a finished region again names the same partitions again: releasing must be idempotent.
        """
        region = self._regions.of[vertex]
        self._unfinished[region].discard(vertex)
        if self._unfinished[region]:
            return ()
        groups = self._groups_read(region)
        for group in groups:
            self._consumers_left(group).discard(region)
        released = (group for group in groups if not self._waits_for[group])
        return tuple(sorted(partition for group in released for partition in self._partitions(*group)))

    def _groups_read(self, region: int) -> set[tuple[int, int]]:
        return {
            (place, self._graph.exchanges[place].group_of_consumer(vertex))
            for vertex in self._regions.members[region]
            for place in self._graph.reads[self._graph.stage_start[vertex]]
            if self._graph.exchanges[place].edge.type.re_consumable
        }

    def _consumers_left(self, group: tuple[int, int]) -> set[int]:
        """Return the unfinished regions that consume a group: a set of its own, which is kept from then on."""
        if group not in self._waits_for:
            place, number = group
            consumers = {self._regions.of[vertex] for vertex in self._graph.exchanges[place].groups[number].consumers}
            self._waits_for[group] = {region for region in consumers if self._unfinished[region]}
        return self._waits_for[group]

    def _partitions(self, place: int, group: int) -> list[JobPartition]:
        wiring = self._graph.exchanges[place]
        return [JobPartition(place, vertex - wiring.producers.start) for vertex in wiring.groups[group].producers]
