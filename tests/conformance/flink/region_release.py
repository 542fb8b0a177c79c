"""Flink's RegionPartitionGroupReleaseStrategy: the result partitions that may be released inside a job.

A reference for conformance: in production weir.retention.deletion_rules decides, and tests hold it against this module.

Invariant: a partition is named only while every region that holds one of its consumers is finished.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import accumulate, chain, repeat

from tests.conformance.flink.job_graph import JobGraph, Regions, Wiring
from tests.conformance.flink.restart_set import JobPartition

from weir.errors import Internal

_UNKNOWN = -1


class RegionRelease:
    """Follows which subtasks are finished; a region is finished when all of its subtasks are."""

    def __init__(self, graph: JobGraph, regions: Regions) -> None:
        self._graph = graph
        self._regions = regions
        self._stage_of = graph.stage_of
        sizes = (wiring.size for wiring in graph.exchanges)
        self._first_group = list(accumulate(sizes, initial=0))
        """Groups are numbered through, exchange by exchange: the first of each, and how many there are."""
        self._reads = [
            [
                (self._first_group[place], graph.exchanges[place])
                for place in reads
                if graph.exchanges[place].edge.type.re_consumable
            ]
            for reads in graph.reads
        ]
        """The exchanges that each stage reads from the store, each with its first group."""
        self._is_finished = bytearray(graph.size)
        self._left = [len(members) for members in regions.members]
        """The number of unfinished subtasks of each region."""
        self._waits_for = [_UNKNOWN] * self._first_group[-1]
        """The number of unfinished regions that consume each group, counted on first use."""

    def unfinished(self, vertex: int) -> None:
        """Note that a subtask is to run again."""
        if not 0 <= vertex < len(self._is_finished):
            raise self._foreign(vertex)
        region = self._regions.of[vertex]
        if not self._is_finished[vertex]:
            return
        if not self._left[region]:
            for group in self._groups_read(region):
                self._waits_for[group] += self._waits_for[group] != _UNKNOWN
        self._is_finished[vertex] = False
        self._left[region] += 1

    def finished(self, vertex: int) -> tuple[JobPartition, ...]:
        """Record that a subtask is finished, and return the partitions that may be released now, in ascending order.

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
            waits_for = self._waits_for[group]
            if waits_for == _UNKNOWN:
                waits_for = self._waits_for[group] = self._consumers_left(group)
            elif left_before:
                waits_for = self._waits_for[group] = waits_for - 1
            if not waits_for:
                released.append(group)
        return tuple(chain.from_iterable(map(self._partitions, sorted(released)))) if released else ()

    def _foreign(self, vertex: int) -> Internal:
        return Internal(f"there is no vertex {vertex}: the graph has the vertices 0 to {self._graph.size - 1} only")

    def _groups_read(self, region: int) -> Collection[int]:
        members = self._regions.members[region]
        if len(members) == 1:
            # Most regions of a batch job are one subtask: nothing to divide, and no group twice.
            vertex = members[0]
            reads = self._reads[self._stage_of[vertex]]
            return [first + wiring.group_of_consumer(vertex) for first, wiring in reads] if reads else ()
        return {
            first + group
            for stage, vertices in self._graph.by_stage(members)
            for first, wiring in self._reads[stage]
            for group in wiring.groups_of_consumers(vertices)
        }

    def _consumers_left(self, group: int) -> int:
        """Count the regions that consume a group and are not finished."""
        _, wiring, number = self._place_of(group)
        consumers = wiring.group(number).consumers
        return sum(1 for region in set(self._regions.of[consumers.start : consumers.stop]) if self._left[region])

    def _partitions(self, group: int) -> Iterator[JobPartition]:
        place, wiring, number = self._place_of(group)
        producers, first = wiring.group(number).producers, wiring.producers.start
        return map(JobPartition, repeat(place), range(producers.start - first, producers.stop - first))

    def _place_of(self, group: int) -> tuple[int, Wiring, int]:
        """Return the exchange of a group, by place and itself, and the group's number in it."""
        place = bisect_right(self._first_group, group) - 1
        return place, self._graph.exchanges[place], group - self._first_group[place]
