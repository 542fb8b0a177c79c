"""Daemon worker threads that call a file system on behalf of their callers, with time limits.

Invariant: a call that hangs blocks neither its caller, whose signals are handled meanwhile, nor the end of the
process. The kernel may block a read from a dead file server without limit.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

A = TypeVar("A")
R = TypeVar("R")


class _Worker(threading.Thread):
    """Executes one call after the other until it is abandoned; each call returns a result or an error."""

    def __init__(self) -> None:
        super().__init__(name="weir-worker", daemon=True)
        self.calls: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.is_abandoned = False

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            self.answers.put(_outcome_of(call))
            del call  # or an idle worker keeps the data of its last call in memory

    def abandon(self) -> None:
        """Give the worker no further call: it ends when the file system returns."""
        self.is_abandoned = True
        self.calls.put(None)


_idle: deque[_Worker] = deque()


os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork


def in_time(call: Callable[[], R], seconds: float) -> R:
    """Execute a call; raise TimeoutError if it takes longer. An abandoned worker may still complete it later."""
    worker = _idle_worker()
    worker.calls.put(call)
    try:
        result, error = worker.answers.get(timeout=seconds)
    except Empty:
        worker.abandon()
        raise TimeoutError(f"no answer for {seconds:g} s") from None
    except BaseException:  # a signal's
        worker.abandon()
        raise
    _idle.append(worker)
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]  # the call's own


def in_parallel(ask: Callable[[A], R], questions: Iterable[A], workers: int) -> list[R]:
    """Ask all questions in parallel, and return the answers in their order.

    The first error is raised at once, and the remaining questions are not asked. With one worker, or one question, the
    caller's own thread asks.
    """
    asked = list(questions)
    if min(workers, len(asked)) <= 1:
        return [ask(each) for each in asked]
    numbers: SimpleQueue[int] = SimpleQueue()
    for number in range(len(asked)):
        numbers.put(number)
    answers: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            try:
                number = numbers.get_nowait()
            except Empty:
                return
            result, error = _outcome_of(partial(ask, asked[number]))
            if error is not None:
                is_over.set()
            answers.put((number, result, error))

    for _ in range(min(workers, len(asked))):
        threading.Thread(target=work, name="weir-request", daemon=True).start()
    found: dict[int, Any] = {}
    try:
        while len(found) < len(asked):
            number, result, error = answers.get()
            if error is not None:
                raise error
            found[number] = result
    finally:
        is_over.set()
    return [found[number] for number in range(len(asked))]


def is_abandoned() -> bool:
    """Report whether the call of this thread has been abandoned, so that it must not take effect."""
    thread = threading.current_thread()
    return isinstance(thread, _Worker) and thread.is_abandoned


def _idle_worker() -> _Worker:
    try:
        return _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.start()
        return worker


def _outcome_of(call: Callable[[], R]) -> tuple[R | None, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
        return None, error
