"""The ledger's table of checks. Invariant: a row says what was found in the rows of one partition, once and for all."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Float, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from weir.ledger.columns import LARGE
from weir.ledger.models import Table


class QualityCheckRow(Table):
    """What a suite has found in a partition.

    `layout` is that of an input (empty: rows as they were written). `attempt` is the one whose result it is,
    `by_attempt` the one that looked at it (empty: none of a run's). `why`, `policy` and `outcome` are values of
    weir.quality.check's and weir.dataflow.quality's enums; `results` holds the ExpectationResults, `blamed` the input
    partitions that were distrusted because of it, each with the `digest` that was read. `page` is the HTML page about
    it, relative to the store (None: not made yet).
    """

    __tablename__ = "quality_check"
    __table_args__ = (
        Index("checks_of_stage", "dataflow", "stage", "suite"),
        Index("checks_of_run", "run"),
        Index("checks_by_attempt", "by_attempt"),
    )
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(ForeignKey("dataflow.name"))
    run: Mapped[str] = mapped_column(String(120))
    epoch: Mapped[str] = mapped_column(String(32))
    stage: Mapped[str] = mapped_column(String(60))
    subtask: Mapped[int]
    layout: Mapped[str] = mapped_column(String(120), default="")
    attempt: Mapped[str] = mapped_column(String(40))
    by_attempt: Mapped[str] = mapped_column(String(40), default="")
    suite: Mapped[str] = mapped_column(String(120))
    fingerprint: Mapped[str] = mapped_column(String(64))
    why: Mapped[str] = mapped_column(String(20))
    policy: Mapped[str] = mapped_column(String(20))
    outcome: Mapped[str] = mapped_column(String(20))
    digest: Mapped[str] = mapped_column(String(200))
    rows: Mapped[int] = mapped_column(LARGE)
    results: Mapped[list[Any]]
    blamed: Mapped[list[Any]]
    seconds: Mapped[float] = mapped_column(Float)
    checked_at: Mapped[datetime]
    page: Mapped[str | None] = mapped_column(String(500))
