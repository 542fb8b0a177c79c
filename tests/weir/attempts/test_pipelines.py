"""Regions that read each other index by index go on and recover index by index."""

import shutil
from collections import Counter
from datetime import timedelta

import pytest
from sqlalchemy import select

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.ledger.database.tables import ResultRow
from weir.restarts.strategy import RestartStrategy

SUBTASKS = range(4)
ONCE = {f"{task}[{i}]": 1 for task in ("rows", "clean", "rated") for i in SUBTASKS}
ALL = ONCE | {"lookup[0]": 1, "sums-out[0]": 1, "weir_close[0]": 1}


def prices():
    """Rows in four parts, cleaned and rated index by index with one table for all, and summed up."""
    return Dataflow(
        "ladder",
        [
            source("lookup", "p:lookup"),
            source("rows", "p:rows", parallelism=4),
            Stage("clean", "p:clean", [blocking("rows", pointwise=True)], parallelism=4),
            Stage(
                "rated",
                "p:rate",
                {"rows": blocking("clean", pointwise=True), "lookup": blocking("lookup", broadcast=True)},
                parallelism=4,
            ),
            Stage("sums", "p:sums", [blocking("rated")]),
            sink("sums", "out"),
        ],
    )


@pytest.fixture
def begun(world):
    """A run that is about to begin, and a log of the computations that were begun, in order."""
    world.airflow.flow = prices()
    world.run = world.airflow.dag_run()
    world.order = []
    world.airflow.during = lambda key: world.order.append((key.task_id, key.map_index))
    return world


def lose(world, tmp_path, stage, subtask):
    with world.ledger.transaction() as session:
        wanted = select(ResultRow.folder).where(ResultRow.stage == stage, ResultRow.subtask == subtask)
        folder = session.scalar(wanted.where(ResultRow.is_current))
    shutil.rmtree(tmp_path / "store" / folder)


def after(world, task, action):
    """Do `action` once, right after the first commit of a task instance."""
    done = []

    def look(key):
        if (key.task_id, key.map_index) == task and not done:
            done.append(key)
            action()

    world.airflow.after_commit = look


def fail_in_try(world, task, try_number):
    """Let one try of a task instance fail; the next one comes an hour later."""
    world.airflow.strategy = RestartStrategy.from_retries(3, timedelta(hours=1))

    def look(key):
        world.order.append((key.task_id, key.map_index))
        if (key.task_id, key.map_index) == task and world.order.count(task) == try_number:
            raise OSError("on purpose")

    world.airflow.during = look


def went_through_before_the_end_of(world, task):
    """The indexes that had been computed to the end of the pipeline when the last try of `task` began."""
    last = len(world.order) - 1 - world.order[::-1].index(task)
    return {index for name, index in world.order[:last] if name == "rated"}


def test_without_faults_every_instance_runs_once(begun):
    begun.airflow.run_until_quiet()
    assert begun.airflow.executed(begun.run) == ALL
    assert set(begun.airflow.states().values()) == {"success"}


def test_an_index_that_fails_for_good_holds_no_other(begun):
    class Broken(Exception):
        pass

    def fail(key):
        if (key.task_id, key.map_index) == ("rows", 3):
            raise Broken

    begun.airflow.during = fail
    begun.airflow.run_until_quiet()
    assert begun.airflow.task(begun.run, "rows", 3).state == "failed"
    for task in ("clean", "rated"):
        states = [begun.airflow.task(begun.run, task, i).state for i in SUBTASKS]
        assert states == ["success", "success", "success", None]
    assert begun.airflow.task(begun.run, "sums-out").state is None


def test_an_index_that_waits_to_be_retried_holds_no_other(begun):
    fail_in_try(begun, ("rows", 3), 1)
    begun.airflow.run_until_quiet()
    assert begun.airflow.executed(begun.run) == ALL | {"rows[3]": 2}
    assert went_through_before_the_end_of(begun, ("rows", 3)) == {0, 1, 2}


def test_an_index_whose_input_is_made_again_holds_no_other(begun, tmp_path):
    after(begun, ("rows", 3), lambda: lose(begun, tmp_path, "rows", 3))
    fail_in_try(begun, ("rows", 3), 2)
    begun.airflow.run_until_quiet()
    executed = begun.airflow.executed(begun.run)
    assert executed == ALL | {"rows[3]": 3, "clean[3]": executed["clean[3]"]}
    assert executed["clean[3]"] > 1
    assert set(begun.airflow.states().values()) == {"success"}
    assert went_through_before_the_end_of(begun, ("rows", 3)) == {0, 1, 2}


def test_a_change_of_one_index_restarts_that_index_and_what_reads_all(begun):
    begun.airflow.run_until_quiet()
    before = begun.airflow.executed(begun.run)
    begun.content["rows"] = "other"
    begun.airflow.clear_by_hand(begun.run, "rows", 3)
    begun.airflow.run_until_quiet()
    again = Counter(begun.airflow.executed(begun.run)) - Counter(before)
    assert set(again) == {"rows[3]", "clean[3]", "rated[3]", "sums-out[0]", "weir_close[0]"}
    assert set(begun.airflow.states().values()) == {"success"}


def test_an_equal_result_of_one_index_restarts_nothing(begun):
    begun.airflow.run_until_quiet()
    before = begun.airflow.executed(begun.run)
    begun.airflow.clear_by_hand(begun.run, "rows", 3)
    begun.airflow.run_until_quiet()
    assert Counter(begun.airflow.executed(begun.run)) - Counter(before) == Counter({"rows[3]": 1})


def test_a_run_that_began_before_its_exchange_was_pointwise_goes_on_by_its_record(world):
    def flow(**divided):
        clean = Stage("clean", "p:clean", [blocking("rows", **divided)], parallelism=4)
        return Dataflow("ladder", [source("rows", "p:rows", parallelism=4), clean, sink("clean", "out")])

    airflow = world.airflow
    airflow.flow = flow(by="k")
    run = airflow.dag_run()
    airflow.step(airflow.task(run, "rows", 0))
    airflow.deploy(flow(pointwise=True))
    airflow.step(airflow.task(run, "clean-out", 0))
    assert airflow.task(run, "clean-out", 0).state != "success"
    airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    executed = airflow.executed(run)
    assert {executed[f"rows[{i}]"] for i in SUBTASKS} == {1}
