"""A process that is stepped: it stands before each thing that others can see, and remembers what it has been answered.

Invariant: two processes of one name that have been answered the same stand at the same point and know the same. A
greenlet holds the stack, as it outlives a fork, and a thread does not; the code that runs is the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]
from tests.simulator.exhaustive.traffic import Traffic
from tests.simulator.process import FaultKind, Process, ProcessFault

from weir.testing.fakes.airflow import Killed

ONE_STEP: Final = ProcessFault(FaultKind.SUSPEND, 1)
"""Runs a process to its next point."""


class Surroundings(Protocol):
    """What a process is told of the world that it runs in."""

    may_be_killed: bool
    """True if a kill may still come, so that each change of a process is followed by a point."""
    traffic: Traffic

    def seen_at(self, path: str) -> object:
        """Return what a process sees at a path of the store, or of Airflow at an empty one."""

    def rows_of_sources(self) -> object:
        """Return what sources give just now."""

    def version(self) -> object:
        """Return what changes with each change of the ledger or of Airflow."""


class SteppedProcess(Process):
    """A process that stops before each transaction, each operation of the store, and each question to Airflow."""

    around: Surroundings
    """Shared by all processes of a world."""

    def __init__(self, number: int, work: Callable[[Process], None]) -> None:
        super().__init__(number, work)
        self.memory = b""
        """A digest of all that it was answered."""
        self.points = 0
        """The points that it has reached."""
        self.until: int | None = None
        """The number of the point at which it stops, 0 for its end; None: the next at which another one could tell."""
        self.has_changed = True
        """Whether what others see is not what it was before the last step of this process, or it has just begun."""
        self.is_alone = False
        """Whether no other process can tell what it does next."""
        self._stops = False
        self._greenlet: Any = None
        self._changes = True
        self._before: object = None

    def run(self, fault: ProcessFault) -> None:
        """Run to the next point, to the end, or kill it where it stands."""
        self._stops = fault.kind is FaultKind.SUSPEND
        self._is_doomed |= fault.kind is FaultKind.KILL
        if self._greenlet is None:
            self._greenlet = greenlet(self._run)
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()

    def end(self) -> None:
        """Kill it where it stands."""
        if self._greenlet is not None and not self.is_over:
            self._is_doomed = True
            self.run(ProcessFault(FaultKind.KILL, 1))

    def step(self, refusal: Exception | None = None, *, computes: bool = False, is_done: bool = False) -> None:
        """Stand before a transaction, or before a change of the store or of Airflow."""
        if self._is_doomed:
            raise Killed
        if computes:
            self.answered(self.around.rows_of_sources())
        if refusal is not None and not is_done and self.depth == 0:
            self._stand(getattr(refusal, "filename", None), changes=True)

    def read(self, path: str) -> None:
        """Stand before a look into the store."""
        self._stand(path, changes=False)

    def ask(self) -> None:
        """Stand before a question to Airflow."""
        self._stand(None, changes=False)

    def answered(self, what: object) -> None:
        """Remember an answer."""
        self.memory = hashlib.blake2b(self.memory + repr(what).encode(), digest_size=12).digest()

    def _stand(self, path: str | None, *, changes: bool) -> None:
        if getcurrent() is not self._greenlet:
            return  # Airflow looks whether it heeds this process, which does not run
        around = self.around
        self.points += 1
        if self._stops:
            self.is_alone = path is not None and not around.traffic.is_met(self.number, path, changes=changes)
            self.has_changed = self._changes or self._before != around.version()
            is_point = not self.is_alone or (self.has_changed and around.may_be_killed)
            if is_point if self.until is None else self.until == self.points:
                self._greenlet.parent.switch()
        if self._is_doomed:
            raise Killed
        self._changes, self._before = changes and path is not None, around.version()
        if path is not None:
            around.traffic.note(self.number, path, changes=changes)
            self.answered((path, changes, around.seen_at(path)))
        elif not changes:
            self.answered(around.seen_at(""))
