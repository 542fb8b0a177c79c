"""The processes of running tasks are told by their titles, with their supervisors, and as orphans without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from tests.chaos.task_processes import descendants, task_processes

from weir_dev.stack.processes import record, stop

SCHEDULER = """
import os, sys, time
from setproctitle import setproctitle
ti_id = sys.argv[1]
if os.fork() == 0:
    setproctitle(f"airflow worker -- LocalExecutor: {ti_id}")
    if os.fork() == 0:
        setproctitle(f"airflow worker -- {ti_id}")
    time.sleep(60)
if os.fork() == 0:
    setproctitle("airflow worker -- LocalExecutor: <idle>")
    time.sleep(60)
time.sleep(60)
"""


@pytest.fixture
def scheduler():
    ti_id = str(uuid.uuid4())
    process = subprocess.Popen([sys.executable, "-c", SCHEDULER, ti_id], start_new_session=True)
    leader = record("scheduler", process.pid)
    yield leader, ti_id
    stop([leader], grace_seconds=0)
    process.wait()


def found(leader, is_wanted):
    deadline = time.monotonic() + 30
    while not (ones := task_processes(leader)) or not all(is_wanted(one) for one in ones):
        assert time.monotonic() < deadline, ones
        time.sleep(0.05)
    return ones


def test_a_running_task_is_found_with_its_supervisor(scheduler):
    leader, ti_id = scheduler
    (one,) = found(leader, lambda one: one.supervisor is not None)
    assert one.ti_id == ti_id
    assert one.task.pid in [each.pid for each in descendants([one.supervisor])]
    assert [each.pid for each in one.processes] == [one.supervisor.pid, one.task.pid]


def test_a_task_whose_supervisor_was_killed_is_found_as_an_orphan(scheduler):
    leader, _ = scheduler
    (before,) = found(leader, lambda one: one.supervisor is not None)
    os.kill(before.supervisor.pid, signal.SIGKILL)
    (after,) = found(leader, lambda one: one.supervisor is None)
    assert after.task == before.task
    assert after.processes == (after.task,)


def test_nothing_is_found_in_the_session_of_another(scheduler):
    assert task_processes(record("scheduler", os.getpid())) == []
