"""By spark-submit, in one DAG: keyed state, its compaction, gates, the restore test, and a fork that goes on from it.

Every task that computes has a driver of its own, and what is published is what plain Python computes. The tests run in
order.
"""

from __future__ import annotations

import pytest
from at_once import AtOnce
from ladder import expected_running_totals
from person import Person

from weir.execution.partition_state import PartitionState
from weir.ledger.checkpoints import retained_checkpoints
from weir.ledger.database.tables import AttemptRow, CompactionRow, QualityCheckRow, ResultRow, RunRow

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1500)]

SUBMIT = "spark_default"
DAGS = {
    "drivers": {
        "kept": True,
        "copied": True,
        "runs": 2,
        "quality": {
            "numbers": {"suite": "ladder_numbers"},
            "totals": {"suite": "ladder_totals"},
            "history": {"suite": "ladder_totals", "when": "restored"},
        },
        "parallelism": {"numbers": 1, "doubled": 1, "totals": 1},
        "last_day": "2024-01-02",
        "spark_conn_id": SUBMIT,
    },
}
AT_ONCE = AtOnce(DAGS, soaks=set(DAGS))
DAYS = FIRST, SECOND, THIRD, FOURTH = tuple(f"2024-01-0{day}" for day in range(1, 5))
FORK = {**DAGS["drivers"], "first_day": FOURTH, "last_day": FOURTH}
RESTORE_CHECK = "weir_restore_check"


def epoch(day):
    return f"{day.replace('-', '')}T000000Z"


def checks(driver, dag, *whys):
    """The checks of a dataflow, once each: day, stage, suite, outcome and why."""
    with driver.ledger.transaction() as session:
        rows = session.query(QualityCheckRow).filter(QualityCheckRow.run.startswith(f"{dag}@"))
        return {(row.run[-16:-8], row.stage, row.suite, row.outcome, row.why) for row in rows if row.why in whys}


def engines(driver, dag):
    """Where the regions of a dataflow were computed."""
    with driver.ledger.transaction() as session:
        rows = session.query(AttemptRow).join(RunRow, RunRow.id == AttemptRow.run).filter(RunRow.dataflow == dag)
        return {row.session_url.partition(":")[0] for row in rows if row.region != "weir_close" and row.try_number > 0}


def logs(driver, dag, task_id):
    """The logs of all tries of a task, as one text."""
    files = sorted(driver.stack.task_logs.glob(f"dag_id={dag}/*/task_id={task_id}/**/*.log"))
    return "".join(file.read_text() for file in files)


@AT_ONCE.on("drivers")
def test_a_day_takes_one_driver_a_region(driver):
    driver.start()
    driver.run(SECOND)
    tasks = ("numbers-doubled", "totals-sums", "weir_compact-totals-sums", "weir_close")
    assert driver.green() == dict.fromkeys((FIRST, SECOND), dict.fromkeys(tasks, 1))
    assert engines(driver, driver.dag) == {"spark-submit"}


@AT_ONCE.on("drivers")
def test_a_gate_quarantines_bad_rows_of_a_driver_and_a_clear_computes_corrected_ones(driver):
    driver.change_epoch(epoch(THIRD), add=-1000)
    driver.deploy(last_day=THIRD)
    run_id = driver.run(THIRD)
    driver.await_state(run_id, "numbers-doubled", "failed")
    note = driver.note(run_id, "numbers-doubled")
    assert "ladder_numbers" in note
    assert "expect_column_values_to_be_between(number): 100 of 100 rows" in note
    with driver.ledger.transaction() as session:
        rows = session.query(ResultRow).filter_by(run=f"{driver.dag}@{epoch(THIRD)}")
        assert {(PartitionState(row.state), row.is_current) for row in rows} == {(PartitionState.QUARANTINED, False)}
    driver.wait(lambda: driver.person.state_of(run_id) == "failed", f"{run_id} to fail")
    driver.change_epoch(epoch(THIRD), add=0)
    driver.person.clear_run(run_id)
    driver.green()
    assert engines(driver, driver.dag) == {"spark-submit"}


@AT_ONCE.on("drivers")
def test_state_that_went_on_was_compacted_by_a_driver(driver):
    driver.green()
    with driver.ledger.transaction() as session:
        assert [row.epoch for row in retained_checkpoints(session, driver.dag)] == [epoch(day) for day in DAYS[:3]]
        compacted = {row.run for row in session.query(CompactionRow).filter_by(dataflow=driver.dag)}
    assert compacted == {f"{driver.dag}@{epoch(THIRD)}"}
    assert "spark-submit" in logs(driver, driver.dag, "weir_compact-totals-sums").lower()


@AT_ONCE.on("drivers")
def test_the_restore_test_restores_and_checks_its_state_by_a_driver(driver):
    check = Person(driver.api, RESTORE_CHECK)
    run_id = check.trigger("2025-01-05", "2025-01-12", conf={"dataflow": driver.dag, "spark_conn_id": SUBMIT})
    driver.api.unpause(RESTORE_CHECK)

    def weekly():
        return [run.run_id for run in driver.api.runs(RESTORE_CHECK) if run.run_id != run_id]

    driver.wait(weekly, "the run of this week")
    check.mark_run(weekly()[0], "success")  # it would test all dataflows of this stack, one after the other
    driver.wait(lambda: check.state_of(run_id) in {"success", "failed"}, "the restore test", 1200)
    said = logs(driver, RESTORE_CHECK, "restore")
    assert check.state_of(run_id) == "success", said
    check.pause()
    assert "spark-submit" in said.lower()
    assert checks(driver, driver.dag, "drill") == {
        (epoch(THIRD)[:8], "history", "weir", "passed", "drill"),
        (epoch(THIRD)[:8], "history", "ladder_totals", "warned", "drill"),
    }


@AT_ONCE.on("drivers")
def test_a_fork_checks_what_was_restored_by_a_driver_and_goes_on_from_it(driver):
    driver.weir("savepoint", "create", driver.dag, "--name", "of_drivers")
    driver.weir("restore", driver.dag, "of_drivers", "--as", "drivers_fork")
    fork = driver.beside("drivers_fork", **FORK)
    fork.await_green(fork.start(FOURTH))
    assert fork.totals(epoch(FOURTH)) == expected_running_totals({}, [epoch(day) for day in DAYS])
    assert checks(fork, "drivers_fork", "restored") == {
        (epoch(THIRD)[:8], "history", "weir", "passed", "restored"),
        (epoch(THIRD)[:8], "history", "ladder_totals", "warned", "restored"),
    }
    assert engines(fork, "drivers_fork") == {"spark-submit"}
