"""Which producers run again because something they wrote is gone.

Flink's RestartPipelinedRegionFailoverStrategy walks from the failed region to the producers of unavailable inputs,
transitively. Weir walks back likewise, also into earlier runs; what it needs to know of the store it asks for.

Invariant: what is stale only because something at work may change it is suspended, and makes nobody run again. A state
that was released is where the walk ends: to make it again would take all epochs since the first. So is one that the
dataflow began with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum

from weir.errors import Fault, Loss
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, CurrentResult, RunState
from weir.topology.ids import is_synthetic
from weir.topology.regions import PartitionId, RegionId

_SOMEBODY = RegionId("", 0)
"""A reader that needs the bytes."""


class Occasion(Enum):
    """Why a decision is asked for."""

    LOSS = "loss"
    """An attempt did not find its inputs."""
    FAILURE = "failure"
    """An attempt failed for another reason: its inputs were there."""
    QUESTION = "question"
    """A person asks: nothing has happened yet."""
    REPAIR = "repair"
    """Bytes were found bad before anybody has missed them: they are to be made again, and nothing else is asked."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Why a producer runs again: the first loss that asks for it, and who needs it (None: the run as a whole)."""

    loss: Loss
    reader: RegionId | None

    def __str__(self) -> str:
        return f"{self.loss}; needed by {self.reader}" if self.reader else str(self.loss)


@dataclass(slots=True)
class Backtracked:
    """What the walk found: producers that run again or are at work on it, suspended ones, and what is to be probed.

    `kept_no_more` are states that somebody needs, and that nobody makes again.
    """

    causes: dict[RegionId, Lost] = field(default_factory=dict)
    suspended: dict[RegionId, frozenset[RegionId]] = field(default_factory=dict)
    unknown: set[PartitionId] = field(default_factory=set)
    kept_no_more: dict[PartitionId, Lost] = field(default_factory=dict)


def known_loss(state: RunState, partition: PartitionId, reader: RegionId | None = _SOMEBODY) -> Loss | None:
    """What the ledger alone says against `partition`: never committed, stale, or released.

    To the closing task, and to the run as a whole (None), an intermediate result that was released is none.
    """
    result = state.results.get(partition)
    if result is None:
        return Loss(*_names(state, partition), "", Fault.NEVER_COMMITTED, "its producer has committed nothing")
    if result.state is PartitionState.QUARANTINED:
        return Loss(
            *_names(state, partition), result.attempt, Fault.STALE, "it is quarantined: its content is in doubt"
        )
    if not state.is_valid(partition):
        return Loss(
            *_names(state, partition), result.attempt, Fault.STALE, "an input of its producer has changed since"
        )
    if result.state is PartitionState.LOST and result.fault == Fault.DAMAGED.value:
        # A look at its sizes would not see it: whoever found it had compared the bytes.
        return Loss(*_names(state, partition), result.attempt, Fault.DAMAGED, "its bytes were found damaged")
    if result.state is PartitionState.RELEASED and not _has_served(state, partition, reader):
        return Loss(*_names(state, partition), result.attempt, Fault.MISSING, "it was released")
    return None


def _has_served(state: RunState, partition: PartitionId, reader: RegionId | None) -> bool:
    """Whether a reader asks only that a result was right, not for its bytes."""
    return reader in (None, CLOSE) and partition.stage not in state.topology_of(partition.run).sinks


def _names(state: RunState, partition: PartitionId) -> tuple[str, str, int, str]:
    return partition.run_id(state.run), partition.stage, partition.subtask, partition.layout


def backtrack(
    state: RunState,
    readers: Iterable[RegionId | None],
    losses: Mapping[PartitionId, Loss],
    intact: Set[PartitionId],
    occasion: Occasion = Occasion.LOSS,
    told: RegionId | None = None,
    restarted: Set[RegionId] = frozenset(),
) -> Backtracked:
    """Walk back from `readers`, of which None stands for all of the run, or for `losses` alone where they are repaired.

    `losses` are all partitions known to be unavailable, `intact` those known to be there; inputs of what runs again
    that are in neither are `unknown`, but those of `told`, which has said what it misses, and what `restarted` regions
    make anew. Raises MissingContext.
    """
    walk = _Walk(state, losses, intact, occasion, restarted)
    walk.back_from(readers, told)
    return walk.found


class _Walk:
    """One decision: each group of partitions is looked at once, however many regions read it."""

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

    def back_from(self, first: Iterable[RegionId | None], told: RegionId | None) -> None:
        started = list(first)
        readers, asking = list(started), frozenset(started)
        while readers:
            reader = readers.pop()
            if reader is not None and reader not in asking and self._state.region(reader).at_work:
                continue  # its own attempt finds out what it misses
            is_probed = reader is None or reader != told
            for group in self._groups(reader):
                if (id(group), is_probed) in self._seen:
                    continue
                # The group itself is kept: the id of an object that is gone may come again.
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
        for partition in group:
            producer = self._state.producer(partition)
            if producer in self.found.causes:
                continue
            loss = self._loss(partition, reader)
            if loss is None or self._is_suspended(partition, loss):
                self._spare(partition, producer, loss, reader, is_probed=is_probed)
            elif self._is_kept_no_more(partition):
                self.found.kept_no_more.setdefault(partition, Lost(loss, reader))
            elif not self._is_to_begin(partition, producer):
                self.found.causes[producer] = Lost(loss, reader)
                yield producer

    def _loss(self, partition: PartitionId, reader: RegionId | None) -> Loss | None:
        result = self._state.results.get(partition)
        is_seen = result is None or self._is_named(result) or self._is_worth_probing(result, reader)
        return (self._losses.get(partition) if is_seen else None) or known_loss(self._state, partition, reader)

    def _is_kept_no_more(self, partition: PartitionId) -> bool:
        if not partition.is_of_own_run and not self._state.earlier[partition.run].has_tasks:
            return True
        result = self._state.results.get(partition)
        if result is not None and is_synthetic(result.attempt) and result.fault == Fault.SUSPECTED.value:
            return True  # a person has put it in the place of what its producer had made
        is_released = result is not None and result.state is PartitionState.RELEASED
        is_state = partition.stage in self._state.topology_of(partition.run).states
        return is_state and is_released and self._state.is_valid(partition)

    def _is_named(self, result: CurrentResult) -> bool:
        """Whether a loss of it can only be a person's word: the store is not asked for what was released."""
        return self._occasion is Occasion.QUESTION and result.state is PartitionState.RELEASED

    def _is_to_begin(self, partition: PartitionId, producer: RegionId) -> bool:
        """Whether nothing is missed of a region: a person asks before it has begun.

        Where an attempt misses it, or a reader has begun, Airflow believes that it has been a success.
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
        """Whether a result is right again if what is at work comes out as it was."""
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
        """The closing task reads the sinks; of other results it asks the ledger, unless that has recorded a loss."""
        if result.state is PartitionState.RELEASED:
            return not _has_served(self._state, result.partition, reader)
        is_read = reader != CLOSE or result.partition.stage in self._state.topology.sinks
        return is_read or result.state is PartitionState.LOST
