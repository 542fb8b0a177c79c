"""Backtracks from missing results to the producers that must run again.

Flink's RestartPipelinedRegionFailoverStrategy walks from the failed region to the producers of unavailable inputs,
transitively. Weir backtracks in the same way, also into earlier runs; partitions that it needs probed in the store
are part of the answer.

Invariant: a result that is stale only because a running region may change it is suspended, and restarts no region. The
walk ends at a state that was released: its recomputation would take all epochs since the first. It also ends at a state
that the dataflow began with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from enum import Enum

from weir.dataflow.state import Replay
from weir.errors import Fault, Loss
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, CurrentResult, Obstacle, RunState
from weir.topology.ids import is_synthetic
from weir.topology.regions import PartitionId, RegionId

_SOMEBODY = RegionId("", 0)
"""A reader that needs the bytes."""

_NO_LOSS = (Obstacle.OLDER_SIBLING, Obstacle.LOST)
"""Older code of a sibling is the sibling's loss, and files that were missing are looked for again."""


class Occasion(Enum):
    """The reason why a decision is requested."""

    LOSS = "loss"
    """An attempt did not find its inputs."""
    FAILURE = "failure"
    """An attempt failed for another reason: its inputs were there."""
    QUESTION = "question"
    """A person requested a plan: nothing has failed."""
    REPAIR = "repair"
    """Bytes were found damaged before any task has read them: only they are recomputed."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The reason why a producer runs again: the first loss, and the region that needs it (None: the run as a whole).

    `is_gone`: it would, and Airflow does not have it any more.
    """

    loss: Loss
    reader: RegionId | None
    is_gone: bool = False

    def __str__(self) -> str:
        return f"{self.loss}; needed by {self.reader}" if self.reader else str(self.loss)


@dataclass(slots=True)
class Backtracked:
    """The result of the walk: producers that run again or are running, suspended ones, and partitions to probe.

    `expired` are states that a region needs, that were released, and that cannot be recomputed.
    """

    causes: dict[RegionId, Lost] = field(default_factory=dict)
    suspended: dict[RegionId, frozenset[RegionId]] = field(default_factory=dict)
    unknown: set[PartitionId] = field(default_factory=set)
    expired: dict[PartitionId, Lost] = field(default_factory=dict)


def known_loss(state: RunState, partition: PartitionId, reader: RegionId | None = _SOMEBODY) -> Loss | None:
    """Return the loss of `partition` by the ledger alone: never committed, stale, damaged, or released.

    An intermediate result that was released is no loss to the closing task, nor to the run as a whole (None).
    """
    for obstacle in state.obstacles(partition):
        is_left_out = obstacle in _NO_LOSS or (obstacle is Obstacle.RELEASED and _has_served(state, partition, reader))
        if not is_left_out:
            return state.loss(partition, obstacle)
    return None


def is_expired(state: RunState, partition: PartitionId) -> bool:
    """Report whether Weir does not recompute a result: one that a person has put in its place, or a released state.

    A released state is recomputed where the dataflow has it replayed, and Airflow has its task; but none that a person
    has restored.
    """
    if not partition.is_of_own_run and not state.earlier[partition.run].has_tasks:
        return True
    result = state.results.get(partition)
    if result is None:
        return False
    is_restored = is_synthetic(result.attempt)
    if is_restored and result.fault == Fault.SUSPECTED.value:
        return True  # a person has replaced the result of its producer with it
    is_state = partition.stage in state.topology_of(partition.run).states
    is_replayed = state.topology.dataflow.replay is Replay.AUTOMATIC and state.producer(partition) not in state.gone
    is_kept = is_state and (is_restored or not is_replayed)
    return is_kept and result.state is PartitionState.RELEASED and state.is_valid(partition)


def _has_served(state: RunState, partition: PartitionId, reader: RegionId | None) -> bool:
    """Report whether a reader needs only a result that was valid, not its bytes."""
    return reader in (None, CLOSE) and partition.stage not in state.topology_of(partition.run).sinks


def backtrack(
    state: RunState,
    readers: Iterable[RegionId | None],
    losses: Mapping[PartitionId, Loss],
    intact: Set[PartitionId],
    occasion: Occasion = Occasion.LOSS,
    reporter: RegionId | None = None,
    restarted: Set[RegionId] = frozenset(),
) -> Backtracked:
    """Walk back from `readers`, of which None stands for all of the run, or for `losses` alone where they are repaired.

    `losses` are all partitions known to be unavailable, `intact` those known to be available. Inputs of regions that
    run again are `unknown` if they are in neither; except inputs of `reporter`, which has reported all its losses but
    those that it waits for, and outputs of `restarted` regions. Raises MissingContext.
    """
    walk = _Walk(state, losses, intact, occasion, restarted)
    walk.back_from(readers, reporter)
    return walk.found


class _Walk:
    """The walk of one decision: it visits each group of partitions once, however many regions read it."""

    def __init__(
        self,
        state: RunState,
        losses: Mapping[PartitionId, Loss],
        intact: Set[PartitionId],
        occasion: Occasion,
        restarted: Set[RegionId],
    ) -> None:
        self._state, self._losses, self._intact = state, losses, intact
        self._occasion, self._restarted = occasion, restarted
        self._seen: dict[tuple[int, bool], tuple[PartitionId, ...]] = {}
        self.found = Backtracked()

    def back_from(self, first: Iterable[RegionId | None], reporter: RegionId | None) -> None:
        started = list(first)
        readers, asking = list(started), frozenset(started)
        while readers:
            reader = readers.pop()
            if reader is not None and reader not in asking and self._state.region(reader).is_running:
                continue  # its own attempt finds out what it misses
            is_probed = reader is None or reader != reporter
            for group in self._groups(reader):
                if (id(group), is_probed) in self._seen:
                    continue
                # The group itself is kept: Python may reuse the id of a deleted object.
                self._seen[id(group), is_probed] = group
                readers += self._producers_to_rerun(group, reader, is_probed=is_probed)

    def _groups(self, reader: RegionId | None) -> Iterator[tuple[PartitionId, ...]]:
        state = self._state
        if reader is None and self._occasion is Occasion.REPAIR:
            yield tuple(self._losses)
            return
        groups: Iterable[tuple[PartitionId, ...]] = (
            (state.outputs(each) for each in state.region_ids())
            if reader is None or reader == CLOSE
            else (read.partitions for read in state.inputs(reader))
        )
        yield from groups

    def _producers_to_rerun(
        self, group: tuple[PartitionId, ...], reader: RegionId | None, *, is_probed: bool
    ) -> Iterator[RegionId]:
        for partition in self._state.with_older_siblings(group):
            producer = self._state.producer(partition)
            if producer in self.found.causes:
                continue
            loss = self._loss(partition, reader) or (None if is_probed else self._awaited_loss(partition, producer))
            if loss is None or self._is_suspended(partition, loss):
                self._spare(partition, producer, loss, reader, is_probed=is_probed)
            elif is_expired(self._state, partition) and not self._state.region(producer).is_running:
                self.found.expired.setdefault(partition, Lost(loss, reader, producer in self._state.gone))
            elif not self._is_to_begin(partition, producer):
                self.found.causes[producer] = Lost(loss, reader)
                yield producer

    def _loss(self, partition: PartitionId, reader: RegionId | None) -> Loss | None:
        result = self._state.results.get(partition)
        is_seen = result is None or self._is_named(result) or self._is_worth_probing(result, reader)
        return (self._losses.get(partition) if is_seen else None) or known_loss(self._state, partition, reader)

    def _awaited_loss(self, partition: PartitionId, producer: RegionId) -> Loss | None:
        """Return the loss of an input that the reporter waits for, and has not reported: its producer is coming."""
        result = self._state.results.get(partition)
        if result is None or result.state is not PartitionState.LOST or not self._state.is_coming(producer):
            return None
        return replace(self._state.loss(partition, Obstacle.LOST), detail="it is lost, and awaited")

    def _is_named(self, result: CurrentResult) -> bool:
        """Report whether only a person can have named it as lost: the store is not probed for a released result."""
        return self._occasion is Occasion.QUESTION and result.state is PartitionState.RELEASED

    def _is_to_begin(self, partition: PartitionId, producer: RegionId) -> bool:
        """Report whether a person requested the plan, and neither the region nor a consumer has begun: nothing is lost.

        Where an attempt misses its result, or a consumer has begun, Airflow has the region as a success.
        """
        if (
            self._occasion is not Occasion.QUESTION
            or not producer.is_of_own_run
            or self._state.region(producer).newest_try
        ):
            return False
        readers = (*self._state.consumers(partition), CLOSE)
        return not any(self._state.region(each).newest_try for each in readers)

    def _is_suspended(self, partition: PartitionId, loss: Loss) -> bool:
        """Report whether a result becomes valid again if the running regions write what they wrote before."""
        result = self._state.results.get(partition)
        is_there = result is not None and result.state is PartitionState.FINISHED
        awaited = self._state.awaited_for(partition) if loss.fault is Fault.STALE and is_there else frozenset()
        return bool(awaited) and self._state.producer(partition) not in awaited

    def _spare(
        self,
        partition: PartitionId,
        producer: RegionId,
        loss: Loss | None,
        reader: RegionId | None,
        *,
        is_probed: bool,
    ) -> None:
        if loss is not None:
            self.found.suspended[producer] = self._state.awaited_for(partition)
        is_asked = is_probed and partition not in self._intact and producer not in self._restarted
        if is_asked and self._is_worth_probing(self._state.results[partition], reader):
            self.found.unknown.add(partition)

    def _is_worth_probing(self, result: CurrentResult, reader: RegionId | None) -> bool:
        """Report whether a result needs a probe: for the closing task only sinks, and results with a recorded loss."""
        if result.state is PartitionState.RELEASED:
            return not _has_served(self._state, result.partition, reader)
        is_read = reader != CLOSE or result.partition.stage in self._state.topology.sinks
        return is_read or result.state is PartitionState.LOST
