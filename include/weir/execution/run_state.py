"""The state of a run in one value, and the validity of its results.

Invariant 3: a result is *valid* when it is current, all inputs that it was computed from are valid and have the
digests that were read, and one version of code has made, or would have made, it and all other partitions of its stage
in the run. Validity is derived here and stored nowhere.

Invariant of earlier runs: a state that was not loaded raises MissingContext; it is never assumed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain
from typing import Any, Final, TypeVar

from weir.code.generation_rules import agreed
from weir.dataflow.stage import dataset_of
from weir.errors import Fault, Loss, Misconfigured
from weir.execution.partition_state import PartitionState
from weir.topology.ids import OWN_RUN, AttemptId, Digest, RunId, RunRef
from weir.topology.partitions import PLAIN
from weir.topology.regions import InputPartitions, PartitionId, RegionId, Topology

_Id = TypeVar("_Id", RegionId, PartitionId)
_DONE = (PartitionState.FINISHED, PartitionState.RELEASED)

CLOSE = RegionId("weir_close", 0)
"""The closing task: outside the topology, it needs every result of the run and reads those of the sinks."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """An input partition of a committed result, and the digest that was read."""

    partition: PartitionId
    attempt: AttemptId
    digest: Digest


@dataclass(frozen=True, slots=True)
class ReadSet:
    """The partitions of one input; attempts that read the same share one object, whose validity is derived once."""

    members: tuple[ReadResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentResult:
    """The current result of a partition."""

    partition: PartitionId
    result: int
    attempt: AttemptId
    try_number: int
    state: PartitionState
    folder: str
    manifest_sha256: str
    digest: Digest
    rows: int
    bytes: int
    reads: tuple[ReadSet, ...]
    versions: frozenset[str]
    """The versions of code that are known to make it of what it was made of."""
    made_from: str | None = None
    differs_from: AttemptId | None = None
    """An earlier attempt whose result from equal inputs differs."""
    fault: str | None = None
    code: str | None = None
    generation: int = 0
    """The version that has made it, and the number of its task's generation (0: not known)."""

    @property
    def version(self) -> str:
        """The version that has made it; one of those that make it where that is not known."""
        return self.code or min(self.versions)


UNNUMBERED: Final = sys.maxsize
"""The number of a result that is not in the ledger yet: it is newer than all others."""


def coming_result(partition: PartitionId, attempt: AttemptId, digest: Digest, **known: Any) -> CurrentResult:
    """Return the result of a partition as it will be current once it is in the ledger."""
    empty = {"try_number": 0, "folder": "", "manifest_sha256": "", "rows": 0, "bytes": 0, "reads": ()}
    return CurrentResult(
        partition=partition,
        result=UNNUMBERED,
        attempt=attempt,
        state=PartitionState.FINISHED,
        digest=digest,
        **{**empty, "versions": frozenset(), **known},
    )


Results = Mapping[PartitionId, CurrentResult]
"""Results, by their partitions."""


class Obstacle(Enum):
    """What keeps a result from being read, by the ledger alone; the value says it to people."""

    NEVER_COMMITTED = "its producer has committed nothing"
    QUARANTINED = "it is quarantined: its content is in doubt"
    OLDER_CODE = "another subtask of its stage has committed with newer code, and differently"
    STALE = "an input of its producer has changed since"
    OLDER_SIBLING = "another subtask of its stage has yet to catch up with its code"
    DAMAGED = "its bytes were found damaged"
    LOST = "it is lost"
    RELEASED = "it was released"

    @property
    def fault(self) -> Fault:
        """The fault of a result that is not there for this reason."""
        if self in (Obstacle.NEVER_COMMITTED, Obstacle.DAMAGED):
            return Fault[self.name]
        return Fault.MISSING if self in (Obstacle.LOST, Obstacle.RELEASED) else Fault.STALE


class AttemptState(Enum):
    """The state of an attempt.

    A waiting attempt holds no process and begins again with the same try; the process of a running attempt may have
    been killed; an adopted attempt has reused the commit of an earlier try; a retrying attempt has failed and is
    followed by another try; a failed one is not.
    """

    WAITING = "waiting"
    RUNNING = "running"
    COMMITTED = "committed"
    ADOPTED = "adopted"
    RETRYING = "retrying"
    FAILED = "failed"
    FENCED = "fenced"


FINISHED = (AttemptState.COMMITTED, AttemptState.ADOPTED)
"""The states of an attempt whose results count."""

DONE = tuple(each.value for each in FINISHED)
"""The same, as the ledger has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionState:
    """The newest attempt of a region, and whether a clear of it is pending or not yet followed by a new attempt.

    `repair_after_try` is the try that a clear names; the repair is open until a newer attempt has ended (committed, or
    failed finally): `ended_try` is the newest that has. `is_to_be_cleared` while Airflow has not been seen to follow
    it. `committed_generation` is the newest generation of code in which it has committed (0: none). `newest_result` is
    the highest number of a result when its newest attempt was registered, or its newest clear decided: later results
    are news to it.
    """

    region: RegionId
    newest_try: int = 0
    newest_state: AttemptState | None = None
    ended_try: int = 0
    repair_after_try: int | None = None
    is_to_be_cleared: bool = False
    committed_generation: int = 0
    newest_result: int = 0

    @property
    def under_repair(self) -> bool:
        """Report whether a clear was decided and its new attempt has not ended yet."""
        return self.repair_after_try is not None and self.ended_try <= self.repair_after_try

    @property
    def is_running(self) -> bool:
        """Report whether an attempt is registered that has not ended, or will be after a clear."""
        return self.under_repair or self.is_unended

    @property
    def has_failed(self) -> bool:
        """Report whether the newest attempt has failed finally, so that only a person has its result computed."""
        return self.newest_state is AttemptState.FAILED and not self.is_running

    @property
    def is_unended(self) -> bool:
        """Report whether the newest registered attempt has not ended, or is followed by another try."""
        return self.newest_state in (AttemptState.RUNNING, AttemptState.WAITING, AttemptState.RETRYING)


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run before the present one: its topology, its id in the ledger and that of its predecessor.

    A run that has not begun is assumed to have the topology of the present run. A run without tasks was restored.
    """

    run: RunRef
    topology: Topology
    predecessor: RunRef | None
    has_tasks: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run as the ledger has it at one instant, with the earlier runs that its `previous` exchanges reach.

    Results and regions of earlier runs have ids with that run. Runs before the earliest of `earlier` are taken to be
    valid: that one is closed.
    """

    run: RunId
    topology: Topology
    results: Mapping[PartitionId, CurrentResult]
    regions: Mapping[RegionId, RegionState]
    predecessor: RunRef | None = None
    earlier: Mapping[RunRef, EarlierRun] = field(default_factory=dict)
    void: frozenset[RegionId] = frozenset()
    """Regions that have failed finally, or are of an earlier run and never began, and that Airflow calls finished."""
    cleared: frozenset[RegionId] = frozenset()
    """Regions that have ended by the ledger, and that Airflow runs again: a person has cleared them."""
    gone: frozenset[RegionId] = frozenset()
    """Regions of earlier runs that Airflow does not have any more, as far as it was asked."""
    published: Mapping[PartitionId, CurrentResult] = field(default_factory=dict)
    """What other dataflows have published of the epochs that are read, or were: this is current to their readers."""
    datasets: Mapping[tuple[str, str], tuple[RunRef, ...]] = field(default_factory=dict)
    """The runs of other dataflows that inputs of the run read, by stage and argument; only of resolved inputs."""
    _valid: dict[PartitionId, bool] = field(default_factory=dict, init=False, compare=False, repr=False)
    _older: dict[tuple[RunRef, str], tuple[PartitionId, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _holding: dict[int, bool] = field(default_factory=dict, init=False, compare=False, repr=False)
    _waits: dict[PartitionId, frozenset[RegionId]] = field(default_factory=dict, init=False, compare=False, repr=False)
    _renamed: dict[tuple[RunRef, int], Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    _by_epoch: dict[tuple[RunRef, str], dict[int, CurrentResult]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    # The shape of the runs

    def topology_of(self, run: RunRef) -> Topology:
        """Return the topology of a run, as ids name it. Raises MissingContext."""
        return self.topology if run == OWN_RUN else self._earlier(run).topology

    def predecessor_of(self, run: RunRef) -> RunRef | None:
        """Return the id of the run before a run; None in the first epoch. Raises MissingContext."""
        return self.predecessor if run == OWN_RUN else self._earlier(run).predecessor

    def _earlier(self, run: RunRef) -> EarlierRun:
        if run not in self.earlier:
            raise MissingContext(run)
        return self.earlier[run]

    def region(self, region: RegionId) -> RegionState:
        """Return the state of `region`, also of one that never began."""
        known = self.regions.get(region, RegionState(region=region))
        return replace(known, repair_after_try=known.newest_try) if region in self.cleared else known

    def region_ids(self, run: RunRef = OWN_RUN) -> tuple[RegionId, ...]:
        """Return all regions of a run, producers first."""
        found = self.topology_of(run).region_ids()
        return found if run == OWN_RUN else tuple(each.in_run(run) for each in found)

    def producer(self, partition: PartitionId) -> RegionId:
        """Return the region that writes `partition`."""
        producer = self.topology_of(partition.run).producer(partition)
        return producer if partition.is_of_own_run else producer.in_run(partition.run)

    def outputs(self, region: RegionId) -> tuple[PartitionId, ...]:
        """Return the partitions that `region` writes."""
        if region.is_of_own_run:
            return self.topology.outputs(region)
        found = self.topology_of(region.run).outputs(region.in_run(OWN_RUN))
        return tuple(each.in_run(region.run) for each in found)

    def made_by(self, region: RegionId) -> tuple[CurrentResult, ...]:
        """Return a current result of each attempt that has made those of `region`: of two where some were restored."""
        found: dict[str, CurrentResult] = {}
        for each in self.outputs(region):
            if (result := self.results.get(each)) is not None:
                found.setdefault(result.attempt, result)
        return tuple(found.values())

    def consumers(self, partition: PartitionId) -> tuple[RegionId, ...]:
        """Return the regions of the same run that read `partition`."""
        if partition.is_of_own_run:
            return self.topology.consumers(partition)
        return self._in_run(partition.run, self.topology_of(partition.run).consumers(partition.in_run(OWN_RUN)))

    def _in_run(self, run: RunRef, group: tuple[_Id, ...]) -> tuple[_Id, ...]:
        """Return the same ids in another run: one object per group, so that groups are compared by identity."""
        if (run, id(group)) not in self._renamed:
            # The group itself is kept: the id of a deleted object may be used again.
            self._renamed[run, id(group)] = (group, tuple(each.in_run(run) for each in group))
        renamed: tuple[_Id, ...] = self._renamed[run, id(group)][1]
        return renamed

    def inputs_of(self, region: RegionId) -> tuple[PartitionId, ...]:
        """Return the partitions that `region` reads, of its run and the run before; the closing task needs all."""
        if region == CLOSE:
            return tuple(partition for each in self.topology.region_ids() for partition in self.topology.outputs(each))
        return tuple(partition for read in self.inputs(region) for partition in read.partitions)

    def inputs(self, region: RegionId) -> tuple[InputPartitions, ...]:
        """Return the inputs of `region`, those of the epoch before last. Raises MissingContext or Misconfigured."""
        topology, run = self.topology_of(region.run), region.run
        local = region if run == OWN_RUN else region.in_run(OWN_RUN)
        own = topology.inputs(local)
        if run != OWN_RUN:
            own = tuple(replace(read, partitions=self._in_run(run, read.partitions)) for read in own)
        return (*own, *(self._of_epoch_before(run, read) for read in topology.previous_inputs(local)))

    def dataset_inputs(self, region: RegionId) -> tuple[InputPartitions, ...]:
        """Return what `region`, of the own run, reads of other dataflows, as it is published now.

        An input has no partitions until it is resolved.
        """
        return tuple(map(self._as_published, self.topology.dataset_inputs(region)))

    def all_inputs(self, region: RegionId) -> tuple[InputPartitions, ...]:
        """Return all that `region`, of the own run, reads: of its own dataflow, and of others."""
        return (*self.inputs(region), *self.dataset_inputs(region))

    def _as_published(self, read: InputPartitions) -> InputPartitions:
        sink, runs = dataset_of(read.producer).sink, self.datasets.get((read.stage, read.argument), ())
        found = (each for each in self.published if each.stage == sink and each.run in runs)
        parts = tuple(sorted(found, key=lambda each: (each.run, each.subtask)))
        is_divided = any(each.layout == read.declared.id for each in parts)
        return replace(read, layout=read.declared if is_divided else PLAIN, partitions=parts)

    def input_result(self, partition: PartitionId) -> CurrentResult:
        """Return the result that a reader of `partition` gets: the current one, or what another dataflow published."""
        return self.published[partition] if partition in self.published else self.results[partition]

    def _of_epoch_before(self, run: RunRef, read: InputPartitions) -> InputPartitions:
        """Return the input with the producer's partitions in the run before, in the layout that is read.

        There are none in the first epoch, and none of a new state.
        """
        before = self.predecessor_of(run)
        if before is None:
            return read
        known = self._earlier(before).topology
        is_state = read.producer in self.topology_of(run).states
        if is_state and read.producer not in known.states:
            return read
        layout = known.layout_for(read.producer, read.layout)
        if layout is None or (is_state and layout != read.layout):
            raise Misconfigured.of(
                "execution.layout_not_written",
                stage=read.stage,
                producer=read.producer,
                before=before,
                layout_id=read.layout.id,
            )
        partitions = self._in_run(before, known.partitions_of(read.producer, layout.id))
        return replace(read, layout=layout, partitions=partitions)

    # Validity

    def is_valid(self, partition: PartitionId) -> bool:
        """Report whether the current result of `partition` is valid; its bytes may be missing all the same."""
        self._derive_validity()
        return self._valid.get(partition, False)

    def _derive_validity(self) -> None:
        """Derive the validity of all partitions, producers first: a long chain of epochs needs no deep stack."""
        if self._valid:
            return
        for newest, older in _stages_of_two_codes(self.results.values()):
            self._older[newest.partition.run, newest.partition.stage] = older
        for partition in self._in_order():
            self._valid[partition] = self._is_made_of_valid(partition) and not self._older_siblings(partition)

    def _is_made_of_valid(self, partition: PartitionId) -> bool:
        result = self.results.get(partition)
        return (
            result is not None
            and result.state is not PartitionState.QUARANTINED
            and all(self._holds(reads) and self._is_all(partition.run, reads) for reads in result.reads)
        )

    def _is_all(self, run: RunRef, reads: ReadSet) -> bool:
        """Report whether what was read of the epoch before is all that it has: it may have more subtasks since then.

        It is nothing of it where another epoch is the one before by now, since that which was read was given up.
        """
        read = reads.members[0].partition if reads.members else None
        if read is None or read.run in (run, OWN_RUN):
            return True
        if read.is_of_other_dataflow(self.run):
            return self._has_size(reads)
        if read.run != self.predecessor_of(run):
            return False
        if read.run not in self.earlier:
            return True
        topology = self.topology_of(read.run)
        # What it does not write any more is not compared by number: `_still_holds` tells whether that is history.
        if not topology.writes(read.stage, read.layout):
            return True
        return len(reads.members) == len(topology.partitions_of(read.stage, read.layout))

    def is_as_published(self, reads: ReadSet) -> bool:
        """Report whether what was read of a data set is what is published of it now, or is published no more."""
        return self._has_size(reads) and all(map(self.holds_published, reads.members))

    def _has_size(self, reads: ReadSet) -> bool:
        return len(self._published_of(reads.members[0].partition)) in (0, len(reads.members))

    def _published_of(self, read: PartitionId) -> Mapping[int, CurrentResult]:
        """Return what is published of an epoch of a data set that was read, by subtask; nothing if none is any more.

        It may be published in another layout since: equal digests mean equal rows in any.
        """
        if not self._by_epoch:
            for each, result in self.published.items():
                self._by_epoch.setdefault((each.run, each.stage), {})[each.subtask] = result
        return self._by_epoch.get((read.run, read.stage), {})

    def _is_history(self, read: PartitionId) -> bool:
        """Report whether an earlier run was moved to a declaration without what was read of it: it stays as it was.

        A stage that is written in another layout now can be read anew, but for a state, which is read in its own alone.
        """
        topology = self.topology_of(read.run)
        is_read_anew = topology.is_written(read.stage) and read.stage not in topology.states
        return not is_read_anew and not topology.writes(read.stage, read.layout)

    def _older_siblings(self, partition: PartitionId) -> tuple[PartitionId, ...]:
        return self._older.get((partition.run, partition.stage), ())

    def stages_of_two_codes(self) -> Iterator[tuple[CurrentResult, tuple[PartitionId, ...]]]:
        """Yield the newest result of each stage of the run that no one version has made, and those of older code."""
        yield from _stages_of_two_codes(each for each in self.results.values() if each.partition.is_of_own_run)

    def obstacles(self, partition: PartitionId) -> Iterator[Obstacle]:
        """Yield all that keeps the current result of `partition` from being read: first what makes it invalid.

        It is valid alone if none of its content comes before OLDER_SIBLING: others of its stage have to catch up then.
        """
        self._derive_validity()
        result, older = self.results.get(partition), self._older_siblings(partition)
        if result is None:
            yield Obstacle.NEVER_COMMITTED
            return
        if result.state is PartitionState.QUARANTINED:
            yield Obstacle.QUARANTINED
        if partition in older:
            yield Obstacle.OLDER_CODE
        if not self._is_made_of_valid(partition):
            yield Obstacle.STALE
        if older:
            yield Obstacle.OLDER_SIBLING
        if result.state is PartitionState.LOST:
            # A probe of its sizes would not find the damage, which a comparison of the bytes has found.
            yield Obstacle.DAMAGED if result.fault == Fault.DAMAGED.value else Obstacle.LOST
        if result.state is PartitionState.RELEASED:
            yield Obstacle.RELEASED

    def loss(self, partition: PartitionId, obstacle: Obstacle) -> Loss:
        """Return the loss of `partition`, whose current result, if there is one, has this obstacle."""
        result, run = self.results.get(partition), partition.run_id(self.run)
        attempt = "" if result is None else result.attempt
        names = (run, partition.stage, partition.subtask, partition.layout, attempt)
        new = self._new_version(result) if result is not None and obstacle is Obstacle.STALE else ""
        return Loss(*names, obstacle.fault, new or obstacle.value)

    def _new_version(self, result: CurrentResult) -> str:
        """Name an epoch of a data set of which another version is published than a result was made of, if there is.

        It may have been read for an input of it, in the same run.
        """
        for reads in result.reads:
            of = next((each.partition for each in reads.members), None)
            if of is not None and of.is_of_other_dataflow(self.run) and not self.is_as_published(reads):
                dataflow, _, epoch = of.run.partition("@")
                return f"{dataflow}.{of.stage} of {epoch} has another version since"
            for read in reads.members if of is not None and of.run == result.partition.run else ():
                before = self.results.get(read.partition)
                if before is not None and before.digest == read.digest and not self._valid.get(read.partition, False):
                    return self._new_version(before)
        return ""

    def with_older_siblings(self, partitions: tuple[PartitionId, ...]) -> tuple[PartitionId, ...]:
        """Return partitions, and those that have to be recomputed before these are valid, since their code is older."""
        self._derive_validity()
        if not self._older:
            return partitions
        older = (each for partition in partitions for each in self._older_siblings(partition))
        return tuple(dict.fromkeys((*partitions, *older)))

    def _in_order(self) -> Iterator[PartitionId]:
        """Yield all partitions: earlier runs first, producers first."""
        for run in (*sorted(self.earlier), OWN_RUN):
            for region in self.region_ids(run):
                yield from self.outputs(region)

    def _holds(self, reads: ReadSet) -> bool:
        """Report whether all partitions of a read set are valid and have the digests that were read."""
        known = self._holding.get(id(reads))
        if known is None:
            known = self._holding[id(reads)] = all(self._still_holds(read) for read in reads.members)
        return known

    def _still_holds(self, read: ReadResult) -> bool:
        run = read.partition.run
        if read.partition.is_of_other_dataflow(self.run):
            return self.holds_published(read)
        if run != OWN_RUN and (run not in self.earlier or self._is_history(read.partition)):
            return True
        current = self.results.get(read.partition)
        return current is not None and current.digest == read.digest and self._valid.get(read.partition, False)

    def holds_published(self, read: ReadResult) -> bool:
        """Report whether what was read of another dataflow is what it has published of that epoch, or has no more."""
        published = self._published_of(read.partition)
        current = published.get(read.partition.subtask)
        return not published if current is None else current.digest == read.digest

    def is_good(self, partition: PartitionId) -> bool:
        """Report whether `partition` is valid and not known to be missing."""
        return not any(self.obstacles(partition))

    def is_done(self, partition: PartitionId) -> bool:
        """Report whether `partition` is valid, and finished or released, so that nothing has to compute it."""
        return self.is_valid(partition) and self.results[partition].state in _DONE

    # Running regions

    def awaited_for(self, partition: PartitionId) -> frozenset[RegionId]:
        """Return the running regions that `partition` waits for: its producer, or those of its stale inputs."""
        self._derive_validity()
        for each in self._in_order() if not self._waits else ():
            self._waits[each] = self._derive_awaited(each)
        return self._waits.get(partition, frozenset())

    def _derive_awaited(self, partition: PartitionId) -> frozenset[RegionId]:
        producer = self.producer(partition)
        if self.is_coming(producer):
            return frozenset({producer})
        result = self.results.get(partition)
        stale = () if result is None else (reads for reads in result.reads if not self._holds(reads))
        missed = (read for reads in stale for read in reads.members if not self._still_holds(read))
        older = (self.producer(each) for each in self._older_siblings(partition))
        catching_up = (each for each in older if self.is_coming(each))
        return frozenset(
            chain(catching_up, (region for read in missed for region in self._waits.get(read.partition, ())))
        )

    def is_coming(self, region: RegionId) -> bool:
        """Report whether a region runs, or has failed finally; of an earlier run also if it has yet to begin.

        What has failed finally is awaited: cleared by Weir it would fail again, and a person has been asked already.
        """
        known = self.region(region)
        is_to_come = known.has_failed or not (known.newest_try or region.is_of_own_run)
        return known.is_running or (is_to_come and region not in self.void)


def _stages_of_two_codes(results: Iterable[CurrentResult]) -> Iterator[tuple[CurrentResult, tuple[PartitionId, ...]]]:
    """Yield the newest result of each stage that no one version has made, and those that its code has not made."""
    of_stage: dict[tuple[RunRef, str], list[CurrentResult]] = {}
    for result in results:
        of_stage.setdefault((result.partition.run, result.partition.stage), []).append(result)
    for found in of_stage.values():
        if not agreed(each.versions for each in found):
            newest = max(found, key=lambda each: (each.generation, each.result))
            yield newest, tuple(sorted(each.partition for each in found if newest.version not in each.versions))


class MissingContext(Exception):
    """The decision needs the state of an earlier run that was not loaded: load `run` too, and decide again."""

    def __init__(self, run: RunRef) -> None:
        self.run = run
        super().__init__(f"run {run} is not in the state that the decision was taken over")
