"""Defines the tables of what runs read of other dataflows, by which ledger, and of what readers have yet to be told.

Invariant: which epochs an input reads is decided once in a run.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from weir.ledger.database.tables import Table


class LedgerRow(Table):
    """The ledger itself: one row, made with the tables. Its id is in what the ledger's runs write into the store."""

    __tablename__ = "ledger"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)


class DatasetInputRow(Table):
    """An input of a run that reads a data set, `dataset` ("dataflow.sink"), and how it chooses among its epochs.

    `left_out` are the epochs that were to exist, and were not published when the input was resolved.
    """

    __tablename__ = "dataset_input"
    __table_args__ = (Index("readers_of_dataset", "dataset"),)
    run: Mapped[str] = mapped_column(ForeignKey("run.id"), primary_key=True)
    stage: Mapped[str] = mapped_column(String(60), primary_key=True)
    argument: Mapped[str] = mapped_column(String(200), primary_key=True)
    dataset: Mapped[str] = mapped_column(String(121))
    selection: Mapped[str] = mapped_column(String(40))
    left_out: Mapped[list[Any]]
    resolved_at: Mapped[datetime]


class DatasetEpochRow(Table):
    """An epoch that an input reads: `of_run` is the run of the other dataflow, `dataset` that of the input."""

    __tablename__ = "dataset_epoch"
    __table_args__ = (Index("readers_of_epoch", "of_run", "dataset"),)
    run: Mapped[str] = mapped_column(ForeignKey("run.id"), primary_key=True)
    stage: Mapped[str] = mapped_column(String(60), primary_key=True)
    argument: Mapped[str] = mapped_column(String(200), primary_key=True)
    of_run: Mapped[str] = mapped_column(String(120), primary_key=True)
    dataset: Mapped[str] = mapped_column(String(121))


class UntoldVersionRow(Table):
    """A new version of a data set whose readers in other dataflows have yet to be compared with it."""

    __tablename__ = "untold_version"
    __table_args__ = (Index("untold_versions", "dataflow"),)
    run: Mapped[str] = mapped_column(ForeignKey("run.id"), primary_key=True)
    sink: Mapped[str] = mapped_column(String(60), primary_key=True)
    version: Mapped[int]
    dataflow: Mapped[str] = mapped_column(String(60))
