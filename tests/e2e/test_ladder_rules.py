"""What a dataflow may choose: who restarts, who follows, and where a retry goes on; and `weir plan`, before it all.

The tests of one DAG run in order, those of different DAGs at once (`at_once`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest
from at_once import AtOnce
from ladder_stack import FIRST_DAY

pytestmark = pytest.mark.e2e

TWO = {"parallelism": {"numbers": 1, "totals": 1}}
DAGS = {
    "always": {**TWO, "consumers": "always"},
    "full": {**TWO, "failover": "full"},
    "individual": {**TWO, "failover": "individual"},
    "planned": TWO,
    "copied": {"parallelism": {"numbers": 1, "doubled": 1, "totals": 1}, "copied": True},
}
AT_ONCE = AtOnce(DAGS, soaks={"always", "copied"})
FIRST = "2024-01-01"


@AT_ONCE.on("always")
def test_consumers_always_run_again_behind_a_producer_and_equal_content_is_published_once(driver):
    run_id = driver.start()
    before = driver.green()
    driver.person.clear(run_id, "numbers")
    ran = driver.healed(before)[FIRST]
    assert ran.keys() == before[FIRST].keys()
    assert {ran[task] for task in ran.keys() - {"weir_close"}} == {1}
    assert [event["version"] for event in driver.api.asset_events("always.sums")] == [1]


@AT_ONCE.on("full")
def test_a_full_failover_runs_everything_again_that_has_begun(driver):
    run_id = driver.start()
    before = driver.green()
    shutil.rmtree(driver.folder("doubled", 1))
    driver.person.clear(run_id, "totals-sums")
    ran = driver.healed(before)[FIRST]
    assert {task: n for task, n in ran.items() if task != "weir_close"} == {
        "numbers": 1,
        "doubled[0]": 1,
        "doubled[1]": 1,
        "totals-sums": 2,
    }


@AT_ONCE.on("individual")
def test_an_individual_failover_restarts_nobody_and_says_how_a_person_does(driver):
    run_id = driver.start()
    before = driver.green()
    shutil.rmtree(driver.folder("doubled", 1))
    driver.person.clear(run_id, "totals-sums")
    driver.await_state(run_id, "totals-sums", "failed")
    assert driver.again(run_id, before[FIRST]) == {"totals-sums": 1}
    assert driver.owed() == []
    note = driver.note(run_id, "totals-sums")
    assert "doubled[1]" in note
    assert f"`weir plan {driver.dag}@{FIRST_DAY} --apply`" in note
    assert regions(planned(driver, "--apply"), "rerun") == {"doubled[1]", "totals-sums[0]"}
    assert driver.healed(before)[FIRST] == {"doubled[1]": 1, "totals-sums": 2}


@AT_ONCE.on("planned")
def test_a_plan_before_the_loss_is_what_runs_again_after_it(driver):
    run_id = driver.start()
    before = driver.green()
    plan = planned(driver, "--fail", "totals", "--lost", "doubled[1]", "--lost", "numbers")
    for stage, subtask in (("doubled", 1), ("numbers", 0)):
        shutil.rmtree(driver.folder(stage, subtask))
    driver.person.clear(run_id, "totals-sums")
    ran = driver.healed(before)[FIRST]
    assert regions(plan, "rerun") == {"doubled[1]", "numbers[0]"}
    assert regions(plan, "if_changed") == {"doubled[0]", "weir_close[0]"}
    assert ran == {"doubled[1]": 1, "numbers": 1, "totals-sums": 2}
    assert regions(planned(driver), "rerun") == set()


@AT_ONCE.on("planned", soak=True)
def test_a_plan_is_carried_out_by_hand(driver):
    before = driver.green()
    shutil.rmtree(driver.folder("doubled", 0))
    planned(driver, "--apply")
    assert driver.healed(before)[FIRST] == {"doubled[0]": 1}


def planned(driver, *options):
    """The answer of `weir plan` about the first day."""
    return json.loads(driver.weir("plan", f"{driver.dag}@{FIRST_DAY}", "--json", *options))


def regions(plan, kind):
    return {step["region"] for step in plan["steps"] if step["kind"] == kind}


@AT_ONCE.on("copied")
def test_a_killed_task_goes_on_from_the_copy_that_it_has_made(driver):
    driver.hold("doubled")
    driver.start()
    pid = driver.await_reached("doubled")
    driver.hold("numbers")  # whoever computes them again stays there
    os.kill(pid, signal.SIGKILL)
    driver.let_go("doubled")
    tries = driver.green()[FIRST]
    assert tries == {"numbers-doubled": 2, "totals-sums": 1, "weir_close": 1}
    driver.let_go("numbers")
