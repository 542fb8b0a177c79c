"""The demo's verdict: exactly the expected task instances ran again, each with the expected number of tries."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from io import StringIO

import pytest
from rich.console import Console

from weir_dev.airflow_api import TaskInstance
from weir_dev.demo.demo import EXPECTED_TRIES
from weir_dev.demo.hold import LostPartition
from weir_dev.demo.report import (
    DayCheck,
    changed_tries,
    needed_several_tries,
    print_checks,
    print_found,
    unexpected_reruns,
)

DAY = date(2013, 1, 2)
RUN, OTHER = "scheduled__2013-01-02", "scheduled__2013-01-01"
TASKS = (("by_carrier", 0), ("by_carrier", 1), ("join", 0), ("join", 1), ("weather", -1))


def instance(task_id, map_index=-1, run_id=RUN, tries=1):
    return TaskInstance(task_id=task_id, map_index=map_index, run_id=run_id, state="success", try_number=tries, note="")


BEFORE = [instance(*task, run_id=run) for run in (OTHER, RUN) for task in TASKS]


def after(**tries):
    """All task instances, some of the damaged run with other numbers of tries; `weather` or `join_0`."""
    names = {str(one).replace("[", "_").rstrip("]"): one for one in BEFORE if one.run_id == RUN}
    changed = {names[name]: count for name, count in tries.items()}
    return [replace(one, try_number=changed.get(one, one.try_number)) for one in BEFORE]


def verdict(now):
    return unexpected_reruns(changed_tries(BEFORE, now), RUN, EXPECTED_TRIES, DAY.isoformat())


def test_exactly_the_expected_task_instances_with_their_tries_are_as_expected():
    assert verdict(after(by_carrier_0=3, join_0=2)) is None


def test_tries_before_the_loss_do_not_count():
    before = [replace(one, try_number=4) if one.task_id == "join" else one for one in BEFORE]
    now = [
        replace(one, try_number=one.try_number + EXPECTED_TRIES.get(str(one), 0) * (one.run_id == RUN))
        for one in before
    ]
    assert unexpected_reruns(changed_tries(before, now), RUN, EXPECTED_TRIES, "2013-01-02") is None


@pytest.mark.parametrize(
    ("now", "found"),
    [
        pytest.param(
            after(by_carrier_0=3, join_0=2, weather=2),
            "by_carrier[0] (+2 tries), join[0] (+1 tries), weather (+1 tries)",
            id="another-task-ran-again",
        ),
        pytest.param(
            after(by_carrier_0=3, join_0=2, join_1=2),
            "by_carrier[0] (+2 tries), join[0] (+1 tries), join[1] (+1 tries)",
            id="another-subtask-ran-again",
        ),
        pytest.param(after(by_carrier_0=3), "by_carrier[0] (+2 tries)", id="the-producer-did-not-run-again"),
        pytest.param(
            after(by_carrier_0=2, join_0=2), "by_carrier[0] (+1 tries), join[0] (+1 tries)", id="too-few-tries"
        ),
        pytest.param(
            after(by_carrier_0=3, join_0=3), "by_carrier[0] (+2 tries), join[0] (+2 tries)", id="too-many-tries"
        ),
        pytest.param(BEFORE, "found: none", id="nothing-ran-again"),
        pytest.param(
            [replace(one, try_number=2) if (one.run_id, one.task_id) == (OTHER, "weather") else one
             for one in after(by_carrier_0=3, join_0=2)],
            f"weather of {OTHER} (+1 tries)",
            id="a-task-of-another-day-ran-again",
        ),
        pytest.param(
            [*after(by_carrier_0=3, join_0=2), instance("extra")], "extra (+1 tries)", id="a-task-instance-was-added"
        ),
        pytest.param(
            [one for one in after(by_carrier_0=3, join_0=2) if one.task_id != "weather"],
            "weather (-1 tries)",
            id="a-task-instance-has-gone",
        ),
    ],
)  # fmt: skip
def test_anything_else_fails_and_names_the_expected_and_the_found_task_instances(now, found):
    said = verdict(now)
    assert (
        "expected to run again, of 2013-01-02: by_carrier[0] (+2 tries), join[0] (+1 tries), and nothing else" in said
    )
    assert found in said


def test_a_task_instance_that_needed_a_second_try_is_named():
    assert needed_several_tries(BEFORE) == []
    assert [str(one) for one in needed_several_tries(after(join_1=2))] == ["join[1]"]


EQUAL = [DayCheck(DAY, 1, 187, None)]


def printed(checks, unexpected):
    console = Console(file=StringIO(), width=400)
    is_right = print_checks(console, checks, sorted(EXPECTED_TRIES), unexpected, "its files and its table")
    return is_right, console.file.getvalue()


def test_equal_reports_and_the_expected_task_instances_are_healed():
    is_right, said = printed(EQUAL, None)
    assert is_right
    assert "Healed: by_carrier[0] and join[0] ran again, nothing else" in said


def test_equal_reports_are_not_healed_when_another_task_ran_again():
    is_right, said = printed(EQUAL, verdict(after(by_carrier_0=3, join_0=2, weather=2)))
    assert not is_right
    assert "Healed:" not in said
    assert "Not healed as expected: expected to run again" in said
    assert "weather (+1 tries)" in said


def test_a_report_that_differs_is_not_healed():
    is_right, said = printed([*EQUAL, DayCheck(DAY, 2, 187, "row 0: flights: 4, expected 3")], None)
    assert not is_right
    assert "Healed:" not in said
    assert "DIFFERENT 2013-01-02" in said


def test_tries_that_were_needed_before_the_loss_are_told():
    console = Console(file=StringIO(), width=400)
    lost = LostPartition(
        name="join[0] by carrier", folder="folder", rows=411, bytes=10219, consumers=("by_carrier[0]",), held_results=22
    )
    print_found(console, DAY, lost, 39, [])
    assert "39 task instances have succeeded, each in its first try" in console.file.getvalue()
    print_found(console, DAY, lost, 39, needed_several_tries(after(join_1=2)))
    assert f"all but these in their first try: join[1] of {RUN} (2 tries)" in console.file.getvalue()
