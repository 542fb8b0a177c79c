"""The process between a test and its PostgreSQL server.

Invariant: when the guard, the test process, or both are killed, the server ends; the data go when the test process has.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

from weir_dev.stack.processes import ProcessRecord

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl

_AT_ONCE = signal.SIGQUIT
"""The signal of PostgreSQL's immediate shutdown, which does not wait for clients."""


def guard(parent: ProcessRecord, folder: Path, command: dict[str, Any]) -> int:
    """Run a server until it ends, this process is asked to end, or `parent` is gone; the server's exit status."""
    asked_to_end = Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: asked_to_end.set())
    with subprocess.Popen(**command, preexec_fn=_end_with_guard) as server:  # noqa: PLW1509 - there are no threads here
        while server.poll() is None and parent.is_alive() and not asked_to_end.wait(0.5):
            pass
        server.send_signal(_AT_ONCE)
    if not parent.is_alive():
        shutil.rmtree(folder, ignore_errors=True)
    return server.returncode


def _end_with_guard() -> None:
    """Have the system send the signal if the guard is killed; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(_AT_ONCE))


if __name__ == "__main__":
    owner = json.loads(sys.argv[1])
    sys.exit(guard(ProcessRecord(*owner["parent"]), Path(owner["folder"]), json.loads(sys.argv[2])))
