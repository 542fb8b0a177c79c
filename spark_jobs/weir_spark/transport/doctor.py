"""The checks of a Spark Connect server for `weir doctor`: version, Python, and its access to the store.

Invariant: each check has a session of its own, which ends with it, and files of its own, which are deleted.
"""

from __future__ import annotations

import io
import platform
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.version import __version__ as client_version

from weir.doctor import table
from weir.doctor.examination import Check, Enough, Finding, Item
from weir.doctor.spark import (
    connector_finding,
    java_finding,
    python_finding,
    store_error_finding,
    store_finding,
    version_finding,
)
from weir.doctor.store import scratch
from weir.errors import WeirError
from weir.store.store import Store
from weir_spark.program import session_for

FILES = 8
"""The number of tasks that read and write, so that each of a few executors is likely to have one."""

_NAME = "weir doctor"
_CONNECT_SECONDS = 5.0
_DEFAULT_PORT = 15002
_JAVA = "java_method('java.lang.System', 'getProperty', 'java.version')"
_CLASS_PATH = "java_method('java.lang.System', 'getProperty', 'java.class.path')"
_HADOOP = "java_method('org.apache.hadoop.util.VersionInfo', 'getVersion')"


class ConnectExam:
    """Checks the server at `url`, "sc://host:port/;user_id=...", and its access to `store`."""

    def __init__(self, area: str, url: str, store: Store) -> None:
        self._area = area
        self._url = url
        self._store = store
        self._hadoop = ""

    def checks(self) -> list[Check]:
        """Return the checks, in order: at last, that Spark and this process read what the other one writes."""
        of_files = {table.READS_STORE.of(self._area): self._read, table.WRITES_STORE.of(self._area): self._write}
        return [
            table.REACHABLE.of(self._area).check(self.check_reachable),
            table.SPARK_VERSION.of(self._area).check(self.check_server),
            table.SPARK_PYTHON.of(self._area).check(self.check_python),
            *(item.check(partial(self._check_files, item, count)) for item, count in of_files.items()),
        ]

    def check_reachable(self) -> Iterator[Finding]:
        """Check that a server accepts connections: pyspark itself would try for ten minutes."""
        item, parts = table.REACHABLE.of(self._area), urlsplit(self._url)
        host, port = parts.hostname or "", parts.port or _DEFAULT_PORT
        try:
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            yield item.problem(f"nothing answers at {host}:{port}: {error}")
            return
        yield item.ok(f"sc://{host}:{port}")

    def check_server(self) -> Iterator[Finding]:
        """Check the server's versions of Spark and Java."""
        try:
            with session_for(_NAME, self._url, {}) as session:
                version, java, self._hadoop = session.version, _value(session, _JAVA), _value(session, _HADOOP)
                jars = f"{session.conf.get('spark.jars', '')} {_value(session, _CLASS_PATH)}"
        except PySparkException as error:
            yield table.SPARK_ACCOUNT.of(self._area).problem(_message(error))
            return
        yield version_finding(self._area, version, client_version)
        if java:
            yield java_finding(self._area, java)
        if self._store.spark_url("").startswith("s3a:") and self._hadoop:
            yield connector_finding(self._area, jars, self._hadoop)

    def check_python(self) -> Iterator[Finding]:
        """Check that the server's Python runs a UDF of this Python."""
        from pyspark.sql.connect.functions import udf  # noqa: PLC0415  imports grpc

        here, there, message = platform.python_version(), "", ""
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the server need not have this module
        try:
            with session_for(_NAME, self._url, {}) as session:
                there = session.range(1).select(udf(_python_version, "string")().alias("python")).collect()[0]["python"]
        except PySparkException as error:
            message = _message(error)
        finally:
            cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        yield python_finding(self._area, there, here, error=message)

    def _check_files(self, item: Item, count: Callable[[SparkSession, str], int]) -> Iterator[Finding]:
        """Compare `FILES` with the number that `count` has seen in a new folder."""
        url = self._store.spark_url("")
        if not _may_write(self._store):
            found = "not checked: this process cannot write the store, or the store does not exist before the first run"
            yield item.unknown(found, mend="run a dataflow once, then run `weir doctor` again")
            raise Enough
        try:
            with scratch(self._store) as folder, session_for(_NAME, self._url, {}) as session:
                seen = count(session, folder)
        except PySparkException as error:
            yield store_error_finding(item, _message(error), url, self._hadoop)
        except WeirError as error:
            yield table.OTHER_USER.of(item.area, item.name).problem(str(error))
        else:
            yield store_finding(item, url, FILES, seen)

    def _read(self, session: SparkSession, folder: str) -> int:
        """Write files here and let Spark read them."""
        lines = {f"{number} {uuid.uuid4()}" for number in range(FILES)}
        for line in lines:
            self._store.create(f"{folder}/{line.split()[0]}.txt", line.encode())
        session.conf.set("spark.sql.files.maxPartitionBytes", "1m")  # no two files in one task
        rows = session.read.text(self._store.spark_url(folder)).collect()
        return len(lines & {row["value"] for row in rows})

    def _write(self, session: SparkSession, folder: str) -> int:
        """Let Spark write files of one row each and read them here."""
        path = f"{folder}/written"
        session.range(0, FILES, 1, FILES).write.parquet(self._store.spark_url(path))
        files = [name for name, _ in self._store.list(path) if name.endswith(".parquet")]
        return sum(pq.read_metadata(io.BytesIO(self._store.read(f"{path}/{name}"))).num_rows for name in files)


def _may_write(store: Store) -> bool:
    try:
        with scratch(store) as folder:
            store.create(f"{folder}/file", b"")
    except WeirError:
        return False
    return True


def _value(session: SparkSession, expression: str) -> str:
    """Return the value of a SQL expression; empty where the server does not allow it."""
    try:
        rows: list[Any] = session.sql(f"SELECT {expression} AS value").collect()
    except PySparkException:
        return ""
    return str(rows[0]["value"] or "")


def _python_version() -> str:
    import platform as there  # noqa: PLC0415  on the server

    return there.python_version()


def _message(error: PySparkException) -> str:
    """Return Spark's message without the JVM's stack trace."""
    return str(error).split("\n\nJVM stacktrace", 1)[0].strip()
