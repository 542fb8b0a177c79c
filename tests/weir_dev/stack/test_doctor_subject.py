import os

import pytest

from weir.doctor.deployment import examined
from weir.doctor.examination import Status
from weir_dev.stack.credentials import load_or_create
from weir_dev.stack.doctor_subject import Components, judge_stack, local_stack
from weir_dev.stack.processes import record
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Phase, StackState, write_state

ALL = ("spark", "api-server", "scheduler")


def test_a_stack_at_work_is_ok():
    assert judge_stack(Components(working=ALL), is_kept=True).status is Status.OK


def test_a_stack_that_is_down_is_one_warning():
    found = judge_stack(Components(dead=ALL), is_kept=False)
    assert (found.status, found.mend) == (Status.WARNING, "./weir up")


def test_a_dead_component_is_named():
    found = judge_stack(Components(working=ALL[1:], dead=ALL[:1]), is_kept=True, logs="/logs")
    assert found.status is Status.PROBLEM
    assert "spark is dead" in found.found
    assert "/logs" in found.mend


def test_a_start_that_failed_says_why():
    found = judge_stack(Components(), is_kept=False, failure="no port is free")
    assert found.status is Status.PROBLEM
    assert "no port is free" in found.found


def test_what_a_killed_keeper_has_left_is_ended_first():
    found = judge_stack(Components(working=("spark",), starting=("scheduler",)), is_kept=False)
    assert found.status is Status.PROBLEM
    assert "spark, scheduler" in found.found
    assert "./weir down" in found.mend


@pytest.fixture
def stack(stack_request):
    return Stack(stack_request())


def test_a_stack_that_was_never_started_is_one_warning_and_nothing_is_created(stack):
    subject = local_stack(stack)
    assert (subject.environment, subject.is_served) == (None, False)
    assert [finding.status for finding in subject.findings] == [Status.WARNING]
    assert {finding.area for finding in examined(subject)} == {"stack", "versions", "java"}
    assert list(stack.folder.parent.iterdir()) == []


def test_a_stack_that_is_down_has_the_environment_that_it_would_have(stack):
    load_or_create(stack.folder)
    subject = local_stack(stack)
    assert subject.environment["WEIR_STORE"] == stack.store_url
    assert not subject.is_served
    assert not subject.has_databases  # they are in a server that does not run
    assert "spark_default" in subject.connections


def test_a_dead_component_of_a_stack_is_named(stack):
    load_or_create(stack.folder)
    alive = record("keeper", os.getpid())
    dead = record("scheduler", 2**22 + 1)
    write_state(stack.folder, StackState(phase=Phase.UP, processes=(alive, dead), ready=("scheduler",)))
    [found] = local_stack(stack).findings
    assert found.status is Status.PROBLEM
    assert "scheduler is dead" in found.found
