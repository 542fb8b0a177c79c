"""Runs that read the epoch before: awaited, started, brought back, and followed when it changes.

The totals of an epoch are those of the epoch before and its own. The tests of one DAG run in order, those of different
DAGs at once (`at_once`).
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from at_once import AtOnce, Driver
from ladder import expected_running_totals

from weir.errors import Misconfigured
from weir.ledger.database.tables import ResultRow, RunRow
from weir_dev.stack.airflow_components import TRIGGERER

pytestmark = pytest.mark.e2e

SMALL = {"running": True, "parallelism": {"numbers": 1, "doubled": 1, "totals": 1}}
TODAY = dt.datetime.now(dt.UTC).date()
HOURLY = {"running": False, "schedule": "0 */6 * * *", "last_day": "2024-01-01T18:00:00"}
DAGS = {
    "alone": {**SMALL, "catchup": False, "last_day": "2024-01-03", "max_active_runs": 1},
    "together": {**SMALL, "last_day": "2024-01-02", "max_active_runs": 4},
    "deferred": {**SMALL, "last_day": "2024-01-02", "max_active_runs": 4},
    "followed": {**SMALL, "running": False, "last_day": "2024-01-02"},
    "calls": {**SMALL, "running": False},
    "shadowed": {**SMALL, "last_day": "2024-01-02", "max_active_runs": 4},
    "hours": {**SMALL, **HOURLY, "restart": {"restart-strategy.type": "none"}},
    "gaps": {**SMALL, "catchup": False, "first_day": str(TODAY - dt.timedelta(days=9)), "last_day": None},
}
AT_ONCE = AtOnce(DAGS, soaks=set(DAGS) - {"together", "followed"})
FIRST, SECOND, THIRD, FOURTH, FIFTH = (f"2024-01-0{day}" for day in range(1, 6))
DAYS = [FIRST, SECOND, THIRD]
MONTH = [str(dt.date(2024, 1, day)) for day in range(1, 32)]
ALL = {"numbers", "doubled", "totals-sums", "weir_close"}


def epoch(day):
    return f"{day.replace('-', '')}T000000Z"


def lose(driver, day):
    """Remove what the day after reads of a day; what the day has published stays."""
    with driver.ledger.transaction() as session:
        current = session.query(ResultRow).filter_by(run=f"{driver.dag}@{epoch(day)}", stage="totals", is_current=True)
        folder = current.one().folder
    shutil.rmtree(Path(driver.stack.store_url.removeprefix("file://")) / folder)


# One run at a time


@AT_ONCE.on("alone")
def test_a_backfill_backwards_starts_the_run_before_that_is_queued_behind_it(driver):
    driver.api.unpause(driver.dag)
    driver.person.backfill(FIRST, THIRD, run_backwards=True, max_active_runs=1)
    assert driver.green() == dict.fromkeys(DAYS, dict.fromkeys(ALL, 1))
    assert driver.chain(epoch(THIRD)) == [epoch(day) for day in DAYS]


@AT_ONCE.on("alone")
def test_what_a_finished_run_has_lost_is_made_again_by_that_run(driver):
    before = driver.green()
    lose(driver, SECOND)
    driver.person.clear(driver.run(THIRD), "totals-sums")
    assert driver.healed(before) == {SECOND: {"totals-sums": 1}, THIRD: {"totals-sums": 2}}


@AT_ONCE.on("alone")
def test_what_two_finished_runs_have_lost_is_made_again_by_one_decision(driver):
    before = driver.green()
    lose(driver, FIRST)
    lose(driver, SECOND)
    driver.person.clear(driver.run(THIRD), "totals-sums")
    ran = driver.healed(before)
    assert (ran[FIRST], ran[THIRD]) == ({"totals-sums": 1}, {"totals-sums": 2})
    assert ran[SECOND] == {"totals-sums": 1}


@AT_ONCE.on("alone")
def test_what_is_lost_of_a_run_that_is_queued_is_made_when_it_is_started(driver):
    before = driver.green()
    driver.hold("numbers")
    driver.person.clear(driver.run(SECOND), "numbers", "totals-sums")
    driver.await_reached("numbers")
    lose(driver, FIRST)
    driver.person.clear_run(driver.run(FIRST))
    driver.wait(lambda: driver.person.state_of(driver.run(FIRST)) == "queued", "the first day to be queued")
    driver.let_go("numbers")
    ran = driver.healed(before)
    assert ran[FIRST] == dict.fromkeys(ALL, 1)
    assert ran[SECOND].keys() == {"numbers", "totals-sums"}


@AT_ONCE.on("alone")
def test_a_change_goes_through_the_later_days_until_the_content_is_equal(driver):
    before = driver.green()
    driver.change_epoch(epoch(SECOND), forget=True)
    driver.person.clear(driver.run(SECOND), "totals-sums")
    changed = {"totals-sums": 1, "weir_close": 1}
    assert driver.healed(before) == {SECOND: changed, THIRD: changed}
    before = driver.green()
    driver.change_epoch(epoch(FIRST), add=7)
    driver.person.clear(driver.run(FIRST), "numbers")
    assert driver.healed(before) == {FIRST: dict.fromkeys(ALL, 1), SECOND: {"totals-sums": 1}}


@AT_ONCE.on("alone")
def test_a_deleted_day_that_is_made_anew_changes_the_days_behind_it(driver):
    before = driver.green()
    driver.person.delete_run(driver.run(SECOND))
    driver.change_epoch(epoch(SECOND), forget=False)
    driver.person.trigger(SECOND, THIRD)
    ran = driver.healed(before)
    assert driver.tries(driver.run(SECOND)) == dict.fromkeys(ALL, 1)
    assert ran[THIRD] == {"totals-sums": 1, "weir_close": 1}
    assert driver.chain(epoch(THIRD)) == [epoch(day) for day in DAYS]


# Several runs at once


@AT_ONCE.on("together")
def test_a_run_at_work_is_awaited_without_a_try(driver):
    driver.hold(f"totals-{epoch(FIRST)}")
    driver.start()
    driver.await_reached(f"totals-{epoch(FIRST)}")
    driver.await_state(driver.run(SECOND), "totals-sums", "deferred")
    assert f"{driver.dag}@{epoch(FIRST)}" in driver.note(driver.run(SECOND), "totals-sums")
    driver.let_go(f"totals-{epoch(FIRST)}")
    assert driver.green() == dict.fromkeys([FIRST, SECOND], dict.fromkeys(ALL, 1))


@AT_ONCE.on("together", soak=True)
def test_what_is_lost_of_a_run_at_work_is_awaited(driver):
    before = driver.green()
    driver.hold(f"numbers-{epoch(FIRST)}")
    driver.person.clear_run(driver.run(FIRST))
    driver.await_reached(f"numbers-{epoch(FIRST)}")
    lose(driver, FIRST)
    driver.person.clear(driver.run(SECOND), "totals-sums")
    driver.wait(lambda: driver.tries(driver.run(SECOND))["totals-sums"] > before[SECOND]["totals-sums"], "a try")
    driver.let_go(f"numbers-{epoch(FIRST)}")
    ran = driver.healed(before)
    assert ran[FIRST] == dict.fromkeys(ALL, 1)
    assert ran[SECOND].keys() == {"totals-sums"}


@AT_ONCE.on("together", soak=True)
def test_a_run_marked_success_before_its_work_was_done_is_named_by_the_day_behind_it(driver):
    driver.hold(f"doubled-{epoch(THIRD)}")
    driver.deploy(last_day=FOURTH)
    third, fourth = driver.run(THIRD), driver.run(FOURTH)
    driver.await_reached(f"doubled-{epoch(THIRD)}")
    driver.person.mark_run(third, "success")
    driver.let_go(f"doubled-{epoch(THIRD)}")
    driver.wait(lambda: driver.person.state_of(fourth) == "failed", f"{fourth} to fail")
    driver.person.clear_run(third)
    driver.person.clear_run(fourth, only_failed=True)
    tries = driver.green()
    assert tries[FOURTH]["doubled"] == 1
    assert driver.chain(epoch(FOURTH)) == [epoch(day) for day in (*DAYS, FOURTH)]


@AT_ONCE.on("together", soak=True)
def test_days_missed_while_the_dag_was_paused_read_each_other_in_order(driver):
    before = driver.green()
    driver.person.pause()
    driver.deploy(last_day="2024-01-07")
    driver.api.unpause(driver.dag)
    driver.run("2024-01-07")
    assert driver.healed(before) == {f"2024-01-0{day}": dict.fromkeys(ALL, 1) for day in (5, 6, 7)}
    assert driver.chain(epoch("2024-01-07")) == [epoch(f"2024-01-0{day}") for day in range(1, 8)]


# Tasks that are deferred


def deferred_behind(driver, day, next_day):
    """Let the totals of a day stop in their middle, until those of the next day are deferred."""
    driver.hold(f"totals-{epoch(day)}")
    driver.deploy(last_day=next_day)
    driver.start(next_day)
    driver.await_reached(f"totals-{epoch(day)}")
    driver.await_state(driver.run(next_day), "totals-sums", "deferred")


@AT_ONCE.on("deferred")
def test_a_deferred_task_that_is_cleared_waits_again_in_its_next_try(driver):
    deferred_behind(driver, FIRST, SECOND)
    driver.person.clear(driver.run(SECOND), "totals-sums")
    driver.wait(lambda: driver.tries(driver.run(SECOND))["totals-sums"] == 2, "the next try")
    driver.await_state(driver.run(SECOND), "totals-sums", "deferred")
    driver.let_go(f"totals-{epoch(FIRST)}")
    tries = dict.fromkeys(ALL, 1)
    assert driver.green() == {FIRST: tries, SECOND: {**tries, "totals-sums": 2}}


@AT_ONCE.on("deferred")
def test_a_killed_triggerer_costs_a_deferred_task_no_try(driver):
    deferred_behind(driver, THIRD, FOURTH)
    os.kill(driver.stack.state.process(TRIGGERER).pid, signal.SIGKILL)
    driver.let_go(f"totals-{epoch(THIRD)}")
    tries = driver.green()
    assert (tries[THIRD], tries[FOURTH]) == (dict.fromkeys(ALL, 1),) * 2


# Days that are left out


@AT_ONCE.on("gaps")
def test_a_day_behind_days_without_a_run_reads_the_newest_before_them(driver):
    earlier = [str(TODAY - dt.timedelta(days=days)) for days in (8, 7, 6)]
    for day, next_day in itertools.pairwise(earlier):
        driver.person.trigger(day, next_day)
    driver.api.unpause(driver.dag)
    driver.wait(lambda: len(driver.api.runs(driver.dag)) == 3, "the newest day's run")
    tries = driver.green()
    assert set(tries) > set(earlier[:2])
    assert all(each == dict.fromkeys(ALL, 1) for each in tries.values())
    newest = max(tries)
    assert driver.chain(epoch(newest)) == [epoch(day) for day in sorted(tries)]


# Scheduled by the data set of another dataflow


def owners(driver):
    """The DagRuns that own an epoch, by day."""
    with driver.ledger.transaction() as session:
        return {row.epoch: row.run_id for row in session.query(RunRow).filter_by(dataflow=driver.dag)}


def ended(driver, run_id, state):
    driver.wait(lambda: driver.person.state_of(run_id) in ("success", "failed"), f"{run_id} to be over")
    instances = driver.api.task_instances(driver.dag, run_id)
    assert driver.person.state_of(run_id) == state, [(str(each), each.state, each.note) for each in instances]


@AT_ONCE.on("followed")
def test_each_epoch_of_a_data_set_is_one_of_the_dataflow_that_it_schedules_once_and_in_order(driver):
    follower = driver.beside("follower", **SMALL, on="followed.sums", last_day=None)
    follower.api.unpause(follower.dag)
    driver.hold(f"totals-{epoch(SECOND)}")
    follower.hold(f"numbers-{epoch(FIRST)}")
    driver.start()
    first = follower.run(FIRST)
    driver.let_go(f"totals-{epoch(SECOND)}")
    second = follower.run(SECOND)  # it waits for the first, which Airflow knows and the ledger does not yet
    follower.let_go(f"numbers-{epoch(FIRST)}")
    assert set(follower.green(first, second)) == {FIRST, SECOND}
    assert owners(follower) == {epoch(FIRST): first, epoch(SECOND): second}
    assert follower.chain(epoch(SECOND)) == [epoch(FIRST), epoch(SECOND)]
    (event,) = follower.api.asset_events("follower.sums", epoch(FIRST))
    assert event["version"] == 1
    assert event in follower.api.asset_events("follower.sums")  # for ordinary DAGs: without a partition


@AT_ONCE.on("followed")
def test_a_new_version_of_an_epoch_starts_a_run_that_is_skipped_and_names_the_owner(driver):
    follower = Driver(driver.stack, driver.shared, "follower")
    mine = owners(follower)
    driver.change(epochs={epoch(FIRST): {"add": 7}})
    driver.person.clear(driver.run(FIRST), "numbers")
    driver.green()
    own = {run.run_id for run in follower.api.runs(follower.dag)}
    follower.wait(lambda: len(follower.api.runs(follower.dag)) == len(mine) + 1, "a run of the new version")
    (again,) = {run.run_id for run in follower.api.runs(follower.dag)} - {*mine.values()}
    by_hand = follower.person.trigger_partition(epoch(SECOND))
    for run_id, day in ((again, FIRST), (by_hand, SECOND)):
        ended(follower, run_id, "success")
        assert follower.states(run_id) == dict.fromkeys(ALL, "skipped")
        assert mine[epoch(day)] in follower.note(run_id, "weir_close")
    assert owners(follower) == mine
    assert own >= {*mine.values()}


@AT_ONCE.on("followed")
def test_a_run_without_an_epoch_fails_and_a_backfill_is_one_of_the_producer(driver):
    follower = Driver(driver.stack, driver.shared, "follower")
    now = dt.datetime.now(dt.UTC).isoformat()
    for key, date, said in (
        (None, now, "no partition key"),  # the button *Trigger*
        ("yesterday", None, "is no date and no time"),
        ("2024-01-03T05:00:00", None, "where no epoch of dataflow follower begins"),
    ):
        run_id = follower.person.trigger_partition(key, date)
        ended(follower, run_id, "failed")
        assert said in follower.note(run_id, "numbers")
        follower.person.delete_run(run_id)
    with pytest.raises(Misconfigured, match="backfill"):
        follower.person.backfill(FIRST, SECOND)
    assert set(owners(follower)) == {epoch(FIRST), epoch(SECOND)}


@pytest.mark.timeout(1800)
@AT_ONCE.on("calls")
def test_a_month_of_days_backwards_late_and_twice_is_read_three_days_at_a_time_to_the_last_row(driver):
    driver.change(epochs={epoch(day): {"add": number, "count": 10 + number} for number, day in enumerate(MONTH)})
    reader = driver.beside("reader", reads=True, on="calls.sums", last_day=None, max_active_runs=4)
    reader.api.unpause(reader.dag)
    driver.start()
    driver.green()  # the data set begins here: later days wait for those in between
    driver.person.backfill(MONTH[1], MONTH[-1], run_backwards=True, max_active_runs=3)
    reader.wait(lambda: is_right(reader, driver), "the month to be right", 1200)
    driver.green()
    mine = owners(reader)
    for day in (MONTH[20], MONTH[3]):
        driver.change_epoch(epoch(day), add=500)
        driver.person.clear(driver.run(day), "numbers")
    driver.green()
    reader.wait(lambda: is_right(reader, driver), "what has read the two days to be right")
    tries = {day: reader.tries(mine[epoch(day)])["recent-sums[0]"] for day in MONTH}
    assert {day for day in MONTH if tries[day] > 1} == {*MONTH[20:23], *MONTH[3:6]}
    assert owners(reader) == mine
    reader.wait(lambda: len(reader.api.runs(reader.dag)) == len(MONTH) + 2, "the events of the new versions")
    for run_id in {run.run_id for run in reader.api.runs(reader.dag)} - {*mine.values()}:
        ended(reader, run_id, "success")


@AT_ONCE.on("hours")
def test_a_day_waits_for_an_hour_that_has_failed_and_is_made_again_when_one_of_them_changes(driver):
    hours = [f"20240101T{hour:02d}0000Z" for hour in (0, 6, 12, 18)]
    driver.change(epochs={each: {"add": number, "count": 10 + number} for number, each in enumerate(hours)})
    failing = driver.control.parent / f"fail-numbers-{hours[2]}"
    failing.touch()
    reader = driver.beside("day", within=True, on="hours.sums")
    driver.start()
    run_id = reader.start()
    driver.wait(lambda: owners(driver).keys() == {*hours}, "the runs of the day")
    failed = owners(driver)[hours[2]]
    ended(driver, failed, "failed")
    for each in {*owners(driver).values()} - {failed}:
        ended(driver, each, "success")
    driver.wait(
        lambda: f"hours@{hours[2]}" in reader.note(run_id, "recent-sums[0]"), "the day to say what it waits for"
    )
    assert reader.states(run_id)["recent-sums[0]"] in ("deferred", "up_for_reschedule", "running")
    failing.unlink()
    driver.person.clear_run(failed)
    reader.await_green(run_id)
    assert reader.totals() == expected_running_totals(driver.settings(), hours)
    assert set(reader.tries(run_id).values()) == {1}
    driver.change_epoch(hours[1], add=500)
    driver.person.clear(owners(driver)[hours[1]], "numbers")
    reader.wait(lambda: reader.totals() == expected_running_totals(driver.settings(), hours), "the day to be right")
    assert reader.tries(run_id) == {"recent-sums[0]": 2, "recent-sums[1]": 2, "weir_close": 2}


@AT_ONCE.on("shadowed")
def test_a_shadow_computes_each_day_after_its_dataflow_and_publishes_nothing(driver):
    shape = {**SMALL, "shadow_of": driver.dag, "last_day": "2024-01-02", "max_active_runs": 4}
    beside = driver.beside("beside_shadowed", **shape)
    days = (beside.start(), beside.run(SECOND))
    for day in days:
        beside.await_state(day, "numbers", "deferred", "up_for_reschedule")
    driver.start()
    driver.run(SECOND)
    driver.green()
    assert beside.green(*days) == dict.fromkeys((FIRST, SECOND), dict.fromkeys(ALL, 1))
    found = json.loads(driver.weir("compare", driver.dag, beside.dag, "--json"))["epochs"]
    assert [[each["outcome"] for each in of["results"]] for of in found] == [["equal"] * 4] * 2
    assert driver.api.asset_events(f"{driver.dag}.sums")
    assert beside.api.asset_events(f"{beside.dag}.sums") == []


def is_right(reader, driver):
    """Report whether each day is closed and has the sums of the last three, as they are now."""
    epochs, settings = [epoch(day) for day in MONTH], driver.settings()
    with reader.ledger.transaction() as session:
        closed = {
            row.epoch for row in session.query(RunRow).filter_by(dataflow=reader.dag) if row.closed_at is not None
        }
    return closed == {*epochs} and all(
        reader.totals(each) == expected_running_totals(settings, epochs[max(0, at - 2) : at + 1])
        for at, each in enumerate(epochs)
    )
