"""Weir's hands in Airflow: the endpoint and the database, each against the real thing."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.messages.kinds import of_kind

from weir.coordination.airflow import ClearItem, SeenRun
from weir.coordination.clearing import EndpointClearer
from weir.coordination.values import TaskKey
from weir.errors import Misconfigured, Retryable
from weir.execution.cadence import Cadence

PASSWORDS = {"worker": "worker-secret", "reader": "reader-secret"}


def wanted(run_id, task_id="spring", map_index=-1, expected_try=1, note=""):
    return ClearItem("river", run_id, task_id, map_index, expected_try, note=note)


@pytest.fixture
def api(api_url):
    from weir.coordination.airflow_client import AirflowClient

    return lambda user="worker", password=None: AirflowClient(api_url, user, password or PASSWORDS[user])


@pytest.fixture(params=["endpoint", "database"])
def clearer(request, api):
    from weir_airflow.api.compare_and_clear import DbClearer

    return {"endpoint": EndpointClearer(api()), "database": DbClearer()}[request.param]


def test_every_clearer_answers_for_each_item_in_order(clearer, new_run, look):
    run_id = new_run("running", delta_1=("running", 1), mouth=("success", 3))
    items = [
        wanted(run_id, "mouth"),
        wanted(run_id, "delta", 2, note="lost"),
        wanted(run_id, "delta", 1, note="lost"),
        wanted(run_id, "lake"),
        wanted(run_id, "spring", expected_try=None),
    ]
    answers = clearer.clear(items)
    assert [answer.item for answer in answers] == items
    assert [(answer.state, answer.try_number, answer.cleared) for answer in answers] == [
        ("success", 3, False),
        ("success", 1, True),
        ("running", 1, False),
        ("missing", 0, False),
        ("success", 1, True),
    ]
    assert look.task(run_id, "delta", 2) == (None, 1, "lost")
    assert [look.task(run_id, "delta", index)[0] for index in (0, 1)] == ["success", "running"]


def test_every_clearer_enters_the_assets_of_sinks_once(clearer):
    from airflow.models.asset import AssetModel
    from airflow.utils.session import create_session

    for _ in range(2):
        clearer.enter_assets("river", "delta", ["salt", "mud"])
    with create_session() as session:
        found = session.query(AssetModel).filter(AssetModel.uri.like("weir://delta/%")).order_by(AssetModel.name).all()
        assert [(each.name, each.uri, [alias.name for alias in each.aliases]) for each in found] == [
            (f"delta.{sink}", f"weir://delta/{sink}", [f"delta.{sink}"]) for sink in ("mud", "salt")
        ]


def test_every_clearer_inspects_without_changing_anything(clearer, new_run, look):
    run_id = new_run("running")
    (answer,) = clearer.inspect([wanted(run_id)])
    assert (answer.state, answer.try_number, answer.cleared) == ("success", 1, True)
    assert look.task(run_id, "spring") == ("success", 1, None)


def test_every_clearer_shortens_a_note_to_what_airflow_stores(clearer, new_run, look):
    run_id = new_run("running")
    clearer.clear([wanted(run_id, note="x" * 5000)])
    assert look.task(run_id, "spring") == (None, 1, "x" * 1000)


def test_every_clearer_can_leave_a_note(clearer, new_run, look):
    run_id = new_run("running")
    clearer.annotate(TaskKey("river", run_id, "delta", 1), "not in the record")
    clearer.annotate(TaskKey("river", run_id, "spring", -1), "nor this")
    assert (look.task(run_id, "delta", 1)[2], look.task(run_id, "spring")[2]) == ("not in the record", "nor this")


def test_every_clearer_reads_the_note_of_a_task_instance(clearer, new_run):
    run_id = new_run("running")
    keys = [TaskKey("river", run_id, "delta", 1), TaskKey("river", run_id, "spring", -1)]
    clearer.annotate(keys[0], "there")
    found = [clearer.note(each) for each in (*keys, TaskKey("river", run_id, "lake", -1))]
    assert found == ["there", "", ""]


def test_every_clearer_reads_a_run_and_sets_its_note(clearer, new_run, look):
    run_id = new_run("success")
    assert clearer.seen_run("river", run_id) == SeenRun("success", "")
    clearer.annotate_run("river", run_id, "first")
    clearer.annotate_run("river", run_id, "second")
    assert clearer.seen_run("river", run_id) == SeenRun("success", "second")
    assert look.run_note(run_id) == "second"
    clearer.annotate_run("river", run_id, "")
    assert clearer.seen_run("river", run_id) == SeenRun("success", "")
    assert clearer.seen_run("river", "no such run") is None


def test_every_clearer_clears_a_skipped_task_instance_only_where_it_is_expected_to_be_skipped(clearer, new_run, look):
    run_id = new_run("running", mouth=("skipped", 0))
    plain = ClearItem("river", run_id, "mouth", -1, 0, note="no")
    assert not clearer.clear([plain])[0].cleared
    assert clearer.clear([replace(plain, is_skipped=True, note="yes")])[0].cleared
    assert look.task(run_id, "mouth") == (None, 0, "yes")


def test_every_clearer_distinguishes_a_deleted_run_from_an_unknown_dag(clearer, new_run):
    there = new_run("success")
    asked = [("river", there), ("river", "scheduled__1999-01-01T00:00:00+00:00"), ("no such dag", there)]
    assert [clearer.exists(*each) for each in asked] == [True, False, None]


def test_every_clearer_tells_of_a_dag_and_of_its_runs_that_are_no_success(clearer, new_run):
    states = {new_run(state): state for state in ("success", "failed", "running", "queued")}
    found = {each.run_id: each for each in clearer.open_runs("river")}
    assert {run: found[run].state for run in found.keys() & states} == {
        run: state for run, state in states.items() if state != "success"
    }
    assert all(
        start + timedelta(days=1) == end and end.isoformat() in run
        for run, each in found.items()
        for start, end in [each.interval]
    )
    seen = clearer.seen_dag("river")
    assert (seen.is_paused, seen.has_scheduler, seen.has_import_errors) == (False, False, False)
    assert clearer.seen_dag("no such dag") is None
    assert clearer.open_runs("no such dag") == []


def test_every_clearer_pauses_a_dag(clearer, new_run):
    new_run("success")
    for is_paused in (True, False):
        clearer.pause("river", is_paused=is_paused)
        assert clearer.seen_dag("river").is_paused is is_paused


_BROOK = """
from airflow.sdk import DAG, Asset, BaseOperator, PartitionedAssetTimetable

with DAG("brook", schedule=PartitionedAssetTimetable(assets=Asset("rain")), max_active_runs=1,
         is_paused_upon_creation=False):
    BaseOperator(task_id="spring")
"""


@pytest.fixture
def brook(enter_dags):
    """Make runs of the DAG `brook`, which events start: `brook("2013-01-03", "queued")`."""
    from airflow.api.common.delete_dag import delete_dag
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    file, _ = enter_dags("brook.py", _BROOK)
    with create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag("brook", session=session)

    def make(key, state="success", interval=None, date=None):
        with create_session() as session:
            found = dag.create_dagrun(
                run_id=f"of-{key or interval[0].date()}".replace("!", "junk"),
                logical_date=interval and interval[0],
                data_interval=interval,
                partition_key=key,
                partition_date=date,
                run_after=datetime(2026, 1, 1, tzinfo=UTC),
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState(state),
                session=session,
            )
            return found.run_id

    yield make
    file.unlink()
    delete_dag("brook")


def january(day):
    return datetime(2013, 1, day, tzinfo=UTC)


_RAIN = """
from airflow.sdk import DAG, BaseOperator
from weir_airflow.assets import sink_asset

with DAG("rain", schedule=[sink_asset("brook", "rain")], is_paused_upon_creation=False):
    BaseOperator(task_id="fall")
"""


def test_every_clearer_emits_the_event_without_a_partition_for_a_run_that_has_one(clearer, brook, enter_dags):
    from airflow.api.common.delete_dag import delete_dag
    from airflow.models.asset import AssetDagRunQueue, AssetEvent, AssetModel
    from airflow.utils.session import create_session

    file, _ = enter_dags("rain.py", _RAIN)
    run = brook("20130102T000000Z", "running")
    clearer.announce(TaskKey("brook", run, "spring", -1), "brook", {"rain": {"version": 1}})
    with create_session() as session:
        (asset,) = session.query(AssetModel.id).filter_by(name="brook.rain").one()
        (event,) = session.query(AssetEvent).filter_by(asset_id=asset, source_run_id=run)
        assert (event.partition_key, event.extra, event.source_task_id) == (None, {"version": 1}, "spring")
        assert [alias.name for alias in event.source_aliases] == ["brook.rain"]
        assert session.query(AssetDagRunQueue).filter_by(asset_id=asset, target_dag_id="rain").count() == 1
        session.delete(event)
    file.unlink()
    delete_dag("rain")


def test_every_clearer_finds_the_run_before_one_with_a_partition(clearer, brook):
    daily = Cadence("0 0 * * *", "UTC")
    brook("20130105T000000Z", "queued")

    def before(day):
        found = clearer.run_before("brook", january(day), f"201301{day:02d}T000000Z", daily)
        return found and (found.run_id, found.interval)

    assert before(5) is None
    brook(None, interval=(january(1), january(2)))  # of the time when the DAG was scheduled by time
    brook(None, interval=(january(4), january(4)))  # of a person, for no epoch
    assert before(5) == ("of-2013-01-01", (january(1), january(2)))
    brook("20130102T000000Z", "failed")
    brook("20130103T050000Z", "failed")  # no epoch begins there
    brook("!", "failed")
    assert before(5) == ("of-20130102T000000Z", (january(2), january(3)))
    assert before(6) == ("of-20130105T000000Z", (january(5), january(6)))


def test_every_clearer_tells_at_what_time_open_runs_with_a_partition_begin(clearer, brook):
    brook("20130102T000000Z", "queued")
    brook("2013-01-03", "queued")
    brook("2013-Q1", "queued", date=january(1))
    brook("unreadable", "queued")
    east = january(2) + timedelta(hours=18, minutes=30)
    found = {each.run_id: each.interval[0] for each in clearer.open_runs("brook", "Asia/Kolkata")}
    assert found == {"of-20130102T000000Z": january(2), "of-2013-01-03": east, "of-2013-Q1": january(1)}


def test_running_runs_of_later_partitions_do_not_count_since_they_wait_for_it(clearer, brook):
    """Where as many runs of a DAG are running as may be."""
    first = brook("20130101T000000Z", "queued")
    brook("20130103T000000Z", "running")
    third = brook("20130104T000000Z", "queued")
    assert [clearer.start("brook", each) for each in (third, first)] == ["queued", "queued"]
    states = {each.run_id: each.state for each in clearer.open_runs("brook")}
    assert (states[first], states[third]) == ("running", "queued")


_MARSH = """
from airflow.sdk import DAG, BaseOperator

with DAG("marsh", schedule=None):
    BaseOperator(task_id="spring")
"""


def until_it_is(expected, clearer):
    """Ask until the answer is the expected one: another thread serves the API, and reads when it comes to it."""
    deadline = time.monotonic() + 60
    while clearer.seen_dag("marsh").has_import_errors is not expected:
        assert time.monotonic() < deadline


def test_every_clearer_tells_that_the_file_of_a_dag_does_not_import(clearer, enter_dags):
    enter_dags("marsh.py", _MARSH)
    until_it_is(False, clearer)
    enter_dags("marsh.py", f"import no_such_module\n{_MARSH}", imports=False)
    until_it_is(True, clearer)
    enter_dags("marsh.py", _MARSH)
    until_it_is(False, clearer)


def test_every_clearer_clears_nothing_when_nothing_is_wanted(clearer):
    assert clearer.clear([]) == []


def test_every_clearer_misses_the_tasks_of_a_dag_that_airflow_does_not_know(clearer, new_run):
    item = replace(wanted(new_run("running")), dag_id="no such dag")
    assert [(answer.state, answer.cleared) for answer in clearer.clear([item])] == [("missing", False)]
    assert clearer.start("no such dag", item.run_id) == "missing"


def test_a_finished_run_is_set_running_and_a_queued_one_started(clearer, new_run, look):
    done, queued = new_run("success"), new_run("queued")
    assert clearer.clear([wanted(done)])[0].cleared
    assert clearer.start("river", queued) == "queued"
    assert (look.run(done), look.run(queued)) == ("running", "running")


def test_without_the_plugin_nothing_is_cleared_and_the_error_says_what_to_install(api, new_run, look):
    running = new_run("running")
    bare = api()
    ask = bare.call
    bare.call = lambda method, path, *more, **query: ask(method, path.replace("/weir/", "/nowhere/"), *more, **query)
    clearer = EndpointClearer(bare)
    for asked in (
        lambda: clearer.clear([wanted(running)]),
        lambda: clearer.inspect([wanted(running)]),
        lambda: clearer.start("river", running),
    ):
        with pytest.raises(Misconfigured, check=of_kind("coordination.plugin_missing")):
            asked()
    assert look.task(running, "spring") == ("success", 1, None)


def test_an_account_that_may_not_clear_gets_an_error_that_names_the_permission(api, new_run):
    with pytest.raises(Misconfigured, check=of_kind("coordination.permission_missing")):
        EndpointClearer(api("reader")).clear([wanted(new_run("running"))])


def test_a_wrong_password_is_a_misconfiguration_that_names_the_connection(api, new_run):
    with pytest.raises(
        Misconfigured, check=of_kind("coordination.token_refused", source="the Airflow connection weir_api")
    ):
        EndpointClearer(api("worker", "wrong")).clear([wanted(new_run("running"))])


def test_a_server_that_does_not_answer_is_retryable(new_run):
    from weir.coordination.airflow_client import AirflowClient

    with pytest.raises(Retryable, check=of_kind("coordination.airflow_silent")):
        EndpointClearer(AirflowClient("http://127.0.0.1:9", "worker", "x")).clear([wanted("run")])


def test_a_token_that_is_no_longer_good_is_renewed(api, new_run):
    session = api()
    session._token = "of.yesterday.s"
    assert EndpointClearer(session).clear([wanted(new_run("running"))])[0].cleared


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"conn_type": "http", "host": "airflow", "port": 8080}, "http://airflow:8080"),
        ({"conn_type": "https", "host": "airflow"}, "https://airflow"),
        ({"conn_type": "http", "host": "airflow", "schema": "https"}, "https://airflow"),
        ({"conn_type": "http", "host": "http://127.0.0.1:80/base/", "port": 9}, "http://127.0.0.1:80/base"),
        ({"conn_type": "generic", "host": "https://a.example", "port": 443}, "https://a.example:443"),
        ({"conn_type": "http", "host": "a, b:81", "port": 80}, "http://a:80 http://b:81"),
        ({"conn_type": "http", "host": "https://a,https://b", "port": 9}, "https://a:9 https://b:9"),
    ],
)
def test_a_connection_may_spell_its_url_in_several_ways(fields, url):
    from airflow.sdk import Connection

    from weir_airflow.api.clearing import base_urls_of

    assert base_urls_of(Connection(conn_id="weir_api", **fields)) == url.split()


def test_the_connection_chooses_the_clearer():
    from airflow.sdk import Connection

    from weir_airflow.api.clearing import clearer_for
    from weir_airflow.api.compare_and_clear import DbClearer

    assert isinstance(clearer_for(Connection(conn_id="weir_api", conn_type="weir-db")), DbClearer)
    assert isinstance(clearer_for(Connection(conn_id="weir_api", conn_type="http", host="db")), DbClearer)
    assert isinstance(clearer_for(Connection(conn_id="weir_api", conn_type="http", host="a")), EndpointClearer)
    with pytest.raises(Misconfigured, check=of_kind("api.connection_not_http", conn_type="ssh")):
        clearer_for(Connection(conn_id="weir_api", conn_type="ssh", host="a"))


def test_a_connection_without_a_host_says_what_to_set():
    from airflow.sdk import Connection

    from weir_airflow.api.clearing import clearer_for

    for host in (None, "a,"):
        with pytest.raises(Misconfigured, check=of_kind("api.connection_without_host")):
            clearer_for(Connection(conn_id="weir_api", conn_type="http", host=host))


def test_a_task_may_be_deferred_while_a_triggerer_lives_unless_its_pool_counts_it(clearer, triggerer, pool):
    assert clearer.can_defer("default_pool") is False
    triggerer(is_alive=False)
    assert clearer.can_defer("default_pool") is False
    triggerer()
    assert clearer.can_defer("default_pool") is True
    assert clearer.can_defer(pool) is False


def test_a_pool_that_was_deleted_is_named(api, triggerer):
    triggerer()
    with pytest.raises(Misconfigured, check=of_kind("coordination.airflow_failed")):
        EndpointClearer(api()).can_defer("nowhere")


def test_every_clearer_clears_a_whole_run_and_sets_it_going(clearer, new_run, look):
    run_id = new_run("failed", spring=("failed", 2), mouth=("upstream_failed", 0), delta_1=("skipped", 1))
    assert clearer.clear_run("river", run_id) == 5
    assert look.run(run_id) in ("queued", "running")
    tasks = [("spring", -1), ("mouth", -1), *(("delta", index) for index in range(3))]
    assert {look.task(run_id, *each)[0] for each in tasks} == {None}
