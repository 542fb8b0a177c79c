"""What an error of Spark asks the caller to do. Invariant: only what a person must change becomes Misconfigured.

Whether an input is lost is not decided here: a read that fails passes through, and the store is asked.

What an error of Spark says to whoever wrote the stages. Invariant: it needs nothing but pyspark itself.

Drivers on a cluster often lack what only clients of a Connect server need.

Telling a full disk from what Spark says. Invariant: it needs nothing but pyspark itself.

Java's message is "No space left on device", or "Disk quota exceeded", and mostly several causes deep: a write fails as
TASK_WRITE_FAILED, and only the server's stack trace says why.

What an error says where a region has a Spark application of its own. Invariant: a lost cluster is nobody's fault.
"""

from __future__ import annotations

import grpc
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from weir.errors import DiskFull, EngineLost, Fenced, Misconfigured, StoreFull, WeirError

_INTERRUPTED = frozenset(
    {
        "OPERATION_CANCELED",
        "INVALID_HANDLE.OPERATION_ABANDONED",
        "INVALID_HANDLE.OPERATION_NOT_FOUND",
        "INVALID_HANDLE.SESSION_CLOSED",
    }
)

_OTHER_SERVER = frozenset({"INVALID_HANDLE.SESSION_CHANGED", "INVALID_HANDLE.SESSION_NOT_FOUND"})
_STOPPED = ("stopped SparkContext", "SparkContext was shut down", "SparkContext has been shutdown")
_UNREACHABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def is_interruption(error: BaseException) -> bool:
    """Tell whether Spark stopped the work because somebody interrupted or released the session.

    A server that is shut down says the same: ask whether it is still there before believing it.
    """
    return isinstance(error, PySparkException) and error.getCondition() in _INTERRUPTED


def is_still_closing(error: BaseException) -> bool:
    """Tell whether the server could not end a session because an interrupted query is between two of its states."""
    return isinstance(error, PySparkException) and "SPARK_CONNECT_ILLEGAL_STATE" in str(error)


def is_server_gone(error: BaseException) -> bool:
    """Tell whether the server did not answer, or is another process than the session was made in."""
    if isinstance(error, SparkConnectGrpcException) and error.getGrpcStatusCode() in _UNREACHABLE:
        return True
    if isinstance(error, PySparkException):
        return error.getCondition() in _OTHER_SERVER or any(text in str(error) for text in _STOPPED)
    if isinstance(error, grpc.RpcError):
        return not isinstance(error, grpc.Call) or error.code() in _UNREACHABLE
    # pyspark's word for a session id that a server started since does not know.
    return isinstance(error, AssertionError) and "server side session ID" in str(error)


def translate(error: Exception, region: str, url: str, *, is_server_alive: bool) -> Exception:
    """The error to raise in the place of `error`; itself if the kinds of Weir say no more than it does."""
    if isinstance(error, WeirError):
        return error
    if is_server_gone(error) or not is_server_alive:
        return EngineLost(
            f"region {region}: the Spark server at {url} went away or does not answer: {_first_line(error)}"
        )
    if is_interruption(error):
        return Fenced(f"region {region}: its Spark work was interrupted: {_first_line(error)}")
    full = disk_full(error, region)
    if full is not None:
        return full
    if is_checkpoint_lost(error):
        return EngineLost(f"region {region}: the Spark server lost an executor, with rows that it held for others")
    advice = advice_on(error)
    return error if advice is None else Misconfigured(f"region {region}: {advice}: {error}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0][:300]


_READ_FAILED = frozenset({"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"})

_NO_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION")
"""What a Python worker says, the latter where its server was started with the environment of a Connect client."""

_CHECKPOINT_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"


def advice_on(error: Exception) -> str | None:
    """What a person has to change; None if trying again may help, or nobody knows."""
    if isinstance(error, AnalysisException) and error.getCondition() not in _READ_FAILED:
        return "Spark refuses the plan of its stages"
    if isinstance(error, PythonException) and any(name in str(error) for name in _NO_SESSION):
        return (
            "a module of the pipeline needs a Spark session when Python workers import it. Where it makes a UDF at its "
            "top level, write the type as an object, @udf(LongType()), not as text"
        )
    return "a module is missing where the task runs" if isinstance(error, ImportError) else None


def is_checkpoint_lost(error: Exception) -> bool:
    """Tell whether an executor was lost with rows of a stage that is used more than once; another try has others."""
    return _CHECKPOINT_LOST in str(error)


_SAID = ("No space left on device", "Disk quota exceeded", "There is not enough space on the disk")
_CAUSE = "Caused by: "

_FILE_SYSTEMS = "org.apache.hadoop.fs."
"""What writes to a store; Spark's own files it writes without Hadoop."""


def disk_full(error: Exception, region: str) -> DiskFull | None:
    """The error to raise in the place of `error` if a disk was full, with what to do about which; else None."""
    trace = _trace(error)
    said = next((text for text in _SAID if text in trace), None)
    if said is None:
        return None
    cause = next(part for part in reversed(trace.split(_CAUSE)) if said in part)
    if _FILE_SYSTEMS in cause:
        return StoreFull(
            f"region {region}: the store's disk is full ({said}). Make room there, and the task goes on by itself; "
            "nothing is marked lost"
        )
    return DiskFull(
        f"region {region}: a disk of Spark's is full ({said}), most likely that of its local folder, where it shuffles "
        "and spills. Make room there, or let spark.local.dir of the server and its workers name a larger disk: the "
        "task goes on by itself"
    )


def _trace(error: Exception) -> str:
    """All that is known of an error: pyspark keeps Java's stack trace apart from the message."""
    of_server = getattr(error, "getStackTrace", None)
    trace = of_server() if callable(of_server) else getattr(error, "_stackTrace", None)  # that of a classic session
    return f"{error}\n{trace or ''}"


_LOST = (
    "stopped SparkContext",
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "All masters are unresponsive",
    "Master removed our application",
    "Application has been killed",
)

_LOST_GATEWAY = frozenset({"Py4JNetworkError", "ConnectionRefusedError"})


def translate_of_own_session(error: Exception, region: str) -> Exception:
    """The error to raise in the place of `error`; itself if the kinds of Weir say no more than it does."""
    if isinstance(error, WeirError):
        return error
    full = disk_full(error, region)
    if full is not None:
        return full
    if is_checkpoint_lost(error):
        return EngineLost(f"region {region}: an executor was lost, with rows that it held for others")
    names = {base.__name__ for base in type(error).__mro__}
    if any(text in str(error) for text in _LOST) or names & _LOST_GATEWAY:
        line = next((line for line in str(error).splitlines() if any(text in line for text in _LOST)), str(error))
        return EngineLost(
            f"region {region}: its Spark application lost its cluster or its JVM: {line.strip(': ')[:300]}"
        )
    advice = advice_on(error)
    return error if advice is None else Misconfigured(f"region {region}: {advice}: {error}")
