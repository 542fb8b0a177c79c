"""Independent pipelines: regions that go on and recover index by index.

Invariant: with each pipeline taken for one node, the regions of the dataflow still depend on each other in no cycle. So
whatever lies outside of a pipeline is before all of it, behind all of it, or beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.topology.ids import LogicalRegion


def pipelines_of(
    regions: Sequence[LogicalRegion], pointwise: Mapping[tuple[str, str], bool]
) -> tuple[tuple[LogicalRegion, ...], ...]:
    """Return sets of at least two regions of a parallelism above 1, each joined over pointwise exchanges.

    `regions` come after those they read. `pointwise` says of each pair of producer and consumer whether all exchanges
    between them are. Sets grow along the exchanges in that order, as long as the invariant holds.
    """
    number = {region.name: place for place, region in enumerate(regions)}
    edges = sorted((number[consumer], number[producer], is_so) for (producer, consumer), is_so in pointwise.items())
    sets = _Sets(len(regions), edges)
    for consumer, producer, is_pointwise in edges:
        if is_pointwise and regions[consumer].parallelism > 1:
            sets.join(producer, consumer)
    found = ([regions[member] for member in members] for members in sets.members if len(members) > 1)
    return tuple(tuple(pipeline) for pipeline in found)


class _Sets:
    """Sets of regions, each under the number of its first one, and the exchanges between them."""

    def __init__(self, size: int, edges: Sequence[tuple[int, int, bool]]) -> None:
        self.members: list[list[int]] = [[place] for place in range(size)]
        self._set_of = list(range(size))
        self._behind: list[dict[int, bool]] = [{} for _ in range(size)]
        """The sets that read each set, and whether over pointwise exchanges only."""
        self._before: list[set[int]] = [set() for _ in range(size)]
        for consumer, producer, is_pointwise in edges:
            self._behind[producer][consumer] = is_pointwise
            self._before[consumer].add(producer)

    def join(self, producer: int, consumer: int) -> None:
        """Make the two regions' sets one, if all between them is pointwise and no other way leads there."""
        kept, gone = self._set_of[producer], self._set_of[consumer]
        if kept == gone or not self._behind[kept][gone] or self._has_detour(kept, gone):
            return
        if gone < kept:
            kept, gone = gone, kept
        for place in self.members[gone]:
            self._set_of[place] = kept
        self.members[kept] = sorted(self.members[kept] + self.members[gone])
        self.members[gone] = []
        self._redirect(gone, kept)

    def _has_detour(self, start: int, end: int) -> bool:
        waiting = [each for each in self._behind[start] if each != end]
        seen = set(waiting)
        for each in waiting:
            if end in self._behind[each]:
                return True
            new = self._behind[each].keys() - seen
            seen |= new
            waiting += new
        return False

    def _redirect(self, gone: int, kept: int) -> None:
        for reader, is_pointwise in self._behind[gone].items():
            self._before[reader].discard(gone)
            if reader != kept:
                self._before[reader].add(kept)
                self._behind[kept][reader] = is_pointwise and self._behind[kept].get(reader, True)
        for read in self._before[gone]:
            is_pointwise = self._behind[read].pop(gone)
            if read != kept:
                self._before[kept].add(read)
                self._behind[read][kept] = is_pointwise and self._behind[read].get(kept, True)
        self._behind[gone], self._before[gone] = {}, set()
