"""Defines the tables of what persons have declared of versions of code.

Invariant: a declaration is never changed; results are counted by it when it is made, or where they are compared.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ForeignKey, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from weir.ledger.database.tables import Table
from weir.topology.ids import Epoch


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
