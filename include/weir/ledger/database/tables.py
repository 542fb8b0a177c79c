"""Defines the ledger's tables.

Invariants, as unique indexes or constraints that no code path can break: a partition has at most one current result;
an epoch is owned by at most one run; a dataflow has at most one checkpoint of a number. Times are UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
    cast,
    func,
    text,
)
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from weir.formats.checkpoint import SnapshotKind
from weir.formats.paths import checkpoint_number
from weir.ledger.database.columns import ADDRESS, LARGE, Prose, UtcDateTime
from weir.topology.ids import AttemptId, Digest, Epoch, RunId, is_task_try

NO_DAG = ""
"""The DAG of a run that was restored and never computed here."""
_PARTITION: Final = ("run", "stage", "subtask", "layout")


def _only(*name_and_columns: str, where: str, sqlite_where: str = "", unique: bool = False) -> Index:
    """Return an index of the rows where a condition holds; of most tables they are few, however many rows it gets."""
    on_sqlite = text(sqlite_where or where)
    return Index(*name_and_columns, unique=unique, sqlite_where=on_sqlite, postgresql_where=text(where))


class Table(DeclarativeBase):
    """The declarative base of all tables."""

    type_annotation_map = {dict[str, Any]: JSON, list[Any]: JSON, datetime: UtcDateTime}  # noqa: RUF012 - SQLAlchemy's


class DataflowRow(Table):
    """A dataflow; its row is what writing transactions lock. A new lineage shuts out all older attempts.

    Each writing transaction raises `revision`. `is_behind` says that the ledger has lost commits of the dataflow and
    has not caught up yet; `timeline` is that of the server when it last had (None: not known). No task of an epoch
    after `stopped_after` begins.
    """

    __tablename__ = "dataflow"
    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    lineage: Mapped[int] = mapped_column(Integer, default=1)
    store_id: Mapped[str] = mapped_column(String(64))
    first_epoch: Mapped[Epoch | None] = mapped_column(String(32))
    revision: Mapped[int] = mapped_column(LARGE, default=1)
    is_behind: Mapped[bool] = mapped_column(Boolean, default=False)
    timeline: Mapped[str | None] = mapped_column(String(8))
    stopped_after: Mapped[Epoch | None] = mapped_column(String(32))


class RunRow(Table):
    """The run that owns an epoch, pinned to the dataflow that its first attempt saw (empty: not pinned).

    `closed_result` is the highest number of its results when the closing task last committed. `released_at` is since
    when all is released that ever will be, `deleted_at` since when Airflow has no such run, and `expired_at` since when
    its manifests and records are deleted, too. `abandoned` are its attempts from before its last pin; with
    `is_record_due` its record in the store has to be written before an attempt of it computes. `archive` is the
    fingerprint of the code that it is pinned to, and `restored_in` the lineage that its last restore began: generations
    of attempts of earlier lineages do not count. `sealed_at` is since when it is sealed, `sealed_why` the reason, and
    `sealed_clears` how often Airflow had cleared its DagRun then.
    """

    __tablename__ = "run"
    __table_args__ = (
        UniqueConstraint("dataflow", "epoch"),
        Index("run_in_airflow", "dag_id", "run_id"),
        Index("runs_by_age", "dataflow", "created_at"),
        Index("runs_by_predecessor", "dataflow", "predecessor"),
        _only("open_runs", "dataflow", "epoch", where="closed_at IS NULL"),
        _only("runs_to_release", "dataflow", "epoch", where="released_at IS NULL"),
        _only("records_due", "dataflow", where="is_record_due", sqlite_where="is_record_due = 1"),
    )
    id: Mapped[RunId] = mapped_column(String(120), primary_key=True)
    dataflow: Mapped[str] = mapped_column(ForeignKey("dataflow.name"))
    epoch: Mapped[Epoch] = mapped_column(String(32))
    interval_start: Mapped[datetime]
    interval_end: Mapped[datetime]
    dag_id: Mapped[str] = mapped_column(String(250))
    run_id: Mapped[str] = mapped_column(String(250))
    task_prefix: Mapped[str] = mapped_column(String(250))
    pinned: Mapped[dict[str, Any] | None]
    parameters: Mapped[dict[str, Any]]
    predecessor: Mapped[Epoch | None] = mapped_column(String(32))
    created_at: Mapped[datetime]
    closed_at: Mapped[datetime | None]
    closed_result: Mapped[int | None]
    released_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    abandoned: Mapped[list[Any] | None]
    is_record_due: Mapped[bool] = mapped_column(Boolean, default=False)
    archive: Mapped[str | None] = mapped_column(String(64))
    restored_in: Mapped[int] = mapped_column(Integer, default=0)
    sealed_at: Mapped[datetime | None]
    sealed_why: Mapped[str | None] = mapped_column(Prose)
    sealed_clears: Mapped[int | None]

    @hybrid_property
    def is_pinned(self) -> bool:
        """Report whether a task of the run has begun, and the run is pinned to its dataflow since."""
        return self.pinned is not None

    @is_pinned.inplace.expression
    @classmethod
    def _is_pinned_in_sql(cls) -> ColumnElement[bool]:
        # A column of JSON has no dataflow as JSON's null, which is a value to the database.
        return func.coalesce(cast(cls.pinned, Text), "null") != "null"

    @hybrid_property
    def is_given_up(self) -> bool:
        """Report whether no task of the run has begun, and its DagRun was deleted: later epochs go on without it."""
        return not self.is_pinned and self.deleted_at is not None

    @is_given_up.inplace.expression
    @classmethod
    def _is_given_up_in_sql(cls) -> ColumnElement[bool]:
        return ~cls.is_pinned & cls.deleted_at.is_not(None)

    @hybrid_property
    def is_passed_over(self) -> bool:
        """Report whether it was given up or sealed: later epochs go on without it."""
        return self.is_given_up or self.sealed_at is not None

    @is_passed_over.inplace.expression
    @classmethod
    def _is_passed_over_in_sql(cls) -> ColumnElement[bool]:
        return cls.is_given_up | cls.sealed_at.is_not(None)

    @hybrid_property
    def has_dag_run(self) -> bool:
        """Report whether a DagRun computes the run; one that was only restored has none."""
        return self.dag_id != NO_DAG


class AttemptRow(Table):
    """One try of one region; `awaited` is why it waits for data sets, `made_of` a key (`weir.formats.made_of`).

    `max_tries` grows with each clear of the task instance unless it was running; the run's `clear_number` then does.
    `newest_result` is the highest number of a result when it was registered, `code` the version of what `archive` has.
    """

    __tablename__ = "attempt"
    __table_args__ = (
        UniqueConstraint("run", "region", "subtask", "try_number"),
        Index("attempts_in_state", "state"),
        Index("attempts_by_begin", "began_at"),
        Index("attempts_by_end", "ended_at"),
        Index("attempts_made_of", "made_of"),
    )
    id: Mapped[AttemptId] = mapped_column(String(40), primary_key=True)
    run: Mapped[RunId] = mapped_column(ForeignKey("run.id"))
    region: Mapped[str] = mapped_column(String(250))
    subtask: Mapped[int]
    task_id: Mapped[str] = mapped_column(String(250))
    map_index: Mapped[int]
    try_number: Mapped[int]
    max_tries: Mapped[int]
    clear_number: Mapped[int] = mapped_column(Integer, default=0)
    ti_id: Mapped[str] = mapped_column(String(64))
    lineage: Mapped[int]
    origin: Mapped[str] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(20))
    session_id: Mapped[str] = mapped_column(String(64))
    session_url: Mapped[str] = mapped_column(ADDRESS)
    began_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    heard_at: Mapped[datetime | None]
    waits: Mapped[int] = mapped_column(Integer, default=0)
    failure: Mapped[str | None] = mapped_column(String(20))
    failure_cause: Mapped[str | None] = mapped_column(String(20))
    error: Mapped[str | None] = mapped_column(Prose)
    labels: Mapped[dict[str, Any] | None]
    metrics: Mapped[dict[str, Any] | None]
    code: Mapped[str | None] = mapped_column(String(80))
    archive: Mapped[str | None] = mapped_column(String(64))
    generation: Mapped[int | None]
    newest_result: Mapped[int] = mapped_column(Integer, default=0)
    awaited: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    made_of: Mapped[str | None] = mapped_column(String(64))

    @hybrid_property
    def is_of_dag_run(self) -> bool:
        """Report whether it is a try of the run's present DagRun: not of a deleted one, and not of a restore."""
        return is_task_try(self.try_number)


class FailedBeginRow(Table):
    """The newest try of a task instance that failed before it was registered: it has no attempt, and maybe no run."""

    __tablename__ = "failed_begin"
    __table_args__ = (UniqueConstraint("run_id", "dag_id", "task_id", "map_index"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(String(60))
    epoch: Mapped[Epoch | None] = mapped_column(String(32))
    dag_id: Mapped[str] = mapped_column(String(250))
    run_id: Mapped[str] = mapped_column(String(250))
    task_id: Mapped[str] = mapped_column(String(250))
    map_index: Mapped[int]
    try_number: Mapped[int]
    failed_at: Mapped[datetime]
    failure: Mapped[str] = mapped_column(String(20))
    error: Mapped[str] = mapped_column(Prose)


class ResultRow(Table):
    """A result partition of one attempt, and its state.

    `made_from` is a fingerprint of its inputs; `differs_from` the attempt whose result from equal inputs differs;
    `fault` the value of the Fault that was found in it. `deleted_at` is since when its data files are deleted,
    `verified_at` when all of its bytes were last compared. `versions` are those of code that are known to make it.
    """

    __tablename__ = "result"
    __table_args__ = (
        UniqueConstraint("attempt", "stage", "subtask", "layout"),
        Index("results_of_run", "run", "state"),
        Index("results_to_delete", "state", "deleted_at"),
        _only("one_current_result", *_PARTITION, where="is_current", sqlite_where="is_current = 1", unique=True),
        _only("old_results", "state", "run", where="is_current IS false", sqlite_where="is_current IS 0"),
        {"sqlite_autoincrement": True},  # a newer result has a higher number, also where old ones were deleted
    )
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run: Mapped[RunId] = mapped_column(ForeignKey("run.id"))
    stage: Mapped[str] = mapped_column(String(60))
    subtask: Mapped[int]
    layout: Mapped[str] = mapped_column(String(120))
    attempt: Mapped[AttemptId] = mapped_column(ForeignKey("attempt.id"))
    is_current: Mapped[bool] = mapped_column(Boolean)
    state: Mapped[str] = mapped_column(String(20))
    state_reason: Mapped[str] = mapped_column(Prose, default="")
    state_at: Mapped[datetime]
    folder: Mapped[str] = mapped_column(String(500))
    manifest_sha256: Mapped[str] = mapped_column(String(64))
    digest: Mapped[Digest] = mapped_column(String(200))
    rows: Mapped[int] = mapped_column(LARGE)
    bytes: Mapped[int] = mapped_column(LARGE)
    made_from: Mapped[str | None] = mapped_column(String(64))
    differs_from: Mapped[AttemptId | None] = mapped_column(String(40))
    fault: Mapped[str | None] = mapped_column(String(20))
    deleted_at: Mapped[datetime | None]
    verified_at: Mapped[datetime | None]
    versions: Mapped[list[Any]]


class ResultEventRow(Table):
    """A state transition of a result after it was finished, with its time and its reason."""

    __tablename__ = "result_event"
    __table_args__ = (Index("events_of_result", "result"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    result: Mapped[int] = mapped_column(ForeignKey("result.id"))
    state: Mapped[str] = mapped_column(String(20))
    at: Mapped[datetime]
    reason: Mapped[str] = mapped_column(Prose, default="")


class ReadSetRow(Table):
    """`[subtask, attempt, digest]` of partitions that were read together: their readers share it: p + q, not p * q."""

    __tablename__ = "read_set"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    members: Mapped[list[Any]]


class ConsumptionRow(Table):
    """An input of an attempt that has committed, or whose rows were refused."""

    __tablename__ = "consumption"
    __table_args__ = (Index("consumers_of", "run", "stage", "layout"), Index("readers_of_set", "read_set"))
    attempt: Mapped[AttemptId] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    argument: Mapped[str] = mapped_column(String(200), primary_key=True)
    run: Mapped[RunId] = mapped_column(String(120), primary_key=True)
    stage: Mapped[str] = mapped_column(String(60), primary_key=True)
    layout: Mapped[str] = mapped_column(String(120), primary_key=True)
    read_set: Mapped[str] = mapped_column(ForeignKey("read_set.id"))


class SourceSplitRow(Table):
    """The splits of a source in a run (`RecordedRange`), the bytes of copies by subtask, and what is `late`."""

    __tablename__ = "source_split"
    run: Mapped[str] = mapped_column(ForeignKey("run.id"), primary_key=True)
    stage: Mapped[str] = mapped_column(String(60), primary_key=True)
    splits: Mapped[list[Any]]
    attempt: Mapped[str] = mapped_column(String(40))
    resolved_at: Mapped[datetime]
    position: Mapped[dict[str, Any] | None]
    base: Mapped[str | None] = mapped_column(String(120), index=True)
    pinned_to: Mapped[str] = mapped_column(String(16), default="")
    copies: Mapped[dict[str, Any] | None]
    generation: Mapped[int] = mapped_column(Integer, default=1)
    late: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class FailoverRow(Table):
    """A decision to restart regions: its cause, and the plan as it was applied.

    `incident` is the failover that it belongs to; the first of an incident has none. `is_told` says that the note of
    the run's DagRun tells what has come of it.
    """

    __tablename__ = "failover"
    __table_args__ = (Index("failovers_of_run", "run"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run: Mapped[RunId] = mapped_column(ForeignKey("run.id"))
    attempt: Mapped[AttemptId] = mapped_column(String(40))
    region: Mapped[str] = mapped_column(String(250))
    subtask: Mapped[int]
    decided_at: Mapped[datetime]
    cause: Mapped[str] = mapped_column(Prose)
    plan: Mapped[dict[str, Any]]
    kind: Mapped[str] = mapped_column(String(20))
    labels: Mapped[dict[str, Any] | None]
    incident: Mapped[int | None]
    is_told: Mapped[bool] = mapped_column(Boolean, default=False)


class PendingClearRow(Table):
    """A task instance that has to be cleared in Airflow; recorded with the decision, delivered by any later process.

    A void clear had no effect: Airflow calls the task instance finished at `found_try`, but it committed nothing.
    `sends` is the number of deliveries that have, or may have, cleared it: 0 where somebody else had done so before.
    `code` is the value of the RepairCode that a person has chosen for its try (None: that of what Weir repairs), and
    `newest_result` the highest number of a result when it was decided.
    """

    __tablename__ = "pending_clear"
    __table_args__ = (
        Index("pending_of_region", "run", "region", "subtask"),
        Index("pending_of_failover", "failover"),
        Index("pending_now", "settled_at", "dataflow"),
    )
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(String(60))
    run: Mapped[RunId] = mapped_column(ForeignKey("run.id"))
    region: Mapped[str] = mapped_column(String(250))
    subtask: Mapped[int]
    dag_id: Mapped[str] = mapped_column(String(250))
    run_id: Mapped[str] = mapped_column(String(250))
    task_id: Mapped[str] = mapped_column(String(250))
    map_index: Mapped[int]
    expected_try: Mapped[int]
    reason: Mapped[str] = mapped_column(Prose)
    failover: Mapped[int | None] = mapped_column(ForeignKey("failover.id"))
    created_at: Mapped[datetime]
    settled_at: Mapped[datetime | None]
    outcome: Mapped[str | None] = mapped_column(Prose)
    found_try: Mapped[int | None]
    is_void: Mapped[bool] = mapped_column(Boolean, default=False)
    sends: Mapped[int] = mapped_column(Integer, default=0)
    code: Mapped[str | None] = mapped_column(String(20))
    newest_result: Mapped[int] = mapped_column(Integer, default=0)


class LeaseRow(Table):
    """A reader's claim on a result: it is not released before the lease ends, by the database's clock."""

    __tablename__ = "lease"
    __table_args__ = (Index("leases_of_result", "result"), Index("leases_of_holder", "holder"))
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    result: Mapped[int] = mapped_column(ForeignKey("result.id"))
    holder: Mapped[str] = mapped_column(String(120))
    expires_at: Mapped[datetime]


UNSETTLED: Final = "expired_at IS NULL AND (version > 1 OR published_at IS NULL OR expiring_at IS NOT NULL)"
"""Of publications: one that has replaced another, is not complete, or is about to be deleted."""


class PublicationRow(Table):
    """A version of a published data set; the highest completed version of an epoch is what readers see.

    `folders` are those of its partitions; its pointer may be deleted since `expiring_at`, and is since `expired_at`.
    Provisional rows, which are no version, have `lacks`: what their run had yet to do; they are never `published_at`.
    """

    __tablename__ = "publication"
    __table_args__ = (
        UniqueConstraint("run", "sink", "version"),
        _only("live_publications", "published_at", where="expired_at IS NULL AND published_at IS NOT NULL"),
        _only("unsettled_publications", "run", where=UNSETTLED),
        _only("provisional_publications", "run", where="expired_at IS NULL AND lacks IS NOT NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run: Mapped[RunId] = mapped_column(ForeignKey("run.id"))
    sink: Mapped[str] = mapped_column(String(60))
    version: Mapped[int]
    attempt: Mapped[AttemptId] = mapped_column(String(40))
    digest: Mapped[str] = mapped_column(Text)
    pointer: Mapped[str] = mapped_column(String(500))
    published_at: Mapped[datetime | None]
    folders: Mapped[list[Any]]
    expiring_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    lacks: Mapped[str | None] = mapped_column(Text)


class DeliveryRow(Table):
    """A version of a sink that is committed into a target; `delivery` is how, as the pointer has it too.

    `place` is that of the target among those of the version. `copied_bytes` were written once more for the target.
    `outcome` is an Outcome of weir.sinks (None: not committed yet). `problem` is what the last process met,
    `problem_since` since when each has met one.
    """

    __tablename__ = "delivery"
    __table_args__ = (
        UniqueConstraint("run", "sink", "version", "place"),
        _only("pending_deliveries", "run", where="outcome IS NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run: Mapped[RunId] = mapped_column(ForeignKey("run.id"))
    sink: Mapped[str] = mapped_column(String(60))
    version: Mapped[int]
    place: Mapped[int]
    delivery: Mapped[dict[str, Any]]
    outcome: Mapped[str | None] = mapped_column(String(20))
    delivered_at: Mapped[datetime | None]
    copied_bytes: Mapped[int | None] = mapped_column(BigInteger)
    problem: Mapped[str | None] = mapped_column(Text)
    problem_since: Mapped[datetime | None]


class HousekeepingRow(Table):
    """The time at which a job of upkeep was last done; `scope` is a dataflow, or empty.

    `reached` is the epoch up to which a process has done a job that takes long; another goes on after it.
    """

    __tablename__ = "housekeeping"
    job: Mapped[str] = mapped_column(String(40), primary_key=True)
    scope: Mapped[str] = mapped_column(String(60), primary_key=True)
    done_at: Mapped[datetime]
    reached: Mapped[Epoch | None] = mapped_column(String(32))


class CheckpointRow(Table):
    """A checkpoint or savepoint of a dataflow; `number` counts up and is never used twice.

    `kind` is a SnapshotKind, `status` a CheckpointStatus. It is pending from when its number was taken until its
    manifest was seen; `subsumed_by` is the number of the one for which it had to go, `deleted_at` since when its
    manifest is gone. `folder` is where a savepoint is, as a URL; empty for a checkpoint. `results` are the numbers of
    the results that a checkpoint names.
    """

    __tablename__ = "checkpoint"
    __table_args__ = (
        UniqueConstraint("dataflow", "number"),
        Index("checkpoints_of_run", "run"),
        _only("undeleted_checkpoints", "dataflow", "number", where="deleted_at IS NULL"),
    )
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(ForeignKey("dataflow.name"))
    number: Mapped[int]
    kind: Mapped[str] = mapped_column(String(20))
    status: Mapped[str] = mapped_column(String(20))
    epoch: Mapped[Epoch] = mapped_column(String(32))
    run: Mapped[RunId] = mapped_column(String(120))
    lineage: Mapped[int]
    attempt: Mapped[AttemptId] = mapped_column(String(40))
    content: Mapped[str] = mapped_column(String(64))
    folder: Mapped[str] = mapped_column(ADDRESS, default="")
    results: Mapped[list[Any]]
    triggered_at: Mapped[datetime]
    completed_at: Mapped[datetime | None]
    subsumed_at: Mapped[datetime | None]
    subsumed_by: Mapped[int | None]
    deleted_at: Mapped[datetime | None]
    full_bytes: Mapped[int] = mapped_column(LARGE)
    incremental_bytes: Mapped[int] = mapped_column(LARGE)
    new_files: Mapped[int]
    shared_files: Mapped[int]

    @property
    def is_savepoint(self) -> bool:
        """Report whether it is a savepoint, which lies in a folder of its own."""
        return SnapshotKind(self.kind).is_savepoint


class CompactionRow(Table):
    """A compacted partition of keyed state: `files` replace those in its manifest.

    `of_attempt` is the attempt that committed the partition, `attempt` the one that compacted it.
    """

    __tablename__ = "compaction"
    __table_args__ = (UniqueConstraint("of_attempt", "state", "subtask"), Index("compactions_of_run", "run"))
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(String(60))
    run: Mapped[RunId] = mapped_column(ForeignKey("run.id"))
    state: Mapped[str] = mapped_column(String(60))
    subtask: Mapped[int]
    of_attempt: Mapped[AttemptId] = mapped_column(String(40))
    attempt: Mapped[AttemptId] = mapped_column(String(40))
    files: Mapped[list[Any]]
    read_bytes: Mapped[int] = mapped_column(LARGE)
    written_bytes: Mapped[int] = mapped_column(LARGE)
    made_at: Mapped[datetime]


UNKNOWN_SNAPSHOT: Final = 0
"""The number of the snapshot of a restore that a rebuilt ledger has found in the store."""


class RestoreRow(Table):
    """A restore of a dataflow from a checkpoint or savepoint at the end of `epoch`.

    `source` is the path or URL of its manifest, `origin` the dataflow that made it. The restored files are
    retained until `unpinned_at`: the first later checkpoint that has only files of its own. The next epoch may run
    without the states `left_out`.
    """

    __tablename__ = "restore"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(ForeignKey("dataflow.name"))
    epoch: Mapped[Epoch] = mapped_column(String(32))
    lineage: Mapped[int]
    origin: Mapped[str] = mapped_column(String(60))
    number: Mapped[int]
    source: Mapped[str] = mapped_column(String(500))
    mode: Mapped[str] = mapped_column(String(20))
    left_out: Mapped[list[Any]]
    restored_at: Mapped[datetime]
    unpinned_at: Mapped[datetime | None]

    @property
    def is_rebuilt(self) -> bool:
        """Report whether the ledger was rebuilt since, so that the restored snapshot is not known."""
        return self.number == UNKNOWN_SNAPSHOT

    @property
    def is_of_checkpoint(self) -> bool:
        """Report whether it restored a checkpoint, not a savepoint."""
        return checkpoint_number(self.source) is not None


class QualityCheckRow(Table):
    """The findings of a suite in a partition, which never change.

    `layout` is that of an input (empty: rows as they were written). `attempt` wrote the result,
    `by_attempt` checked it (empty: no attempt of a run). `why`, `policy` and `outcome` are values of
    weir.formats.checks's and weir.dataflow.quality's enums; `results` holds the ExpectationResults, `blamed` the
    suspected input partitions, each with the `digest` that was read.
    """

    __tablename__ = "quality_check"
    __table_args__ = (
        Index("checks_of_stage", "dataflow", "stage", "suite"),
        Index("checks_of_run", "run"),
        Index("checks_by_attempt", "by_attempt"),
    )
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(ForeignKey("dataflow.name"))
    run: Mapped[RunId] = mapped_column(String(120))
    epoch: Mapped[Epoch] = mapped_column(String(32))
    stage: Mapped[str] = mapped_column(String(60))
    subtask: Mapped[int]
    layout: Mapped[str] = mapped_column(String(120), default="")
    attempt: Mapped[AttemptId] = mapped_column(String(40))
    by_attempt: Mapped[str] = mapped_column(String(40), default="")
    suite: Mapped[str] = mapped_column(String(120))
    fingerprint: Mapped[str] = mapped_column(String(64))
    why: Mapped[str] = mapped_column(String(20))
    policy: Mapped[str] = mapped_column(String(20))
    outcome: Mapped[str] = mapped_column(String(20))
    digest: Mapped[Digest] = mapped_column(String(200))
    rows: Mapped[int] = mapped_column(LARGE)
    results: Mapped[list[Any]]
    blamed: Mapped[list[Any]]
    seconds: Mapped[float] = mapped_column(Float)
    checked_at: Mapped[datetime]
