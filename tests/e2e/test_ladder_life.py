"""Results stay exactly as long as somebody may need them, and come back when they are asked for all the same.

The tests of one DAG run in order, those of different DAGs at once (`at_once`).
"""

from __future__ import annotations

import datetime as dt
import itertools

import pytest
from at_once import AtOnce
from person import Person

import weir
from weir.coordination.services import Services
from weir.formats.manifest import RELEASED_NOTE
from weir.formats.paths import MANIFEST
from weir.ledger.database.tables import ResultRow, RunRow
from weir.store.errors import NotFound

pytestmark = pytest.mark.e2e

ONE = {"numbers": 1, "doubled": 1, "totals": 1}
DAGS = {
    "consumed": {"parallelism": ONE | {"doubled": 2}, "keep": "on_consumed"},
    "kept_runs": {"parallelism": ONE, "keep": "2 runs", "last_day": "2024-01-03", "max_active_runs": 1},
    "left": {"parallelism": ONE, "keep": "7 days"},
    "opened": {"parallelism": ONE, "keep": "on_consumed"},
}
AT_ONCE = AtOnce(DAGS, soaks=set(DAGS) - {"opened"})
FIRST, SECOND, THIRD = (f"2024-01-0{day}" for day in range(1, 4))
DAY = dt.timedelta(days=1)
UPKEEP, HOURLY = "weir_upkeep", "weir_upkeep_hourly"

_days = itertools.count(1)


def epoch(day):
    return f"{day.replace('-', '')}T000000Z"


def with_data(driver):
    """Of which stages data files are in the store, by day."""
    with driver.ledger.transaction() as session:
        rows = [row for row in session.query(ResultRow) if row.run.startswith(f"{driver.dag}@")]
    found = {}
    for row in rows:
        day = dt.datetime.strptime(row.run.partition("@")[2], "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
        if names(driver, row.folder) - {MANIFEST, RELEASED_NOTE}:
            found.setdefault(str(day.date()), set()).add(row.stage)
    return found


def names(driver, folder):
    try:
        return {name for name, _ in driver.store.list(folder)}
    except NotFound:
        return set()


def upkeep(driver, task):
    """Have Weir's housekeeping done now; wait for one task of it."""
    dag_id = UPKEEP if task in {"settle_pending_clears", "release_results"} else HOURLY
    day = dt.date(2025, 1, 1) + next(_days) * DAY  # behind the start of both, before any run of their own
    run_id = Person(driver.api, dag_id).trigger(day, day + DAY)

    def state():
        return {str(each): each.state for each in driver.api.task_instances(dag_id, run_id)}.get(task)

    driver.wait(lambda: state() in {"success", "failed"}, f"{task} of {dag_id}")
    assert state() == "success"


# As soon as it is consumed


@AT_ONCE.on("consumed")
def test_what_is_consumed_goes_while_its_run_is_at_work(driver):
    driver.hold("totals")
    driver.start()
    driver.await_reached("totals")
    driver.wait(lambda: with_data(driver) == {FIRST: {"doubled"}}, "numbers to be released")
    driver.let_go("totals")
    driver.green()
    driver.wait(lambda: with_data(driver) == {FIRST: {"sums"}}, "all but what is published to be released")


@AT_ONCE.on("consumed")
def test_a_clear_behind_the_release_brings_back_what_it_needs_and_that_goes_again(driver):
    before = driver.green()
    driver.person.clear(driver.run(), "doubled[1]")
    assert driver.healed(before)[FIRST] == {"numbers": 1, "doubled[1]": 2}
    upkeep(driver, "release_results")
    # Nobody else has read these very attempts, and the closing task has no reason to look: they stay for an hour.
    assert with_data(driver) == {FIRST: {"numbers", "doubled", "sums"}}
    driver.let_pass(dt.timedelta(hours=2))
    upkeep(driver, "release_results")
    assert with_data(driver) == {FIRST: {"sums"}}


# So many runs


@AT_ONCE.on("kept_runs")
def test_the_last_two_runs_are_kept_whole(driver):
    driver.start(THIRD)
    driver.green()
    driver.wait(lambda: with_data(driver)[FIRST] == {"sums"}, "the first run to be released")
    assert [with_data(driver)[day] for day in (SECOND, THIRD)] == [{"numbers", "doubled", "sums"}] * 2


@AT_ONCE.on("kept_runs")
def test_a_clear_in_a_run_that_is_kept_costs_one_task_and_in_a_released_one_its_producers(driver):
    before = driver.green()
    driver.person.clear(driver.run(SECOND), "totals-sums")
    assert driver.healed(before)[SECOND] == {"totals-sums": 1}
    before = driver.green()
    driver.person.clear(driver.run(FIRST), "totals-sums")
    assert driver.healed(before)[FIRST] == {"numbers": 1, "doubled": 1, "totals-sums": 2}


# A DagRun that Airflow has no more


@AT_ONCE.on("left")
def test_what_a_deleted_dag_run_left_is_collected_but_for_what_it_has_published(driver):
    run_id = driver.start()
    driver.green()
    driver.person.pause()
    driver.person.delete_run(run_id)
    upkeep(driver, "sweep_store")
    assert with_data(driver) == {FIRST: {"numbers", "doubled", "sums"}}
    with driver.ledger.transaction(driver.dag) as session:
        run = session.get_one(RunRow, f"{driver.dag}@{epoch(FIRST)}")
        assert run.deleted_at is not None
        run.deleted_at -= 2 * DAY  # as if it had been seen then
    upkeep(driver, "sweep_store")
    driver.wait(lambda: with_data(driver) == {FIRST: {"sums"}}, "what the deleted run left to be collected")
    assert driver.totals() == driver.expected(epoch(FIRST))


# Somebody who reads


@AT_ONCE.on("opened")
def test_what_a_notebook_has_open_stays_until_it_is_closed(driver):
    driver.hold("totals")
    driver.start()
    driver.await_reached("totals")
    with weir.open(
        driver.dag, FIRST, "doubled", services=Services(ledger=driver.ledger, store=driver.store)
    ) as doubled:
        driver.let_go("totals")
        driver.green()
        upkeep(driver, "release_results")
        assert with_data(driver) == {FIRST: {"doubled", "sums"}}
        assert doubled.arrow().num_rows == 100
    upkeep(driver, "release_results")
    assert with_data(driver) == {FIRST: {"sums"}}


@AT_ONCE.on("opened")
def test_upkeep_runs_by_itself(driver):
    for dag_id in (UPKEEP, HOURLY):
        driver.wait(
            lambda dag_id=dag_id: any(
                run.state == "success" for run in driver.api.runs(dag_id) if run.run_id.startswith("scheduled__")
            ),
            f"a run of {dag_id} that nobody asked for",
        )
