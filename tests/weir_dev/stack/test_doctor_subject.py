from weir.doctor.examination import Status
from weir_dev.stack.doctor_subject import Components, judge_stack

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
