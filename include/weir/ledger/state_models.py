"""The ledger's tables of keyed state: checkpoints, compactions, and what dataflows were restored from.

Invariant: a checkpoint's number is that of one checkpoint of its dataflow, which a unique constraint holds to.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from weir.ledger.columns import ADDRESS, LARGE
from weir.ledger.models import Table


class CheckpointRow(Table):
    """A checkpoint or savepoint of a dataflow; `number` counts up and is never used twice.

    `kind` is a SnapshotKind, `status` a CheckpointStatus. It is pending from when its number was taken until its
    manifest was seen; `subsumed_by` is the number of the one for which it had to go, `deleted_at` since when its
    manifest is gone. `folder` is where a savepoint is, as a URL; empty for a checkpoint.
    """

    __tablename__ = "checkpoint"
    __table_args__ = (UniqueConstraint("dataflow", "number"), Index("checkpoints_of_run", "run"))
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(ForeignKey("dataflow.name"))
    number: Mapped[int]
    kind: Mapped[str] = mapped_column(String(20))
    status: Mapped[str] = mapped_column(String(20))
    epoch: Mapped[str] = mapped_column(String(32))
    run: Mapped[str] = mapped_column(String(120))
    lineage: Mapped[int]
    attempt: Mapped[str] = mapped_column(String(40))
    content: Mapped[str] = mapped_column(String(64))
    folder: Mapped[str] = mapped_column(ADDRESS, default="")
    triggered_at: Mapped[datetime]
    completed_at: Mapped[datetime | None]
    subsumed_at: Mapped[datetime | None]
    subsumed_by: Mapped[int | None]
    deleted_at: Mapped[datetime | None]
    full_bytes: Mapped[int] = mapped_column(LARGE)
    incremental_bytes: Mapped[int] = mapped_column(LARGE)
    new_files: Mapped[int]
    shared_files: Mapped[int]


class CompactionRow(Table):
    """What one partition of keyed state consists of once it was compacted: `files` stand for those in its manifest.

    `of_attempt` is the attempt that committed the partition, `attempt` the one that compacted it.
    """

    __tablename__ = "compaction"
    __table_args__ = (UniqueConstraint("of_attempt", "state", "subtask"), Index("compactions_of_run", "run"))
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(String(60))
    run: Mapped[str] = mapped_column(ForeignKey("run.id"))
    state: Mapped[str] = mapped_column(String(60))
    subtask: Mapped[int]
    of_attempt: Mapped[str] = mapped_column(String(40))
    attempt: Mapped[str] = mapped_column(String(40))
    files: Mapped[list[Any]]
    read_bytes: Mapped[int] = mapped_column(LARGE)
    written_bytes: Mapped[int] = mapped_column(LARGE)
    made_at: Mapped[datetime]


class RestoreRow(Table):
    """What a dataflow goes on from that it did not compute itself: a checkpoint or savepoint at the end of `epoch`.

    `source` is the path or URL of its manifest, `origin` the dataflow that made it. What was restored stays until
    `unpinned_at`: the first checkpoint behind it, of files of its own. The next epoch may do without the states
    `left_out`.
    """

    __tablename__ = "restore"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(ForeignKey("dataflow.name"))
    epoch: Mapped[str] = mapped_column(String(32))
    lineage: Mapped[int]
    origin: Mapped[str] = mapped_column(String(60))
    number: Mapped[int]
    source: Mapped[str] = mapped_column(String(500))
    mode: Mapped[str] = mapped_column(String(20))
    left_out: Mapped[list[Any]]
    restored_at: Mapped[datetime]
    unpinned_at: Mapped[datetime | None]
