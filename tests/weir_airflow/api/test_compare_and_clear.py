"""Compare and clear, against Airflow's real tables."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from weir.coordination.airflow import ClearItem
from weir.coordination.values import TaskKey


def wanted(run_id, task_id, map_index=-1, expected_try=1):
    return ClearItem("river", run_id, task_id, map_index, expected_try)


@pytest.fixture
def clear(river):
    from airflow.utils.session import create_session

    from weir_airflow.api.compare_and_clear import compare_and_clear

    def run(*items, note="why", **options):
        noted = [replace(each, note=note) for each in items]
        with create_session(scoped=False) as session:
            return compare_and_clear(session, "river", noted, **options)

    return run


@pytest.mark.parametrize("state", ["success", "failed", "upstream_failed"])
def test_a_finished_task_instance_of_the_expected_try_is_cleared(new_run, clear, look, state):
    run_id = new_run("running", spring=(state, 1))
    (answer,) = clear(wanted(run_id, "spring"))
    assert (answer.state, answer.try_number, answer.cleared) == (state, 1, True)
    assert look.task(run_id, "spring") == (None, 1, "why")


def test_another_try_than_the_expected_one_is_not_cleared(new_run, clear, look):
    run_id = new_run("running", spring=("success", 2))
    (answer,) = clear(wanted(run_id, "spring", expected_try=1))
    assert (answer.state, answer.try_number, answer.cleared) == ("success", 2, False)
    assert look.task(run_id, "spring") == ("success", 2, None)


def test_without_an_expected_try_any_finished_try_is_cleared(new_run, clear):
    run_id = new_run("running", spring=("success", 7))
    assert clear(wanted(run_id, "spring", expected_try=None))[0].cleared


@pytest.mark.parametrize(
    "state", ["running", "queued", "scheduled", "restarting", "up_for_retry", "up_for_reschedule", "skipped", "removed"]
)
def test_a_task_instance_that_has_not_finished_or_would_not_compute_is_only_reported(new_run, clear, look, state):
    run_id = new_run("running", spring=(state, 1))
    (answer,) = clear(wanted(run_id, "spring"))
    assert (answer.state, answer.cleared) == (state, False)
    assert look.task(run_id, "spring") == (state, 1, None)


def test_a_task_instance_without_a_state_is_reported_with_none(new_run, clear):
    run_id = new_run("running", spring=(None, 0))
    (answer,) = clear(wanted(run_id, "spring", expected_try=None))
    assert (answer.state, answer.try_number, answer.cleared) == (None, 0, False)


def test_an_unknown_task_instance_is_missing(new_run, clear):
    run_id = new_run("running")
    unknown = [wanted(run_id, "spring", 5), wanted(run_id, "lake"), wanted("no such run", "spring")]
    assert [(answer.state, answer.cleared) for answer in clear(*unknown)] == [("missing", False)] * 3


def test_one_subtask_of_a_mapped_task_is_cleared_alone_and_answers_keep_the_order(new_run, clear, look):
    run_id = new_run("running", delta_1=("success", 3))
    answers = clear(wanted(run_id, "delta", 2, expected_try=9), wanted(run_id, "delta", 1, expected_try=3))
    assert [(answer.item.map_index, answer.cleared) for answer in answers] == [(2, False), (1, True)]
    assert [look.task(run_id, "delta", index)[0] for index in range(3)] == ["success", None, "success"]


@pytest.mark.parametrize("finished", ["success", "failed"])
def test_a_finished_run_is_set_running_and_not_queued(new_run, clear, look, finished):
    run_id = new_run(finished)
    clear(wanted(run_id, "spring"))
    assert look.run(run_id) == "running"


@pytest.mark.parametrize("active", ["running", "queued"])
def test_an_active_run_keeps_its_state_and_its_deadlines(new_run, clear, look, active):
    run_id = new_run(active)
    before = look.queued_at(run_id)
    clear(wanted(run_id, "spring"))
    assert (look.run(run_id), look.queued_at(run_id)) == (active, before)


def test_a_finished_run_stays_finished_when_nothing_of_it_is_cleared(new_run, clear, look):
    run_id = new_run("success")
    clear(wanted(run_id, "spring", expected_try=9))
    assert look.run(run_id) == "success"


def test_items_of_several_runs_are_cleared_in_one_transaction(new_run, clear, look):
    past, present = new_run("success"), new_run("running")
    assert all(answer.cleared for answer in clear(wanted(present, "spring"), wanted(past, "spring")))
    assert (look.run(past), look.run(present)) == ("running", "running")


def test_a_dry_run_says_what_it_would_clear_and_changes_nothing(new_run, clear, look):
    run_id = new_run("success")
    assert clear(wanted(run_id, "spring"), dry_run=True)[0].cleared
    assert (look.run(run_id), look.task(run_id, "spring")) == ("success", ("success", 1, None))


@pytest.mark.parametrize("mine", ["", "the provider has corrected its file"])
def test_a_second_clear_replaces_the_note_of_the_first_and_a_persons_stays(new_run, clear, look, mine):
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    from weir_airflow.api.compare_and_clear import DbClearer

    run_id = new_run("running")
    DbClearer().annotate(TaskKey("river", run_id, "spring", -1), mine)
    clear(wanted(run_id, "spring"), note="weir: first")
    clear(wanted(run_id, "mouth"), note="weir: other")
    with create_session() as session:
        session.query(TaskInstance).filter_by(run_id=run_id, task_id="spring").update(
            {"state": "success", "try_number": 2}
        )
    clear(wanted(run_id, "spring", expected_try=2), note=f"weir: {'x' * 2000}")
    note = look.task(run_id, "spring")[2]
    assert note.startswith("weir: xxx")
    assert note.endswith(mine or "x")
    assert len(note) == 1000


def test_each_clear_is_in_the_audit_log_with_its_owner(new_run, clear):
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    run_id = new_run("running")
    clear(wanted(run_id, "delta", 1), wanted(run_id, "delta", 2, expected_try=5), note="lost", user_name="worker")
    with create_session() as session:
        (row,) = session.query(Log).filter_by(event="weir_clear", run_id=run_id).all()
        assert (row.dag_id, row.task_id, row.map_index, row.owner, row.try_number) == ("river", "delta", 1, "worker", 1)
        assert json.loads(row.extra) == {"note": "lost", "state": "success", "try_number": 1}


def test_of_four_that_clear_the_same_at_once_one_clears(new_run, clear, look):
    run_id = new_run("running")
    start, answers = threading.Barrier(4), []

    def race():
        start.wait()
        answers.extend(clear(wanted(run_id, "spring")))

    racers = [threading.Thread(target=race) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(answer.cleared for answer in answers) == [False, False, False, True]
    assert {answer.state for answer in answers if not answer.cleared} == {None}
    assert look.task(run_id, "spring")[:2] == (None, 1)


def test_of_four_that_enter_assets_at_once_none_fails(river):
    """Airflow itself fails where two first events of an asset come at once, and calls the second task failed."""
    from airflow.models.asset import AssetModel
    from airflow.utils.session import create_session

    from weir_airflow.api.compare_and_clear import DbClearer

    start = threading.Barrier(4)

    def race(_number):
        start.wait()
        DbClearer().enter_assets("river", "mouth", ["silt", "sand"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(race, range(4)))
    with create_session() as session:
        found = session.query(AssetModel).filter(AssetModel.uri.like("weir://mouth/%")).all()
        assert sorted((each.name, [alias.name for alias in each.aliases]) for each in found) == [
            ("mouth.sand", ["mouth.sand"]),
            ("mouth.silt", ["mouth.silt"]),
        ]
        assert all(each.active for each in found)


def test_an_asset_whose_name_another_active_one_has_is_entered_and_stays_inactive(river):
    from airflow.models.asset import AssetActive, AssetModel
    from airflow.utils.session import create_session

    from weir_airflow.api.compare_and_clear import DbClearer

    with create_session() as session:
        other = AssetModel(name="mouth.mud", uri="s3://lake/mud", group="asset")
        session.add_all([other, AssetActive.for_asset(other)])
    DbClearer().enter_assets("river", "mouth", ["mud", "loam"])
    with create_session() as session:
        found = session.query(AssetModel).filter(AssetModel.uri.like("weir://mouth/%")).all()
        assert {each.name: each.active is not None for each in found if each.name in {"mouth.mud", "mouth.loam"}} == {
            "mouth.mud": False,
            "mouth.loam": True,
        }


def test_those_that_clear_the_same_of_several_runs_in_other_orders_do_not_lock_each_other_out(new_run, clear):
    items = [
        wanted(run_id, task_id)
        for run_id in (new_run("running"), new_run("success"))
        for task_id in ("spring", "mouth")
    ]
    start, cleared = threading.Barrier(4), []

    def race(number):
        start.wait()
        mine = items[number:] + items[:number]
        cleared.extend(answer.item for answer in clear(*mine) if answer.cleared)

    racers = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(cleared, key=repr) == sorted(items, key=repr)


@pytest.fixture
def start(river):
    from airflow.utils.session import create_session

    from weir_airflow.api.compare_and_clear import start_queued

    def run(run_id):
        with create_session(scoped=False) as session:
            return start_queued(session, "river", run_id)

    return run


@pytest.fixture
def of_dag(river):
    """Set something of the DAG `river` for a test: `of_dag(max_active_runs=1)`."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    def change(**values):
        with create_session() as session:
            session.query(DagModel).filter_by(dag_id="river").update(values)

    yield change
    change(max_active_runs=16, is_paused=False)


def test_only_a_queued_run_is_started(new_run, look, start):
    queued, failed = new_run("queued"), new_run("failed")
    found = [start(run_id) for run_id in (queued, failed, "no such run")]
    assert found == [("queued", True), ("failed", False), ("missing", False)]
    assert (look.run(queued), look.run(failed)) == ("running", "failed")


@pytest.mark.parametrize("state", ["success", "failed"])
def test_a_finished_run_of_which_something_was_cleared_is_started(new_run, look, start, state):
    run_id = new_run(state, spring=(None, 1))
    assert start(run_id) == (state, False)
    assert look.run(run_id) == "running"


def test_a_run_is_not_started_where_as_many_earlier_ones_are_running_as_may_be(new_run, look, start, of_dag):
    of_dag(max_active_runs=2)
    runs = [new_run("running"), new_run("running"), new_run("queued")]
    assert start(runs[2]) == ("queued", False)
    assert look.run(runs[2]) == "queued"
    of_dag(max_active_runs=3)
    assert start(runs[2]) == ("queued", True)


def test_running_runs_of_later_epochs_do_not_count_since_they_wait_for_it(new_run, look, start, of_dag):
    of_dag(max_active_runs=1)
    first, second, _third = new_run("queued"), new_run("queued"), new_run("running")
    assert [start(run_id)[1] for run_id in (second, first)] == [True, True]
    assert (look.run(first), look.run(second)) == ("running", "running")


def test_no_run_of_a_paused_dag_is_started(new_run, look, start, of_dag):
    of_dag(is_paused=True)
    run_id = new_run("queued")
    assert start(run_id) == ("queued", False)
    assert look.run(run_id) == "queued"


def test_a_skipped_task_instance_is_cleared_where_it_is_expected_to_be_skipped(new_run, clear, look):
    run_id = new_run("success", mouth=("skipped", 0))
    (answer,) = clear(ClearItem("river", run_id, "mouth", -1, 0, is_skipped=True))
    assert (answer.state, answer.cleared) == ("skipped", True)
    assert (look.task(run_id, "mouth")[0], look.run(run_id)) == (None, "running")
