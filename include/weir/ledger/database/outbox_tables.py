"""Defines the tables of the outbox: what happened to dataflows, and how far their receivers have been told.

Invariants: an event has one row, by its id, and a receiver of a dataflow one, by its name; a run has one row for each
incident that is open. Rows refer to no other table: a run may expire before its receivers have been told.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, Integer, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from weir.ledger.database.columns import LARGE, Prose
from weir.ledger.database.tables import Table
from weir.topology.ids import RunId


class NotificationRow(Table):
    """An event of a dataflow that its receivers are told; `document` is what they get, `event` its stable id.

    A number is given once, also where its row was deleted: a receiver's `told` never covers a later event.
    """

    __tablename__ = "notification"
    __table_args__ = (
        UniqueConstraint("event"),
        Index("notifications_of_dataflow", "dataflow", "id"),
        {"sqlite_autoincrement": True},
    )
    id: Mapped[int] = mapped_column(LARGE, primary_key=True, autoincrement=True)
    event: Mapped[str] = mapped_column(Text)
    dataflow: Mapped[str] = mapped_column(String(60))
    kind: Mapped[str] = mapped_column(String(40))
    at: Mapped[datetime]
    document: Mapped[dict[str, Any]]


class ReceiverRow(Table):
    """A receiver of a dataflow's notifications, by its name, and how far it has been told.

    `told` is the number of the newest event that it has got or did not want. `holder` is the process that may tell it,
    until `held_until`. `problem` is what the last process met, `problem_since` since when each has met one, `retry_at`
    when the next one tries. Times are of the database's clock.
    """

    __tablename__ = "receiver"
    __table_args__ = (UniqueConstraint("dataflow", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    dataflow: Mapped[str] = mapped_column(String(60))
    name: Mapped[str] = mapped_column(String(250))
    told: Mapped[int] = mapped_column(LARGE)
    told_at: Mapped[datetime | None]
    holder: Mapped[str | None] = mapped_column(String(40))
    held_until: Mapped[datetime | None]
    failures: Mapped[int] = mapped_column(Integer, default=0)
    problem: Mapped[str | None] = mapped_column(Prose)
    problem_since: Mapped[datetime | None]
    retry_at: Mapped[datetime | None]


class IncidentRow(Table):
    """Something about a run that its receivers have been told of, and that is not over: they are not told of it again.

    `kind` is that of the event, whose id is `event`. `failover` is the failover that recovers from it, else 0;
    `clear_number` how often a person had cleared tasks of the run by then.
    """

    __tablename__ = "incident"
    __table_args__ = (UniqueConstraint("run", "kind", "failover"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run: Mapped[RunId] = mapped_column(String(250))
    kind: Mapped[str] = mapped_column(String(40))
    failover: Mapped[int] = mapped_column(Integer, default=0)
    event: Mapped[str] = mapped_column(Text)
    clear_number: Mapped[int] = mapped_column(Integer, default=0)
