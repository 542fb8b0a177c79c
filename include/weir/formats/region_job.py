"""A Spark job and its report. Invariant: both are versioned JSON files, the only thing that task and Spark share.

There are three kinds of job: a region's computation, a compaction of its state, and a check of stored results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.dataflow.state import State
from weir.formats.checks import CheckReason, CheckReport, CheckToRun
from weir.formats.manifest import (
    OF_STORED_ROWS,
    ContentDigest,
    DataFile,
    RowRange,
    StageCopy,
    UpdateDigest,
    WriteEstimate,
)
from weir.formats.paths import LOADED, folder_of, result_folder
from weir.topology.ids import AttemptId, Digest, Epoch, RunId
from weir.topology.partitions import KeyFilter, Layout

JOB_NAME: Final = "job.json"
FAILURE_NAME: Final = "failure.json"

STOP_NAME: Final = "stop"
"""A file in an attempt's folder that stops the attempt's job: a driver that finds it ends at once."""


@dataclass(frozen=True, slots=True)
class PartitionToRead:
    """The exact files of one input partition, in Spark's spelling of their paths, and the attempt that wrote them.

    `run` is empty for the job's own run, else the id of another one. `layout` is empty for the layout of its input,
    else the id of another one.
    """

    stage: str
    subtask: int
    files: tuple[str, ...]
    attempt: str = ""
    run: str = ""
    layout: str = ""


@dataclass(frozen=True, slots=True)
class StateFileToRead:
    """A file of keyed state, in Spark's spelling of its path; see StateFile. `rows` and `bytes` are those in use."""

    path: str
    epoch: Epoch
    key_groups: tuple[int, int]
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedState:
    """The content that a partition of keyed state had before its epoch was computed again: what it is compared with.

    The files exist. `expired_until` is that of the epoch as it was computed then.
    """

    digest: Digest
    files: tuple[StateFileToRead, ...]
    expired_until: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateToRead:
    """The state that a stage goes on from; of keyed state its files, oldest epoch first, and tallies of its live rows.

    Lists and broadcast state are the partitions of their input, by subtask; they have nothing here but `state`.

    A row is visible if its `updated` is above `expired_until`, in seconds since 1970 (None: no time to live); `updated`
    here is that of the rows which this epoch updates. `tallies` is None where they are to be counted anew, since the
    partition covers other key groups than the one that it goes on from, or since they are not known; `rows` is how many
    there can be, where that is known. `epoch` is the one that goes on from it (None: it is only read); a blind epoch
    goes on from `digest`, and where that is None, the epoch has to be exact. With `is_full` all of the state is
    written, not only what has changed.
    """

    state: State
    files: tuple[StateFileToRead, ...] = ()
    tallies: tuple[UpdateDigest, ...] | None = None
    updated: int = 0
    expired_until: int | None = None
    is_full: bool = False
    epoch: Epoch | None = None
    digest: Digest | None = None
    rows: RowRange | None = None
    replaced: ReplacedState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredToCheck:
    """A stored partition to check, for example a restored input that was not checked since: its record.

    `files` are those of a plain result, `state` the whole partition of a keyed state. `digest`, `rows` and
    `spark_schema` are the recorded ones; `key_groups` is the inclusive range of those that may be in it (None: any).
    Where the state only grows, it has `at_least` as many rows.
    """

    run: RunId
    stage: str
    subtask: int
    layout: Layout
    attempt: AttemptId
    digest: Digest
    rows: int
    spark_schema: str
    files: tuple[str, ...] = ()
    state: StateToRead | None = None
    key_groups: tuple[int, int] | None = None
    at_least: int | None = None
    digest_rule: DigestRule = PLAIN_RULE
    checks: tuple[CheckToRun, ...] = ()
    """Suites besides what is built in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputToRead:
    """An input from the store: partitions, recorded schema, and the inclusive range of key groups to read (None: all).

    Partitions in another layout are read whole. `filter` are the rows to keep of those that are (None: all).
    `declared_schema` is a DDL string, or empty. Names and types of the recorded schema must be those of the declared
    one; without partitions the input is empty and has the declared schema.
    """

    argument: str
    layout: Layout
    spark_schema: str
    partitions: tuple[PartitionToRead, ...]
    key_groups: tuple[int, int] | None = None
    filter: KeyFilter | None = None
    declared_schema: str = ""
    state: StateToRead | None = None
    """Given where the stage keeps this input as its state: the function is handed a handle, not a DataFrame."""
    restored: tuple[RestoredToCheck, ...] = ()
    """Partitions of it that are to be checked before anything is computed."""


@dataclass(frozen=True, slots=True)
class OutputToWrite:
    """A result partition to write: the layout, the attempt's own folder, and the version of its digest.

    `folder` is relative to the store; `spark_folder` is the same in Spark's spelling. Neither exists yet.
    """

    layout: Layout
    folder: str
    spark_folder: str
    digest_version: int = OF_STORED_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeToWrite:
    """Files of a keyed state to merge into one sorted run: those of `state`, each cut to its key groups.

    Where `is_bottom` there are no older ones: deleted and expired rows are left out. `parts` is how many files to
    write, apart by key group. `folder` is relative to the store; `spark_folder` is the same in Spark's spelling.
    """

    stage: str
    layout: Layout
    state: StateToRead
    is_bottom: bool
    parts: int
    folder: str
    spark_folder: str


@dataclass(frozen=True, slots=True)
class CopyToWrite:
    """The copy of a stage's rows to write, and the fingerprint of their sources.

    `folder` is relative to the store; `spark_folder` is the same in Spark's spelling. Neither exists yet. `binding` is
    the path of the description of a source's copy: of all attempts that read the source, the first one creates it, and
    the others read that one's rows. It is empty for the copy of a cached stage, which is described in its own folder.
    """

    folder: str
    spark_folder: str
    made_from: str
    binding: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyToRead:
    """The copy of a stage's rows that an earlier attempt wrote: made from the same, and right byte for byte.

    It stands for the stage if `code` and `session` are the job's own, which only the job knows; that of a source always
    does. `inputs` and `copies` are those of its StageCopy.
    """

    attempt: AttemptId
    folder: str
    files: tuple[str, ...]
    spark_schema: str
    code: str
    session: dict[str, str]
    inputs: tuple[str, ...]
    copies: tuple[str, ...]

    @classmethod
    def of(cls, copy: StageCopy, folder: str, spark_url: Callable[[str], str]) -> CopyToRead:
        """Return what a job reads of a described copy in a folder; `spark_url` spells paths of the store for Spark."""
        return cls(
            attempt=copy.attempt,
            folder=folder,
            files=tuple(spark_url(f"{folder}/{file.name}") for file in copy.files),
            spark_schema=copy.spark_schema,
            code=copy.code,
            session=dict(copy.session),
            inputs=copy.inputs,
            copies=copy.copies,
        )


@dataclass(frozen=True, slots=True)
class ApplicationToRun:
    """The arguments of a stage's application, with {{ ... }} in them, and its main class (empty: as it says itself)."""

    arguments: tuple[str, ...]
    main_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageToRun:
    """One stage of the region, in topological order.

    `pipelined` maps an argument to the stage of the same region that feeds it, also over a cached exchange. `function`
    is "module:function", or the path of a SQL file or an application in the archive of the code, and empty for a sink:
    its rows are those of its one pipelined input. `digest` is the rule of its rows'
    digest. Where `copy` is given, the stage's rows are written there, and read from there by later stages, unless
    `resume` has them already; where `is_persisted`, Spark keeps them until the attempt ends.
    """

    name: str
    function: str
    is_source: bool
    subtask: int
    parallelism: int
    pipelined: dict[str, str]
    inputs: tuple[InputToRead, ...]
    outputs: tuple[OutputToWrite, ...]
    split: Any = None
    resolved: str = ""
    """Of a source with splits: the fingerprint of those of all subtasks."""
    digest: DigestRule = PLAIN_RULE
    keeps_state_of: str = ""
    """Only of a state: the stage whose handle of this name has its content."""
    copy: CopyToWrite | None = None
    resume: CopyToRead | None = None
    is_persisted: bool = False
    checks: tuple[CheckToRun, ...] = ()
    application: ApplicationToRun | None = None
    is_vouched_for: bool = False
    """Who declared it says that its rows depend on its inputs or split, its code and what it looks at of the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeToRun:
    """The code of a task: its version, and the archive to import it from, by fingerprint and path in the store."""

    version: str
    archive: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob:
    """Identify the attempt that a Spark job belongs to, and where the job works: the fields of all kinds of job.

    `interval` is in UTC, ISO 8601, end exclusive, `zone` the time zone of the schedule. `store` is a URL,
    `report` a path relative to it.
    """

    attempt: AttemptId
    dataflow: str
    epoch: Epoch
    interval: tuple[str, str]
    region: str
    subtask: int
    store: str
    report: str
    spark_conf: dict[str, str] = field(default_factory=dict)
    zone: str = "UTC"

    @property
    def folder(self) -> str:
        """The attempt's own folder, relative to the store: job, report, and the file that stops a running job."""
        return folder_of(self.report)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultToTake:
    """What another attempt has written, which was made of all that the coordinator knows of the job.

    It stands for the job's outputs, in their order, if `code` and `session` are the job's own, which only the job
    knows. `looked_at` is that of its report.
    """

    attempt: AttemptId
    run: RunId
    code: str
    session: dict[str, str]
    looked_at: tuple[str, ...]
    outputs: tuple[OutputReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionJob(SparkJob):
    """Compute the stages of a region, or take what another attempt has made of the same.

    `notes` are for the job's log: what was found while the job was described. `made_of` is the key of all that its rows
    are made of, but for what its functions look at in their context (empty: that is not known).
    """

    stages: tuple[StageToRun, ...]
    parameters: dict[str, Any]
    notes: tuple[str, ...] = ()
    code: CodeToRun | None = None
    """None only where nothing is imported, as in tests without an archive: engines refuse it."""
    revision: int = 0
    """The revision of the dataflow in the ledger that its writer had last seen committed (0: none)."""
    made_of: str = ""
    take: ResultToTake | None = None

    @property
    def context(self) -> dict[str, str]:
        """What differs between epochs of what functions may look at in their context, by name and as text."""
        return {"epoch": self.epoch, "interval": "/".join(self.interval), "zone": self.zone}


def application_of(job: SparkJob) -> StageToRun | None:
    """Return the stage of a job that an application computes; it is the only one that computes anything."""
    stages = job.stages if isinstance(job, RegionJob) else ()
    return next((stage for stage in stages if stage.application is not None), None)


def staging_of(job: SparkJob, stage: StageToRun) -> str:
    """Return the attempt's own folder, relative to the store, in which an application finds inputs and writes."""
    return result_folder(job.dataflow, job.epoch, stage.name, LOADED, job.subtask, job.attempt)


def staged_input(staging: str, argument: str) -> str:
    """Return the folder with the rows of an input."""
    return f"{staging}/{_INPUTS}/{argument}"


def staged_output(staging: str) -> str:
    """Return the folder that an application writes."""
    return f"{staging}/{_OUTPUT}"


_INPUTS: Final = "inputs"
_OUTPUT: Final = "output"


def has_source_copy(stage: StageToRun) -> bool:
    """Report whether the rows of a source are read from the copy that an earlier attempt has made of them."""
    return stage.resume is not None and stage.copy is not None and stage.copy.binding != ""


def connections_of(job: SparkJob) -> tuple[str, ...]:
    """Return the ids of the Airflow connections that the splits of the sources that a job asks name as `conn_id`."""
    splits = [stage.split for stage in job.stages if not has_source_copy(stage)] if isinstance(job, RegionJob) else []
    return tuple(sorted({str(each["conn_id"]) for each in splits if isinstance(each, dict) and each.get("conn_id")}))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionJob(SparkJob):
    """Merge sorted runs of the keyed state that a region keeps. The report has an output for each merge, in order."""

    merges: tuple[MergeToWrite, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckJob(SparkJob):
    """Check the rows of stored results. The report has the checks of each partition, and no outputs.

    `why` is the reason: a restore test, or a command of a user.
    """

    to_check: tuple[RestoredToCheck, ...]
    why: CheckReason


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputReport:
    """One result partition as it was written."""

    stage: str
    layout: Layout
    folder: str
    spark_schema: str
    digest: ContentDigest
    files: tuple[DataFile, ...]
    state: StateReport | None = None


@dataclass(frozen=True, slots=True)
class StateReport:
    """The content of a partition of keyed state after the epoch.

    `tallies` are those of its live rows, by their last update, and make its digest; None where they are not known,
    and `rows` is given. `changed` rows were written. With `is_whole` the written files are all of it: nothing of the
    epoch before is used any more. `estimate` is given where it has decided that. `rows_before` are those of the epoch
    before that are visible and of this partition's key groups.
    """

    tallies: tuple[UpdateDigest, ...] | None
    changed: int
    is_whole: bool = False
    rows_before: int | None = None
    rows: RowRange | None = None
    estimate: WriteEstimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionReport:
    """The result of a job: outputs, the version of the code that ran, the session's settings, and seconds a step.

    `resumed` names the stages that were read from copies of earlier attempts instead of being computed; all outputs are
    copies of those of the attempt `taken`, if there is one. `looked_at` are the names in `RegionJob.context` that the
    functions have looked at; None where they may have looked at more. Where a check of a restored input has failed
    there are no outputs.
    """

    attempt: AttemptId
    outputs: tuple[OutputReport, ...]
    code: str
    session: dict[str, str]
    metrics: dict[str, float]
    resumed: tuple[str, ...] = ()
    checks: tuple[CheckReport, ...] = ()
    taken: str = ""
    looked_at: tuple[str, ...] | None = None
