"""The revision of a dataflow: each writing transaction raises it, and so locks the dataflow's row.

Invariant: a transaction knows, before it does anything, whether the ledger has lost commits of its dataflow: by the
revision, by a mark that another process has left, or by PostgreSQL's timeline, which a promotion changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, String, Table, bindparam, case, cast, func, literal, null, select, update
from sqlalchemy.orm import Session

from weir.ledger.database.tables import DataflowRow

_ROW: Final[Table] = DataflowRow.__table__  # type: ignore[assignment]
_SERVERS: Final = func.substr(func.pg_walfile_name(func.pg_current_wal_insert_lsn()), 1, 8)
"""The timeline of a PostgreSQL server: the first part of the name of its present WAL file."""

_OF = _ROW.c.name == bindparam("of")
_NUMBER = bindparam("seen", type_=_ROW.c.revision.type)


@dataclass(frozen=True, slots=True)
class Revision:
    """A dataflow's row in the ledger: its revision, its mark, its timeline and the server's (empty: not known)."""

    number: int
    is_behind: bool
    timeline: str
    servers: str

    def why_behind(self, seen: int) -> str:
        """Return the evidence that commits are lost, for a process that has seen this revision; empty if none."""
        if self.is_behind:
            return "a process has found out, and it has not caught up yet"
        if self.number < seen:
            return f"revision {seen} was committed, and it is at {self.number}"
        if self.timeline and self.servers and self.timeline != self.servers:
            return f"its server was promoted: its timeline is {self.servers}, and was {self.timeline}"
        return ""


def _timeline(of_server: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.coalesce(_ROW.c.timeline, of_server)


def _columns(of_server: ColumnElement[Any], revision: ColumnElement[Any]) -> tuple[ColumnElement[Any], ...]:
    empty = literal("")
    return (
        revision,
        _ROW.c.is_behind,
        func.coalesce(_ROW.c.timeline, empty).label("timeline"),
        func.coalesce(of_server, empty).label("servers"),
    )


_NONE: Final = cast(null(), String(8))
_SERVER_OF = {True: _SERVERS, False: _NONE}

# Built once: each transaction executes one of them.
_RAISE = {
    knows: update(_ROW)
    .where(_OF)
    .values(revision=_ROW.c.revision + 1, timeline=_timeline(server))
    .returning(*_columns(server, _ROW.c.revision - 1))
    for knows, server in _SERVER_OF.items()
}
_READ = {knows: select(*_columns(server, _ROW.c.revision)).where(_OF) for knows, server in _SERVER_OF.items()}
_ABOVE = case((_ROW.c.revision < _NUMBER, _NUMBER), else_=_ROW.c.revision)
_MARK = update(_ROW).where(_OF, ~_ROW.c.is_behind).values(is_behind=True, revision=_ABOVE)
_CAUGHT_UP = {
    knows: update(_ROW)
    .where(_OF)
    .values(is_behind=False, revision=_ABOVE + 1, timeline=server)
    .returning(_ROW.c.revision)
    for knows, server in _SERVER_OF.items()
}


def raise_revision(session: Session, dataflow: str, *, reads_timeline: bool) -> Revision | None:
    """Raise the revision of a dataflow by one, lock its row, and return what it was; None where it has none yet."""
    found = session.connection().execute(_RAISE[reads_timeline], {"of": dataflow}).one_or_none()
    return None if found is None else Revision(*found)


def read_revision(session: Session, dataflow: str, *, reads_timeline: bool) -> Revision | None:
    """Return the revision of a dataflow; None where it has none yet."""
    found = session.connection().execute(_READ[reads_timeline], {"of": dataflow}).one_or_none()
    return None if found is None else Revision(*found)


def mark_behind(session: Session, dataflow: str, seen: int) -> None:
    """Mark that commits of a dataflow are lost, after which no transaction of it begins; raise its revision to `seen`.

    So other processes that have seen less find the mark, once, and need not mark it again later.
    """
    session.connection().execute(_MARK, {"of": dataflow, "seen": seen})


def end_behind(session: Session, dataflow: str, seen: int, *, reads_timeline: bool) -> int:
    """Record that the ledger has caught up, and return its revision, which is above all that were seen."""
    done = session.connection().execute(_CAUGHT_UP[reads_timeline], {"of": dataflow, "seen": seen})
    return int(done.scalar_one())
