"""Stores notifications until their receivers have got them, and what each receiver was told.

Invariants:
- An event is recorded in the transaction that makes it a fact, once by its id.
- A receiver is told the events of its dataflow in the order of their numbers: the numbers of a dataflow are given in
  the order of its transactions, which exclude each other.
- Only a process that holds a receiver tells it, as long as its lease lasts, by the database's clock.
- An event stays until all receivers of its dataflow have got it.
- An incident of a run is told once while it is open: a person whom a run needs is told so once until one has acted.

The receivers are those of the newest run: notifications are no computation, and an old run that runs again tells those
whom a person expects now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast

from sqlalchemy import Select, bindparam, delete, func, select
from sqlalchemy.orm import Session

from weir.dataflow.dataflow import NOTIFY, PUBLISH_BY
from weir.dataflow.notifications import EventKind, Receiver
from weir.formats.notification import Event
from weir.ledger.database.outbox_tables import IncidentRow, NotificationRow, ReceiverRow
from weir.ledger.database.tables import RunRow
from weir.ledger.leases import clock
from weir.topology.ids import RunId
from weir.wording import shortened

KEPT: Final = timedelta(days=7)
"""How long an event stays after all of its receivers have got it, and how far back a rebuilt ledger tells again."""

HOLD: Final = timedelta(minutes=1)
"""How long a process may take to tell a receiver of one event."""

_FIRST_PAUSE: Final = timedelta(seconds=10)
_LONGEST_PAUSE: Final = timedelta(minutes=15)
"""The pause after a failure: doubled with each, so that a receiver that is away costs the closing tasks nothing."""

_TEXT: Final = 2000
"""The longest problem that is recorded, in characters."""


def _of_newest_run(field: str) -> Select[Any]:
    return (
        select(RunRow.pinned[field])
        .where(RunRow.dataflow == bindparam("dataflow"), RunRow.is_pinned)
        .order_by(RunRow.created_at.desc(), RunRow.epoch.desc())
        .limit(1)
    )


_DECLARED, _PUBLISH_BY = _of_newest_run(NOTIFY), _of_newest_run(PUBLISH_BY)
"""Built once: each closing task runs these queries, the first for each event."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A receiver that has not got all yet: how many events wait, the oldest of them, and its row at the time `at`.

    All times are of the database's clock.
    """

    receiver: Receiver
    count: int
    oldest: datetime
    told_at: datetime | None
    problem: str | None
    problem_since: datetime | None
    retry_at: datetime | None
    held_until: datetime | None
    at: datetime

    def __str__(self) -> str:
        """Describe it for people."""
        since = self.problem_since
        why = "" if since is None else f", since {since:%Y-%m-%d %H:%M:%S}Z: {self.problem}"
        return f"{self.count} notification(s) wait for {self.receiver.name}{why}"

    @property
    def is_held(self) -> bool:
        """Report whether another process may be telling it."""
        return self.held_until is not None and self.held_until > self.at

    @property
    def is_paused(self) -> bool:
        """Report whether it is left alone for a while."""
        return self.retry_at is not None and self.retry_at > self.at


# Events


def tell(session: Session, event: Event, now: datetime) -> bool:
    """Record an event for the receivers of its dataflow, unless it is recorded, or none of them wants its kind.

    A new receiver is told from here on. Report whether the event was recorded now.
    """
    declared = declared_receivers(session, event.dataflow)
    if not any(each.wants(event.kind) for each in declared) or _row_of(session, event.id) is not None:
        return False
    at = clock(session, now)
    row = NotificationRow(
        event=event.id, dataflow=event.dataflow, kind=event.kind.value, at=at, document=event.to_json(at)
    )
    session.add(row)
    session.flush()
    known = {each.name: each for each in _receiver_rows(session, event.dataflow)}
    for each in declared:
        if each.wants(event.kind):
            if each.name not in known:
                session.add(ReceiverRow(dataflow=event.dataflow, name=each.name, told=row.id - 1, failures=0))
        elif each.name in known:
            _pass_over(session, each, known[each.name])
    return True


def withdraw(session: Session, event_id: str) -> None:
    """Delete an event that turned out not to be so, with its incident: who was told meanwhile stays told."""
    session.execute(delete(NotificationRow).where(NotificationRow.event == event_id))
    session.execute(delete(IncidentRow).where(IncidentRow.event == event_id))


def _row_of(session: Session, event_id: str) -> int | None:
    return session.scalar(select(NotificationRow.id).where(NotificationRow.event == event_id))


# Incidents


def tell_incident(
    session: Session,
    run: RunId,
    event: Event,
    now: datetime,
    *,
    failover: int = 0,
    clear_number: int = 0,
    end: EventKind | None = None,
) -> None:
    """Record an event of a run, and that what it is about is open: until it is over, another one is not recorded.

    `clear_number` is how often a person had cleared tasks of the run by then. `end` is the kind of the event that it
    ends with, of which alone a receiver may want to be told.
    """
    is_open = (IncidentRow.run == run) & (IncidentRow.kind == event.kind.value) & (IncidentRow.failover == failover)
    if session.scalar(select(IncidentRow.id).where(is_open)) is not None:
        return
    is_end_wanted = end is not None and is_wanted(session, event.dataflow, end)
    if not tell(session, event, now) and not is_end_wanted:
        return
    session.add(
        IncidentRow(run=run, kind=event.kind.value, failover=failover, event=event.id, clear_number=clear_number)
    )


def open_incidents(session: Session, run: RunId) -> list[IncidentRow]:
    """Return the incidents of a run that are open, oldest first."""
    return list(session.scalars(select(IncidentRow).where(IncidentRow.run == run).order_by(IncidentRow.id)))


def note_acted(session: Session, run: RunId, clear_number: int | None = None) -> None:
    """Record that a person has acted on a run: what stops it after that is told anew.

    Where tasks of the run are cleared, `clear_number` is how often they now have been: those that begin after one clear
    are no other act than the first of them.
    """
    needed = (IncidentRow.run == run) & (IncidentRow.kind == EventKind.PERSON_NEEDED.value)
    if clear_number is not None:
        needed &= IncidentRow.clear_number != clear_number
    session.execute(delete(IncidentRow).where(needed))


def note_begins_anew(session: Session, run: RunId) -> None:
    """Record that all of a run is computed anew; a deadline that it has missed stays missed."""
    kept = IncidentRow.kind == EventKind.DEADLINE_MISSED.value
    session.execute(delete(IncidentRow).where(IncidentRow.run == run, ~kept))


def forget_incidents(session: Session, run: str) -> None:
    """Delete the incidents of a run, of which nothing is told any more."""
    session.execute(delete(IncidentRow).where(IncidentRow.run == run))


# Receivers


def declared_receivers(session: Session, dataflow: str) -> tuple[Receiver, ...]:
    """Return the receivers that the newest run of a dataflow is pinned to. Raises Misconfigured for unknown kinds."""
    found = cast("list[dict[str, Any]] | None", session.scalar(_DECLARED, {"dataflow": dataflow}))
    return tuple(Receiver.from_json(each) for each in found or ())


def is_wanted(session: Session, dataflow: str, kind: EventKind) -> bool:
    """Report whether a receiver of a dataflow is to be told of events of a kind."""
    return any(each.wants(kind) for each in declared_receivers(session, dataflow))


def declared_publish_by(session: Session, dataflow: str) -> timedelta | None:
    """Return how long after its end an epoch is to be published, by the newest run of a dataflow."""
    seconds = cast("float | None", session.scalar(_PUBLISH_BY, {"dataflow": dataflow}))
    return None if seconds is None else timedelta(seconds=seconds)


def receiving_dataflows(session: Session) -> list[str]:
    """Return the dataflows with receivers that were, or are to be, told of anything."""
    return list(session.scalars(select(ReceiverRow.dataflow).distinct().order_by(ReceiverRow.dataflow)))


def waiting_receivers(session: Session, dataflow: str, now: datetime) -> list[Waiting]:
    """Return the receivers of a dataflow that have not got all events yet, in the order of their declaration."""
    receivers = declared_receivers(session, dataflow)
    if not receivers:
        return []
    rows = {row.name: row for row in _receiver_rows(session, dataflow)}
    at = clock(session, now)
    found = [_waiting(session, each, rows[each.name], at) for each in receivers if each.name in rows]
    return [each for each in found if each is not None]


def _waiting(session: Session, receiver: Receiver, row: ReceiverRow, at: datetime) -> Waiting | None:
    query = select(func.count(), func.min(NotificationRow.at)).where(*_not_told(receiver, row))
    count, oldest = session.execute(query).one()
    if not count:
        return None
    return Waiting(
        receiver=receiver,
        count=count,
        oldest=oldest,
        told_at=row.told_at,
        problem=row.problem,
        problem_since=row.problem_since,
        retry_at=row.retry_at,
        held_until=row.held_until,
        at=at,
    )


def _not_told(receiver: Receiver, row: ReceiverRow) -> list[Any]:
    is_wanted = NotificationRow.kind.in_([kind.value for kind in receiver.wanted])
    return [NotificationRow.dataflow == row.dataflow, NotificationRow.id > row.told, is_wanted]


# Telling a receiver


def _pass_over(session: Session, receiver: Receiver, row: ReceiverRow) -> None:
    """Raise `told` over the events that a receiver does not want: it is not told of them when it is given their kinds.

    Those after an event that waits for it follow when it has got that one.
    """
    first = _first_left(session, receiver, row)
    newest = select(func.max(NotificationRow.id)).where(NotificationRow.dataflow == row.dataflow)
    row.told = max(row.told, (session.scalar(newest) or 0) if first is None else first - 1)


def hold(session: Session, dataflow: str, receiver: Receiver, holder: str, now: datetime) -> NotificationRow | None:
    """Take or renew the lease of a receiver; return the next event for it.

    None where there is none any more, where another process holds it, or where it is to be left alone for a while.
    """
    row, at = _receiver_row(session, dataflow, receiver), clock(session, now)
    if row is None or (row.holder != holder and row.held_until is not None and row.held_until > at):
        return None
    is_paused = row.retry_at is not None and row.retry_at > at
    query = select(NotificationRow).where(*_not_told(receiver, row)).order_by(NotificationRow.id).limit(1)
    found = None if is_paused else session.scalar(query)
    row.holder, row.held_until = (None, None) if found is None else (holder, at + HOLD)
    return found


def let_go(session: Session, dataflow: str, receiver: Receiver, holder: str) -> None:
    """End the lease of a receiver."""
    row = _receiver_row(session, dataflow, receiver)
    if row is not None and row.holder == holder:
        row.holder, row.held_until = None, None


def note_told(
    session: Session, dataflow: str, receiver: Receiver, holder: str, number: int, now: datetime
) -> NotificationRow | None:
    """Record that a receiver has got an event; return the next one for it, as `hold`."""
    row = _receiver_row(session, dataflow, receiver)
    if row is None:
        return None
    row.told, row.told_at = max(row.told, number), clock(session, now)
    row.failures, row.problem, row.problem_since, row.retry_at = 0, None, None, None
    _pass_over(session, receiver, row)
    session.flush()
    return hold(session, dataflow, receiver, holder, now)


def note_not_told(
    session: Session, dataflow: str, receiver: Receiver, holder: str, problem: str, now: datetime
) -> None:
    """Record why a receiver could not be told, and leave it alone for a while."""
    row = _receiver_row(session, dataflow, receiver)
    if row is None or row.holder != holder:
        return  # another process tells it by now
    at = clock(session, now)
    row.holder, row.held_until = None, None
    row.problem, row.problem_since = shortened(problem, _TEXT), row.problem_since or at
    row.retry_at = at + min(_FIRST_PAUSE * 2 ** min(row.failures, 20), _LONGEST_PAUSE)
    row.failures += 1


def _receiver_rows(session: Session, dataflow: str) -> Sequence[ReceiverRow]:
    return session.scalars(select(ReceiverRow).where(ReceiverRow.dataflow == dataflow)).all()


def _receiver_row(session: Session, dataflow: str, receiver: Receiver) -> ReceiverRow | None:
    query = select(ReceiverRow).where(ReceiverRow.dataflow == dataflow, ReceiverRow.name == receiver.name)
    return session.scalar(query)


# Retention


def has_old(session: Session, dataflow: str, now: datetime) -> bool:
    """Report whether anything may be forgotten by `forget_told`."""
    old = select(NotificationRow.id).where(NotificationRow.dataflow == dataflow, _is_old(session, now)).limit(1)
    if session.scalar(old) is not None:
        return True
    names = set(session.scalars(select(ReceiverRow.name).where(ReceiverRow.dataflow == dataflow)))
    return bool(names - {each.name for each in declared_receivers(session, dataflow)})


def forget_told(session: Session, dataflow: str, now: datetime) -> int:
    """Delete old events that all receivers have got, and receivers that are not declared any more; count the events."""
    declared = {each.name: each for each in declared_receivers(session, dataflow)}
    rows = _receiver_rows(session, dataflow)
    for row in rows:
        if row.name not in declared:
            session.delete(row)
    left = [_first_left(session, declared[row.name], row) for row in rows if row.name in declared]
    gone = [NotificationRow.dataflow == dataflow, _is_old(session, now)]
    gone += [NotificationRow.id < first for first in left if first is not None]
    numbers = list(session.scalars(select(NotificationRow.id).where(*gone)))
    session.execute(delete(NotificationRow).where(*gone))
    return len(numbers)


def _first_left(session: Session, receiver: Receiver, row: ReceiverRow) -> int | None:
    """Return the number of the first event that a receiver has still to get."""
    return session.scalar(select(func.min(NotificationRow.id)).where(*_not_told(receiver, row)))


def _is_old(session: Session, now: datetime) -> Any:
    return NotificationRow.at <= clock(session, now) - KEPT
