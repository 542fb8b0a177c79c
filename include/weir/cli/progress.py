"""Showing that something is happening.

Invariant: on a terminal there is always a moving line; elsewhere every change is a line of its own, with the time,
and no half minute passes without one.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.markup import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.status import Status

_AT_LEAST_EVERY_SECONDS = 20.0
_AT_MOST_EVERY_SECONDS = 3.0


class Progress:
    """Tells on a console what is being done, and how long it has taken."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._status: Status | None = None
        self._title = ""
        self._said = ""
        self._said_at = 0.0

    @contextmanager
    def phase(self, title: str) -> Iterator[None]:
        """Show `title` while the block runs, and then how long it took."""
        self._title, self._said = title, ""
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
        """What is going on within the phase; to be called again and again, also with the same text."""
        if self._status is not None:
            self._status.update(f"{self._title} [dim]{self.elapsed():.0f} s[/]  {escape(text)}")
            return
        age = time.monotonic() - self._said_at
        if age > (_AT_MOST_EVERY_SECONDS if text != self._said else _AT_LEAST_EVERY_SECONDS):
            self._said = text
            self._line(f"  {escape(text)}")

    def elapsed(self) -> float:
        """Seconds since the beginning of everything."""
        return time.monotonic() - self._began

    def _line(self, text: str) -> None:
        self._said_at = time.monotonic()
        self._console.print(f"[dim]{self.elapsed():4.0f} s[/]  {text}", soft_wrap=True)
