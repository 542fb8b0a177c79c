"""Defines the tables of archives of code, and of what persons have declared of its versions.

Invariant: a declaration is never changed; results are counted by it when it is made, or where they are compared.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from weir.ledger.database.columns import LARGE
from weir.ledger.database.tables import Table
from weir.topology.ids import Epoch


class ArchiveRow(Table):
    """An archive of a dataflow's code in the store; `path` is relative to the store.

    `deleting_at` is since when no run needs it, and its file may be deleted: who needs it again stores another file.
    """

    __tablename__ = "archive"
    dataflow: Mapped[str] = mapped_column(ForeignKey("dataflow.name"), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(64), primary_key=True)
    path: Mapped[str] = mapped_column(String(250))
    bytes: Mapped[int] = mapped_column(LARGE)
    stored_at: Mapped[datetime]
    deleting_at: Mapped[datetime | None]


class SameCodeRow(Table):
    """Two versions of a stage's code that a person has declared equal."""

    __tablename__ = "same_code"
    __table_args__ = (UniqueConstraint("dataflow", "stage", "one", "other"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(ForeignKey("dataflow.name"))
    stage: Mapped[str] = mapped_column(String(60))
    one: Mapped[str] = mapped_column(String(80))
    other: Mapped[str] = mapped_column(String(80))
    declared_at: Mapped[datetime]
    declared_by: Mapped[str] = mapped_column(String(250), default="")


class KeptCodeRow(Table):
    """Results of a task by `version`, from an epoch to another one, that stay while `current` is its code."""

    __tablename__ = "kept_code"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(ForeignKey("dataflow.name"))
    task: Mapped[str] = mapped_column(String(250))
    version: Mapped[str] = mapped_column(String(80))
    current: Mapped[str] = mapped_column(String(80))
    first: Mapped[Epoch] = mapped_column(String(32))
    last: Mapped[Epoch] = mapped_column(String(32))
    kept_at: Mapped[datetime]
    kept_by: Mapped[str] = mapped_column(String(250), default="")
