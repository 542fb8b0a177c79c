"""Local stacks on their way up, and what is left of them. `test_running_stack` has the one that is up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from weir.errors import Misconfigured
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Phase

pytestmark = pytest.mark.e2e


STARTER = """
import sys
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import StackRequest
given = StackRequest.from_json(sys.argv[1])
Stack(
    StackRequest.owned_by_this_process(
        folder=given.folder, dags=given.dags, plugins=given.plugins, cache=given.cache
    )
).start()
"""


@pytest.fixture
def starting(stack_request, eventually):
    """A stack on its way up, and the process that starts it."""
    request = stack_request()
    starter = subprocess.Popen([sys.executable, "-c", STARTER, request.to_json()], stderr=subprocess.PIPE, text=True)
    stack = Stack(request)
    eventually(lambda: stack.state.process("spark") is not None, 60)
    yield stack, starter
    starter.kill()
    starter.communicate()


def test_stack_ends_when_the_process_that_started_it_is_killed(starting, eventually):
    stack, starter = starting
    processes = stack.state.processes
    starter.kill()
    eventually(lambda: not any(one.is_alive() for one in [*processes, *stack.state.processes]), 60)
    assert not stack.is_running()


def test_what_a_killed_keeper_has_left_is_ended(starting, eventually):
    stack, starter = starting
    processes = stack.state.processes
    os.kill(stack.state.process("keeper").pid, signal.SIGKILL)
    _, said = starter.communicate(timeout=60)
    assert "the stack's keeper ended with status -9" in said
    assert not any(one.is_alive() for one in [*processes, *stack.state.processes])
    eventually(lambda: not _at_work_in(stack.folder), 30)  # also what the keeper was about to start


def _at_work_in(folder):
    """All processes whose working directory is below a folder: each component has one of its own."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


@pytest.mark.soak
def test_a_component_that_dies_at_start_is_named_with_the_end_of_its_log(stack_request):
    request = stack_request(environment={"AIRFLOW__CORE__EXECUTOR": "no.such.Executor"})
    stack = Stack(request)
    began = time.monotonic()
    with pytest.raises(Misconfigured, match=r"(?s)ended while the stack was starting.*no\.such"):
        stack.start()
    assert time.monotonic() - began < 120
    assert stack.state.phase is Phase.FAILED
    assert not any(one.is_alive() for one in stack.state.processes)
