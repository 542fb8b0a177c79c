"""Translate an error of a Connect server into the kind that says what the caller must do. It needs grpc.

Invariant: a cancelled query is Fenced only if the server that ran it is still there.
"""

from __future__ import annotations

import grpc
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from weir.errors import EngineLost, Fenced, Message, Misconfigured, WeirError, first_line
from weir.wording import shortened
from weir_spark.transport.failures import is_checkpoint_lost, of_code_or_rows, of_file_system

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


def translate(error: Exception, region: str, url: str, *, is_server_alive: bool) -> Exception:
    """Return the error to raise in the place of `error`; itself if no kind of Weir fits."""
    if isinstance(error, WeirError):
        return error
    of_server = _of_server(error, region, url, is_server_alive=is_server_alive)
    if of_server is not None:
        return of_server
    away_or_full = of_file_system(error, region)
    if away_or_full is not None:
        return away_or_full
    if is_checkpoint_lost(error):
        return EngineLost(Message("transport.executor_lost_by_server", region=region))
    return of_code_or_rows(error, region) or error


def _of_server(error: Exception, region: str, url: str, *, is_server_alive: bool) -> WeirError | None:
    if is_refused(error):
        return Misconfigured(Message("transport.token_refused", region=region, url=url))
    if is_server_gone(error) or not is_server_alive:
        return EngineLost(
            Message("transport.server_lost", region=region, url=url, error=shortened(first_line(error), 300))
        )
    if is_interruption(error):
        return Fenced(Message("transport.work_interrupted", region=region, error=shortened(first_line(error), 300)))
    return None


def is_refused(error: BaseException) -> bool:
    """Report whether the server did not accept the client's token, or its lack of one."""
    status = error.getGrpcStatusCode() if isinstance(error, SparkConnectGrpcException) else None
    return status is grpc.StatusCode.UNAUTHENTICATED


def is_interruption(error: BaseException) -> bool:
    """Report whether Spark stopped the work because the session was interrupted or released.

    A server that is shut down answers the same: check that it is still there.
    """
    return isinstance(error, PySparkException) and error.getCondition() in _INTERRUPTED


def is_still_closing(error: BaseException) -> bool:
    """Report whether the server could not end a session because an interrupted query is between two of its states."""
    return isinstance(error, PySparkException) and "SPARK_CONNECT_ILLEGAL_STATE" in str(error)


def is_server_gone(error: BaseException) -> bool:
    """Report whether the server did not answer, or is another process than the session was made in."""
    if isinstance(error, SparkConnectGrpcException) and error.getGrpcStatusCode() in _UNREACHABLE:
        return True
    if isinstance(error, PySparkException):
        return error.getCondition() in _OTHER_SERVER or any(text in str(error) for text in _STOPPED)
    if isinstance(error, grpc.RpcError):
        return not isinstance(error, grpc.Call) or error.code() in _UNREACHABLE
    # pyspark's error for a session id that a server started since does not know.
    return isinstance(error, AssertionError) and "server side session ID" in str(error)
