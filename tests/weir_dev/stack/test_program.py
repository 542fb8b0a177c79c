"""A program begins when it has been written down who it is, and never without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from weir_dev.stack.processes import Program, record, start_mark, stop

TELLS = "import os, sys; open('begun', 'w').write(f'{os.getpid()} {os.getsid(0)} {sys.stdin.read()!r} {sys.argv[1:]}')"


@pytest.fixture
def program(tmp_path):
    """A program that tells in a file that it has begun."""
    return Program(
        name="teller",
        command=(sys.executable, "-c", TELLS, "two words", "$HOME"),
        environment=dict(os.environ),
        folder=tmp_path,
        log=tmp_path / "log",
        grace_seconds=1.0,
        is_ready=lambda: True,
    )


def await_end(pid, mark):
    deadline = time.monotonic() + 60
    while start_mark(pid) == mark:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def reap(pid):
    """Wait for a child; whoever drops its Popen object may have seen its end before."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def test_a_program_is_the_process_that_was_written_down_and_has_a_session_and_no_input(program, tmp_path):
    written = []
    started = program.start(written.append)
    assert written == [started]
    reap(started.pid)
    assert (tmp_path / "begun").read_text() == f"{started.pid} {started.pid} '' ['two words', '$HOME']"


def test_a_program_that_cannot_be_written_down_never_begins(program, tmp_path):
    refused = []

    def refuse(started):
        refused.append(started)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        program.start(refuse)
    reap(refused[0].pid)
    assert not (tmp_path / "begun").exists()


def test_a_program_that_was_ended_before_it_began_is_no_error(program, tmp_path):
    started = program.start(lambda one: stop([one], grace_seconds=5.0))
    assert not started.is_alive()
    assert not (tmp_path / "begun").exists()


STARTER = """
import os, signal, sys
from pathlib import Path
from weir_dev.stack.processes import Program

def killed(started):
    print(started.pid, started.mark, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
command = (sys.executable, "-c", "open('begun', 'w')")
log = folder / "log"
values = {"environment": dict(os.environ), "folder": folder, "log": log, "grace_seconds": 1.0, "is_ready": lambda: True}
Program(name="teller", command=command, **values).start(killed)
"""


def test_nothing_is_left_of_a_program_whose_starter_is_killed_before_it_was_written_down(tmp_path):
    """A keeper that was killed at the wrong moment would leave a component that no record knows."""
    starter = subprocess.run(
        [sys.executable, "-c", STARTER, str(tmp_path)], check=False, stdout=subprocess.PIPE, text=True
    )
    assert starter.returncode == -signal.SIGKILL
    pid, mark = starter.stdout.split()
    await_end(int(pid), mark)
    assert not (tmp_path / "begun").exists()


def test_a_command_that_is_not_there_is_told_in_the_log(program, tmp_path):
    missing = Program(
        name="none",
        command=(str(tmp_path / "none"),),
        environment={},
        folder=tmp_path,
        log=tmp_path / "log",
        grace_seconds=1.0,
        is_ready=lambda: True,
    )
    started = missing.start()
    reap(started.pid)
    assert "not found" in (tmp_path / "log").read_text()
    assert record("none", started.pid).mark == "gone"
