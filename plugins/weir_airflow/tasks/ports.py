"""The ports that a task of Airflow supplies to the drivers of `weir.attempts`: its process, and its engine.

Invariant: a task instance is resumed or rescheduled so late that Airflow cannot confuse its two processes.

A process that has ended so keeps its slot for one heartbeat interval after its end, and reports its end only then.
If the same try is queued again before, the scheduler mistakes the report for that of the second process, and fails it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final, NoReturn

from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException, TaskDeferred

from weir.attempts.steps import HEARTBEAT_SECONDS, repeated
from weir.attempts.waiting import WaitingAttempts
from weir.errors import Internal, Misconfigured, Retryable, WeirError
from weir.settling import Settling
from weir_airflow.engines.engines import engine_address, engine_at, engine_for, is_of_kind, prepare_imports

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from airflow.sdk import Connection, Context

    from weir.attempts.coordinator import Coordinator
    from weir.attempts.ports import Log
    from weir.coordination.values import Awaiting, SparkWork
    from weir.formats.region_job import SparkJob
    from weir_airflow.api.clearing import AirflowApi
    from weir_airflow.engines.engines import Engine
    from weir_airflow.tasks.context import TaskContext


_REPORT_SECONDS: Final = 3.0
"""Time for the scheduler to read a report, on top of the heartbeat interval."""

_SHORTEST_SECONDS: Final = 10.0
"""A shorter wait is not worth the start of another process, which takes processor time; a sleeping one takes a slot."""

_LOOK_SECONDS: Final = 1.0
"""The pause between two questions to the ledger while a process sleeps."""

_GRACE_SECONDS: Final = 60.0
"""How late a trigger may fire: another triggerer has taken over by then from one that was killed, if there is one."""


class AirflowTask:
    """A task's process: short waits are spent in it, longer ones deferred or, without a triggerer, rescheduled."""

    def __init__(self, task_context: TaskContext, log: Log, context: Context) -> None:
        self._context, self._log, self._airflow_context = task_context, log, context

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the ledger and store that the settings name."""
        return self._context.coordinator

    @cached_property
    def settling(self) -> Settling:
        """What settles the task's dataflow in this process."""
        return Settling(self._context.services, lambda: self.airflow, lambda: self._airflow_context)

    @property
    def airflow(self) -> AirflowApi:
        """Airflow's API, by the connection that the settings name. Raises Misconfigured or Retryable."""
        return self._context.airflow

    def wait(self, awaiting: Awaiting) -> None:
        """Sleep, or raise TaskDeferred or AirflowRescheduleException."""
        quiet = shortest_reschedule()
        if awaiting.seconds < max(quiet, _SHORTEST_SECONDS):
            self.log(f"{awaiting.reason}; the task goes on in {awaiting.seconds:.1f} s")
            self._sleep(awaiting)
        elif awaiting.attempt and self._can_defer():
            self.log(f"{awaiting.reason}; the task runs again when the ledger has it. This costs no try")
            raise _deferral(awaiting, quiet)
        else:
            self.log(f"{awaiting.reason}; the task runs again in {awaiting.seconds:.0f} s. This costs no try")
            raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=awaiting.seconds))

    def _sleep(self, awaiting: Awaiting) -> None:
        """Sleep until the time has passed, or the ledger tells that the wait is over."""
        waiting = WaitingAttempts(self._context.services.ledger)
        until = time.monotonic() + awaiting.seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
            with suppress(Retryable):
                if awaiting.attempt and waiting.over([awaiting.attempt]):
                    return

    def _can_defer(self) -> bool:
        """Report whether a triggerer resumes the task, and what is awaited can run while the task is deferred."""
        operator = self._airflow_context["task"]
        if not operator.may_defer or operator.max_active_tis_per_dag is not None:
            return False  # Airflow counts a deferred task instance among the active ones of its task
        try:
            return self._context.airflow.can_defer(operator.pool)
        except WeirError:
            return False

    def fail(self, reason: str) -> NoReturn:
        """Raise AirflowFailException, about which Airflow asks no retry policy."""
        raise AirflowFailException(reason)

    def skip(self, reason: str) -> NoReturn:
        """Raise AirflowSkipException."""
        raise AirflowSkipException(reason)

    def log(self, message: str) -> None:
        """Write a line to the task's log."""
        self._log(message)

    def heartbeats(self, beat: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `beat` in a thread, each half minute."""
        return repeated(beat, HEARTBEAT_SECONDS, self.log)


class SparkEngine:
    """The engine of an Airflow connection; `on_engine` gets it, so that `on_kill` can stop it."""

    def __init__(self, context: TaskContext, conn_id: str | None, on_engine: Callable[[Engine], None]) -> None:
        self._context, self._conn_id, self._on_engine = context, conn_id, on_engine
        self._engine: Engine | None = None

    @property
    def address(self) -> str:
        """The address that the connection leads to, without its account. Raises Misconfigured or Retryable."""
        return engine_address(self._connection)

    def prepare(self) -> None:
        """Prepare this process for the import of users' modules."""
        prepare_imports()

    def interrupt(self, work: SparkWork) -> None:
        """Stop an earlier attempt's work at the engine that the ledger names. Raises Retryable."""
        account = self._account(work.session_url)
        engine_at(work.session_url, account, self._context.store, self._context.store_options).interrupt(work)

    def connect(self) -> None:
        """Make the engine of the connection, and pass it to `on_engine`. Raises Misconfigured."""
        context = self._context
        self._engine = engine_for(self._connection, context.store, context.store_options, context.services.look_ups)
        self._on_engine(self._engine)

    def run(self, job: SparkJob, session_id: str, log: Log) -> None:
        """Compute the job. Raises as the engine does."""
        if self._engine is None:
            raise Internal.of("tasks.engine_not_connected", attempt=job.attempt)
        self._engine.run(job, session_id, log)

    def stop(self) -> None:
        """Stop the engine, in a thread: one that does not answer must not hold up the heartbeats."""
        if self._engine is not None:
            threading.Thread(target=self._engine.stop, name="weir-stop", daemon=True).start()

    @cached_property
    def _connection(self) -> Connection:
        return self._context.spark(self._conn_id)

    def _account(self, address: str) -> Connection:
        """Return the connection to an earlier attempt's engine: the present one, or that of the settings if it fits."""
        spark = self._connection
        if is_of_kind(spark, address):
            return spark
        try:
            usual = self._context.spark()
        except Misconfigured:
            return spark  # there may be no other connection, and a server without accounts needs none
        return usual if is_of_kind(usual, address) else spark


def _deferral(awaiting: Awaiting, quiet: float) -> TaskDeferred:
    from weir_airflow.tasks.trigger import WaitTrigger  # noqa: PLC0415  few tasks wait

    now = time.time()
    return TaskDeferred(
        trigger=WaitTrigger(awaiting.attempt, earliest=now + quiet, latest=now + awaiting.seconds),
        method_name="execute",
        timeout=timedelta(seconds=awaiting.seconds + _GRACE_SECONDS),
    )


def shortest_reschedule() -> float:
    """Return the seconds after which Airflow has surely seen the end of a rescheduled process."""
    from airflow.sdk.configuration import conf  # noqa: PLC0415  configuration is read when it is used

    return float(conf.get("workers", "min_heartbeat_interval", fallback="5")) + _REPORT_SECONDS
