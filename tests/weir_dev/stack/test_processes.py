"""Processes by pid and start time: the right ones are ended, and no others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from weir_dev.stack.processes import ProcessRecord, record, session_members, start_mark, stop

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
PARENT_IN_OTHER_GROUP = (
    "import subprocess, sys, time, os\n"
    f"child = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=subprocess.PIPE, process_group=0)\n"
    "child.stdout.readline()\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(60)\n"
)


@pytest.fixture
def start():
    started = []

    def run(program):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        return record("test", process.pid), process.stdout.readline().decode().strip()

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_process_that_ignores_sigterm_is_killed(start):
    stubborn, _ = start(STUBBORN)
    assert stop([stubborn], grace_seconds=0.2) == []
    assert not stubborn.is_alive()


def test_children_in_another_process_group_end_too(start):
    parent, child = start(PARENT_IN_OTHER_GROUP)
    assert stop([parent], grace_seconds=5) == []
    assert start_mark(int(child)) is None


def test_what_a_dead_leader_left_ends_too(start):
    parent, child = start(PARENT_IN_OTHER_GROUP)
    os.kill(parent.pid, 9)
    os.waitpid(parent.pid, 0)
    assert [one.pid for one in session_members(parent)] == [int(child)]
    assert stop([parent], grace_seconds=0) == []
    assert start_mark(int(child)) is None


def test_a_later_process_of_the_same_pid_is_left_alone(start):
    alive, _ = start(STUBBORN)
    stale = ProcessRecord("test", alive.pid, "another start")
    assert not stale.is_alive()
    assert session_members(stale) == []
    assert stop([stale], grace_seconds=0) == []
    assert alive.is_alive()


def test_a_process_that_never_was_is_not_alive():
    assert start_mark(2**22 + 1) is None
