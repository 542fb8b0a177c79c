"""A program of the local stack: what to start, and how to see that it is ready.

Invariants: each runs in a session of its own, so that a signal to one never reaches another; and it does nothing before
whoever starts it has written down which process it is.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from weir_dev.stack.processes import ProcessRecord, record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


_GATE: Final = ("/bin/sh", "-c", 'read -r word && exec "$@" < /dev/null', "sh")
"""Becomes the program, with the same pid, when a line comes on its input; ends if the input is closed before."""


def _nothing() -> None:
    """Nothing has to be prepared."""


def _no_record(_: ProcessRecord) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`environment` is the whole environment; `prepare` is called before each start."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    grace_seconds: float
    is_ready: Callable[[], bool]
    prepare: Callable[[], None] = _nothing

    def start(self, write_down: Callable[[ProcessRecord], None] = _no_record) -> ProcessRecord:
        """Start the program; its output goes to the end of its log.

        It begins when `write_down` has returned. If that fails, or this process is killed before, it never begins: it
        would be in no record, and run for ever.
        """
        self.prepare()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                (*_GATE, *self.command),
                env=dict(self.environment),
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                bufsize=0,
            )
        assert process.stdin is not None  # noqa: S101  # a pipe was asked for
        started = record(self.name, process.pid)
        with process.stdin as gate:
            write_down(started)
            with suppress(BrokenPipeError):  # it may have been ended already
                gate.write(b"begin\n")
        return started
