"""A task's process, which may be killed, refused an answer, or suspended at any step, and go on when others have run.

Invariant: of all processes one runs at a time, and only while somebody waits for it; so a simulation is the same each
time. Whatever a process has done before it was suspended is seen by all others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from weir.testing.fakes.airflow import Killed


class Strike(Enum):
    """What meets a process."""

    NONE = ""
    KILL = "kill"
    SUSPEND = "suspend"
    REFUSE = "refuse"
    """What it asks for is not done; or is done, and the answer is lost."""
    FAIL = "fail"
    """The stage's function raises."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What meets a process, at the earliest at the step `at`, counted from 1."""

    strike: Strike = Strike.NONE
    at: int = 0


NO_FATE: Final = Fate()


class StageFailed(Exception):
    """A stage's function has raised, or could not read its inputs."""


class Process:
    """Runs `work` until it is over or suspended. Only one that is to be suspended needs a thread."""

    def __init__(self, number: int, work: Callable[[Process], None]) -> None:
        self.number = number
        self.is_over = False
        self.depth = 0
        """Of transactions: within one it cannot be suspended."""
        self._work = work
        self._fate = NO_FATE
        self._passed = 0
        self._is_doomed = False
        self._thread: threading.Thread | None = None
        self._mine, self._yours = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None

    def run(self, fate: Fate) -> None:
        """Go on, until the end or until the process is suspended."""
        self._fate, self._passed = fate, 0
        if self._thread is None and fate.strike is not Strike.SUSPEND:
            self._run()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_in_thread, name="simulated", daemon=True)
            self._thread.start()
        self._mine.release()
        self._yours.acquire()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Kill it where it stands."""
        if self._thread is not None and not self.is_over:
            self._is_doomed = True
            self.run(NO_FATE)

    def step(self, refusal: Exception | None = None, *, computes: bool = False) -> None:
        """Pass a step; `refusal` is what a process is told whose request is refused here."""
        if self._is_doomed:
            raise Killed
        self._passed += 1
        if self._fate.strike is Strike.NONE or self._passed < self._fate.at:
            return
        if self._fate.strike is Strike.SUSPEND and self.depth == 0:
            self._suspend()
        elif self._fate.strike is Strike.KILL:
            self._is_doomed = True  # it does nothing any more, not even what it would to clean up
            raise Killed
        elif self._fate.strike is Strike.REFUSE and refusal is not None:
            self._fate = NO_FATE
            raise refusal
        elif self._fate.strike is Strike.FAIL and computes:
            self._fate = NO_FATE
            raise StageFailed("the stage's function raises")

    def _suspend(self) -> None:
        self._fate = NO_FATE
        self._yours.release()
        self._mine.acquire()
        if self._is_doomed:
            raise Killed

    def _run(self) -> None:
        try:
            self._work(self)
        finally:
            self.is_over = True

    def _run_in_thread(self) -> None:
        self._mine.acquire()
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits
            self._error = error
        finally:
            self._yours.release()
