"""Faults of tasks' processes: killed, orphaned, frozen.

Invariant: a signal goes only to a process that was just seen to run a task of this stack.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from threading import Timer
from typing import TYPE_CHECKING, Final

from tests.chaos.faults import Injection

from weir_dev.stack.processes import send

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.field import Field, Work

    from weir_dev.stack.processes import ProcessRecord


DETECTION_SECONDS: Final = 8.0
"""For the scheduler to look for task instances without a heartbeat, on top of the timeout."""


@dataclass(frozen=True, slots=True)
class KillTask:
    """SIGKILL to the process of a task; its supervisor reports it."""

    name: str = "task"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Kill or freeze one running task."""
        work = _one_of(field, chance)
        if work is None:
            return None
        send(work.process.task, signal.SIGKILL)
        return Injection(f"SIGKILL to the process of {work.task.name}", lambda: not work.process.task.is_alive())


@dataclass(frozen=True, slots=True)
class KillSupervisor:
    """SIGKILL to the supervisor of a task, whose process runs on as an orphan."""

    name: str = "supervisor"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Kill the supervisor of one running task."""
        work = _one_of(field, chance)
        supervisor = None if work is None else work.process.supervisor
        # One whose task has just ended may hold the lock of the executor's queue: Airflow would never run again.
        if work is None or supervisor is None or not work.process.task.is_alive():
            return None
        send(supervisor, signal.SIGKILL)
        return Injection(f"SIGKILL to the supervisor of {work.task.name}", lambda: not work.process.task.is_alive())


@dataclass(frozen=True, slots=True)
class FreezeTask:
    """SIGSTOP to a task's supervisor and process, and SIGCONT long after another try has begun."""

    heartbeat_timeout: float
    name: str = "zombie"

    def inject(self, field: Field, chance: Random) -> Injection | None:
        """Kill or freeze one running task."""
        work = _one_of(field, chance)
        if work is None or work.process.supervisor is None or not work.process.task.is_alive():
            return None
        seconds = self.heartbeat_timeout + DETECTION_SECONDS + chance.uniform(0, 10)
        frozen = Frozen(work.process.processes, seconds)
        return Injection(
            f"SIGSTOP to {work.task.name} and its supervisor for {seconds:.0f} s", frozen.is_over, frozen.resume
        )


class Frozen:
    """Processes that are stopped for some seconds."""

    def __init__(self, processes: tuple[ProcessRecord, ...], seconds: float) -> None:
        self._processes = processes
        # By a timer: one of them may hold the lock of the ledger, for which the caller would wait.
        self._timer = Timer(seconds, self._let_run)
        self._timer.daemon = True
        for one in processes:
            send(one, signal.SIGSTOP)
        self._timer.start()

    def is_over(self) -> bool:
        """Report whether they run again."""
        return not self._timer.is_alive()

    def resume(self) -> None:
        """Let them run now."""
        self._timer.cancel()
        self._let_run()

    def _let_run(self) -> None:
        for one in self._processes:
            send(one, signal.SIGCONT)


def _one_of(field: Field, chance: Random) -> Work | None:
    works = field.running_tasks()
    return chance.choice(works) if works else None
