"""Tasks that fail before they are registered: `weir why` and `weir runs` find them."""

import pytest
from sqlalchemy import func, select
from tests.messages.kinds import of_kind
from tests.weir.command_line import reach, typed, use
from tests.weir.restoring import aircraft
from tests.weir.small_dataflow import World

from weir.dataflow import Dataflow, keyed_state, postgres_source, sink
from weir.errors import Misconfigured
from weir.execution.failure_class import FailureClass
from weir.ledger.database.tables import FailedBeginRow, RunRow
from weir.ledger.failed_begins import record_failed_begin

FLOW = aircraft()
OTHER = aircraft(states=keyed_state("history", key="k", schema="k STRING, n BIGINT"))
SECOND = "ladder@20130102T000000Z"


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """A second day that cannot begin: the DAG file has changed the type of a state's key."""
    use(monkeypatch, tmp_path)
    world = World(tmp_path, FLOW)
    world.run_first(1)
    world.airflow.deploy(OTHER)
    world.run = world.airflow.dag_run(2)
    world.airflow.run_until_quiet()
    return world


def line_of(run_id):
    [line] = [line for line in typed("runs").splitlines() if run_id in line]
    return line


@pytest.mark.parametrize("run", ["scheduled__2013-01-02", SECOND])
def test_a_task_whose_begin_failed_is_found_though_its_run_was_never_pinned(changed, run):
    assert changed.airflow.task(changed.run, "flights").state == "failed"
    with changed.ledger.transaction() as session:
        assert session.get(RunRow, SECOND) is None
    told = typed("why", "flights", "--run", run)
    assert "flights[0]" in told
    assert "try 1: failed before it was registered" in told
    assert "fatal: Misconfigured: " in told
    assert "history" in told


def test_the_run_is_listed_with_the_tasks_that_failed_to_begin(changed):
    line = line_of(changed.run)
    assert line.replace("│", " ").split()[:2] == ["20130102T000000Z", "ladder"]
    assert f"not begun; failed to begin: flights[0] (`weir why flights --run {SECOND}`)" in line
    assert "failed to begin" not in line_of("scheduled__2013-01-01")


def test_other_commands_say_that_the_run_has_not_begun_and_why(changed):
    with pytest.raises(Misconfigured, check=of_kind("ledger.run_not_begun", task="flights")):
        typed("plan", changed.run)


def test_once_the_task_has_begun_the_failure_is_history(changed):
    changed.airflow.deploy(FLOW)
    changed.airflow.clear_by_hand(changed.run, "flights")
    changed.airflow.run_until_quiet()
    assert "failed to begin" not in line_of(changed.run)
    told = typed("why", "flights", "--run", SECOND)
    assert told.index("try 1: failed before it was registered") < told.index("try 2 (")


def test_tries_that_airflow_took_back_before_they_began_are_told(changed):
    """An overloaded scheduler resets its own tasks: their processes find that they are gone, and write no log."""
    changed.airflow.deploy(FLOW)
    changed.airflow.task(changed.run, "flights").try_number += 2
    changed.airflow.clear_by_hand(changed.run, "flights")
    changed.airflow.run_until_quiet()
    told = typed("why", "flights", "--run", SECOND)
    assert told.index("try 1: failed before") < told.index("tries 2 to 3: ended before") < told.index("try 4 (")


def test_a_task_instance_has_one_row_however_often_it_fails(changed):
    for _ in range(3):
        changed.airflow.clear_by_hand(changed.run, "flights")
        changed.airflow.run_until_quiet()
    with changed.ledger.transaction() as session:
        assert session.scalar(select(func.count(FailedBeginRow.id))) == 1
        assert session.scalar(select(FailedBeginRow.try_number)) == 4


def test_a_second_run_of_the_same_interval_has_failed_nowhere_and_the_one_that_owns_it_is_named(changed):
    changed.airflow.deploy(FLOW)
    second = changed.airflow.dag_run(1, kind="manual")
    changed.airflow.run_until_quiet()
    assert changed.airflow.task(second, "flights").state == "skipped"
    assert second not in typed("runs")
    with pytest.raises(Misconfigured, match=r"did you mean .*scheduled__2013-01-01"):
        typed("why", "flights", "--run", second)


def test_an_unregistered_failure_of_a_running_dataflow_owns_no_epoch(changed):
    """What fails before it was registered blocks no later epoch."""
    changed.airflow.deploy(FLOW)
    changed.airflow.delete(changed.run)
    third = changed.airflow.dag_run(3)
    changed.airflow.run_until_quiet()
    assert changed.airflow.task(third, "weir_close").state == "success"


def test_a_dataflow_of_which_no_run_has_ever_begun_says_how_its_run_stands(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    orders = postgres_source("flights", "no_such_connection", "select 1 as k")
    world = World(tmp_path, Dataflow("ladder", [orders, sink("flights", "known")]))
    reach(monkeypatch, world.airflow)
    run = world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    first = "ladder@20130101T000000Z"
    for told in (
        typed("runs"),
        typed("plan", first),
        typed("plan", run),
        typed("why", "flights-known", "--run", first),
    ):
        assert f"{first} is not published, and does not go on by itself" in told
        assert f"clear the whole run {run} of DAG dag" in told
    world.airflow.deploy(FLOW)
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert world.airflow.state_of(run) == "success"


def failed(world, dataflow, dag_id, run_id, error):
    row = FailedBeginRow(
        dataflow=dataflow,
        epoch="20130102T000000Z",
        dag_id=dag_id,
        run_id=run_id,
        task_id=f"{dataflow}.flights",
        map_index=-1,
        try_number=1,
        failed_at=world.airflow.time,
        failure=FailureClass.FATAL.value,
        error=error,
    )
    with world.ledger.transaction(dataflow) as session:
        record_failed_begin(session, row)


@pytest.mark.parametrize(
    "other", [("trips", "another_dag"), ("trips", "dag")], ids=["in another DAG", "in the same DAG"]
)
def test_a_dagrun_of_another_dataflow_with_the_same_id_is_none_of_its_tries(changed, other):
    failed(changed, *other, changed.run, "of trips")
    with pytest.raises(Misconfigured, match=f"type one of {SECOND}, trips@20130102T000000Z"):
        typed("why", "flights", "--run", changed.run)
    assert "of trips" not in typed("why", "flights", "--run", SECOND)
    assert "of trips" in typed("why", "flights", "--run", "trips@20130102T000000Z")
    changed.airflow.deploy(FLOW)
    changed.airflow.clear_by_hand(changed.run, "flights")
    changed.airflow.run_until_quiet()
    for run in (SECOND, changed.run):
        assert "of trips" not in typed("why", "flights", "--run", run)
    [line] = [line for line in typed("runs").splitlines() if "ladder" in line and "20130102" in line]
    assert "failed to begin" not in line
