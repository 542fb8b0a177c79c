"""Finds the consumers that run again, or may run again, because their producers do.

Flink restarts every consumer of a restarted region. Weir does so with `consumers="always"` and for stages that are not
deterministic; elsewhere a commit compares digests, and the plan says "if X changes".

Invariant: a decision visits each group of consumers once, so that all-to-all exchanges cost m + n.
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
"""By stage and layout: regions of later runs whose newest commit has read it, in their present state."""


@dataclass(slots=True)
class Affected:
    """`always` are regions that restart with a producer; `maybe` those that restart if a producer changes."""

    always: dict[RegionId, RegionId] = field(default_factory=dict)
    maybe: dict[RegionId, list[list[RegionId]]] = field(default_factory=dict)

    def depends_on(self, region: RegionId) -> tuple[RegionId, ...]:
        """Return the first regions whose change would make `region` run again."""
        found: dict[RegionId, None] = {}
        for producer in chain.from_iterable(self.maybe[region]):
            found[producer] = None
            if len(found) == SHOWN:
                break
        return tuple(found)


class Readers:
    """The consumers of each partition, in all runs that a decision knows. Equal groups of readers are one object."""

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
        """Return the groups of regions that read a partition."""
        yield self._state.consumers(partition)
        if partition in self._next_epoch:
            yield self._next_epoch[partition]
        if partition.stage in self._state.topology_of(partition.run).sinks:
            yield self._closing[partition.run]
        if partition.is_of_own_run and (partition.stage, partition.layout) in self._later:
            yield self._later[partition.stage, partition.layout]

    def outputs(self, region: RegionId) -> tuple[PartitionId, ...]:
        """Return the outputs of a region; none for a region of a later run, which decides about its own consumers."""
        return self._state.outputs(region) if region.name != CLOSE.name and self.is_known(region) else ()

    def is_known(self, region: RegionId) -> bool:
        """Report whether the inputs of a region are known: not in a later run, nor of an earlier run's closing task."""
        return region.is_of_own_run or (region.run in self._state.earlier and region.name != CLOSE.name)

    def state_of(self, region: RegionId) -> RegionState:
        """Return the state of a region, which may be of a later run."""
        return self._later_states.get(region) or self._state.region(region)


def affected(
    state: RunState, rerun: Set[RegionId], readers: Readers, possible: Set[RegionId] = frozenset()
) -> Affected:
    """Return the regions that restart with `rerun`, or may restart with it or with `possible` or running regions.

    Only regions that have begun and are not running are among them.
    """
    found = Affected()
    _follow_always(state, rerun, readers, found)
    running = [region for region, known in state.regions.items() if known.is_running and region not in rerun]
    _follow_changes([*rerun, *running, *found.always, *possible], rerun, readers, found)
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
    return region not in rerun and bool(known.newest_try) and not known.is_running
