"""Deployments between losses, clears and backfills: each task of an epoch has one code, and what is published is of it.

The tests of one DAG run in order, those of different DAGs at once (`at_once`).
"""

from __future__ import annotations

import shutil

import pytest
from at_once import AtOnce
from ladder import expected_totals
from ladder_stack import FIRST_DAY

from weir.ledger.database.code_tables import ArchiveRow
from weir.ledger.database.tables import AttemptRow, RunRow

pytestmark = pytest.mark.e2e


def shape(dag, **more):
    """A ladder whose `doubled` is a function of a module of the DAG's own."""
    return {"functions": {"doubled": f"code_of_{dag}:doubled"}, **more}


THREE = {"parallelism": {"numbers": 1, "doubled": 3, "totals": 2}}
ONE = {"parallelism": {"numbers": 1, "doubled": 1, "totals": 1}}
DAGS = {
    "repaired": shape("repaired", **THREE),
    "deployed": shape("deployed", **THREE),
    "submitted": shape("submitted", **THREE, spark_conn_id="spark_default"),
    "refilled": shape("refilled", **ONE, running=True, keep="on_consumed", last_day="2024-01-03"),
}
AT_ONCE = AtOnce(DAGS, soaks=set(DAGS) - {"repaired"})
FIRST, SECOND, THIRD = (f"2024-01-0{day}" for day in range(1, 4))
EPOCHS = tuple(f"2024010{day}T000000Z" for day in range(1, 4))


def edit(driver, add):
    """Deploy a `doubled` that adds a number to each value."""
    file = driver.shared.parent / "code" / f"code_of_{driver.dag}.py"
    file.write_text(
        "from ladder import doubled as before\n"
        "from pyspark.sql import functions as F\n\n\n"
        "def doubled(ctx, numbers):\n"
        f"    return before(ctx, numbers).withColumn('value', F.col('value') + {add})\n"
    )


def expected(driver, *adds):
    """What plain Python computes of the days before and of a day, by what was added to the values of each."""
    totals = {}
    for add in adds:
        for row in expected_totals(driver.settings()):
            before = totals.get(row["bucket"], {"numbers": 0, "total": 0})
            value = row["total"] + add * row["numbers"]
            numbers = row["numbers"] + before["numbers"]
            totals[row["bucket"]] = {"bucket": row["bucket"], "numbers": numbers, "total": value + before["total"]}
    return [totals[bucket] for bucket in sorted(totals)]


def green(driver):
    """Wait until all runs are green, and all of their results valid; the tries by day."""
    for run in driver.api.runs(driver.dag):
        driver.await_green(run.run_id)
    for view in driver.runs():
        outputs = [each for region in view.state.region_ids() for each in view.state.outputs(region)]
        assert [each for each in outputs if not view.state.is_valid(each)] == [], view.id
    return {run.start[:10]: driver.tries(run.run_id) for run in driver.api.runs(driver.dag)}


def generations(driver, epoch=FIRST_DAY):
    """By region, the generations of code of the attempts whose results are current."""
    with driver.ledger.transaction() as session:
        rows = session.query(AttemptRow).filter_by(run=f"{driver.dag}@{epoch}", state="committed").all()
        newest = {(row.region, row.subtask): row for row in sorted(rows, key=lambda row: row.try_number)}
    found = {}
    for (region, _), row in newest.items():
        if row.generation is not None:
            found.setdefault(region, set()).add(row.generation)
    return found


def repaired_after_a_deployment(driver):
    """Run a day, deploy another function, lose one of three partitions and clear a consumer."""
    edit(driver, 0)
    run_id = driver.start()
    before = green(driver)
    assert driver.totals() == expected(driver, 0)
    edit(driver, 1000)
    shutil.rmtree(driver.folder("doubled", 1))
    driver.person.clear(run_id, "totals-sums[0]")
    green(driver)
    assert driver.again_by_day(before)[FIRST] == {"doubled[1]": 1, "totals-sums[0]": 2}
    assert driver.totals() == expected(driver, 0)
    assert generations(driver) == {"numbers": {1}, "doubled": {1}, "totals-sums": {1}}


def cleared_after_a_deployment(driver):
    """Clear one of three subtasks."""
    before = green(driver)
    driver.person.clear(driver.run(), "doubled[1]")
    green(driver)
    again = driver.again_by_day(before)[FIRST]
    assert {task: tries for task, tries in again.items() if task.startswith("doubled")} == {
        "doubled[0]": 1, "doubled[1]": 1, "doubled[2]": 1,
    }  # fmt: skip
    assert driver.totals() == expected(driver, 1000)
    assert generations(driver) == {"numbers": {1}, "doubled": {2}, "totals-sums": {1}}


@AT_ONCE.on("repaired")
def test_what_is_lost_after_a_deployment_is_computed_by_the_code_that_made_it(driver):
    repaired_after_a_deployment(driver)


@AT_ONCE.on("repaired", soak=True)
def test_one_clear_runs_the_whole_stage_with_what_is_deployed(driver):
    cleared_after_a_deployment(driver)


@AT_ONCE.on("submitted")
def test_what_is_lost_after_a_deployment_is_submitted_with_the_code_that_made_it(driver):
    repaired_after_a_deployment(driver)


@AT_ONCE.on("submitted")
def test_one_clear_submits_the_whole_stage_with_what_is_deployed(driver):
    cleared_after_a_deployment(driver)


@AT_ONCE.on("deployed")
def test_a_run_is_computed_by_the_code_that_it_began_with(driver):
    edit(driver, 0)
    driver.hold("numbers")
    driver.start()
    driver.await_reached("numbers")
    edit(driver, 1000)
    driver.let_go("numbers")
    green(driver)
    assert driver.totals() == expected(driver, 0)
    with driver.ledger.transaction() as session:
        archives = {row.archive for row in session.query(AttemptRow).filter_by(run=f"{driver.dag}@{FIRST_DAY}")}
        (run,) = session.query(RunRow).filter_by(dataflow=driver.dag)
        assert archives - {None} == {run.archive}
        assert session.query(ArchiveRow).filter_by(dataflow=driver.dag).count() == 1


@AT_ONCE.on("refilled")
def test_a_backfill_computes_its_days_with_what_is_deployed_and_later_days_go_on_with_theirs(driver):
    edit(driver, 0)
    driver.start(THIRD)
    green(driver)
    assert [driver.totals(epoch) for epoch in EPOCHS] == [expected(driver, *[0] * days) for days in (1, 2, 3)]
    edit(driver, 1000)
    backfill = driver.person.backfill(FIRST, SECOND, reprocess_behavior="completed")
    green(driver)
    driver.person.end_backfill(backfill)
    adds = [[1000], [1000, 1000], [1000, 1000, 0]]
    assert [driver.totals(epoch) for epoch in EPOCHS] == [expected(driver, *each) for each in adds]
    assert generations(driver, EPOCHS[2]) == {"numbers": {1}, "doubled": {1}, "totals-sums": {1}}
