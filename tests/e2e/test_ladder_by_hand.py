"""Clears, marks, backfills and deletions: whatever a person does in Airflow, the outcome is right in the end.

The tests of one DAG run in order, those of different DAGs at once (`at_once`).
"""

from __future__ import annotations

import shutil

import psutil
import pytest
from at_once import AtOnce

pytestmark = pytest.mark.e2e

ONE = {"numbers": 1, "totals": 1}
TWO = {"parallelism": ONE | {"doubled": 2}}
DAGS = {
    "clears": TWO,
    "marked_before": TWO,
    "marked_success": TWO,
    "marked_failed": TWO,
    "skipped": TWO,
    "run_marked_success": TWO,
    "run_marked_failed": TWO,
    "deleted": {"parallelism": ONE | {"doubled": 1}, "lake": True},
    "backfilled": {"parallelism": ONE | {"doubled": 1}, "catchup": False, "last_day": "2024-01-04"},
}
AT_ONCE = AtOnce(DAGS, soaks=set(DAGS) - {"clears", "deleted", "backfilled"})
ALL = {"numbers", "doubled[0]", "doubled[1]", "totals-sums", "weir_close"}
ALL_OF_ONE = {"numbers", "doubled", "totals-sums", "weir_close"}
FIRST, SECOND, THIRD, FOURTH = (f"2024-01-0{day}" for day in range(1, 5))


@AT_ONCE.on("clears")
def test_a_clear_without_downstream_runs_that_task_instance_alone(driver):
    run_id = driver.start()
    before = driver.green()
    assert before == {FIRST: dict.fromkeys(ALL, 1)}
    driver.person.clear(run_id, "doubled[1]")
    assert driver.healed(before)[FIRST] == {"doubled[1]": 1}


@AT_ONCE.on("clears")
def test_a_plan_that_a_page_shows_is_applied_by_a_worker(driver):
    before, run_id = driver.green(), driver.run()
    shutil.rmtree(driver.folder("doubled", 0))
    driver.person.press(run_id, "apply")
    driver.wait(lambda: {run.state for run in driver.api.runs("weir_requests")} == {"success"}, "the request")
    assert driver.healed(before)[FIRST] == {"doubled[0]": 1}


@AT_ONCE.on("clears", soak=True)
def test_a_clear_without_downstream_runs_what_is_behind_it_if_the_content_has_changed(driver):
    before = driver.green()
    driver.change(add=7)
    driver.person.clear(driver.run(), "numbers")
    assert driver.healed(before)[FIRST] == dict.fromkeys(ALL, 1)


@AT_ONCE.on("clears", soak=True)
def test_a_clear_with_downstream_runs_all_of_it_once(driver):
    before = driver.green()
    driver.person.clear(driver.run(), "doubled[0]", include_downstream=True)
    assert driver.healed(before)[FIRST] == {"doubled[0]": 1, "totals-sums": 1, "weir_close": 1}


@AT_ONCE.on("clears", soak=True)
def test_a_clear_of_a_whole_finished_run_computes_all_of_it_once(driver):
    before = driver.green()
    driver.person.clear_run(driver.run())
    assert driver.healed(before)[FIRST] == dict.fromkeys(ALL, 1)


@AT_ONCE.on("clears", soak=True)
def test_a_clear_of_a_whole_run_at_work_begins_it_anew(driver):
    before = driver.green()
    driver.hold("doubled")
    driver.person.clear(driver.run(), "doubled")
    for subtask in (0, 1):
        driver.await_reached("doubled", subtask)
    driver.change(add=19)
    driver.person.clear_run(driver.run())
    driver.let_go("doubled")
    found = driver.healed(before)[FIRST]
    assert found.keys() == ALL
    assert found["numbers"] == 1


def held(driver, stage, subtasks=1):
    """Start the first day's run and let a stage stop in its middle; the run's id."""
    driver.hold(stage)
    run_id = driver.start()
    for subtask in range(subtasks):
        driver.await_reached(stage, subtask)
    return run_id


def let_go_when_killed(driver, stage, subtasks):
    """Let a held stage go on once Airflow has killed what it ran: the next try is another process."""
    processes = [driver.await_reached(stage, subtask) for subtask in subtasks]
    driver.wait(lambda: not any(map(psutil.pid_exists, processes)), "the end of what ran")
    driver.let_go(stage)


def fails(driver, run_id):
    driver.wait(lambda: driver.person.state_of(run_id) == "failed", f"{run_id} to fail")


@AT_ONCE.on("marked_before")
def test_a_task_marked_success_before_it_ran_is_computed_all_the_same(driver):
    run_id = held(driver, "numbers")
    driver.person.mark(run_id, "doubled", "success")
    driver.let_go("numbers")
    tries = driver.green()[FIRST]
    assert (tries["numbers"], tries["doubled[0]"], tries["doubled[1]"]) == (1, 1, 1)
    notes = {str(each): each.note for each in driver.api.task_instances(driver.dag, run_id)}
    assert "its producer has committed nothing" in notes["doubled[0]"]


@AT_ONCE.on("marked_success")
def test_a_running_task_marked_success_is_computed_all_the_same(driver):
    run_id = held(driver, "doubled", 2)
    driver.person.mark(run_id, "doubled[0]", "success")
    let_go_when_killed(driver, "doubled", [0])
    tries = driver.green()[FIRST]
    assert (tries["doubled[0]"], tries["doubled[1]"]) == (2, 1)


@AT_ONCE.on("marked_success")
def test_a_finished_task_marked_failed_keeps_its_result_and_a_clear_mends_it(driver):
    before = driver.green()
    driver.person.mark(driver.run(), "doubled[0]", "failed")
    driver.require_right()
    driver.person.clear(driver.run(), "doubled[0]")
    assert driver.healed(before)[FIRST] == {"doubled[0]": 1}


@AT_ONCE.on("marked_failed")
def test_a_running_task_marked_failed_fails_its_run_until_what_failed_is_cleared(driver):
    run_id = held(driver, "doubled", 2)
    driver.person.mark(run_id, "doubled[1]", "failed")
    let_go_when_killed(driver, "doubled", [1])
    fails(driver, run_id)
    driver.person.clear_run(run_id, only_failed=True)
    tries = driver.green()[FIRST]
    assert (tries["doubled[0]"], tries["doubled[1]"]) == (1, 2)


@AT_ONCE.on("skipped")
def test_a_skipped_task_fails_its_consumer_by_name_until_it_is_cleared(driver):
    run_id = held(driver, "numbers")
    driver.person.mark(run_id, "doubled[1]", "skipped")
    driver.let_go("numbers")
    fails(driver, run_id)
    assert driver.states(run_id)["totals-sums"] == "failed"
    assert "doubled[1] was skipped in Airflow" in last_error(driver, "totals-sums")
    driver.person.clear(run_id, "doubled[1]", include_downstream=True)
    driver.green()


def last_error(driver, region):
    with driver.ledger.transaction() as session:
        from weir.ledger.database.tables import AttemptRow

        rows = session.query(AttemptRow).filter_by(run=f"{driver.dag}@20240101T000000Z", region=region)
        return rows.order_by(AttemptRow.try_number.desc()).first().error


@AT_ONCE.on("skipped")
def test_a_finished_task_marked_skipped_keeps_its_result(driver):
    before = driver.green()
    run_id = driver.run()
    driver.person.mark(run_id, "doubled[0]", "skipped")
    driver.person.clear(run_id, "totals-sums", include_downstream=True)
    driver.wait(lambda: driver.person.state_of(run_id) == "success", f"{run_id} to succeed")
    driver.require_right()
    assert driver.again_by_day(before)[FIRST] == {"totals-sums": 1, "weir_close": 1}


@AT_ONCE.on("run_marked_success")
def test_a_run_at_work_marked_success_publishes_nothing_until_it_is_cleared(driver):
    publishes_nothing_until_cleared(driver, "success")


@AT_ONCE.on("run_marked_failed")
def test_a_run_at_work_marked_failed_publishes_nothing_until_it_is_cleared(driver):
    publishes_nothing_until_cleared(driver, "failed")


def publishes_nothing_until_cleared(driver, state):
    run_id = held(driver, "doubled", 2)
    driver.person.mark_run(run_id, state)
    let_go_when_killed(driver, "doubled", [0, 1])
    assert driver.api.asset_events(f"{driver.dag}.sums") == []
    driver.person.clear_run(run_id)
    tries = driver.green()[FIRST]
    assert (tries["numbers"], tries["doubled[0]"], tries["doubled[1]"]) == (2, 2, 2)


def in_tables(driver):
    """The rows of the first day in the tables of Delta Lake and of Iceberg."""
    from deltalake import DeltaTable
    from pyiceberg.catalog import load_catalog

    lake = driver.shared.parent / "lake"
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
    tables = (
        DeltaTable(lake / driver.dag).to_pyarrow_table(),
        catalog.load_table(f"ladder.{driver.dag}").scan().to_arrow(),
    )
    columns = ["bucket", "numbers", "total"]
    return [sorted(each.select(columns).to_pylist(), key=lambda row: row["bucket"]) for each in tables]


@AT_ONCE.on("deleted")
def test_a_dag_run_deleted_and_made_anew_has_the_epoch(driver):
    run_id = driver.start()
    driver.green()
    driver.person.delete_run(run_id)
    anew = driver.person.trigger(FIRST, SECOND)
    assert anew != run_id
    assert driver.green() == {FIRST: dict.fromkeys(ALL_OF_ONE, 1)}
    assert [event["version"] for event in driver.api.asset_events("deleted.sums")] == [1]  # the content is the same
    assert in_tables(driver) == 2 * [driver.totals()]


@AT_ONCE.on("deleted", soak=True)
def test_a_dag_run_deleted_and_made_anew_under_the_same_id_has_the_epoch(driver):
    run_id = driver.run()
    driver.person.delete_run(run_id)
    driver.change(add=5)
    assert driver.person.trigger(FIRST, SECOND, run_id) == run_id
    assert driver.green() == {FIRST: dict.fromkeys(ALL_OF_ONE, 1)}
    assert [event["version"] for event in driver.api.asset_events("deleted.sums")] == [1, 2]
    assert in_tables(driver) == 2 * [driver.totals()]


def backfilled(driver, first, last, **how):
    """Backfill days and wait for them; the tries by day, and what has run again."""
    before = {run.start[:10]: driver.tries(run.run_id) for run in driver.api.runs(driver.dag)}
    backfill = driver.person.backfill(first, last, **how)
    tries = driver.green()
    driver.person.end_backfill(backfill)
    return tries, driver.again_by_day(before)


@AT_ONCE.on("backfilled")
def test_a_backfill_computes_epochs_that_do_not_exist(driver):
    driver.api.unpause(driver.dag)
    tries, _ = backfilled(driver, SECOND, THIRD)
    assert tries == dict.fromkeys([SECOND, THIRD], dict.fromkeys(ALL_OF_ONE, 1))


@AT_ONCE.on("backfilled")
def test_a_second_dag_run_of_a_day_is_skipped_and_names_the_first(driver):
    """As one by the button *Trigger*: its logical date is another one."""
    first = driver.run(SECOND)
    second = driver.person.trigger(SECOND, THIRD, logical_date=f"{THIRD}T05:00:00Z")
    driver.wait(lambda: driver.person.state_of(second) in ("success", "failed"), f"{second} to be over")
    assert driver.person.state_of(second) == "success"
    assert driver.states(second) == dict.fromkeys(ALL_OF_ONE, "skipped")
    assert first in driver.note(second, "weir_close")
    driver.person.delete_run(second)


@AT_ONCE.on("backfilled", soak=True)
def test_a_backfill_backwards_leaves_epochs_alone_that_exist(driver):
    _, ran = backfilled(driver, FIRST, FOURTH, run_backwards=True, max_active_runs=1, reprocess_behavior="none")
    assert ran == dict.fromkeys([FIRST, FOURTH], dict.fromkeys(ALL_OF_ONE, 1))


@AT_ONCE.on("backfilled", soak=True)
def test_a_backfill_of_failed_runs_computes_those_anew(driver):
    driver.person.mark_run(driver.run(THIRD), "failed")
    driver.change_epoch("20240103T000000Z", add=3)
    _, ran = backfilled(driver, FIRST, FOURTH, reprocess_behavior="failed")
    assert ran == {THIRD: dict.fromkeys(ALL_OF_ONE, 1)}


@AT_ONCE.on("backfilled", soak=True)
def test_a_backfill_of_completed_runs_computes_them_anew(driver):
    driver.change_epoch("20240101T000000Z", add=11)
    _, ran = backfilled(driver, FIRST, SECOND, run_backwards=True, reprocess_behavior="completed")
    assert ran == dict.fromkeys([FIRST, SECOND], dict.fromkeys(ALL_OF_ONE, 1))
