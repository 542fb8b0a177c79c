"""Showing how much of many bytes has been read.

Invariant: on a terminal there is always a moving bar with the time that is left; elsewhere a line now and then. It goes
to stderr, so that what is answered can be piped.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from weir.cli.progress import Progress
from weir.dataflow.keep import told_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def byte_progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show `title` and how much of `total` bytes is done; gives what is to be told, from any thread, of each part."""
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
            progress.say(f"{told_size(done)} of {told_size(total)}")

    with progress.phase(title):
        yield advance
