"""Airflow's part of the doctor, in a process of its own: the command line imports no Airflow.

Invariant: whatever that process does, it is ended, and what it had found until then counts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from weir.doctor.finding import Finding, problem
from weir.doctor.secrecy import Secrecy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

AREA = "airflow's part"
SECONDS = 600.0
"""Its own checks have limits of their own; this one is for a process that does not even come to them."""

_MODULE = "weir_airflow.doctor"


class AirflowPart:
    """Asks in `environment`, which is the whole one."""

    def __init__(self, environment: Mapping[str, str], arguments: Sequence[str] = (), module: str = _MODULE) -> None:
        self._environment = environment
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def findings(self) -> Iterator[Finding]:
        """What it finds, as it comes; that it failed is a finding, too."""
        with tempfile.TemporaryFile("w+") as said:
            self._process = process = subprocess.Popen(
                self._command,
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
            has_answered = False
            for line in process.stdout or ():
                yield Finding.from_json(json.loads(line))
                has_answered = True
            status = process.wait()
            if status != 0 or not has_answered:
                yield _failed(status, said)

    def end(self) -> None:
        """End the process, and what it has started, if it still runs."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # one that waits for a dead disk ends when the disk answers
            process.wait(5.0)


def _failed(status: int, said: IO[str]) -> Finding:
    said.seek(0)
    lines = [line.strip() for line in said.read()[-4000:].splitlines() if line.strip()]
    return problem(
        AREA,
        "process",
        f"ended with status {status}: {Secrecy().clean(' | '.join(lines[-3:])) or 'it said nothing'}",
        expected="an Airflow that can be imported in this environment",
        mend=f"try it: {sys.executable} -m {_MODULE}",
    )
