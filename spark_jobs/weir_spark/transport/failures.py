"""Translate an error of Spark into the kind that says what the caller must do. Invariant: it needs only pyspark.

A driver on a cluster often lacks what only clients of a Connect server need, such as grpc. Only what a person must
change becomes Misconfigured. A read that fails passes through: the store decides whether an input is lost.

Java's message of a full disk is "No space left on device", or "Disk quota exceeded", and mostly several causes deep: a
write fails as TASK_WRITE_FAILED, and only the server's stack trace has the reason.
"""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, PySparkException, PythonException

from weir.errors import DiskFull, Misconfigured, Retryable, StoreFull, WeirError
from weir.formats.region_job import SparkJob
from weir.wording import shortened
from weir_spark.files.failures import refused_rows, trace_of, unreadable_file
from weir_spark.files.misfits import PLACE
from weir_spark.region.sql import READ_FAILED
from weir_spark.results.reader import unreadable_input

_NO_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION")
"""Messages of a Python worker; the latter where its server was started with the environment of a Connect client."""

_CHECKPOINT_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"

_DISK_FULL = (
    *("No space left on device", "Disk quota exceeded", "There is not enough space on the disk"),
    *("DSQuotaExceededException", "NSQuotaExceededException"),  # HDFS's, of bytes and of names
)
_CAUSE = "Caused by: "

_EXPIRED = "ExpiredToken"
_S3A = ("org.apache.hadoop.fs.s3a.", "software.amazon.s3.analyticsaccelerator.")
"""The packages of the connector, and of what it reads with."""

_SILENT = re.compile(
    r"Service: S3, Status Code: 5\d\d|Unable to execute HTTP request: [^(\n]*|\bApiCall(?:Attempt)?TimeoutException"
    r"|\bTimeoutExceededException"
)
"""What Amazon's client says when its own tries have ended: the S3 was busy, failed, or did not answer."""

_NAMENODE_AWAY = (
    "at org.apache.hadoop.net.NetUtils.wrap",
    "org.apache.hadoop.hdfs.server.namenode.SafeModeException",
    "org.apache.hadoop.ipc.StandbyException",
)
"""A call of Hadoop's that found no server, or one that serves nobody yet."""
_UNKNOWN_HOST = "UnknownHostException"

_UNKNOWN_TYPE = "CANNOT_PARSE_DATATYPE"

_WRONG_OPTION = "INVALID_PARAMETER_VALUE"
"""The condition, without its last part, of an option such as a charset that Spark does not know."""

_FILE_SYSTEMS = ("org.apache.hadoop.fs.", "org.apache.hadoop.hdfs.")
"""The classes that write to a store; Spark writes its own files without Hadoop."""


def of_code_or_rows(error: Exception, region: str) -> Exception | None:
    """Return the error to raise in the place of one of user code, or of the rows that it reads; None if none fits."""
    refused = refused_rows(error)
    if refused is not None:
        place = getattr(error, PLACE, "")
        return Misconfigured.of("transport.failed", region=region, place=f"{place}: " if place else "", refused=refused)
    advice = _advice_on(error)
    if advice is None:
        return None
    return Misconfigured.of("transport.failed_with_advice", region=region, advice=advice, error=error)


def in_place_of(error: Exception, translated: Exception, job: SparkJob) -> Exception:
    """Return the error to raise in the place of `error`, with its notes, which tell the stage.

    `translated` is what it was translated into, or itself: then perhaps Spark could not read an input or a source.
    """
    if translated is error:
        translated = unreadable_input(error, job) or unreadable_source(error, job.region, job.store) or error
    if translated is not error:
        for note in getattr(error, "__notes__", ()):
            translated.add_note(note)
    return translated


def unreadable_source(error: Exception, region: str, store: str) -> Misconfigured | None:
    """Return the error to raise in the place of `error` if the bytes of a file are the reason, else None.

    A file of the store is not meant: whether that is lost is asked of the store.
    """
    told = unreadable_file(error, store)
    return None if told is None else Misconfigured.of("transport.source_unreadable", region=region, told=told)


def _advice_on(error: Exception) -> str | None:
    """Return what a person has to change; None if another try may help, or the error is of no known kind."""
    if isinstance(error, PySparkException) and error.getCondition() == _UNKNOWN_TYPE:
        return "a schema has a type that Spark does not have"
    if isinstance(error, PySparkException) and (error.getCondition() or "").startswith(_WRONG_OPTION):
        return "an option or argument has a value that Spark does not take"
    if isinstance(error, AnalysisException) and error.getCondition() not in READ_FAILED:
        return "Spark refuses the plan of its stages"
    if isinstance(error, PythonException) and any(name in str(error) for name in _NO_SESSION):
        return (
            "a module of the pipeline needs a Spark session when Python workers import it. Where it makes a UDF at its "
            "top level, write the type as an object, @udf(LongType()), not as text"
        )
    return "a module is missing where the task runs" if isinstance(error, ImportError) else None


def is_checkpoint_lost(error: Exception) -> bool:
    """Report whether an executor was lost with the checkpointed rows of a stage; another try computes them again."""
    return _CHECKPOINT_LOST in str(error)


def of_file_system(error: Exception, region: str) -> WeirError | None:
    """Return the error to raise in the place of `error` if a file system is full, away, or refuses a token."""
    of_s3 = token_expired(error, region) or s3_silent(error, region)
    return disk_full(error, region) or of_s3 or namenode_away(error, region)


def disk_full(error: Exception, region: str) -> DiskFull | None:
    """Return the error to raise in the place of `error` if a disk was full, with advice for that disk; else None."""
    trace = trace_of(error)
    message = next((text for text in _DISK_FULL if text in trace), None)
    if message is None:
        return None
    cause = next(part for part in reversed(trace.split(_CAUSE)) if message in part)
    if any(each in cause for each in _FILE_SYSTEMS):
        return StoreFull.of("transport.store_disk_full", region=region, message=message)
    return DiskFull.of("transport.spark_disk_full", region=region, message=message)


def token_expired(error: Exception, region: str) -> Retryable | None:
    """Return the error to raise in the place of `error` if the token of Spark's account has expired, else None."""
    trace = trace_of(error)
    is_expired = _EXPIRED in trace and _is_of_s3a(trace)
    return Retryable.of("transport.token_expired", region=region) if is_expired else None


def s3_silent(error: Exception, region: str) -> Retryable | None:
    """Return the error to raise in the place of `error` if S3 answered none of the tries of S3A, else None."""
    trace = trace_of(error)
    found = _SILENT.search(trace) if _is_of_s3a(trace) else None
    return None if found is None else Retryable.of("transport.s3_silent", region=region, error=found[0].strip())


def _is_of_s3a(trace: str) -> bool:
    return any(each in trace for each in _S3A)


def namenode_away(error: Exception, region: str) -> Retryable | None:
    """Return the error to raise in the place of `error` if a server of HDFS did not answer or serve, else None."""
    trace = trace_of(error)
    if _UNKNOWN_HOST in trace or not any(each in trace for each in _NAMENODE_AWAY):
        return None
    said = next((line for line in trace.splitlines() if "Exception: " in line), str(error))
    return Retryable.of("transport.namenode_away", region=region, said=shortened(said.strip(": "), 300))
