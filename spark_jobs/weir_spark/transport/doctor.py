"""Examines a Spark Connect server for `weir doctor`: its version, its Python, its access to the store.

Invariant: each check has a session of its own, which ends with it, and files of its own, which are deleted.
"""

from __future__ import annotations

import io
import platform
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.version import __version__ as client_version

from weir.doctor.examination import Check, Enough, Finding, ok, problem, unknown
from weir.doctor.spark import (
    LENIENT,
    ServerFacts,
    judge_python,
    judge_reading,
    judge_server,
    judge_trouble,
    judge_writing,
)
from weir.doctor.store import scratch
from weir.errors import WeirError
from weir.store.store import Store

FILES = 8
"""The number of tasks that read and write: enough for one on each of a few executors."""

SECONDS = 90.0
"""Python's first function and the first job of a server that has just started take long on a busy machine."""

_CONNECT_SECONDS = 5.0
_DEFAULT_PORT = 15002
_JAVA_METHODS = {
    "java": "java_method('java.lang.System', 'getProperty', 'java.version')",
    "hadoop": "java_method('org.apache.hadoop.util.VersionInfo', 'getVersion')",
}


class ConnectExam:
    """Checks the server at `url`, "sc://host:port/;user_id=...", and its access to `store`."""

    def __init__(self, area: str, url: str, store: Store | None) -> None:
        self._area = area
        self._url = url
        self._store = store
        self._hadoop = ""

    def checks(self) -> list[Check]:
        """The checks, in order; those of the store only if there is one."""
        always = [
            Check(self._area, "reachable", self.check_reachable, is_gate=True),
            Check(self._area, "version", self.check_server, seconds=SECONDS),
            Check(self._area, "Python", self.check_python, seconds=SECONDS),
        ]
        if self._store is None:
            return always
        store = self._store
        return [
            *always,
            Check(self._area, "reads the store", lambda: self.check_reading(store), seconds=SECONDS, is_gate=True),
            Check(self._area, "writes the store", lambda: self.check_writing(store), seconds=SECONDS),
        ]

    def check_reachable(self) -> Iterator[Finding]:
        """Check that a server listens there: pyspark itself would retry for ten minutes."""
        parts = urlsplit(self._url)
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORT
        try:
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            yield problem(
                self._area,
                "reachable",
                f"nothing answers at {host}:{port}: {error}",
                expected="a Spark Connect server",
                mend="start it ($SPARK_HOME/sbin/start-connect-server.sh), or correct host and port of the connection",
            )
            return
        yield ok(self._area, "reachable", f"sc://{host}:{port}")

    def check_server(self) -> Iterator[Finding]:
        """Check version, Java, and the settings by which files are left out."""
        try:
            with self._session() as session:
                facts = _facts(session)
        except PySparkException as error:
            yield problem(
                self._area,
                "version",
                _message(error),
                expected="a Spark Connect server that takes this connection's account",
                mend="check login (the user), password (the token) and use_ssl of the connection, and the server's log",
            )
            return
        self._hadoop = facts.hadoop
        yield from judge_server(self._area, facts, client_version)

    def check_python(self) -> Iterator[Finding]:
        """Check that the server's Python runs functions of this process."""
        from pyspark.sql.connect.functions import udf  # noqa: PLC0415  imports grpc

        here = platform.python_version()
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the server need not know this module
        try:
            with self._session() as session:
                there = session.range(1).select(udf(_python_version, "string")().alias("python")).collect()[0]["python"]
        except PySparkException as error:
            yield judge_python(self._area, "", here, said=_message(error))
            return
        finally:
            cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        yield judge_python(self._area, there, here)

    def check_reading(self, store: Store) -> Iterator[Finding]:
        """Check that Spark reads files that are written here."""
        yield from self._with_files(store, "reads the store", self._read)

    def check_writing(self, store: Store) -> Iterator[Finding]:
        """Check that files of Spark can be read and deleted here."""
        yield from self._with_files(store, "writes the store", self._write)

    def _with_files(
        self, store: Store, name: str, ask: Callable[[SparkSession, Store, str], Finding]
    ) -> Iterator[Finding]:
        url = store.spark_url("")
        if not _may_write(store):
            found = "not checked, since the store cannot be written from here, or is not there before the first run"
            yield unknown(self._area, name, found, mend="run a dataflow once, then ask again")
            raise Enough
        try:
            with scratch(store) as folder, self._session() as session:
                finding = ask(session, store, folder)
        except PySparkException as error:
            yield judge_trouble(self._area, name, _message(error), url, self._hadoop)
        except WeirError as error:
            yield problem(
                self._area,
                name,
                str(error),
                expected="files that Spark's user and this user may both read and delete",
                mend="run both as one user, or in one group with umask 002; delete .weir-doctor-* in the store",
            )
        else:
            yield finding

    def _read(self, session: SparkSession, store: Store, folder: str) -> Finding:
        lines = {f"{number} {uuid.uuid4()}" for number in range(FILES)}
        for line in lines:
            store.create(f"{folder}/{line.split()[0]}.txt", line.encode())
        session.conf.set("spark.sql.files.maxPartitionBytes", "1m")  # no two files in one task
        rows = session.read.text(store.spark_url(folder)).collect()
        return judge_reading(self._area, store.spark_url(""), FILES, len(lines & {row["value"] for row in rows}))

    def _write(self, session: SparkSession, store: Store, folder: str) -> Finding:
        path = f"{folder}/written"
        session.range(0, FILES, 1, FILES).write.parquet(store.spark_url(path))
        files = [name for name, _ in store.list(path) if name.endswith(".parquet")]
        rows = sum(pq.read_metadata(io.BytesIO(store.read(f"{path}/{name}"))).num_rows for name in files)
        return judge_writing(self._area, store.spark_url(""), FILES, rows)

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        session = SparkSession.builder.remote(f"{self._url.rstrip(';')};session_id={uuid.uuid4()}").create()
        try:
            yield session
        finally:
            session.stop()


def _may_write(store: Store) -> bool:
    try:
        with scratch(store) as folder:
            store.create(f"{folder}/file", b"")
    except WeirError:
        return False
    return True


def _facts(session: SparkSession) -> ServerFacts:
    version = session.version
    settings = {key: str(session.conf.get(key)) for key in LENIENT}
    methods = {name: _result_of(session, expression) for name, expression in _JAVA_METHODS.items()}
    return ServerFacts(version, settings=settings, **methods)


def _result_of(session: SparkSession, expression: str) -> str:
    """Return the result of a Java method on the server; empty where that is not allowed."""
    try:
        rows: list[Any] = session.sql(f"SELECT {expression} AS result").collect()
    except PySparkException:
        return ""
    return str(rows[0]["result"] or "")


def _python_version() -> str:
    import platform as there  # noqa: PLC0415  on the server

    return there.python_version()


def _message(error: PySparkException) -> str:
    """Return the message of an error, without the JVM's stack trace."""
    return str(error).split("\n\nJVM stacktrace", 1)[0].strip()
