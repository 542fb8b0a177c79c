"""Faults of tasks' processes: killed, orphaned, frozen.

Invariant: a signal goes only to a process that was just seen to run a task of this stack.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from threading import Timer
from typing import TYPE_CHECKING, Final

from weir_dev.chaos.faults import Strike
from weir_dev.stack.processes import send

if TYPE_CHECKING:
    from random import Random

    from weir_dev.chaos.field import Field, Work
    from weir_dev.stack.processes import ProcessRecord


DETECTION_SECONDS: Final = 8.0
"""For the scheduler to look for task instances without a heartbeat, on top of the timeout."""


@dataclass(frozen=True, slots=True)
class KillTask:
    """SIGKILL to the process of a task; its supervisor reports it."""

    name: str = "task"

    def strike(self, field: Field, chance: Random) -> Strike | None:
        """Strike one running task."""
        work = _one_of(field, chance)
        if work is None:
            return None
        send(work.process.task, signal.SIGKILL)
        return Strike(f"SIGKILL to the process of {work.task.name}", lambda: not work.process.task.is_alive())


@dataclass(frozen=True, slots=True)
class KillSupervisor:
    """SIGKILL to the supervisor of a task, whose process goes on as an orphan."""

    name: str = "supervisor"

    def strike(self, field: Field, chance: Random) -> Strike | None:
        """Strike over one running task."""
        work = _one_of(field, chance)
        supervisor = None if work is None else work.process.supervisor
        # One whose task has just ended may hold the lock of the executor's queue: Airflow would never run again.
        if work is None or supervisor is None or not work.process.task.is_alive():
            return None
        send(supervisor, signal.SIGKILL)
        return Strike(f"SIGKILL to the supervisor of {work.task.name}", lambda: not work.process.task.is_alive())


@dataclass(frozen=True, slots=True)
class FreezeTask:
    """SIGSTOP to a task's supervisor and process, and SIGCONT when another try has long begun."""

    heartbeat_timeout: float
    name: str = "zombie"

    def strike(self, field: Field, chance: Random) -> Strike | None:
        """Strike one running task."""
        work = _one_of(field, chance)
        if work is None or work.process.supervisor is None or not work.process.task.is_alive():
            return None
        seconds = self.heartbeat_timeout + DETECTION_SECONDS + chance.uniform(0, 10)
        frozen = Frozen(work.process.processes, seconds)
        return Strike(
            f"SIGSTOP to {work.task.name} and its supervisor for {seconds:.0f} s", frozen.is_over, frozen.thaw
        )


class Frozen:
    """Processes that are stopped now, until their time is up."""

    def __init__(self, processes: tuple[ProcessRecord, ...], seconds: float) -> None:
        self._processes = processes
        # By a timer: one of them may hold the lock of the ledger, for which whoever asks for this would wait.
        self._timer = Timer(seconds, self._let_run)
        self._timer.daemon = True
        for one in processes:
            send(one, signal.SIGSTOP)
        self._timer.start()

    def is_over(self) -> bool:
        """Whether they run again."""
        return not self._timer.is_alive()

    def thaw(self) -> None:
        """Let them run now."""
        self._timer.cancel()
        self._let_run()

    def _let_run(self) -> None:
        for one in self._processes:
            send(one, signal.SIGCONT)


def _one_of(field: Field, chance: Random) -> Work | None:
    works = field.at_work()
    return chance.choice(works) if works else None
