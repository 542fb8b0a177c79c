"""What is known of a run, in one value, and what follows from it.

Invariant 3: a result is *valid* when it is current and each input that it was made from is valid and has the digest
that was read. Validity is derived here and stored nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.results.partition_state import PartitionState
from weir.topology.regions import PartitionId, RegionId, Topology

CLOSE = RegionId("weir_close", 0)
"""The closing task: outside the topology, it needs every result of the run and reads those of the sinks."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """One input partition of a committed result, and the digest that was read."""

    partition: PartitionId
    attempt: str
    digest: str


@dataclass(frozen=True, slots=True)
class CurrentResult:
    """The current result of a partition."""

    partition: PartitionId
    result: int
    attempt: str
    try_number: int
    state: PartitionState
    folder: str
    manifest_sha256: str
    digest: str
    rows: int
    bytes: int
    reads: tuple[ReadResult, ...]


class AttemptState(Enum):
    """Where an attempt stands.

    Waiting ones hold no process and come again with the same try; running ones may be dead without having said so;
    adopted ones found that an earlier try had committed; retrying ones failed and are followed by another try;
    failed ones are followed by nothing.
    """

    WAITING = "waiting"
    RUNNING = "running"
    COMMITTED = "committed"
    ADOPTED = "adopted"
    RETRYING = "retrying"
    FAILED = "failed"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class RegionState:
    """The newest attempt of a region, and whether a clear of it is on its way.

    `repair_after_try` is the try that an owed clear names; the repair is open until a newer attempt has ended
    (committed, or failed for good): `ended_try` is the newest that has.
    """

    region: RegionId
    newest_try: int = 0
    newest_state: AttemptState | None = None
    ended_try: int = 0
    repair_after_try: int | None = None

    @property
    def under_repair(self) -> bool:
        """Whether a clear was decided and its new attempt has not ended yet."""
        return self.repair_after_try is not None and self.ended_try <= self.repair_after_try

    @property
    def at_work(self) -> bool:
        """Whether an attempt is registered that has not ended, or a clear will bring one."""
        unfinished = (AttemptState.RUNNING, AttemptState.WAITING, AttemptState.RETRYING)
        return self.under_repair or self.newest_state in unfinished


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as the ledger knows it at one instant."""

    run: str
    topology: Topology
    results: Mapping[PartitionId, CurrentResult]
    regions: Mapping[RegionId, RegionState]
    _valid: dict[PartitionId, bool] = field(default_factory=dict, compare=False, repr=False)
    _awaited: dict[PartitionId, frozenset[RegionId]] = field(default_factory=dict, compare=False, repr=False)

    def region(self, region: RegionId) -> RegionState:
        """The state of `region`, also of one that never began."""
        return self.regions.get(region, RegionState(region))

    def inputs_of(self, region: RegionId) -> tuple[PartitionId, ...]:
        """The partitions that `region` needs; the closing task needs all."""
        if region == CLOSE:
            return tuple(partition for each in self.topology.region_ids() for partition in self.topology.outputs(each))
        return tuple(partition for read in self.topology.inputs(region) for partition in read.partitions)

    def is_valid(self, partition: PartitionId) -> bool:
        """Whether the current result of `partition` has the right content; not whether its bytes are there."""
        known = self._valid.get(partition)
        if known is None:
            known = self._valid[partition] = self._derive_validity(partition)
        return known

    def _derive_validity(self, partition: PartitionId) -> bool:
        result = self.results.get(partition)
        if result is None or result.state is PartitionState.QUARANTINED:
            return False
        return all(self._still_holds(read) for read in result.reads)

    def _still_holds(self, read: ReadResult) -> bool:
        current = self.results.get(read.partition)
        return current is not None and current.digest == read.digest and self.is_valid(read.partition)

    def is_good(self, partition: PartitionId) -> bool:
        """Whether `partition` is valid and not known to be gone."""
        result = self.results.get(partition)
        return result is not None and result.state is PartitionState.FINISHED and self.is_valid(partition)

    def awaited_for(self, partition: PartitionId) -> frozenset[RegionId]:
        """The regions at work that `partition` waits for: its producer, or those of what it was made from."""
        known = self._awaited.get(partition)
        if known is None:
            known = self._awaited[partition] = self._derive_awaited(partition)
        return known

    def _derive_awaited(self, partition: PartitionId) -> frozenset[RegionId]:
        producer = self.topology.producer(partition)
        if self.region(producer).at_work:
            return frozenset({producer})
        result = self.results.get(partition)
        stale = () if result is None else tuple(read for read in result.reads if not self._still_holds(read))
        return frozenset(region for read in stale for region in self.awaited_for(read.partition))
