"""The trigger of deferred tasks: it fires when the wait of an attempt is over by the ledger.

Invariant: a process asks the ledger one question at a time, once a second, for all triggers that it runs; none while it
runs none. A trigger holds no secret: the settings name the ledger, as in a task.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakKeyDictionary

from airflow.triggers.base import BaseTrigger, TriggerEvent

from weir.errors import Retryable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from weir.attempts.waiting import WaitingAttempts
    from weir.ledger.ledger import Ledger

_PAUSE_SECONDS: Final = 1.0
"""The pause between two questions."""

_PAUSES: Final = 4
"""The pause after a question is at least this many times as long as the question took: large ones are asked less."""


class WaitTrigger(BaseTrigger):  # type: ignore[misc]  # Airflow's classes are not followed
    """Fires when an attempt need not wait any longer, at the earliest and at the latest at these Unix times."""

    def __init__(self, attempt: str, earliest: float, latest: float) -> None:
        super().__init__()
        self.attempt, self.earliest, self.latest = attempt, earliest, latest

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Name this class and its arguments, which Airflow's database keeps."""
        kept = {"attempt": self.attempt, "earliest": self.earliest, "latest": self.latest}
        return f"{WaitTrigger.__module__}.{WaitTrigger.__qualname__}", kept

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, then fire; what is awaited may not have come, which the task finds out."""
        await asyncio.sleep(self.earliest - time.time())
        try:
            async with asyncio.timeout(self.latest - time.time()):
                await _Asking.of_this_loop().over(self.attempt)
        except TimeoutError:
            yield TriggerEvent("the longest wait is over; the task checks Airflow's state, too")
        else:
            yield TriggerEvent("what was awaited is there")


class _Asking:
    """Asks the ledger for all triggers of one event loop, in a thread, as long as there are any."""

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, _Asking]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], str] = {}
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of_this_loop(cls) -> _Asking:
        return cls._of_loops.setdefault(asyncio.get_running_loop(), cls())

    async def over(self, attempt: str) -> None:
        """Return when the wait of an attempt is over. Raises what keeps the ledger from being asked for good."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = attempt
        if self._task is None:
            self._task = asyncio.create_task(self._ask())
        try:
            await waiting
        finally:
            del self._waiting[waiting]

    async def _ask(self) -> None:
        question = _Question()
        try:
            while self._waiting:
                with suppress(Retryable):  # the ledger does not answer: it is asked again
                    self._wake(await asyncio.to_thread(question.over, frozenset(self._waiting.values())))
                await asyncio.sleep(max(_PAUSE_SECONDS, _PAUSES * question.seconds))
        except Exception as error:  # noqa: BLE001  each trigger raises it
            for waiting in self._unanswered():
                waiting.set_exception(error)
        finally:
            self._task = None
            question.close()

    def _wake(self, over: Collection[str]) -> None:
        for waiting in self._unanswered():
            if self._waiting[waiting] in over:
                waiting.set_result(None)

    def _unanswered(self) -> list[asyncio.Future[None]]:
        return [waiting for waiting in self._waiting if not waiting.done()]


class _Question:
    """The question to the ledger. It is asked in a thread, since the first one imports what it needs, for seconds."""

    def __init__(self) -> None:
        self._ledger: Ledger | None = None
        self._attempts: WaitingAttempts | None = None
        self.seconds = 0.0
        """How long the last answer took, without the imports."""

    def over(self, asked: Collection[str]) -> Collection[str]:
        """Return those of the attempts whose wait is over. Raises Retryable or Misconfigured."""
        if self._attempts is None:
            from weir.attempts.waiting import WaitingAttempts  # noqa: PLC0415
            from weir.ledger.ledger import Ledger  # noqa: PLC0415
            from weir_airflow.connections.connections import settings  # noqa: PLC0415

            self._ledger = Ledger.open_as_it_is(settings().ledger)
            self._attempts = WaitingAttempts(self._ledger)
        began = time.monotonic()
        over = self._attempts.over(asked)
        self.seconds = time.monotonic() - began
        return over

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()
