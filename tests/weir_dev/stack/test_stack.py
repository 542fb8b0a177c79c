"""A stack whose keeper was killed: what it has left is ended, also in the moment in which its lock is still held."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Retryable
from weir_dev.stack.keeper import take_lock
from weir_dev.stack.processes import record
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Phase, StackRequest, StackState, write_state


@pytest.fixture
def stack(tmp_path):
    """A stack of which nothing was started."""
    made = Stack(StackRequest(folder=tmp_path / "stack", dags=(tmp_path,), plugins=tmp_path, cache=tmp_path / "cache"))
    made.folder.mkdir()
    return made


@pytest.fixture
def left(stack):
    """A component that a keeper has left."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    left = record("scheduler", process.pid)
    write_state(stack.folder, StackState(phase=Phase.UP, processes=(left,)))
    yield left
    process.kill()
    process.wait()


def test_what_is_left_is_ended_though_the_lock_is_held_for_another_moment(stack, left):
    """A child holds the files of the keeper that forked it until it is another program; the keeper may be dead then."""
    held = take_lock(stack.folder)
    own = os.dup(held.fileno())
    held.close()
    freeing = threading.Timer(0.2, os.close, (own,))
    freeing.start()
    stack.stop()
    freeing.join()
    assert not left.is_alive()
    assert stack.state == StackState(phase=Phase.DOWN)


def test_what_another_process_is_about_to_start_is_left_to_it(stack, left, monkeypatch):
    monkeypatch.setattr("weir_dev.stack.stack.LOCK_SECONDS", 0.1)
    with take_lock(stack.folder) as held:
        with pytest.raises(Retryable, check=of_kind("dev.stack_busy")):
            stack.stop()
        assert left.is_alive()
        fcntl.flock(held, fcntl.LOCK_UN)
    stack.stop()
    assert not left.is_alive()
