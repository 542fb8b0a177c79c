"""A local stack: Airflow's components and a Spark Connect server, for a person, the demo and the tests.

Invariant: who starts a stack as a context gets it whole, and leaves nothing running, whatever ends the context.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Self

from weir.errors import Misconfigured, Retryable, WeirError
from weir_dev.files import make_private, tail
from weir_dev.ports import LOOPBACK
from weir_dev.stack.airflow_components import API_SERVER
from weir_dev.stack.airflow_environment import (
    API,
    SPARK,
    airflow_home,
    base_environment,
    database_of,
    ledger_url,
    needs_postgres,
    store_url,
)
from weir_dev.stack.credentials import Credentials, load_or_create
from weir_dev.stack.keeper import EXIT_BUSY, EXIT_FAILED, take_lock
from weir_dev.stack.keeper import NAME as KEEPER
from weir_dev.stack.processes import record, send, stop
from weir_dev.stack.product_environment import write_product_environment
from weir_dev.stack.spark_server import connect_url
from weir_dev.stack.state import Phase, StackRequest, StackState, read_state, write_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType


STOP_SECONDS = 40.0
"""A keeper needs 13 seconds for what it ends gently, and then kills."""

LOCK_SECONDS = 5.0
"""How long the lock of a keeper that is gone may be held by what it was about to start."""


class Stack:
    """One stack, which lives in the state folder of its request. As a context it is started and stopped."""

    def __init__(self, request: StackRequest, on_change: Callable[[StackState], None] | None = None) -> None:
        self.request = request
        self.folder = request.folder
        self._on_change = on_change or (lambda _: None)

    def __enter__(self) -> Self:
        """Start, bound to the life of this process."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    @property
    def state(self) -> StackState:
        """The keeper's record, as it is now."""
        return read_state(self.folder)

    @property
    def url(self) -> str:
        """Airflow's UI and API."""
        return f"http://{LOOPBACK}:{self.state.ports[API]}"

    @property
    def spark_url(self) -> str:
        """The Spark Connect server, with the token of its clients."""
        return connect_url(self.state.ports[SPARK], self.credentials.spark_token)

    @property
    def store_url(self) -> str:
        """Where results are."""
        return self.request.environment.get("WEIR_STORE", store_url(self.folder))

    @property
    def ledger_url(self) -> str:
        """Where the ledger is."""
        own = ledger_url(self.folder, self.request.database, self.state.ports)
        return self.request.environment.get("WEIR_LEDGER", own)

    @property
    def logs(self) -> Path:
        """The folder of the components' logs."""
        return self.folder / "logs"

    @property
    def task_logs(self) -> Path:
        """The folder of the tasks' logs."""
        return airflow_home(self.folder) / "logs"

    @property
    def credentials(self) -> Credentials:
        """The passwords of the stack's accounts."""
        return load_or_create(self.folder)

    def is_running(self) -> bool:
        """Report whether its keeper runs."""
        keeper = self.state.process(KEEPER)
        return keeper is not None and keeper.is_alive()

    def start(self) -> None:
        """Start everything, and return when it is ready.

        Raises Misconfigured if it runs already or a component cannot start (with the end of its log),
        Retryable if one takes too long.
        """
        if self.is_running():
            raise Misconfigured.of("dev.stack_runs", folder=self.folder, url=self.url)
        self._check_database()
        make_private(self.folder)
        if not needs_postgres(self.request):
            self._open_ledger()
        keeper = self._start_keeper()
        try:
            self._await_ready(keeper)
        except BaseException:
            self._stop_keeper(keeper)
            raise

    def stop(self) -> None:
        """End everything that this stack started, also what a keeper that was killed has left."""
        state = self.state
        keeper = state.process(KEEPER)
        if keeper is not None and keeper.is_alive():
            send(keeper, signal.SIGTERM)
            _await_end(keeper.is_alive, STOP_SECONDS)
        self._end_leftovers()

    def _check_database(self) -> None:
        found, wanted = database_of(self.folder), self.request.database
        if found is not None and found is not wanted:
            raise Misconfigured.of("dev.database_differs", folder=self.folder, found=found.value, wanted=wanted.value)

    def _open_ledger(self) -> None:
        """Make the ledger: says clearly, and now, what a task could only say in its log."""
        from weir.ledger.ledger import Ledger  # noqa: PLC0415  SQLAlchemy is slow to import, and only needed here

        Ledger.open(self.ledger_url).close()

    def _start_keeper(self) -> subprocess.Popen[str]:
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{KEEPER}.log").open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, "-m", "weir_dev.stack.keeper"],
                env=base_environment(os.environ),
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )
        assert keeper.stdin is not None  # noqa: S101  a pipe was asked for
        # Not on its command line: the environment of a request may have passwords.
        with suppress(BrokenPipeError), keeper.stdin as given:
            given.write(self.request.to_json())
        return keeper

    def _await_ready(self, keeper: subprocess.Popen[str]) -> None:
        """The keeper itself gives up on a component that takes too long."""
        seen = None
        has_ledger = not needs_postgres(self.request)
        while True:
            ended = keeper.poll()
            state = self.state
            owner = state.process(KEEPER)
            if ended is not None:
                raise self._failure(ended, state)
            if owner is not None and owner.pid == keeper.pid and state != seen:
                seen = state
                self._on_change(state)
                if not has_ledger and state.process(API_SERVER) is not None:  # its server has both databases by now
                    self._open_ledger()
                    has_ledger = True
                if state.phase is Phase.UP:
                    return
            time.sleep(0.1)

    def _failure(self, status: int, state: StackState) -> WeirError:
        if status == EXIT_BUSY:
            return Retryable.of("dev.stack_busy", folder=self.folder)
        if status == EXIT_FAILED:
            return Misconfigured.of("dev.stack_failed", message=state.message)
        if status == 0:
            return Misconfigured.of("dev.stack_stopped")
        log = self.logs / f"{KEEPER}.log"
        return Misconfigured.of("dev.keeper_ended", status=status, log=log, tail=tail(log))

    def _stop_keeper(self, keeper: subprocess.Popen[str]) -> None:
        with suppress(ProcessLookupError):
            keeper.terminate()
        _await_end(lambda: keeper.poll() is None, STOP_SECONDS)
        if keeper.poll() is None:
            stop([record(KEEPER, keeper.pid)], grace_seconds=0.0)
        self._end_leftovers()

    def _end_leftovers(self) -> None:
        lock = take_lock(self.folder)
        if lock is None and self.is_running():
            stop([one for one in self.state.processes if one.name == KEEPER], grace_seconds=0.0)
        if lock is None:
            lock = self._await_lock()
        if lock is None:
            raise Retryable.of("dev.stack_busy", folder=self.folder)
        with lock:
            state = self.state
            left = stop(state.processes, grace_seconds=5.0)
            if state.phase is not Phase.FAILED or left:
                down = StackState(processes=tuple(left), ports=state.ports)
                write_state(self.folder, down)
                write_product_environment(self.request, down)
        if left:
            raise Retryable.of("dev.leftovers", left=[f"{one.name} {one.pid}" for one in left])

    def _await_lock(self) -> IO[str] | None:
        """A keeper that was killed while it started a program leaves the lock to that for a moment."""
        deadline = time.monotonic() + LOCK_SECONDS
        while (lock := take_lock(self.folder)) is None and not self.is_running() and time.monotonic() < deadline:
            time.sleep(0.05)
        return lock


def _await_end(goes_on: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while goes_on() and time.monotonic() < deadline:
        time.sleep(0.05)
