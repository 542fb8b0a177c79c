"""A PostgreSQL primary with a streaming replica, whose places clients know by one URL with two hosts.

Invariant: at most one of the two takes writes. Before a replica is promoted, the old primary has been killed.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import URL, text
from tests.servers.postgres import prepared_postgres

from weir_dev.ports import LOOPBACK
from weir_dev.stack.postgres import USER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers.postgres import PostgresServer


_SETTINGS: Final = {
    "wal_keep_size": "256MB",  # between its base backup and its start a replica has no connection
    "synchronous_commit": "remote_apply",  # a new database is there for clients that ask the replica first
    "wal_receiver_status_interval": "1s",
    "dynamic_shared_memory_type": "mmap",  # in the server's folder, which is deleted, however the server ended
}
_SECONDS: Final = 60.0


class PostgresPair:
    """Two servers. With a replica, commits are synchronous unless it is told to lose some."""

    def __init__(self, primary: PostgresServer, replica: PostgresServer) -> None:
        self.primary = primary
        self.replica = replica

    def url(self, database: str, **parameters: str) -> str:
        """Return the URL with both hosts, for SQLAlchemy with psycopg2; the database is made if it is not there."""
        self.primary.url(database)
        ports = sorted((self.primary.port, self.replica.port))  # the same whoever is the primary
        query = {"host": [f"{LOOPBACK}:{port}" for port in ports], "target_session_attrs": "read-write", **parameters}
        url = URL.create("postgresql+psycopg2", USER, self.primary.password, database=database, query=query)
        return url.render_as_string(hide_password=False)

    def add_replica(self) -> None:
        """Copy the primary, start the copy as its replica, and have all commits wait for it from then on."""
        self.replica.copy_from(self.primary)
        self.replica.start()
        _until(lambda: self._is_streaming("streaming"), "the replica to follow")
        _set(self.primary, "synchronous_standby_names", "*")
        _until(lambda: self._is_streaming("sync"), "commits to wait for the replica")

    def lose_replica(self) -> None:
        """Kill the replica, frozen or not; as an operator does, let the primary commit without it."""
        self.replica.kill()
        _set(self.primary, "synchronous_standby_names", "")

    def cut_replica(self) -> None:
        """Let the primary commit without the replica, which receives nothing from here on."""
        _set(self.primary, "synchronous_standby_names", "")
        _set(self.replica, "primary_conninfo", "")
        _until(lambda: not _scalar(self.replica, "SELECT count(*) FROM pg_stat_wal_receiver"), "the end of replication")

    def missing_bytes(self) -> int:
        """Return how many bytes of the primary's log the replica has not received: what a failover now would lose."""
        received = _scalar(self.replica, "SELECT pg_last_wal_receive_lsn()")
        return int(str(_scalar(self.primary, f"SELECT pg_current_wal_lsn() - '{received}'")))

    def changes(self) -> dict[str, int]:
        """Return how many rows were changed so far on the primary, by database."""
        query = "SELECT datname, tup_inserted + tup_updated + tup_deleted FROM pg_stat_database WHERE datname <> ''"
        with self.primary.connect() as connection:
            return {name: int(rows) for name, rows in connection.exec_driver_sql(query)}

    def fail_over(self) -> None:
        """Kill the primary, frozen or not, unless it is dead, and promote the replica."""
        self.primary.kill()
        # Its copy of the primary's settings would make it wait for a replica that there is not yet.
        _set(self.replica, "synchronous_standby_names", "")
        _scalar(self.replica, f"SELECT pg_promote(true, {_SECONDS:.0f})")
        self.primary, self.replica = self.replica, self.primary

    def _is_streaming(self, state: str) -> bool:
        query = "SELECT count(*) FROM pg_stat_replication WHERE state = :state OR sync_state = :state"
        with self.primary.connect() as connection:
            return connection.execute(text(query), {"state": state}).scalar() == 1


@contextmanager
def running_pair(folder: Path) -> Iterator[PostgresPair]:
    """Start a primary and its replica (4 s), whose logs are in `folder`; both end and are deleted at the end."""
    with ExitStack() as ends:
        first, second = (
            ends.enter_context(prepared_postgres(folder / f"postgres-{number}.log", _SETTINGS)) for number in (1, 2)
        )
        first.initialize()
        first.start()
        pair = PostgresPair(first, second)
        pair.add_replica()
        yield pair


def _set(server: PostgresServer, name: str, value: str) -> None:
    with server.connect() as connection:
        connection.exec_driver_sql(f"ALTER SYSTEM SET {name} = '{value}'")
        connection.exec_driver_sql("SELECT pg_reload_conf()")


def _scalar(server: PostgresServer, query: str) -> object:
    with server.connect() as connection:
        return connection.exec_driver_sql(query).scalar()


def _until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {_SECONDS:.0f} s for {what}")
        time.sleep(0.02)
