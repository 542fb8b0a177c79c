"""Defines the arguments and answers of the coordinator.

Invariant: an AssignedState has the files of the subtask's own key groups, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from weir.code.archive import Archive
from weir.dataflow import Dataflow
from weir.dataflow.state import State
from weir.execution.run_state import CurrentResult
from weir.formats.manifest import InputRead, Manifest, RowRange, StateFile, UpdateDigest
from weir.formats.region_job import CodeToRun, RegionJob, RegionReport
from weir.ledger.runs import PreviousRun, Run
from weir.restarts.strategy import RestartStrategy
from weir.store.probe import PartitionRef
from weir.topology.ids import AttemptId, Digest, Epoch, RunId
from weir.topology.regions import PartitionId, RegionId, Topology


@dataclass(frozen=True, slots=True)
class DeclaredCode:
    """A dataflow as a DAG file declares it now, and its code as the modules and files that it names have it now."""

    file: Path
    flow: Dataflow
    archive: Archive


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedState:
    """A keyed state as assigned to a subtask: files of its key groups, and per-update digests where they are known."""

    state: State
    key_groups: tuple[int, int]
    files: tuple[StateFile, ...]
    tallies: tuple[UpdateDigest, ...] | None
    expired_until: int | None
    is_rewritten: bool = False
    """The epoch writes all of the state, because its declaration has changed."""
    digest: Digest | None = None
    """What a blind epoch goes on from; None where it has to be exact."""
    rows: RowRange | None = None
    """How many rows there can be, where they are not counted."""


@dataclass(frozen=True, slots=True)
class TaskKey:
    """A task instance in Airflow, without its try."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


def region_of_task(task_prefix: str, key: TaskKey) -> RegionId:
    """Return the region of a task instance, by its name."""
    return RegionId(key.task_id.removeprefix(task_prefix), max(key.map_index, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginRequest:
    """A try that is about to start, with the DagRun's data interval and the dataflow of the current DAG file.

    `previous` is the newest earlier DagRun in Airflow, if the dataflow reads the epoch before. `schedule` names the
    DAG's timetable (empty: it has none), `zone` the time zone in which that divides time, `cadence` is `every` of its
    cadence.
    """

    key: TaskKey
    try_number: int
    max_tries: int
    ti_id: str
    dataflow: Dataflow
    task_prefix: str
    interval: tuple[datetime, datetime]
    session_url: str
    clear_number: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    previous: PreviousRun | None = None
    restart: RestartStrategy = field(default_factory=RestartStrategy.default)
    is_backfill: bool = False
    schedule: str = ""
    zone: str = "UTC"
    cadence: str | None = None
    deployed: Archive | None = None
    """The modules of the dataflow's functions as this process finds them; None where the try computes nothing."""


@dataclass(frozen=True, slots=True)
class SparkWork:
    """The Spark session of an attempt, for its interruption; `folder` is the attempt's, relative to the store."""

    attempt: AttemptId
    session_url: str
    session_id: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A registered try of a region."""

    id: AttemptId
    run: RunId
    region: RegionId
    try_number: int
    lineage: int
    session_id: str
    session_url: str
    code: CodeToRun | None = None
    generation: int = 0
    """That of its task in the run, of which the code is one."""
    deployed: str = ""
    """The version of its task's code that was deployed when it began."""
    has_waited: bool = False
    is_by_person: bool = False
    """True if a person has cleared its task, so that it runs."""
    clear_number: int = 0
    """How often a person had cleared tasks of the run when it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFiles:
    """An input partition as it is read: its number in the ledger, its manifest, its folder, and the key groups.

    The range of key groups is inclusive; None: all.
    """

    result: int
    manifest: Manifest
    folder: str
    key_groups: tuple[int, int] | None
    manifest_sha256: str

    def reference(self) -> PartitionRef:
        """Return the reference by which the store is probed."""
        found = self.manifest
        return PartitionRef(
            run=found.run,
            stage=found.stage,
            subtask=found.subtask,
            layout=found.layout,
            attempt=found.attempt,
            folder=self.folder,
            manifest_sha256=self.manifest_sha256,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The attempt has begun: interrupt the Spark work of earlier attempts, run `job`, then commit."""

    attempt: Attempt
    run: Run
    topology: Topology
    job: RegionJob
    reads: tuple[InputRead, ...]
    inputs: tuple[InputFiles, ...]
    interrupt: tuple[SparkWork, ...]
    states: Mapping[str, AssignedState] = field(default_factory=dict)
    """The keyed states that it starts from, by name."""
    replaced: Mapping[PartitionId, CurrentResult] = field(default_factory=dict)
    """The results in place of which it writes. No other attempt replaces them while it may commit."""
    code_note: str = ""
    """What a person should know of the code that it runs."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """An earlier try has committed the results: the task has only to stop `interrupt`."""

    attempt: Attempt
    summary: dict[str, Any]
    interrupt: tuple[SparkWork, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The results may be committed: the report with all checks, and the warnings of checks."""

    report: RegionReport
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The results are current. `summary` is for Airflow's UI; `owed` is the number of clears that follow from it.

    The `touched` runs, its own and the run that it has read, may have results that are no longer needed.
    """

    summary: dict[str, Any]
    owed: int
    touched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """The run is closed. `versions` maps each sink to the version that was published now (None: nothing changed)."""

    summary: dict[str, Any]
    versions: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Awaiting:
    """Begin again later: producers run, or the restart strategy's delay is not over. It does not use up a try.

    Begin at once when the wait of `attempt` is over by the ledger (`WaitingAttempts`); empty: only time is awaited.
    `is_for_target`: something outside of Weir is awaited, perhaps in vain, so that people have to see why.
    """

    seconds: float
    reason: str
    interrupt: tuple[SparkWork, ...] = ()
    attempt: str = ""
    is_for_target: bool = False


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The try before was killed, and the restart strategy allows no further one: fail."""

    reason: str
    interrupt: tuple[SparkWork, ...]


@dataclass(frozen=True, slots=True)
class NotInRecord:
    """The run is pinned to a dataflow without this task instance: the task succeeds with a note."""

    note: str


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Another DagRun of the DAG owns the epoch, or its run is sealed: the task is skipped with a note."""

    note: str


NotBegun = Awaiting | Exhausted | NotInRecord | PassedOver
"""The answers where a try does not go on: it waits, its restarts are exhausted, its run does not have it, or its run is
passed over."""

BeginOutcome = Begun | Adopted | NotBegun
"""The answers of the begin of a try."""

CloseOutcome = Published | NotBegun
"""The answers of the close of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTry:
    """A try of a task instance that has failed, with the restart strategy that decides about it.

    `ti_id` is Airflow's id of the try: a DagRun that was created again counts its tries from 1 again. `epoch` tells the
    run of a try that failed before it was registered; None where the DagRun has no data interval. `clear_number` is how
    often a person had cleared tasks of the DagRun.
    """

    dataflow: str
    key: TaskKey
    try_number: int
    ti_id: str
    error: BaseException
    strategy: RestartStrategy
    epoch: Epoch | None = None
    clear_number: int = 0


class ClearOutcome(Enum):
    """The outcome of the delivery of a pending clear."""

    CLEARED = "cleared"
    MISSING = "missing"
    """Airflow has no such task instance."""
    NEWER = "newer"
    """A newer try than the expected one has begun, and does what the clear was for."""
    UNFINISHED = "unfinished"
    """The expected try has not finished, and does what the clear was for."""
    SKIPPED = "skipped"
    """The task instance would be skipped again: its consumer fails with an error that names it."""
    ENDING = "ending"
    """The expected try has ended, but Airflow still calls it unfinished: deliver the clear later."""
    UNSEEN = "unseen"
    """Airflow has finished a newer try that the ledger does not know: that try is to be cleared."""
    REFUSED = "refused"

    @property
    def is_settled(self) -> bool:
        """Report whether the clear is no longer pending."""
        return self not in (ClearOutcome.ENDING, ClearOutcome.UNSEEN, ClearOutcome.REFUSED)


@dataclass(frozen=True, slots=True)
class DeliveredClear:
    """A pending clear after its delivery; `outcome` describes the result for people."""

    task: TaskKey
    settlement: ClearOutcome
    outcome: str
    reason: str

    def __str__(self) -> str:
        """Describe it in a line."""
        key = self.task
        return f"Pending clear of {key.task_id}[{key.map_index}] in {key.run_id}: {self.outcome} ({self.reason})"

    @property
    def is_settled(self) -> bool:
        """Report whether the clear is no longer pending."""
        return self.settlement.is_settled
