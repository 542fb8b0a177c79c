"""Faults of servers: Airflow's components, Spark's, the database.

Invariant: a fault is over when the program that was killed is ready again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import psutil
from tests.chaos.faults import Injection
from tests.chaos.task_faults import Frozen
from tests.chaos.task_processes import descendants

from weir_dev.stack.processes import send
from weir_dev.stack.spark_cluster import WORKER
from weir_dev.stack.spark_server import NAME as SPARK

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.field import Field

    from weir_dev.stack.processes import ProcessRecord


_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class KillProgram:
    """SIGKILL to a program of the stack, which the keeper starts again."""

    name: str
    program: str

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Kill it, if it runs and is ready."""
        del chance
        return _kill_program(field, self.program)


@dataclass(frozen=True, slots=True)
class KillWorker:
    """SIGKILL to one of the workers of the standalone cluster; its executors end with it."""

    name: str = "worker"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Kill one of them."""
        names = [one.name for one in _workers(field)]
        return _kill_program(field, chance.choice(names)) if names else None


@dataclass(frozen=True, slots=True)
class KillExecutor:
    """SIGKILL to an executor of the standalone cluster; its worker starts another."""

    name: str = "executor"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Kill one of them."""
        executors = running_executors(_workers(field))
        if not executors:
            return None
        executor = chance.choice(executors)
        send(executor, signal.SIGKILL)
        return Injection(f"SIGKILL to an executor of {executor.name}", lambda: not executor.is_alive())


@dataclass(frozen=True, slots=True)
class FreezeServer:
    """SIGSTOP to the Connect server for a while."""

    name: str = "spark-pause"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Freeze it, if it runs."""
        server = ready(field, SPARK)
        if server is None:
            return None
        seconds = chance.uniform(3, 20)
        frozen = Frozen((server,), seconds)
        return Injection(f"SIGSTOP to the Spark Connect server for {seconds:.0f} s", frozen.is_over, frozen.resume)


class Server(Protocol):
    """A database server that can be stopped and started."""

    def stop(self) -> None:
        """Stop it at once, as a crash of its machine would."""
        ...

    def start(self) -> None:
        """Start it again."""
        ...


@dataclass(frozen=True, slots=True)
class StopDatabase:
    """PostgreSQL stopped at once, under Airflow and the ledger, and started again."""

    server: Server
    name: str = "postgres"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Stop it, and start it later."""
        del field
        seconds = chance.uniform(0, 10)
        self.server.stop()
        restart = _Restart(self.server, seconds)
        return Injection(f"PostgreSQL stopped at once, for {seconds:.0f} s", restart.is_over, restart.start)


class _Restart:
    """Starts a server once, after some seconds."""

    def __init__(self, server: Server, seconds: float) -> None:
        self._server = server
        self._lock, self._is_started = threading.Lock(), False
        self._timer = threading.Timer(seconds, self.start)
        self._timer.daemon = True
        self._timer.start()

    def is_over(self) -> bool:
        return not self._timer.is_alive() and self._is_started

    def start(self) -> None:
        with self._lock:
            if not self._is_started:
                self._server.start()
                self._is_started = True


def running_executors(workers: list[ProcessRecord]) -> list[ProcessRecord]:
    """The executors below Spark's standalone workers, by pid, each with the name of its worker."""
    return [one for one in descendants(workers) if _is_executor(one)]


def _is_executor(one: ProcessRecord) -> bool:
    try:
        return any(_EXECUTOR in word for word in psutil.Process(one.pid).cmdline())
    except psutil.Error:
        return False


def _workers(field: Field) -> list[ProcessRecord]:
    state = field.stack.state
    return [one for one in state.processes if one.name.startswith(f"{WORKER}-") and one.name in state.ready]


def _kill_program(field: Field, name: str) -> Injection | None:
    running = ready(field, name)
    if running is None:
        return None
    send(running, signal.SIGKILL)
    return Injection(f"SIGKILL to {name}", is_replaced(field, running))


def is_replaced(field: Field, killed: ProcessRecord) -> Callable[[], bool]:
    """Return how to ask whether another process is ready in the place of a program of the stack."""

    def ask() -> bool:
        now = ready(field, killed.name)
        return now is not None and now != killed

    return ask


def ready(field: Field, name: str) -> ProcessRecord | None:
    """Return a program of the stack if it runs and is ready."""
    state = field.stack.state
    running = state.process(name)
    return running if running is not None and name in state.ready and running.is_alive() else None
