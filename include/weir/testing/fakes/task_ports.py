"""The ports that a task of the fake Airflow supplies to the drivers of `weir.attempts`.

Invariant: the drivers are those of the plugin; the order of a task's steps and the handling of errors are
not decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from weir.attempts.attempt import run_attempt
from weir.attempts.closing import run_close
from weir.attempts.compacting import run_compaction
from weir.attempts.coordinator import Coordinator
from weir.attempts.failing import Users, decide_failure, without_ledger
from weir.attempts.ports import Airflow, Log, TaskEngine, TaskPorts
from weir.coordination.airflow import Clearer
from weir.coordination.settled import Due, Settled
from weir.coordination.values import (
    Awaiting,
    BeginOutcome,
    BeginRequest,
    Begun,
    Committed,
    FailedTry,
    SparkWork,
    TaskKey,
)
from weir.errors import Fenced, WeirError
from weir.execution.run_state import CLOSE
from weir.formats.codec import to_json
from weir.formats.region_job import RegionReport, SparkJob
from weir.ledger.runs import epoch_of
from weir.restarts.answer import FailureDecision
from weir.restarts.strategy import RestartStrategy
from weir.settling import Settling
from weir.state.compaction import CompactionRequest
from weir.store.errors import AlreadyExists
from weir.store.store import Store
from weir.testing.fakes.dag import RETRIES
from weir.topology.regions import region_compacted


class Rescheduled(Exception):
    """The task is rescheduled: it runs again later, as the same try."""

    def __init__(self, awaiting: Awaiting) -> None:
        self.awaiting = awaiting
        super().__init__(awaiting.reason)


class FailedForGood(Exception):
    """The task instance fails, and no retry policy is asked."""


class Skipped(Exception):
    """The task instance is skipped."""


class Hooks(Protocol):
    """The parts of a fake Airflow's attempts that a test may replace."""

    coordinator: Coordinator
    """Begins and commits: a test may put another one in its place."""

    after_commit: Callable[[TaskKey], None]
    """Called after each commit."""

    collects: bool
    """True if results that are no longer needed are released after each commit."""


class FakeTaskPorts:
    """One process of a task instance; `lines` is its log."""

    def __init__(self, airflow: Airflow, coordinator: Coordinator, settling: Settling | None = None) -> None:
        self.airflow = airflow
        self.coordinator = coordinator
        self.settling = settling or Settling(coordinator.services, lambda: airflow)
        self.lines: list[str] = []
        self._beat: Callable[[], None] | None = None

    def wait(self, awaiting: Awaiting) -> None:
        """Raise Rescheduled: no process of the fake ever sleeps."""
        raise Rescheduled(awaiting)

    def fail(self, reason: str) -> NoReturn:
        """Raise FailedForGood."""
        raise FailedForGood(reason)

    def skip(self, reason: str) -> NoReturn:
        """Raise Skipped."""
        raise Skipped(reason)

    def log(self, message: str) -> None:
        """Keep a line."""
        self.lines.append(message)

    @contextmanager
    def heartbeats(self, beat: Callable[[], None]) -> Iterator[None]:
        """Let a test take heartbeats, by `beat`: no process of the fake has a second thread."""
        self._beat = beat
        try:
            yield
        finally:
            self._beat = None

    def beat(self) -> None:
        """Take a heartbeat of the attempt that runs; do nothing where none does."""
        if self._beat is not None:
            self._beat()


class TaskCoordinator(Coordinator):
    """The coordinator for one task, with the hooks of a test."""

    def __init__(self, hooks: Hooks, key: TaskKey) -> None:
        super().__init__(hooks.coordinator.services, hooks.coordinator.rooms)
        self._hooks, self._key = hooks, key

    def begin(self, request: BeginRequest, clearer: Clearer) -> BeginOutcome:
        """Begin, by the coordinator of the hooks."""
        return self._hooks.coordinator.begin(request, clearer)

    def commit(self, begun: Begun, report: RegionReport, clearer: Clearer) -> Committed:
        """Commit, by the coordinator of the hooks, then call `after_commit`."""
        committed = self._hooks.coordinator.commit(begun, report, clearer)
        self._hooks.after_commit(self._key)
        return committed


class TaskSettling(Settling):
    """What settles a dataflow for one task, with the hooks of a test."""

    def __init__(self, hooks: Hooks, airflow: Airflow) -> None:
        super().__init__(hooks.coordinator.services, lambda: airflow)
        self._hooks = hooks

    def settle(self, dataflow: str | None, due: Due) -> Settled:
        """Settle, and release nothing if `collects` is false."""
        return super().settle(dataflow, due if self._hooks.collects else replace(due, runs=()))


class FakeTaskEngine:
    """An engine of this process, whose reports are written into the store as a Spark job writes them.

    `compute` calls `require_running` in its middle: so a computation ends there if the engine was stopped.
    """

    def __init__(self, store: Store, compute: Callable[[SparkJob], RegionReport]) -> None:
        self._store, self._compute = store, compute
        self.is_stopped = False

    def prepare(self) -> None:
        """Do nothing: no module of a user's is imported."""

    def interrupt(self, work: SparkWork) -> None:
        """Do nothing: an earlier attempt that still computes is fenced."""

    def connect(self) -> None:
        """Do nothing."""

    def run(self, job: SparkJob, session_id: str, log: Log) -> None:
        """Compute, and write the report where the engine has not written it itself, as one on real Spark has."""
        del session_id, log
        report = self._compute(job)
        self.require_running()
        with suppress(AlreadyExists):
            self._store.create(job.report, to_json(report))

    def stop(self) -> None:
        """Have the computation end at its next `require_running`."""
        self.is_stopped = True

    def require_running(self) -> None:
        """Raise Fenced if the engine was stopped."""
        if self.is_stopped:
            raise Fenced.of("testing.stopped")


def run_task(task: TaskPorts, engine: TaskEngine, dataflow: str, request: BeginRequest) -> dict[str, Any]:
    """Run one try, as the operator of its task does."""
    region = region_compacted(request.key.task_id)
    if region is not None:
        wanted = CompactionRequest(dataflow, epoch_of(request.interval[0]), request.key.run_id, region)
        kills = request.try_number - 1 - (request.max_tries - RETRIES)
        return run_compaction(task, engine, wanted, request.key, kills)
    if request.key.task_id == CLOSE.name:
        return run_close(task, dataflow, lambda: request, lambda _asked, _versions: None)
    return run_attempt(task, engine, dataflow, lambda: request)


def failed_try(dataflow: str, request: BeginRequest, error: BaseException, strategy: RestartStrategy) -> FailedTry:
    """Return the try of a request as failed."""
    return FailedTry(
        dataflow=dataflow,
        key=request.key,
        try_number=request.try_number,
        ti_id=request.ti_id,
        error=error,
        strategy=strategy,
        epoch=epoch_of(request.interval[0]),
        clear_number=request.clear_number,
    )


def answer_failure(
    task: TaskPorts,
    dataflow: str,
    request: BeginRequest,
    error: BaseException,
    strategy: RestartStrategy,
    users: Users = Users(),  # noqa: B008  it has no state
    on_trouble: Callable[[Exception], None] = lambda _trouble: None,
) -> FailureDecision:
    """Answer a failed try, as the retry policy does; `on_trouble` gets the error of a booking."""
    try:
        return decide_failure(task, failed_try(dataflow, request, error, strategy), users)
    except WeirError as trouble:
        on_trouble(trouble)
        tries_left = request.max_tries - request.try_number
        return without_ledger(error, trouble, tries_left, lambda: task.airflow, request.key)
