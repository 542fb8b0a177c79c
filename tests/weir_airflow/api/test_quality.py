"""Pages about checks in a browser: served by Airflow's real API to users who may read the DAG."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import httpx
import pytest
from sqlalchemy import text

from weir.ledger.database.tables import AttemptRow, DataflowRow, QualityCheckRow, RunRow
from weir.ledger.ledger import Ledger
from weir.store.store import Store
from weir_airflow.api import quality

NOW = datetime(2026, 11, 21, tzinfo=UTC)
PASSWORDS = {"worker": "worker-secret", "reader": "reader-secret"}
PAGE = "_quality/flow/20130101T000000Z/delta/1/t0001-a/suite-1.html"


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    store = Store.open(str(tmp_path / "store"))
    store.initialise()
    store.create(PAGE, b"<html>1 unexpected value</html>")
    with ledger.transaction("flow") as session:
        session.add(DataflowRow(name="flow", lineage=1, store_id="s"))
        session.flush()
        for dag_id, epoch, page in (
            ("river", "20130101T000000Z", PAGE),
            ("river", "20130102T000000Z", None),
            ("brook", "20130103T000000Z", PAGE),
            ("river", "20130104T000000Z", "flow/20130104T000000Z/delta/manifest.json"),
            ("river", "20130105T000000Z", "_quality/../weir-store.json"),
            ("river", "20130106T000000Z", "_quality/flow/gone.html"),
        ):
            session.add(_run(dag_id, epoch))
            session.flush()
            session.add(_attempt(epoch))
            session.add(_check(epoch, page))
            session.flush()
        session.commit()
    yield ledger
    ledger.close()


def _run(dag_id, epoch):
    day = datetime.strptime(epoch, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    more = {"pinned": None, "parameters": {}, "created_at": NOW, "task_prefix": ""}
    return RunRow(
        id=f"flow@{epoch}",
        dataflow="flow",
        epoch=epoch,
        interval_start=day,
        interval_end=day,
        dag_id=dag_id,
        run_id=f"run {epoch}",
        **more,
    )


def _attempt(epoch):
    names = {"region": "delta", "subtask": 1, "task_id": "delta", "map_index": 1, "ti_id": "x", "origin": "first"}
    numbers = {"try_number": 1, "max_tries": 0, "lineage": 1}
    state = {"state": "failed", "session_id": "", "session_url": "", "began_at": NOW}
    return AttemptRow(id=f"t0001-{epoch}", run=f"flow@{epoch}", **names, **numbers, **state)


def _check(epoch, page):
    of = {"dataflow": "flow", "run": f"flow@{epoch}", "epoch": epoch, "stage": "delta", "subtask": 1}
    found = {"why": "fresh", "policy": "fail", "outcome": "failed", "digest": "d", "rows": 1, "results": []}
    by = {"attempt": f"t0001-{epoch}", "by_attempt": f"t0001-{epoch}", "suite": f"<b>{epoch}", "fingerprint": "f"}
    return QualityCheckRow(**of, **by, **found, blamed=[], seconds=0.0, checked_at=NOW, page=page)


@pytest.fixture
def get(api_url, river, ledger):
    def ask(path, user="reader", **asked):
        headers = {}
        if user:
            login = {"username": user, "password": PASSWORDS[user]}
            token = httpx.post(f"{api_url}/auth/token", json=login, timeout=30).json()["access_token"]
            headers = {"Cookie": f"_token={token}"}
        return httpx.get(f"{api_url}/weir/dags/{path}", params=asked, headers=headers, timeout=60)

    return ask


@pytest.mark.parametrize(("is_there", "command"), [(True, "weir doctor"), (False, "weir ledger upgrade")])
def test_a_page_makes_no_ledger_and_says_what_to_do(ledger, tmp_path, is_there, command):
    file = tmp_path / "ledger.db"
    if is_there:
        with ledger.transaction("flow") as session:
            session.execute(text("UPDATE alembic_version SET version_num = '0007'"))
    else:
        file.unlink()
    before = file.read_bytes() if is_there else None
    for answer in (quality.checks("river"), quality.page("river", 1)):
        assert answer.status_code == 503
        assert f"<code>{command}</code>" in answer.body.decode()
    assert (file.read_bytes() if file.exists() else None) == before


def asked_of(epoch):
    return {"run_id": f"run {epoch}", "task_id": "delta", "map_index": 1}


@pytest.mark.parametrize("path", ["river/quality", "river/quality/1"])
def test_only_users_who_may_read_the_dag_may_read_its_checks(get, path):
    assert get(path, user=None).status_code == 401
    assert get(path, user="reader").status_code == 200


def test_a_task_instance_has_the_checks_of_its_tries_with_links_to_their_pages(get):
    answer = get("river/quality", **asked_of("20130101T000000Z"))
    assert answer.status_code == 200
    assert "delta[1] in run 20130101T000000Z" in answer.text
    assert '<a href="quality/1">&lt;b&gt;20130101T000000Z</a>' in answer.text
    assert "20130102T000000Z" not in answer.text
    assert "no page yet" not in answer.text


def test_a_page_is_served_from_the_store_and_may_do_nothing(get):
    answer = get("river/quality/1")
    assert answer.text == "<html>1 unexpected value</html>"
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "sandbox" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_where_there_is_no_page_yet_it_says_so_and_how_one_is_made(get):
    listed = get("river/quality", **asked_of("20130102T000000Z")).text
    assert "<a href=" not in listed
    for said in ("there is no page yet", "weir_upkeep", "weir quality docs"):
        assert said in listed
        assert said in get("river/quality/2").text


def test_a_task_that_has_checked_nothing_says_so(get):
    assert "Nothing was checked here" in get("river/quality", run_id="other", task_id="delta", map_index=1).text


def test_without_a_task_the_newest_checks_of_the_dag_are_listed_and_of_no_other(get):
    listed = get("river/quality").text
    assert listed.index("20130106T000000Z") < listed.index("20130101T000000Z")
    assert "20130103T000000Z" not in listed


@pytest.mark.parametrize(
    ("check", "why"),
    [
        (3, "another DAG's"),
        (99, "unknown"),
        (4, "beside the pages"),
        (5, "a way out of the folder"),
        (6, "deleted"),
    ],
)
def test_what_is_no_page_of_this_dag_is_not_served(get, check, why):
    answer = get(f"river/quality/{check}")
    assert answer.status_code == 404, why
    assert "unexpected value" not in answer.text


def test_what_a_task_of_the_dag_has_found_in_what_it_read_of_another_is_served_too(get, ledger):
    with ledger.transaction("flow") as session:
        session.get_one(QualityCheckRow, 3).by_attempt = "t0001-20130101T000000Z"
    assert get("river/quality/3").status_code == 200
    assert "quality/3" in get("river/quality", **asked_of("20130101T000000Z")).text


def test_an_api_server_that_does_not_know_the_ledger_says_so_and_makes_none(get, monkeypatch, tmp_path):
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/other.db")
    answer = get("river/quality")
    assert answer.status_code == 503
    assert "WEIR_LEDGER" in answer.text
    assert "other.db" not in answer.text
    assert not (tmp_path / "other.db").exists()


def test_the_link_of_a_task_leads_to_its_checks(get, api_url, monkeypatch):
    from weir_airflow.api.quality_link import QualityLink

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"{api_url}/")
    key = SimpleNamespace(dag_id="river", run_id="run 20130101T000000Z", task_id="delta", map_index=1)
    address = QualityLink().get_link(None, ti_key=key)
    assert address.startswith(f"{api_url}/weir/dags/river/quality?")
    found = get(address.removeprefix(f"{api_url}/weir/dags/"))
    assert "&lt;b&gt;20130101T000000Z" in found.text
