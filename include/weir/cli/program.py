"""A program of the local stack: what to start, and how to see that it is ready.

Invariant: each runs in a session of its own, so that a signal to one never reaches another.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.cli.processes import ProcessRecord, record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def _nothing() -> None:
    """Nothing has to be prepared."""


@dataclass(frozen=True, slots=True)
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

    def start(self) -> ProcessRecord:
        """Start the program; its output goes to the end of its log."""
        self.prepare()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                self.command,
                env=dict(self.environment),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return record(self.name, process.pid)
