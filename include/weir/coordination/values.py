"""What an attempt goes on from of one keyed state. Invariant: the files are those of the subtask's own key groups.

What goes into the coordinator and comes out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from weir.dataflow import Dataflow
from weir.dataflow.state import State
from weir.execution.failure_class import FailureClass
from weir.formats.manifest import InputRead, Manifest, StateFile, UpdateDigest
from weir.formats.region_job import RegionJob, RegionReport
from weir.ledger.runs import PreviousRun, Run
from weir.restarts.answer import Refusal
from weir.restarts.strategy import RestartStrategy
from weir.store.probe import PartitionRef
from weir.topology.ids import AttemptId, RunId
from weir.topology.regions import RegionId, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedState:
    """What a subtask goes on from of one state: files of its key groups, and their tallies where they are known."""

    state: State
    key_groups: tuple[int, int]
    files: tuple[StateFile, ...]
    tallies: tuple[UpdateDigest, ...] | None
    expired_until: int | None
    is_rewritten: bool = False
    """Whether the epoch writes all of it, because it is declared otherwise than before."""


@dataclass(frozen=True, slots=True)
class TaskKey:
    """A task instance in Airflow; its try comes beside it."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginRequest:
    """A try that is about to start: the DagRun's data interval, and the dataflow as the DAG file says it now.

    `previous` is the newest earlier DagRun that Airflow knows, if the dataflow reads the epoch before.
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


@dataclass(frozen=True, slots=True)
class SparkWork:
    """Where an attempt computes, so that anybody can interrupt it; `folder` is the attempt's, relative to the store."""

    attempt: AttemptId
    session_url: str
    session_id: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of one region, registered."""

    id: AttemptId
    run: RunId
    region: RegionId
    try_number: int
    lineage: int
    session_id: str
    session_url: str


@dataclass(frozen=True, slots=True)
class InputFiles:
    """An input partition as it is read: its manifest, its folder, and the inclusive range of key groups (None: all)."""

    manifest: Manifest
    folder: str
    key_groups: tuple[int, int] | None
    manifest_sha256: str

    def reference(self) -> PartitionRef:
        """How the store is asked for it."""
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
    """Go on: stop the work of `interrupt` (earlier attempts), run `job`, then commit."""

    attempt: Attempt
    run: Run
    topology: Topology
    job: RegionJob
    reads: tuple[InputRead, ...]
    inputs: tuple[InputFiles, ...]
    interrupt: tuple[SparkWork, ...]
    states: Mapping[str, AssignedState] = field(default_factory=dict)
    """The keyed states that it goes on from, by name."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """An earlier try has committed what this one would compute: there is nothing to do but to stop `interrupt`."""

    attempt: Attempt
    summary: dict[str, Any]
    interrupt: tuple[SparkWork, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What was written may be committed: the report with all checks, and what they have found that only warns."""

    report: RegionReport
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The results are current. `summary` is for Airflow's UI; `owed` clears follow from what has changed.

    In the `touched` runs there may be results that nobody needs any more: its own, and the one that it has read.
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
    """Come again later: producers are at work, or the restart strategy's delay is not over. Costs no try."""

    seconds: float
    reason: str
    interrupt: tuple[SparkWork, ...] = ()


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The try before died silently, and the restart strategy allows no other: fail."""

    reason: str
    interrupt: tuple[SparkWork, ...]


@dataclass(frozen=True, slots=True)
class NotInRecord:
    """The run is pinned to a dataflow without this task instance: it ends, successful, and says so."""

    note: str


NotBegun = Awaiting | Exhausted | NotInRecord
"""The answers where a try does not go on: it waits, its restarts are exhausted, or its run does not have it."""

BeginOutcome = Begun | Adopted | NotBegun
"""The answers of the begin of a try."""

CloseOutcome = Published | NotBegun
"""The answers of the close of a run."""


class Action(Enum):
    """What becomes of a failed try."""

    RETRY = "retry"
    FAIL = "fail"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDecision:
    """Whether and when a failed task instance runs again, and why.

    `attempt` is empty where none was booked. Of an application's failure, `failures` counts those of the task, this
    one among them, and `refusal` says what allows no other try; the delay is the strategy's then, too.
    """

    action: Action
    delay_seconds: float
    reason: str
    attempt: str = ""
    failure: FailureClass | None = None
    refusal: Refusal | None = None
    failures: int = 0


class ClearOutcome(Enum):
    """What became of an owed clear."""

    CLEARED = "cleared"
    MISSING = "missing"
    """Airflow has no such task instance."""
    NEWER = "newer"
    """A newer try than the expected one has begun, and does what the clear was to bring about."""
    UNFINISHED = "unfinished"
    """The expected try itself is still to do its work."""
    SKIPPED = "skipped"
    """It would be skipped again: its consumer fails, and names it."""
    ENDING = "ending"
    """The expected try has ended, but Airflow does not know yet: later."""
    UNSEEN = "unseen"
    """Airflow has finished a newer try that the ledger knows nothing of: that one is to be cleared."""
    REFUSED = "refused"

    @property
    def is_settled(self) -> bool:
        """Whether nothing is owed any more."""
        return self not in (ClearOutcome.ENDING, ClearOutcome.UNSEEN, ClearOutcome.REFUSED)


@dataclass(frozen=True, slots=True)
class DeliveredClear:
    """What became of one owed clear; `outcome` says it to a person."""

    task: TaskKey
    settlement: ClearOutcome
    outcome: str
    reason: str

    @property
    def is_settled(self) -> bool:
        """Whether nothing is owed any more."""
        return self.settlement.is_settled
