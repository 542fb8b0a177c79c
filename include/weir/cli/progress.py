"""Progress of long commands.

Invariants: on a terminal there is always a moving line or bar; elsewhere each change is a line with the time, at least
every half minute. Byte progress goes to stderr, so that the output of a command can be piped.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from weir.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.status import Status


_AT_LEAST_EVERY_SECONDS = 20.0
_AT_MOST_EVERY_SECONDS = 3.0


class Progress:
    """Shows on a console the present phase and the elapsed time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._status: Status | None = None
        self._title = ""
        self._shown = ""
        self._shown_at = 0.0

    @contextmanager
    def phase(self, title: str) -> Iterator[None]:
        """Show `title` while the block runs, and then how long it took."""
        self._title, self._shown = title, ""
        began = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(title, spinner="dots") as self._status:
                yield
            self._status = None
        else:
            self._line(f"{title} ...")
            yield
        self._console.print(f"[green]done[/] {title} [dim]({time.monotonic() - began:.0f} s)[/]")

    def say(self, text: str) -> None:
        """Show the present step of the phase; may be called often with the same text."""
        if self._status is not None:
            self._status.update(f"{self._title} [dim]{self.elapsed():.0f} s[/]  {escape(text)}")
            return
        age = time.monotonic() - self._shown_at
        if age > (_AT_MOST_EVERY_SECONDS if text != self._shown else _AT_LEAST_EVERY_SECONDS):
            self._shown = text
            self._line(f"  {escape(text)}")

    def elapsed(self) -> float:
        """Return the seconds since the progress was created."""
        return time.monotonic() - self._began

    def _line(self, text: str) -> None:
        self._shown_at = time.monotonic()
        self._console.print(f"[dim]{self.elapsed():4.0f} s[/]  {text}", soft_wrap=True)


@contextmanager
def byte_progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show `title` and the progress of `total` bytes; yield the function that adds bytes, from any thread."""
    console = Console(stderr=True)
    shown = _bar(console, title, total) if console.is_terminal else _lines(console, title, total)
    with shown as advance:
        yield advance


@contextmanager
def _bar(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console) as bars:
        task = bars.add_task(title, total=max(total, 1))
        yield lambda count: bars.advance(task, count)
        bars.update(task, completed=max(total, 1))


@contextmanager
def _lines(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    progress, lock, done = Progress(console), threading.Lock(), 0

    def advance(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress.say(f"{format_size(done)} of {format_size(total)}")

    with progress.phase(title):
        yield advance


@contextmanager
def exits_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that what was started is ended."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
