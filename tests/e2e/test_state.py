"""A stateful DAG over days on a running stack: at once, killed, cleared, rescaled, robbed of a file, and run backwards.

What an epoch publishes is what plain Python computes of all days so far. The tests of one DAG run in order, those of
different DAGs at once (`at_once`).
"""

from __future__ import annotations

import configparser
import json
import os
import signal
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from at_once import AtOnce

import weir
from weir.coordination.services import Services
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.formats.paths import MANIFEST
from weir.ledger.checkpoints import retained_checkpoints
from weir.ledger.database.tables import DataflowRow, ResultRow, RunRow

pytestmark = pytest.mark.e2e

KEPT = {"kept": True, "parallelism": {"numbers": 1, "doubled": 1, "totals": 2}}
REPLAYED = {"replay": "automatic", "retained_checkpoints": 1, "keep": "on_consumed"}
DAGS = {
    "history": {**KEPT, "in_table": True, "last_day": "2024-01-02", "max_active_runs": 4},
    "backwards": {**KEPT, "catchup": False, "last_day": "2024-01-02", "max_active_runs": 1},
    "replayed": {**KEPT, **REPLAYED, "last_day": "2024-01-04"},
    "stopped": {**KEPT, "last_day": "2024-01-01"},
    "early": {"early": True, "parallelism": {"numbers": 1, "doubled": 1, "totals": 2}},
}
AT_ONCE = AtOnce(DAGS, soaks={"backwards", "replayed", "stopped", "early"})
FIRST, SECOND, THIRD, FOURTH, FIFTH = (f"2024-01-0{day}" for day in range(1, 6))
TOTALS = "totals-sums"


def epoch(day):
    return f"{day.replace('-', '')}T000000Z"


def files(driver, day, subtask=0):
    """The files of which a subtask's state consists at the end of a day."""
    with driver.ledger.transaction() as session:
        current = session.query(ResultRow).filter_by(run=f"{driver.dag}@{epoch(day)}", stage="history", is_current=True)
        folder = current.filter_by(subtask=subtask).one().folder
    return from_json(Manifest, driver.store.read(f"{folder}/{MANIFEST}")).state.files


def checkpoints(driver):
    """The numbers of the retained checkpoints by day."""
    with driver.ledger.transaction() as session:
        rows = retained_checkpoints(session, driver.dag)
        return {f"{row.epoch[:4]}-{row.epoch[4:6]}-{row.epoch[6:8]}": row.number for row in rows}


def in_order(found):
    """Whether later days have later numbers."""
    return [found[day] for day in sorted(found)] == sorted(found.values())


def in_table(driver):
    """The rows of the state's table by day, and those of the newest."""
    places = configparser.ConfigParser()
    places.read(driver.stack.folder / "pg_service.conf")
    with closing(psycopg2.connect(**places["reports"])) as db, db.cursor() as cursor:
        cursor.execute("select _epoch, bucket, numbers, total from ladder_history_at")
        found = {}
        for day, *row in cursor.fetchall():
            found.setdefault(f"{day[:4]}-{day[4:6]}-{day[6:8]}", set()).add(tuple(row))
        cursor.execute("select bucket, numbers, total from ladder_history")
        return found, set(cursor.fetchall())


def assert_in_table(driver):
    """The table of the state has the rows of each retained checkpoint, and shows the newest."""
    kept, services = checkpoints(driver), Services(ledger=driver.ledger, store=driver.store)
    driver.wait(lambda: in_table(driver)[0].keys() == kept.keys(), "the table to have the checkpoints")
    found, newest = in_table(driver)
    for day, number in kept.items():
        with weir.open("history", state="history", checkpoint=number, services=services) as state:
            rows = {tuple(row.values()) for row in state.arrow(["bucket", "numbers", "total"]).to_pylist()}
        assert found[day] == rows
    assert newest == found[max(kept)]
    assert len(newest) > 1


@AT_ONCE.on("history")
def test_days_at_once_go_on_from_each_other_and_end_in_checkpoints(driver):
    driver.start()
    driver.run(SECOND)
    driver.green()
    assert checkpoints(driver) == {FIRST: 1, SECOND: 2}
    assert [file.epoch for file in files(driver, SECOND)] == [epoch(FIRST), epoch(SECOND)]


@AT_ONCE.on("history")
def test_a_killed_subtask_leaves_no_trace_in_the_state(driver):
    before = driver.green()
    driver.hold(f"totals-{epoch(THIRD)}")
    driver.deploy(last_day=THIRD)
    pid = driver.await_reached(f"totals-{epoch(THIRD)}", 1)
    os.kill(pid, signal.SIGKILL)
    driver.let_go(f"totals-{epoch(THIRD)}")
    driver.run(THIRD)
    ran = driver.healed(before)
    assert ran.keys() == {THIRD}
    assert ran[THIRD][f"{TOTALS}[1]"] == 2
    assert checkpoints(driver) == {FIRST: 1, SECOND: 2, THIRD: 3}
    assert_in_table(driver)


@AT_ONCE.on("history", soak=True)
def test_a_changed_day_changes_the_days_behind_it_in_order(driver):
    before = driver.green()
    driver.change_epoch(epoch(SECOND), add=7)
    driver.person.clear(driver.run(SECOND), "numbers")
    ran = driver.healed(before)
    assert {FIRST} & ran.keys() == set()
    assert ran[THIRD].keys() == {f"{TOTALS}[0]", f"{TOTALS}[1]", "weir_close"}
    found = checkpoints(driver)
    assert found[FIRST] == 1
    assert found[SECOND] > 3
    assert in_order(found)


@AT_ONCE.on("history", soak=True)
def test_a_lost_file_is_made_again_by_the_day_that_wrote_it_and_those_that_used_it(driver):
    before, had = driver.green(), checkpoints(driver)
    lost = files(driver, THIRD, 1)[1]
    assert lost.epoch == epoch(SECOND)
    (Path(driver.stack.store_url.removeprefix("file://")) / lost.path).unlink()
    driver.deploy(last_day=FOURTH)
    driver.run(FOURTH)
    ran = driver.healed(before)
    assert {day: set(tasks) for day, tasks in ran.items() if day != FOURTH} == {
        SECOND: {f"{TOTALS}[1]"},
        THIRD: {f"{TOTALS}[1]"},
    }
    found = checkpoints(driver)
    assert sorted(found) == [SECOND, THIRD, FOURTH]
    assert all(found[day] > had[day] for day in (SECOND, THIRD))
    assert lost.path not in {file.path for day in found for subtask in (0, 1) for file in files(driver, day, subtask)}


@AT_ONCE.on("history", soak=True)
def test_another_parallelism_holds_from_the_next_day_on_and_rewrites_nothing(driver):
    before = driver.green()
    earlier = {file.path for subtask in (0, 1) for file in files(driver, FOURTH, subtask)}
    driver.deploy(last_day=FIFTH, parallelism={"numbers": 1, "doubled": 1, "totals": 3})
    driver.run(FIFTH)
    ran = driver.healed(before)
    assert ran.keys() == {FIFTH}
    assert {f"{TOTALS}[{subtask}]" for subtask in (0, 1, 2)} <= ran[FIFTH].keys()
    shared = [[file for file in files(driver, FIFTH, subtask) if file.epoch != epoch(FIFTH)] for subtask in (0, 1, 2)]
    assert {file.path for share in shared for file in share} == earlier
    ranges = [{file.key_groups for file in share} for share in shared]
    assert max(last for _, last in ranges[0]) < min(first for first, _ in ranges[2])
    assert_in_table(driver)


@AT_ONCE.on("backwards")
def test_a_backfill_backwards_is_refused_before_anything_runs(driver):
    driver.api.unpause(driver.dag)
    driver.person.backfill(FIRST, SECOND, run_backwards=True, max_active_runs=1)
    second = driver.run(SECOND)
    driver.wait(lambda: driver.person.state_of(second) == "failed", f"{second} to fail")
    with driver.ledger.transaction() as session:
        row = session.get(RunRow, f"{driver.dag}@{epoch(SECOND)}")
        assert row is None or row.pinned is None
        assert session.query(ResultRow).filter(ResultRow.run.startswith(f"{driver.dag}@{epoch(SECOND)}")).count() == 0
    driver.await_green(driver.run(FIRST))
    driver.person.clear_run(second)
    driver.green()
    assert checkpoints(driver) == {FIRST: 1, SECOND: 2}


def released(driver):
    """The days whose states are released."""
    with driver.ledger.transaction() as session:
        rows = session.query(ResultRow).filter_by(stage="history", is_current=True, state="released")
        return {row.run.partition("@")[2] for row in rows if row.run.startswith(f"{driver.dag}@")}


@AT_ONCE.on("replayed")
def test_a_corrected_day_has_the_states_before_it_computed_again_where_the_dataflow_says_so(driver):
    driver.start()
    driver.run(FOURTH)
    before = driver.green()
    driver.wait(lambda: released(driver) == {epoch(FIRST), epoch(SECOND), epoch(THIRD)}, "old states to be released")
    driver.change_epoch(epoch(THIRD), add=7)
    driver.person.clear(driver.run(THIRD), "numbers")
    ran = driver.healed(before)
    totals = {f"{TOTALS}[0]", f"{TOTALS}[1]"}
    assert {day: totals & tasks.keys() for day, tasks in ran.items()} == dict.fromkeys(
        (FIRST, SECOND, THIRD, FOURTH), totals
    )
    assert {day for day, tasks in ran.items() if tasks.get("weir_close")} >= {THIRD, FOURTH}


def stopped_after(driver):
    """The epoch after which the dataflow stops; None where nobody stops it."""
    with driver.ledger.transaction() as session:
        return session.get_one(DataflowRow, driver.dag).stopped_after


@AT_ONCE.on("stopped")
def test_a_stop_that_is_killed_is_typed_again_and_the_next_day_goes_on_with_what_was_changed(driver):
    driver.start()
    driver.green()
    driver.hold(f"numbers-{epoch(SECOND)}")
    driver.deploy(last_day=SECOND)
    driver.await_reached(f"numbers-{epoch(SECOND)}")
    with driver.typing("stop", driver.dag, "--savepoint") as first:
        driver.wait(lambda: stopped_after(driver) == epoch(SECOND), "the stop")
        first.kill()
    driver.deploy(last_day=THIRD)
    driver.let_go(f"numbers-{epoch(SECOND)}")
    said = driver.weir("stop", driver.dag, "--savepoint")
    assert f"stopped after epoch {epoch(SECOND)}" in said
    assert "savepoint" in said
    driver.deploy(parallelism={"numbers": 1, "doubled": 1, "totals": 3})
    assert "goes on" in driver.weir("start", driver.dag)
    driver.run(THIRD)
    driver.green()
    assert [file.epoch for file in files(driver, THIRD, 2)][-1] == epoch(THIRD)
    assert driver.chain(epoch(THIRD)) == [epoch(day) for day in (FIRST, SECOND, THIRD)]


@AT_ONCE.on("early")
def test_rows_are_shown_before_their_run_is_closed_and_are_a_version_then(driver):
    driver.hold("recent")
    driver.start()
    driver.await_reached("recent")
    folder = driver.shared.parent / "lake" / driver.dag

    def digests():
        markers = [json.loads(file.read_text()) for file in folder.glob("*/_weir.json")]
        return [marker["digest"].startswith("provisional") for marker in markers]

    driver.wait(lambda: digests() == [True], "provisional rows")
    assert "provisional" in driver.weir("sinks", driver.dag)
    driver.let_go("recent")
    driver.green()
    driver.wait(lambda: digests() == [False], "the version")
