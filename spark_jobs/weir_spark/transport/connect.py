"""Runs a region on a Spark Connect server. Invariant: a session belongs to one attempt and ends with it.

Its id is recorded before it is made, so that any process can stop its work when it fences the attempt. A cancelled
query is Fenced only if the server that ran it is still there.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import SparkConnectClient, core
from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicy

from weir.connections import FROM_ENVIRONMENT, LookUps
from weir.errors import EngineLost, Fenced, Misconfigured, WeirError, first_line
from weir.formats.codec import to_json
from weir.formats.region_job import RegionReport, SparkJob
from weir.store.store import Store
from weir.wording import shortened
from weir_spark.region import region
from weir_spark.session import Log
from weir_spark.transport.failures import in_place_of, is_checkpoint_lost, of_code_or_rows, of_file_system
from weir_spark.transport.progress import ProgressLog

_USER = "weir"
"""A server knows a session by user and id; the process that interrupts may run as another user of the system."""

_STOP_SECONDS = 10.0
_SHUTDOWN_SECONDS = 2.0
_RELEASE_SECONDS = 10.0

_RELEASE_PAUSES = (0.1, 0.5, 2.0)
"""Seconds between tries to release a session whose interrupted work has not ended on the server."""

_SHORT = {"interrupt": 20.0, "release_session": 20.0, "config": 20.0}
"""Seconds that a call of an engine's side session may take. A client older than 4.3 has no such limit."""

_NOISY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_LOG_LEVEL = "SPARK_CONNECT_LOG_LEVEL"
"""pyspark's own: without it, the client of Connect logs nothing."""


class ConnectEngine:
    """Runs regions on the server at `url` ("sc://host:port", with parameters such as `/;token=...` if needed).

    `address` is the URL without its parameters, for messages: one of them may be a token.
    `retries` is how often a call is tried again at a server that does not answer: 8 times are about 25 seconds, enough
    for one that is being started again. `look_ups` finds what functions ask for, in this process.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        retries: int = 8,
        look_ups: LookUps = FROM_ENVIRONMENT,
    ) -> None:
        self.url = url
        address, _, self._parameters = url.partition(";")
        self.address = address.rstrip("/")
        self._retries = retries
        self._storage_options = storage_options
        self._look_ups = look_ups
        self._running: str | None = None
        self._is_stopped = threading.Event()

    def run(self, job: SparkJob, session_id: str, on_progress: Log) -> None:
        """Run the region in a new session with this id (a UUID) and write its report.

        Raises EngineLost if the server cannot be reached or goes away, Fenced if the work was interrupted,
        Misconfigured if a person has to change a stage; other errors of Spark and of the stages as they are.
        """
        store = Store.open(job.store, dict(self._storage_options) if self._storage_options else None)
        _quieten()
        server = _Server()
        self._running = session_id
        try:
            with self._translated(job, server), self._session(session_id) as session:
                server.id = _app_id(session.client)
                report = self._compute(job, session, store, on_progress)
        finally:
            self._running = None
        self._check_not_stopped(job)
        store.create(job.report, to_json(report))

    def interrupt(self, session_id: str) -> None:
        """Stop the work of a session, from any process, and end it for good: the server refuses its id afterwards.

        A session that never began is ended all the same; one that has ended already is fine. Raises Retryable if the
        server cannot be reached.
        """
        client = self._client(session_id, min(3, self._retries))
        try:
            _end(client)
        except Exception as error:
            if is_server_gone(error) or is_refused(error):
                raise translate(error, f"of session {session_id}", self.address, is_server_alive=False) from error
            raise
        finally:
            client.close()

    def stop(self) -> None:
        """Stop what `run` is doing, from a signal handler or any thread; returns within about ten seconds.

        `run` then raises Fenced. What the server does not hear of now ends when the next attempt interrupts it.
        """
        self._is_stopped.set()
        session_id = self._running
        if session_id is None:
            return
        # A thread of its own: the interrupted one may hold locks of grpc or of pyspark.
        thread = threading.Thread(target=self._interrupt_quietly, args=(session_id,), daemon=True)
        thread.start()
        thread.join(_STOP_SECONDS)

    def _compute(self, job: SparkJob, session: SparkSession, store: Store, log: Log) -> RegionReport:
        progress = ProgressLog(log)
        session.registerProgressHandler(progress)
        self._check_not_stopped(job)
        log(f"region {job.region}[{job.subtask}] runs on Spark {session.version} at {self.address}")
        return region.run(job, session, store, progress.log, self._look_ups)

    def _check_not_stopped(self, job: SparkJob) -> None:
        if self._is_stopped.is_set():
            raise Fenced.of("engines.stopped", region=job.region, attempt=job.attempt)

    def _interrupt_quietly(self, session_id: str) -> None:
        try:
            self.interrupt(session_id)
        except Exception:  # the process is ending; the next attempt interrupts this session again
            logging.getLogger(__name__).warning("session %s was not interrupted", session_id, exc_info=True)

    @contextmanager
    def _session(self, session_id: str) -> Iterator[SparkSession]:
        # `create` rather than `getOrCreate`, which hands out whatever session this process has already.
        session = SparkSession.builder.remote(self._url(session_id)).create()
        session.client.set_retry_policies([_patience(self._retries)])
        try:
            yield session
            # In threads, pyspark tells the server of each operation that its answer was read, and would end the session
            # meanwhile: the server refuses what it hears of a session that has ended, and each refusal is logged.
            wait(session.client._release_futures, _RELEASE_SECONDS)  # noqa: SLF001  `close` waits too late
        finally:
            # A server that does not answer has been waited for already.
            session.client.set_retry_policies([_patience(1)])
            session.stop()

    @contextmanager
    def _translated(self, job: SparkJob, server: _Server) -> Iterator[None]:
        try:
            yield
        except WeirError:
            raise
        except Exception as error:
            alive = not _is_of_spark(error) or self._is_alive(server, error)
            translated = translate(error, job.region, self.address, is_server_alive=alive)
            translated = in_place_of(error, translated, job)
            if translated is error:
                raise
            raise translated from error

    def _is_alive(self, server: _Server, error: Exception) -> bool:
        """Report whether the server process is still there; while it stops, it answers that work is canceled."""
        now = self._server_id()
        if not now or now != (server.id or now):
            return False
        if not is_interruption(error) or self._is_stopped.wait(_SHUTDOWN_SECONDS):
            return True
        return self._server_id() == now

    def _server_id(self) -> str:
        """Return Spark's id of the server process, by a session that ends at once; empty if there is no answer."""
        client = self._client(str(uuid.uuid4()), max_retries=1)
        try:
            return _app_id(client)
        except Exception:  # noqa: BLE001  # any error means that there is no answer
            return ""
        finally:
            with suppress(Exception):  # the session is empty, and the server forgets it after an idle hour
                client.release_session()
            client.close()

    def _client(self, session_id: str, max_retries: int) -> SparkConnectClient:
        limits = {"rpc_deadlines": core.RpcDeadlines(**_SHORT)} if hasattr(core, "RpcDeadlines") else {}
        client = SparkConnectClient(self._url(session_id), **limits)
        client.set_retry_policies([_patience(max_retries)])
        return client

    def _url(self, session_id: str) -> str:
        given = [each for each in self._parameters.split(";") if each and not each.startswith("session_id=")]
        user = [] if any(each.startswith("user_id=") for each in given) else [f"user_id={_USER}"]
        return f"{self.address}/;" + ";".join([*given, *user, f"session_id={session_id}"])


@dataclass(slots=True)
class _Server:
    """The server process that a session was made in; its id is empty until it has answered."""

    id: str = ""


def _patience(max_retries: int) -> RetryPolicy:
    """Wait 0.05, 0.2, 0.8, 3.2, then 5 seconds each; pyspark's own policy is silent for ten minutes."""
    return DefaultPolicy(max_retries=max_retries, max_backoff=5000)


def _end(client: SparkConnectClient) -> None:
    """Interrupt, then close the id for good. Interrupting makes a session that the server does not know yet."""
    try:
        client.interrupt_all()
    except PySparkException as error:
        if not is_interruption(error):
            raise
    for pause in _RELEASE_PAUSES:
        if _is_released(client):
            return
        time.sleep(pause)
    client.release_session()


def _is_released(client: SparkConnectClient) -> bool:
    try:
        client.release_session()
    except PySparkException as error:
        if "SPARK_CONNECT_ILLEGAL_STATE" not in str(error):
            raise
        return False  # an interrupted query is between two of its states
    return True


def _app_id(client: SparkConnectClient) -> str:
    return str(client.get_config_dict("spark.app.id")["spark.app.id"])


def _is_of_spark(error: BaseException) -> bool:
    return isinstance(error, (PySparkException, grpc.RpcError, AssertionError))


def _quieten() -> None:
    """Keep pyspark from logging each error with the server's stack trace, before raising it.

    Airflow's configuration of logging enables all loggers, also that of Connect's client, which pyspark had disabled.
    """
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if _LOG_LEVEL not in os.environ:
        logging.getLogger("pyspark.sql.connect.logging").disabled = True


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
    return (
        _of_server(error, region, url, is_server_alive=is_server_alive)
        or of_file_system(error, region)
        or (EngineLost.of("transport.executor_lost_by_server", region=region) if is_checkpoint_lost(error) else None)
        or of_code_or_rows(error, region)
        or error
    )


def _of_server(error: Exception, region: str, url: str, *, is_server_alive: bool) -> WeirError | None:
    if is_refused(error):
        return Misconfigured.of("transport.token_refused", region=region, url=url)
    if is_server_gone(error) or not is_server_alive:
        return EngineLost.of("transport.server_lost", region=region, url=url, error=shortened(first_line(error), 300))
    if is_interruption(error):
        return Fenced.of("transport.work_interrupted", region=region, error=shortened(first_line(error), 300))
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
