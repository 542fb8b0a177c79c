"""Hands that reach into a file system for others, in threads of their own.

Invariant: nobody waits for a hand that the file system does not let go: not the caller, whose signals are handled all
the while, and not the end of the process. The kernel may hold a read of a dead server's file for as long as it likes.
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


class _Hand(threading.Thread):
    """Carries out one order after the other, until it is let go; each is answered with a result or an error."""

    def __init__(self) -> None:
        super().__init__(name="weir-hand", daemon=True)
        self.orders: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.is_abandoned = False

    def run(self) -> None:
        while (order := self.orders.get()) is not None:
            self.answers.put(_carried_out(order))
            del order  # or an idle hand keeps what its last order has read

    def let_go(self) -> None:
        """Never give it another order: it ends, once the file system lets it."""
        self.is_abandoned = True
        self.orders.put(None)


_idle: deque[_Hand] = deque()


os.register_at_fork(after_in_child=_idle.clear)  # threads stay behind


def in_time(order: Callable[[], R], seconds: float) -> R:
    """Carry out an order; TimeoutError if it is not done in time. It may be done later, by a hand that was let go."""
    hand = _free_hand()
    hand.orders.put(order)
    try:
        result, error = hand.answers.get(timeout=seconds)
    except Empty:
        hand.let_go()
        raise TimeoutError(f"no answer for {seconds:g} s") from None
    except BaseException:  # a signal's
        hand.let_go()
        raise
    _idle.append(hand)
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]  # the order's own


def in_parallel(ask: Callable[[A], R], questions: Iterable[A], workers: int) -> list[R]:
    """Ask all questions, and answer in their order; the first error is raised at once, and leaves the rest unasked.

    With one worker that is the caller: for what answers at once, or sees to its time limits itself.
    """
    asked = list(questions)
    if workers == 1:
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
            result, error = _carried_out(partial(ask, asked[number]))
            if error is not None:
                is_over.set()
            answers.put((number, result, error))

    for _ in range(min(workers, len(asked))):
        threading.Thread(target=work, name="weir-asks", daemon=True).start()
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
    """Whether the order that this thread is carrying out has been given up, so that it must not take effect."""
    thread = threading.current_thread()
    return isinstance(thread, _Hand) and thread.is_abandoned


def _free_hand() -> _Hand:
    try:
        return _idle.pop()
    except IndexError:
        hand = _Hand()
        hand.start()
        return hand


def _carried_out(order: Callable[[], R]) -> tuple[R | None, BaseException | None]:
    try:
        return order(), None
    except BaseException as error:  # noqa: BLE001  # raised where it is waited for
        return None, error
