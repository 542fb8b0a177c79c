"""Independent pipelines: regions that go on and recover index by index.

Invariant: with each pipeline taken for one node, the regions of the dataflow still depend on each other in no cycle. So
whatever lies outside of a pipeline is before all of it, behind all of it, or beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.topology.components import UnionFind, strongly_connected
from weir.topology.ids import LogicalRegion


def pipelines_of(
    regions: Sequence[LogicalRegion], pointwise: Mapping[tuple[str, str], bool]
) -> tuple[tuple[LogicalRegion, ...], ...]:
    """Return sets of at least two regions of a parallelism above 1, each joined over pointwise exchanges.

    `regions` come after those they read. `pointwise` says of each pair of producer and consumer whether all exchanges
    between them are. Sets grow along the exchanges in that order, as long as the invariant holds.
    """
    number = {region.name: place for place, region in enumerate(regions)}
    joined = UnionFind(len(regions))
    edges = sorted((number[consumer], number[producer], is_so) for (producer, consumer), is_so in pointwise.items())
    for consumer, producer, is_pointwise in edges:
        if not is_pointwise or regions[consumer].parallelism == 1:
            continue
        candidate = UnionFind(len(regions))
        for place in range(len(regions)):
            candidate.union(joined.find(place), place)
        candidate.union(producer, consumer)
        if _is_sound(candidate, edges):
            joined = candidate
    members: dict[int, list[LogicalRegion]] = {}
    for place, region in enumerate(regions):
        members.setdefault(joined.find(place), []).append(region)
    return tuple(tuple(each) for each in members.values() if len(each) > 1)


def _is_sound(sets: UnionFind, edges: Sequence[tuple[int, int, bool]]) -> bool:
    labels = sets.labels()
    if any(labels[producer] == labels[consumer] and not is_so for consumer, producer, is_so in edges):
        return False
    successors: list[set[int]] = [set() for _ in labels]
    for consumer, producer, _ in edges:
        if labels[producer] != labels[consumer]:
            successors[labels[producer]].add(labels[consumer])
    component = strongly_connected([sorted(each) for each in successors])
    return len({component[label] for label in labels}) == len(set(labels))
