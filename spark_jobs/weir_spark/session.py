"""Configures a Spark session, makes it the active one, and measures the steps of a job in it.

Invariant: equal rows have equal digests, whatever the defaults of the server. A step that fails is measured, too.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cache
from importlib.metadata import Distribution, distributions

from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession

from weir.code.syntax import top_level_of
from weir.errors import Misconfigured, first_line

try:
    from py4j.protocol import Py4JJavaError
except ImportError:  # a client of Connect has no JVM
    Py4JJavaError = PySparkException

Log = Callable[[str], None]
"""Takes a line of a log."""

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What Spark raises: in a session of its own the second, where an executor has failed."""

FORCED: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Spark's default. `Origin` and `origin` are one column, so a region may not change what a key means.
    "spark.sql.caseSensitive": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Spark's default, INT96, has neither statistics nor an order.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
"""The settings of every session; neither a server nor a region can change them."""

_DEFAULTS: Mapping[str, str] = {
    # The server's own log has the JVM's stack traces; in the log of an Airflow task they bury the message.
    "spark.sql.connect.serverStacktrace.enabled": "false",
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
}
"""The settings of a session unless the region has others. None of them can change a result."""

_NO_ROWS = frozenset({*_DEFAULTS, "spark.sql.warehouse.dir"})
"""Settings of Spark SQL on which no row depends."""

_OF_HADOOP = "spark.hadoop."

_S3A: Mapping[str, str] = {
    # By itself it tries a request for days that is always answered with 503: the waits before its 20 tries double. With
    # these, half a minute of 503 passes; then the tasks of Spark and of Airflow try again.
    "fs.s3a.retry.throttle.interval": "1s",
    "fs.s3a.retry.throttle.limit": "4",
    # For other failures. Each try has six of Amazon's client in it, so that an upload that is not answered takes six
    # times as long as the connection waits, and all twice.
    "fs.s3a.retry.interval": "8s",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.connection.timeout": "30s",
    "fs.s3a.analytics.accelerator.physicalio.blockreadretrycount": "3",
}
"""Hadoop's settings of a session unless the region or Spark's start has others.

A process has one client for each bucket, with the settings of the session that was the first to ask for it."""

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The version of this process: Spark refuses to run its functions where workers have another one."""

_INSTALLERS = re.compile(r"^\.\.|^/|\.dist-info/|,,$")
"""Lines of a RECORD that differ from one installer or place to another: programs, its own notes, what is compiled."""


def configure(session: SparkSession, extra: Mapping[str, str]) -> dict[str, str]:
    """Set Weir's and the region's settings; return what a manifest records: these, and versions of Spark and Python.

    Raises Misconfigured for a setting that contradicts one of Weir's, and for one that only a server's start can set.
    """
    for key, value in extra.items():
        _check(key, value)
    settings = {**_DEFAULTS, **_unset(session, _S3A, extra), **extra, **FORCED}
    if not _are_set_at_once(session, settings):
        for key, value in settings.items():
            _set(session, key, value)
    return {**FORCED, **extra, "spark.version": session.version, "python.version": _PYTHON}


@cache
def packages(archived: frozenset[str] = frozenset()) -> str:
    """Return a fingerprint of the distributions that this process can import, and of their versions.

    A version tells what an index has given. Of what was installed from a folder, an archive or a repository, the files
    count, too, but for those of the top-level modules that are `archived`. It looks for two files of each distribution,
    which takes a tenth of a second.
    """
    found = sorted({f"{each.name}=={each.version}{_files_of(each, archived)}" for each in distributions()})
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def _files_of(distribution: Distribution, archived: Set[str]) -> str:
    """Return the files of a distribution, with their hashes, if it was not installed from an index."""
    if distribution.read_text("direct_url.json") is None:
        return ""
    lines = (distribution.read_text("RECORD") or "").splitlines()
    names = (each for each in lines if not _INSTALLERS.search(each))
    return "".join(sorted(f"\n{each}" for each in names if top_level_of(each.partition(",")[0]) not in archived))


def sql_settings(session: SparkSession) -> str:
    """Return a fingerprint of all settings of Spark SQL that a session does not leave at Spark's default."""
    found = dict(session.conf.getAll)
    # Where a table without a path would be; a driver of its own has it in its folder.
    known = sorted((key, found[key]) for key in found if key.startswith("spark.sql.") and key not in _NO_ROWS)
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def is_remote(session: SparkSession) -> bool:
    """Report whether a session is a client of a Spark Connect server."""
    return type(session).__module__.startswith("pyspark.sql.connect")


@contextmanager
def active(session: SparkSession) -> Iterator[None]:
    """Make a remote session this thread's active one.

    pyspark asks the active session, not the DataFrame's own, how to make a UDF and whose a checkpoint is. A session
    of Spark's classic kind is left alone: there is one context in a process.
    """
    if not is_remote(session):
        yield
        return
    holder = type(session)._active_session  # noqa: SLF001  # there is no public way for a remote session
    before = getattr(holder, "session", None)
    holder.session = session
    try:
        yield
    finally:
        holder.session = None if before is session else before


def _check(key: str, value: str) -> None:
    forced = FORCED.get(key)
    if forced is not None and value.lower() != forced.lower():
        raise Misconfigured.of("session.setting_forced", key=key, value=value, forced=forced)


def _unset(session: SparkSession, defaults: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults that neither Spark has since its start nor a region sets, for Hadoop."""
    names = [f"{_OF_HADOOP}{name}" for name in defaults]
    if is_remote(session):  # in one request
        told = session.client.get_config_with_defaults(*((name, "") for name in names))
    else:
        told = tuple(session.conf.get(name, "") for name in names)
    at_start = dict(zip(defaults, told, strict=True))
    return {k: v for k, v in defaults.items() if not at_start[k] and f"{_OF_HADOOP}{k}" not in extra}


def _are_set_at_once(session: SparkSession, settings: Mapping[str, str]) -> bool:
    """Set all settings of a remote session in one request; false if one of them cannot be set."""
    if not is_remote(session):
        return False
    try:
        session.conf._set_all(dict(settings), silent=False)  # noqa: SLF001  # the public way asks once a setting
    except (AnalysisException, IllegalArgumentException):
        return False
    return True


def _set(session: SparkSession, key: str, value: str) -> None:
    if not is_remote(session) and session.conf.get(key, None) == value:
        return  # given at the submission, where it may be one that only a start can set
    try:
        session.conf.set(key, value)
    except (AnalysisException, IllegalArgumentException) as error:
        raise Misconfigured.of("session.setting_refused", key=key, value=value, error=first_line(error)) from error


@contextmanager
def measured(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Record how many seconds a step takes, under its name."""
    start = time.monotonic()
    try:
        yield
    finally:
        seconds[step] = round(time.monotonic() - start, 3)
