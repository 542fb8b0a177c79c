"""Whether a task that fails, is killed or has lost its input is tried again; and what it leaves for people to read.

The tests of one DAG run in order, those of different DAGs at once (`at_once`).
"""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from at_once import AtOnce
from ladder_stack import FIRST_DAY

from weir.execution.failure_words import VISIBLE
from weir.ledger.database.tables import AttemptRow, RunRow

pytestmark = pytest.mark.e2e

OFTEN = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 50,
    "restart-strategy.fixed-delay.delay": "1 s",
}
ONE = {"parallelism": {"numbers": 1, "doubled": 1, "totals": 1}, "failure_enrichers": ["ladder_labels:team"]}
DAGS = {
    "failing": {**ONE, "restart": {**OFTEN, "restart-strategy.maximum-per-task-failures": 1}},
    "killed": {**ONE, "restart": {**OFTEN, "restart-strategy.maximum-total-task-failures": 1}},
    "faults": {"parallelism": {"numbers": 1, "totals": 1}, "readers": True},
}
AT_ONCE = AtOnce(DAGS, soaks={"killed"})
FIRST = "2024-01-01"


def clear_failed(driver, run_id, task):
    """Clear a task and what it has kept from running, once the scheduler is through with the run."""
    driver.wait(lambda: driver.person.state_of(run_id) == "failed", f"{run_id} to fail")
    driver.person.clear(run_id, task, include_downstream=True)


def labels_of(driver, region):
    with driver.ledger.transaction() as session:
        run = session.query(RunRow.id).filter_by(dataflow=driver.dag).scalar()
        rows = session.query(AttemptRow).filter_by(run=run, region=region).order_by(AttemptRow.try_number)
        return [row.labels for row in rows]


@AT_ONCE.on("failing")
def test_a_task_fails_for_good_at_its_limit_and_a_clear_gives_it_a_new_one(driver):
    fail = driver.control.parent / "fail-totals"
    fail.touch()
    run_id = driver.start()
    driver.await_state(run_id, "totals-sums", "failed")
    assert driver.tries(run_id)["totals-sums"] == 2
    note = driver.note(run_id, "totals-sums")
    assert "fails on purpose" in note[:VISIBLE]
    assert "not tried again." in note[:VISIBLE]
    assert note.endswith("(application, team=those of totals-sums)")
    assert "maximum-per-task-failures is 1, and the task has failed 2 times" in note
    assert "fails on purpose" in note
    labels = {"type": "application", "exception": "ValueError", "team": "those of totals-sums"}
    assert labels_of(driver, "totals-sums") == [labels, labels]
    fail.unlink()
    clear_failed(driver, run_id, "totals-sums")
    driver.green(run_id)


@AT_ONCE.on("killed")
def test_kills_of_several_tasks_count_together_for_the_limit_of_the_run(driver):
    for stage in ("numbers", "doubled"):
        driver.hold(stage)
    run_id = driver.start()
    os.kill(driver.await_reached("numbers"), signal.SIGKILL)
    driver.wait(lambda: driver.tries(run_id)["numbers"] == 2, "another try of numbers")
    driver.let_go("numbers")
    os.kill(driver.await_reached("doubled"), signal.SIGKILL)
    driver.await_state(run_id, "doubled", "failed")
    assert driver.tries(run_id)["doubled"] == 2
    note = driver.note(run_id, "doubled")
    assert note.startswith("Weir: its process was killed; not tried again. ")
    assert note.endswith("(killed)")
    assert "maximum-total-task-failures is 1" in note
    driver.let_go("doubled")
    clear_failed(driver, run_id, "doubled")
    driver.green(run_id)


@AT_ONCE.on("faults")
def test_a_damaged_partition_is_made_again_by_its_producer_alone(driver):
    run_id = driver.start()
    before = driver.green()
    assert set(before[FIRST].values()) == {1}
    file = next(driver.folder("doubled", 1).glob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 16
    file.write_bytes(data)
    driver.person.clear(run_id, "totals-sums")
    assert driver.healed(before)[FIRST] == {"totals-sums": 2, "doubled[1]": 1}


@AT_ONCE.on("faults")
def test_two_asset_events_follow_each_new_version_and_start_what_is_scheduled_on_it(driver):
    readers = ("faults_by_event", "faults_by_epoch")
    for reader in readers:
        driver.api.unpause(reader)
    before, events = driver.green(), driver.api.asset_events("faults.sums")
    assert [event["version"] for event in events] == list(range(1, len(events) + 1)) != []
    driver.change(add=7)
    driver.person.clear(driver.run(), "numbers")
    changed = driver.healed(before)[FIRST]
    assert changed["weir_close"] == 1
    for reader in readers:
        driver.wait(lambda reader=reader: driver.api.runs(reader), f"a run of {reader}")
    events = driver.api.asset_events("faults.sums")
    assert events == driver.api.asset_events("faults.sums", FIRST_DAY)
    assert events[-1].keys() == {"epoch", "version", "rows", "digest"}
    driver.person.clear(driver.run(), "weir_close")  # it publishes nothing, since the content is equal
    driver.green()
    assert driver.api.asset_events("faults.sums") == driver.api.asset_events("faults.sums", FIRST_DAY) == events
    assert [len(driver.api.runs(reader)) for reader in readers] == [1, 1]


@AT_ONCE.on("faults")
def test_a_killed_task_process_is_followed_by_another_try(driver):
    before = driver.green()
    driver.hold("doubled")
    driver.person.clear(driver.run(), "doubled[0]")
    os.kill(driver.await_reached("doubled", 0), signal.SIGKILL)
    driver.let_go("doubled")
    assert driver.healed(before)[FIRST] == {"doubled[0]": 2}
    assert driver.attempts("doubled", 0)[-2][2] == "killed"


@AT_ONCE.on("faults")
def test_an_orphan_whose_supervisor_was_killed_is_fenced(driver):
    tries = driver.green()[FIRST]["doubled[1]"]
    driver.hold("doubled")
    driver.person.clear(driver.run(), "doubled[1]")
    orphan = driver.await_reached("doubled", 1)
    os.kill(psutil.Process(orphan).ppid(), signal.SIGKILL)
    driver.wait(lambda: driver.tries(driver.run())["doubled[1]"] == tries + 2, "the next try")
    driver.let_go("doubled")
    driver.green()
    driver.wait(
        lambda: not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == "zombie", "the orphan's end"
    )
    since = [state for try_number, state, _ in driver.attempts("doubled", 1) if try_number > tries]
    assert since == ["retrying", "committed"]  # the orphan's failure was booked, and it has committed nothing
