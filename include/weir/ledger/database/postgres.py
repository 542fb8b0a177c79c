"""PostgreSQL as the ledger's database.

Invariant: a connection lives as long as one transaction. Task processes fork, compute for hours and come by the
hundred: none of them holds one of the server's connections meanwhile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, Integer, cast, create_engine, event, func, literal, select
from sqlalchemy.exc import DataError, DBAPIError, ProgrammingError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from weir.errors import DiskFull, Misconfigured, Retryable, WeirError

T = TypeVar("T")
DRIVER = "postgresql+psycopg2"

LOCK_SECONDS = 60
"""The longest wait for another process's transaction, and for a server that is starting."""

IDLE_SECONDS = 300
"""After that the server ends a transaction whose process is stopped or unreachable, and its locks with it."""

_ADVISORY = 7390217
"""The first half of our advisory locks; the second is a dataflow's name."""

_CONNECTION: dict[str, Any] = {
    "application_name": "weir",
    "client_encoding": "utf8",
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Parameters of libpq, where the URL has none: that a server vanished is noticed in a minute, not in two hours."""

_BUSY_CODES = frozenset({"57P03", "53300"})

_BUSY_WORDS = "the database system is|too many clients|remaining connection slots|too many connections"
"""The messages of a server that is starting or stopping, or has no free connection."""

_NO_TIMELINE = frozenset({"42501", "42883", "0A000"})

_GONE_CODES = frozenset({"57P01", "57P02", "08000", "08003", "08006"})
_STANDBY_WORDS = "session is read-only|server is in hot standby mode"
"""libpq's messages if a primary was wanted (`target_session_attrs`): a replica has not been promoted yet."""

_GONE_WORDS = (
    "Connection refused|closed the connection|terminating connection|Connection reset|timeout expired|" + _STANDBY_WORDS
)

_ADVICE: tuple[tuple[frozenset[str], str, str], ...] = (
    (
        frozenset({"28P01", "28000"}),
        "authentication failed|no password supplied|no pg_hba.conf entry|not permitted to log in",
        "correct the login and the password in WEIR_LEDGER or the connection weir_ledger, or the server's pg_hba.conf",
    ),
    (
        frozenset({"3D000"}),
        'database ".*" does not exist',
        "type `createdb` with that name on the server, or correct the database in WEIR_LEDGER",
    ),
    (
        frozenset(),
        'role ".*" does not exist',
        "type `createuser` with that name on the server, or correct the login in WEIR_LEDGER",
    ),
    (
        frozenset({"42501"}),
        "permission denied",
        "type ALTER DATABASE name OWNER TO role on the server: Weir makes its tables itself",
    ),
    (
        frozenset({"42P01", "42703"}),
        "$^",
        "its tables are not those of Weir. Type `weir ledger upgrade`, or let WEIR_LEDGER name another database",
    ),
    (frozenset({"22021", "22P05"}), "$^", "make its database anew, with ENCODING 'UTF8'"),
    (
        frozenset(),
        "certificate|does not support SSL|invalid sslmode",
        "correct sslmode and the certificates (sslrootcert) in WEIR_LEDGER or the connection weir_ledger",
    ),
)
"""SQLSTATEs, the words of an error that has none since no connection was made, and what a person can do."""

_PASSING_CODES = ("08", "25P", "40", "53", "55P", "57")
"""Of errors that say nothing of the ledger: connection, time limits, serialization, resources, locks, an operator."""


def postgres_engine(url: URL) -> Engine:
    """Engine for `url`, in which each transaction sees what was committed before each of its statements."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="READ COMMITTED", connect_args=arguments_of(url))
    event.listen(engine, "begin", _limit_waits)
    return engine


def arguments_of(url: URL) -> dict[str, Any]:
    """Return parameters of libpq that `url` does not have. Of several hosts, the one that takes writes is wanted."""
    hosts = url.query.get("host", url.host or "")
    wanted = {"target_session_attrs": "read-write"} if isinstance(hosts, tuple) or "," in hosts else {}
    return {key: value for key, value in (_CONNECTION | wanted).items() if key not in url.query}


def _limit_waits(connection: Connection) -> None:
    # Not as parameters of the connection: a pooler between us and the server would refuse them.
    connection.exec_driver_sql(
        f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
    )


def lock_name(session: Session, dataflow: str) -> None:
    """Shut out all other transactions of a dataflow that has no row yet: the first one inserts it."""
    name = func.hashtext(literal(dataflow))
    session.execute(select(func.pg_advisory_xact_lock(cast(literal(_ADVISORY), Integer), name)))


def is_refused_timeline(error: DBAPIError) -> bool:
    """Report whether a server does not let this login, or anybody, ask for its timeline."""
    return _code(error) in _NO_TIMELINE


def is_busy(error: DBAPIError) -> bool:
    """Report whether the server has answered that it is busy, so that a retry is worthwhile."""
    code = _code(error)
    return code in _BUSY_CODES if code else re.search(_BUSY_WORDS, str(error.orig)) is not None


def is_coming(error: DBAPIError) -> bool:
    """Report whether a server that has answered before is likely to answer soon: it is busy, or restarting."""
    code = _code(error)
    is_gone = code in _GONE_CODES if code else re.search(_GONE_WORDS, str(error.orig)) is not None
    return is_gone or is_busy(error)


def patiently(step: Callable[[], T], will_answer: Callable[[DBAPIError], bool]) -> T:
    """Do `step`, which changes nothing where it fails, until the server answers."""
    deadline, pause = time.monotonic() + LOCK_SECONDS, 0.05
    while True:
        try:
            return step()
        except DBAPIError as error:
            if not will_answer(error) or time.monotonic() > deadline:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def postgres_error(error: DBAPIError, ledger: str) -> WeirError | None:
    """Convert an error of the database to a WeirError; None for an error that Weir itself has caused."""
    code, said = _code(error), " ".join(str(error.orig).split())
    advice = _advice(code, said)
    if advice is not None:
        return Misconfigured.of("ledger.unusable", ledger=ledger, said=said, advice=advice)
    if code == "25006" or re.search(_STANDBY_WORDS, said):
        return Retryable.of("ledger.read_only", ledger=ledger, said=said)
    if code == "53100":
        return DiskFull.of("ledger.disk_full", ledger=ledger, said=said)
    is_ours = isinstance(error, ProgrammingError | DataError)
    if code.startswith(_PASSING_CODES) or error.connection_invalidated or not (code or is_ours):
        return Retryable.of("ledger.silent", ledger=ledger, said=said)
    return None


def _advice(code: str, said: str) -> str | None:
    """Return the action that a person must take before a retry can succeed; None if there is none."""
    for codes, words, advice in _ADVICE:
        if code in codes or (not code and re.search(words, said)):
            return advice
    return None


def _code(error: DBAPIError) -> str:
    """Return the SQLSTATE; empty if no connection was made, since the driver then has only a message."""
    return getattr(error.orig, "pgcode", None) or ""
