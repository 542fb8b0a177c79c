"""Chaos runs by their real command line, with fixed seeds."""

import re
import signal
import subprocess
import sys

import pytest
from tests.chaos.plan import known_faults

from weir_dev.project import state_folder
from weir_dev.stack.processes import session_members
from weir_dev.stack.state import Phase, read_state

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

FAULTS = "task,supervisor,lost,bit,clear-running,input,spark"
"""Those that a run survives within seconds."""


def chaos(*options):
    command = [sys.executable, "-m", "weir_dev.main", "chaos", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def left():
    """What still runs of the stack of a chaos run."""
    state = read_state(state_folder() / "chaos")
    assert state.phase is Phase.DOWN
    return [member for one in state.processes for member in (one, *session_members(one)) if member.is_alive()]


@pytest.mark.soak
def test_a_minute_of_faults_changes_nothing_of_what_is_published():
    run = chaos("--minutes", "1", "--seed", "6", "--faults", FAULTS)
    said, _ = run.communicate()
    assert run.returncode == 0, said
    assert len(re.findall(r"fault \d+ [a-z-]+: ", said)) >= 3, said
    assert said.count("equal 2024-01-0") >= 3
    assert "DIFFERENT" not in said
    assert left() == []


@pytest.mark.soak
def test_every_kind_of_fault_is_injected_and_changes_nothing_of_what_is_published():
    """Those of a cluster, and a database that stops, among them."""
    run = chaos("--minutes", "8", "--seed", "17", "--spark-workers", "2", "--postgres")
    said, _ = run.communicate()
    assert run.returncode == 0, said
    kinds = {fault.name for fault in known_faults(15, 2, database=object())}
    assert len(kinds) >= 20
    assert set(re.findall(r"fault \d+ ([a-z-]+): ", said)) == kinds, said
    assert "Unharmed" in said
    assert left() == []


@pytest.mark.soak
def test_an_interrupted_run_leaves_nothing_running():
    run = chaos("--minutes", "5", "--seed", "1")
    for line in run.stdout:
        if re.search(r"fault 1 [a-z-]+: ", line):
            break
    before = read_state(state_folder() / "chaos").processes
    run.send_signal(signal.SIGTERM)
    run.communicate()
    assert run.returncode == 128 + signal.SIGTERM
    assert len(before) >= 6
    assert [one for one in before if one.is_alive()] == []
    assert left() == []


def test_an_unknown_fault_is_refused_before_anything_starts():
    run = chaos("--faults", "fire")
    said, _ = run.communicate()
    assert run.returncode == 2
    assert "there is no fault 'fire'" in said
