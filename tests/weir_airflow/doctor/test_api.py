"""The checks of Airflow's real API; no scheduler runs, and there is no DAG of upkeep."""

from __future__ import annotations

import pytest

from weir.doctor.examination import Status, examine
from weir.doctor.ledger import Publisher
from weir_airflow.doctor.api import UPKEEPS

PASSWORDS = {"worker": "worker-secret", "reader": "reader-secret"}


@pytest.fixture
def checked(api_url, river):
    from airflow.sdk import Connection

    from weir_airflow.doctor.api import ApiExam

    def check(login="worker", password=None, host=api_url, dag_ids=("river",), publishers=(), **more):
        connection = Connection(
            conn_id="weir_api",
            **{"conn_type": "http", "host": host, "login": login, "password": password or PASSWORDS[login], **more},
        )
        exam = ApiExam(lambda: connection, lambda: dag_ids, lambda: publishers)
        return {each.name: each for each in examine([exam.checks()])}

    return check


def test_a_good_api_server_is_ok_but_for_what_is_not_there(checked):
    found = checked()
    bad = {name for name, each in found.items() if each.status is not Status.OK}
    assert bad == set(UPKEEPS)
    assert "from weir_airflow.upkeep.upkeep import" in found[UPKEEPS[0]].mend
    assert found["may clear"].found == "worker may edit task instances and runs of river"
    assert found["plugin"].status is Status.OK


def test_the_dags_that_an_account_may_not_clear_are_named(checked):
    found = checked("reader", dag_ids=("river", "brook"))
    assert found["log in"].status is Status.OK
    assert found["may clear"].status is Status.PROBLEM
    assert "brook, river" in found["may clear"].found
    assert found["plugin"].status is Status.OK, "it is there, it only does not do what this account asks"


def test_a_dag_that_airflow_no_longer_has_does_not_hide_the_endpoint(checked):
    found = checked(dag_ids=("brook", "river"))
    assert found["plugin"].status is Status.OK


@pytest.mark.parametrize(
    ("publisher", "reader", "status"),
    [("river", "river", Status.OK), ("brook", "river", Status.PROBLEM), ("brook", "lake", Status.OK)],
)
def test_a_dag_that_airflow_no_longer_has_and_that_others_read_is_a_problem(checked, publisher, reader, status):
    found = checked(publishers=(Publisher("trips", (publisher,), {"report": (reader,)}),))["publishers"]
    assert found.status is status
    assert ("report" in found.found) is (status is Status.PROBLEM)


def test_a_wrong_password_is_a_problem_and_ends_the_checks(checked):
    found = checked("worker", "wrong-secret")
    assert found["log in"].status is Status.PROBLEM
    assert found["the rest"].found.startswith("not checked, since it needs log in: plugin")
    assert not any("wrong-secret" in f"{each.found}{each.mend}" for each in found.values())


def test_an_api_server_that_does_not_answer_is_one_problem(checked):
    found = checked(host="http://127.0.0.1:1")
    assert [each.status for each in found.values()] == [Status.OK, Status.PROBLEM, Status.UNKNOWN]
    assert "http://127.0.0.1:1" in found["api-server"].found


def test_a_connection_of_an_unknown_type_is_a_problem(checked):
    found = checked(conn_type="postgres")
    assert found["connection weir_api"].status is Status.PROBLEM
    assert "expected `http` or `https`" in found["connection weir_api"].found


def test_airflow_s_database_in_process_is_not_checked_over_http(checked):
    found = checked(host="db")
    assert [each.status for each in found.values()] == [Status.OK]


def test_a_ledger_that_does_not_answer_does_not_affect_these_checks(api_url, river):
    from airflow.sdk import Connection

    from weir_airflow.doctor.api import ApiExam

    def unreachable():
        raise OSError("no ledger")

    connection = Connection(
        conn_id="weir_api", conn_type="http", host=api_url, login="worker", password=PASSWORDS["worker"]
    )
    exam = ApiExam(lambda: connection, unreachable)
    found = {each.name: each for each in examine([exam.checks()])}
    assert found["may clear"].status is Status.OK


def test_without_the_plugin_no_permission_is_judged(checked, monkeypatch):
    """An api-server that does not have /weir: its answer is the one for any path that it does not know."""
    from weir_airflow.doctor.api import ApiExam

    def elsewhere(self, dag_id):
        return self._api.call("POST", f"/no-such-plugin/dags/{dag_id}/clear", {"items": []})

    monkeypatch.setattr(ApiExam, "_dry_run", elsewhere)
    found = checked()
    assert found["plugin"].status is Status.PROBLEM
    assert "may clear" not in found


@pytest.mark.parametrize(("is_paused", "status"), [(True, Status.PROBLEM), (False, Status.OK)])
def test_a_dag_of_upkeep_that_is_paused_is_a_problem(checked, monkeypatch, is_paused, status):
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    monkeypatch.setattr("weir_airflow.doctor.api.UPKEEPS", ("river",))
    with create_session() as session:
        session.get(DagModel, "river").is_paused = is_paused
    found = checked()["river"]
    assert found.status is status
    assert ("weir airflow dags unpause river" in found.mend) is is_paused
