"""Who runs again, or may, because of what runs again: the way forward.

Flink restarts every consumer of what restarts. Weir does where it was told to (`consumers="always"`, or a stage that is
not deterministic); elsewhere a commit compares digests, and the plan says "if X changes".

Invariant: each group of consumers is looked at once a decision, so that all-to-all exchanges cost m + n.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain

from weir.execution.run_state import CLOSE, RegionState, RunState
from weir.recovery.rules.plan import SHOWN
from weir.recovery.rules.staleness import restarts_consumers
from weir.topology.ids import OWN_RUN, RunRef
from weir.topology.regions import PartitionId, RegionId

LaterReaders = Mapping[tuple[str, str], tuple[RegionState, ...]]
"""By stage and layout: regions of later runs whose newest commit was made of it, as they are now."""


@dataclass(slots=True)
class Affected:
    """`always` are regions that restart with one that they read; `maybe` those that do if one of some changes."""

    always: dict[RegionId, RegionId] = field(default_factory=dict)
    maybe: dict[RegionId, list[list[RegionId]]] = field(default_factory=dict)

    def depends_on(self, region: RegionId) -> tuple[RegionId, ...]:
        """The first regions whose change would make `region` run again."""
        found: dict[RegionId, None] = {}
        for producer in chain.from_iterable(self.maybe[region]):
            found[producer] = None
            if len(found) == SHOWN:
                break
        return tuple(found)


class Readers:
    """Who reads what, in all runs that a decision knows. Equal groups of readers are one object."""

    def __init__(self, state: RunState, later: LaterReaders) -> None:
        self._state = state
        self._later = {key: tuple(each.region for each in found) for key, found in later.items()}
        self._later_states = {each.region: each for found in later.values() for each in found}
        readers: dict[PartitionId, list[RegionId]] = {}
        for run in (OWN_RUN, *state.earlier):
            self._enter_previous(run, readers)
        self._next_epoch = {partition: tuple(found) for partition, found in readers.items()}
        self._closing = {run: (CLOSE.in_run(run),) for run in (OWN_RUN, *state.earlier)}

    def _enter_previous(self, run: RunRef, readers: dict[PartitionId, list[RegionId]]) -> None:
        before = self._state.predecessor_of(run)
        if before not in self._state.earlier or not self._state.topology_of(run).reads_previous:
            return
        for region in self._state.region_ids(run):
            for partition in self._state.inputs_of(region):
                if partition.run == before:
                    readers.setdefault(partition, []).append(region)

    def of(self, partition: PartitionId) -> Iterator[tuple[RegionId, ...]]:
        """The groups of regions that read a partition."""
        yield self._state.consumers(partition)
        if partition in self._next_epoch:
            yield self._next_epoch[partition]
        if partition.stage in self._state.topology_of(partition.run).sinks:
            yield self._closing[partition.run]
        if partition.is_of_own_run and (partition.stage, partition.layout) in self._later:
            yield self._later[partition.stage, partition.layout]

    def outputs(self, region: RegionId) -> tuple[PartitionId, ...]:
        """What a region writes, nothing for one of a later run: what follows from that is decided in that run."""
        return self._state.outputs(region) if region.name != CLOSE.name and self.is_known(region) else ()

    def is_known(self, region: RegionId) -> bool:
        """Whether what the region reads is known: not that of a later run, nor the closing task of an earlier one."""
        return region.is_of_own_run or (region.run in self._state.earlier and region.name != CLOSE.name)

    def state_of(self, region: RegionId) -> RegionState:
        """How a region stands, also one of a later run."""
        return self._later_states.get(region) or self._state.region(region)


def affected(
    state: RunState, rerun: Set[RegionId], readers: Readers, possible: Set[RegionId] = frozenset()
) -> Affected:
    """What `rerun` entails, and may entail with what is `possible` or at work; only of what has begun and finished."""
    found = Affected()
    _follow_always(state, rerun, readers, found)
    at_work = [region for region, known in state.regions.items() if known.at_work and region not in rerun]
    _follow_changes([*rerun, *at_work, *found.always, *possible], rerun, readers, found)
    return found


def _follow_always(state: RunState, rerun: Set[RegionId], readers: Readers, found: Affected) -> None:
    waiting, seen = list(rerun), set[int]()
    for producer in waiting:
        for partition in readers.outputs(producer):
            if not restarts_consumers(state.topology_of(partition.run), partition.stage):
                continue
            for group in readers.of(partition):
                if id(group) in seen:
                    continue
                seen.add(id(group))
                new = [each for each in group if _may_restart(each, rerun, readers) and each not in found.always]
                found.always |= dict.fromkeys(new, producer)
                waiting += new


def _follow_changes(waiting: list[RegionId], rerun: Set[RegionId], readers: Readers, found: Affected) -> None:
    causes: dict[int, list[RegionId]] = {}
    for producer in waiting:
        for partition in readers.outputs(producer):
            for group in readers.of(partition):
                if id(group) in causes:
                    causes[id(group)].append(producer)
                    continue
                causes[id(group)] = [producer]
                new = [each for each in group if _may_restart(each, rerun, readers) and each not in found.always]
                waiting += [each for each in new if each not in found.maybe]
                for each in new:
                    found.maybe.setdefault(each, []).append(causes[id(group)])


def _may_restart(region: RegionId, rerun: Set[RegionId], readers: Readers) -> bool:
    known = readers.state_of(region)
    return region not in rerun and bool(known.newest_try) and not known.at_work
