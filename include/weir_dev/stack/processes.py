"""Programs of the local stack, and the processes that it started, known by pid and start time.

Invariants: each program runs in a session of its own, so that no signal ever goes to a process that is not the recorded
one or of its session; and it does nothing before whoever starts it has written down which process it is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


STRAGGLERS_SECONDS = 10.0
"""How long killed processes may take to disappear."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """The leader of a session that was made for it. `mark` tells it from a later process of the same pid."""

    name: str
    pid: int
    mark: str

    def is_alive(self) -> bool:
        """Report whether this process still runs, not another one with its pid."""
        return start_mark(self.pid) == self.mark


def record(name: str, pid: int) -> ProcessRecord:
    """Describe a process that was just started."""
    return ProcessRecord(name, pid, start_mark(pid) or "gone")


def start_mark(pid: int) -> str | None:
    """When a process started, in a form that a changed clock does not change; None if it is gone or a zombie."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists():
            return f"{process.create_time():.2f}"
        ticks = stat.read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}:{ticks}"
    except (psutil.Error, OSError):
        return None


def session_members(leader: ProcessRecord) -> list[ProcessRecord]:
    """All that live in the leader's session, also if the leader is gone, and all descendants of the leader.

    A pid is not given away while a session has it as its id. So if another process has the leader's pid now, nothing
    of the leader's session is left.
    """
    now = start_mark(leader.pid)
    if now is not None and now != leader.mark:
        return []
    found = {pid for pid in psutil.pids() if _session_of(pid) == leader.pid}
    if now is not None:
        with suppress(psutil.Error):
            found.update(child.pid for child in psutil.Process(leader.pid).children(recursive=True))
    found.discard(leader.pid)
    return [member for member in (record(leader.name, pid) for pid in sorted(found)) if member.is_alive()]


def stop(
    leaders: Sequence[ProcessRecord], grace_seconds: float, request: signal.Signals = signal.SIGTERM
) -> list[ProcessRecord]:
    """Send SIGTERM, or `request`, to each leader alone, then SIGKILL to what is left of their sessions.

    Return what even that left. A SIGTERM to all of a session would wedge Airflow's scheduler: its workers wait for each
    other.
    """
    members = {member for leader in leaders for member in session_members(leader)}
    for leader in leaders:
        send(leader, request)
    _wait_gone(leaders, grace_seconds)
    deadline = time.monotonic() + STRAGGLERS_SECONDS
    while True:
        members.update(member for leader in leaders for member in session_members(leader))
        left = [one for one in (*leaders, *members) if one.is_alive()]
        if not left or time.monotonic() > deadline:
            return left
        for one in left:
            send(one, signal.SIGKILL)
        _wait_gone(left, 0.5)


def send(one: ProcessRecord, number: signal.Signals) -> None:
    """Send a signal if this very process still runs."""
    if one.is_alive():
        with suppress(ProcessLookupError):
            os.kill(one.pid, number)


def _wait_gone(these: Iterable[ProcessRecord], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    waiting = list(these)
    while time.monotonic() < deadline:
        _reap(waiting)
        waiting = [one for one in waiting if one.is_alive()]
        if not waiting:
            return
        time.sleep(0.05)


def _reap(these: Iterable[ProcessRecord]) -> None:
    """Take the exit status of our own children, so that they do not stay as zombies."""
    for one in these:
        with suppress(ChildProcessError):
            os.waitpid(one.pid, os.WNOHANG)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


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
