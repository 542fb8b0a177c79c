"""Airflow's real API, as the doctor sees it; there is no scheduler, and no upkeep."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from weir.doctor.api import UPKEEP, UPKEEP_HOURLY
from weir.doctor.examination import Status, examine, problem

PASSWORDS = {"worker": "worker-secret", "reader": "reader-secret"}
FOLDER = problem("airflow", "plugins folder", "not there", expected="x", mend="y")


@pytest.fixture
def looked_at(api_url, river):
    from airflow.sdk import Connection

    from weir_airflow.doctor.api import ApiExam

    def look(login="worker", password=None, host=api_url, dag_ids=("river",), **more):
        connection = Connection(
            conn_id="weir_api",
            **{"conn_type": "http", "host": host, "login": login, "password": password or PASSWORDS[login], **more},
        )
        exam = ApiExam(lambda: connection, lambda: dag_ids, lambda: FOLDER, parallelism=4)
        return {each.name: each for each in examine([exam.checks()])}

    return look


def test_a_good_api_server_is_ok_but_for_what_is_not_there(looked_at):
    found = looked_at()
    bad = {name for name, each in found.items() if each.status is not Status.OK}
    assert bad == {"components", UPKEEP, UPKEEP_HOURLY}
    assert "scheduler: nothing heard" in found["components"].found or "unhealthy" in found["components"].found
    assert "dags/weir_upkeep.py" in found[UPKEEP].mend
    assert found["may clear"].found == "worker may edit task instances of river"
    assert found["plugin"].status is Status.OK


def test_an_account_that_may_not_clear_is_told_for_which_dags(looked_at):
    found = looked_at("reader", dag_ids=("river", "brook"))
    assert found["log in"].status is Status.OK
    assert found["may clear"].status is Status.PROBLEM
    assert "brook, river" in found["may clear"].found
    assert found["plugin"].status is Status.OK, "it is there, it only does not do what this account asks"


def test_a_wrong_password_is_told_and_ends_the_questions(looked_at):
    found = looked_at("worker", "wrong-secret")
    assert found["log in"].status is Status.PROBLEM
    assert found["the rest"].found.startswith("not asked, since it needs log in: plugin")
    assert not any("wrong-secret" in f"{each.found}{each.mend}" for each in found.values())


def test_an_api_server_that_does_not_answer_is_one_problem(looked_at):
    found = looked_at(host="http://127.0.0.1:1")
    assert [each.status for each in found.values()] == [Status.OK, Status.PROBLEM, Status.UNKNOWN]
    assert "http://127.0.0.1:1" in found["api-server"].found


def test_a_connection_of_a_strange_type_is_refused(looked_at):
    found = looked_at(conn_type="postgres")
    assert found["connection weir_api"].status is Status.PROBLEM
    assert "expected `http` or `https`" in found["connection weir_api"].found


def test_airflow_s_database_in_process_is_not_asked_over_http(looked_at):
    found = looked_at(host="db")
    assert [each.status for each in found.values()] == [Status.OK]


def test_a_ledger_that_does_not_answer_spoils_nothing_here(api_url, river):
    from airflow.sdk import Connection

    from weir_airflow.doctor.api import ApiExam

    def unreachable():
        raise OSError("no ledger")

    connection = Connection(
        conn_id="weir_api", conn_type="http", host=api_url, login="worker", password=PASSWORDS["worker"]
    )
    exam = ApiExam(lambda: connection, unreachable, lambda: FOLDER, None)
    found = {each.name: each for each in examine([exam.checks()])}
    assert found["may clear"].status is Status.OK


def test_without_the_plugin_the_folder_is_looked_at_and_airflow_s_own_clear_asked(looked_at, monkeypatch):
    """An api-server that does not have /weir: its answer is the one for any path that it does not know."""
    from weir_airflow.doctor.api import ApiExam

    def elsewhere(self, dag_id):
        return self._api.call("POST", f"/no-such-plugin/dags/{dag_id}/clear", {"items": []})

    monkeypatch.setattr(ApiExam, "_dry_run", elsewhere)
    found = looked_at()
    assert found["plugin"].status is Status.PROBLEM
    assert found["plugins folder"] == FOLDER
    assert found["may clear"].status is Status.OK
    assert looked_at("reader")["may clear"].status is Status.PROBLEM


def test_a_dag_file_that_cannot_be_imported_is_named_with_its_error(looked_at):
    from airflow.models.errors import ParseImportError
    from airflow.utils.session import create_session

    with create_session() as session:
        trace = "Traceback (most recent call last):\n  somewhere\nNameError: name 'trips' is not defined\n"
        now = datetime.now(UTC)
        session.add(ParseImportError(filename="trips.py", bundle_name="dags-folder", stacktrace=trace, timestamp=now))
    found = looked_at()["DAG files"]
    with create_session() as session:
        session.query(ParseImportError).delete()
    assert found.status is Status.PROBLEM
    assert "trips.py: NameError: name 'trips' is not defined" in found.found
