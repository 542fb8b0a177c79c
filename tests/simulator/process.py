"""A task's process, which may be killed, refused an answer, or suspended at any step and resumed later.

Invariant: of all processes one runs at a time, and only while its caller waits; so a simulation is the same each time.
Whatever a process has done before it was suspended is seen by all others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from weir.testing.fakes.airflow import Killed


class FaultKind(Enum):
    """A kind of fault of a process."""

    NONE = ""
    KILL = "kill"
    SUSPEND = "suspend"
    REFUSE = "refuse"
    """A request is refused; or it is executed, and the answer is lost."""
    FAIL = "fail"
    """The stage's function raises."""
    PAUSE = "pause"
    """It is suspended as SUSPEND does, before it reads the store; `at` counts only such reads."""
    LATE = "late"
    """The answer to a commit is lost, and its changes come true later."""
    BACK = "back"
    """Its clock is set back."""


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """A fault of a process, injected at the step `at`, counted from 1, or at the first possible one after it."""

    kind: FaultKind = FaultKind.NONE
    at: int = 0


NO_FAULT: Final = ProcessFault()

SUSPENDS: Final = (FaultKind.SUSPEND, FaultKind.PAUSE)

BACK: Final = timedelta(hours=2)
"""How far a clock is set back while its process runs."""


class StageFailed(Exception):
    """A stage's function has raised, or could not read its inputs."""


class Process:
    """Runs `work` until it is over or suspended. Only one that is to be suspended needs a thread."""

    def __init__(self, number: int, work: Callable[[Process], None]) -> None:
        self.number = number
        self.is_over = False
        self.depth = 0
        """Of transactions: within one it cannot be suspended."""
        self.beat: Callable[[], None] = lambda: None
        """Takes a heartbeat of the attempt that it runs; its second thread runs while it is suspended."""
        self.clock = timedelta()
        """How far its clock was set since it began."""
        self.seen: dict[str, int] = {}
        """By dataflow, the highest revision of the ledger that it has seen committed."""
        self.sent_at: datetime | None = None
        """When it sent the commit that comes true late."""
        self.may_delete: frozenset[str] = frozenset()
        """What was not in use when the ledger lost commits: it may have decided before to delete it."""
        self._work = work
        self._fault = NO_FAULT
        self._passed = self._reads = 0
        self._is_doomed = False
        self._thread: threading.Thread | None = None
        self._mine, self._yours = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None

    def run(self, fault: ProcessFault) -> None:
        """Run until the process ends or is suspended."""
        self._fault, self._passed, self._reads = fault, 0, 0
        if self._thread is None and fault.kind not in SUSPENDS:
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
            self.run(NO_FAULT)

    def step(self, refusal: Exception | None = None, *, computes: bool = False, is_done: bool = False) -> None:
        """Pass a step, and inject the fault if it is due; a refused request raises `refusal`.

        The request of one that `is_done` was carried out: its answer may be lost.
        """
        _require_one_at_a_time()
        if self._is_doomed:
            raise Killed
        self._passed += 1
        if self._fault.kind is FaultKind.NONE or self._passed < self._fault.at:
            return
        if self._fault.kind is FaultKind.SUSPEND and self.depth == 0:
            self._suspend()
        elif self._fault.kind is FaultKind.BACK:
            self._fault = NO_FAULT
            self.clock -= BACK
        elif self._fault.kind is FaultKind.KILL:
            self._is_doomed = True  # it does nothing from now on, not even its cleanup
            raise Killed
        elif self._fault.kind is FaultKind.REFUSE and refusal is not None:
            self._fault = NO_FAULT
            raise refusal
        elif self._fault.kind is FaultKind.FAIL and computes:
            self._fault = NO_FAULT
            raise StageFailed("the stage's function raises")

    def read(self, path: str) -> None:
        """Read a file or a folder of the store, and be suspended before if that is due."""
        _require_one_at_a_time()
        self._reads += 1
        if self._fault.kind is FaultKind.PAUSE and self._reads >= self._fault.at and self.depth == 0:
            self._suspend()

    def ask(self) -> None:
        """Ask Airflow: no process is suspended there, except those that are stepped."""

    @property
    def may_commit_late(self) -> bool:
        """Report whether the answer to its next commit, or to a later one, is to be lost."""
        return self._fault.kind is FaultKind.LATE and not self._is_doomed

    def commits_late(self) -> bool:
        """Report whether the answer to this commit is lost, and the changes come true later."""
        is_late = self.may_commit_late and self._passed >= self._fault.at
        self._fault = NO_FAULT if is_late else self._fault
        return is_late

    def _suspend(self) -> None:
        self._fault = NO_FAULT
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
        except BaseException as error:  # noqa: BLE001 - raised to the waiting thread
            self._error = error
        finally:
            self._yours.release()


def _require_one_at_a_time() -> None:
    """Check that a process makes no requests side by side, whose order equal seeds would not share."""
    assert threading.current_thread().name != "weir-request", "a store has one worker here: ask for `store.workers`"
