"""Rows of state on Airflow's real API server: of what is queryable, for whoever may read the DAG."""

import httpx
import pyarrow as pa
import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from tests.builders.ledgers import fast_folder
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days
from tests.weir_airflow.conftest import PASSWORDS

from weir.ledger.database.tables import LeaseRow

ROWS = "/weir/v1/dataflows/ladder/states/history/rows"


@pytest.fixture(scope="module")
def world():
    """Two days, of which the second declares the state as queryable."""
    with fast_folder() as folder:
        world = keeps_state(ReaderWorld(folder, history()))
        run_days(world, history(), 1)
        run_days(world, history(queryable=True), 2)
        yield world
        world.ledger.close()


@pytest.fixture
def ask(api_url, world, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", str(world.folder / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{world.folder}/ledger.db")

    def asked(path, user="reader", body=None, **headers):
        login = {"username": user, "password": PASSWORDS[user]}
        token = httpx.post(f"{api_url}/auth/token", json=login, timeout=30).json()["access_token"]
        given = {"Authorization": f"Bearer {token}", **headers}
        return httpx.request("POST" if body else "GET", f"{api_url}{path}", json=body, headers=given, timeout=60)

    return asked


def test_whoever_may_read_the_dag_gets_rows_and_nothing_is_written(ask, world):
    found = ask(f"{ROWS}?key=N1")
    assert (found.status_code, found.json()["epoch"], found.json()["rows"]) == (
        200,
        epoch(2),
        [{"tail": "N1", "n": 10}],
    )
    assert ask(f"{ROWS}:get", body={"keys": [["N2"], ["N9"]]}).json()["rows"] == [{"tail": "N2", "n": 2}, None]
    found = ask(f"{ROWS}?prefix=N7", Accept="application/vnd.apache.arrow.stream")
    assert pa.ipc.open_stream(found.content).read_all().to_pylist() == [{"tail": "N7", "n": 7}]
    assert ask(f"{ROWS}?key=N1", **{"If-None-Match": ask(f"{ROWS}?key=N1").headers["ETag"]}).status_code == 304
    with world.ledger.transaction() as session:
        assert session.query(LeaseRow).count() == 0


def test_who_may_not_read_the_dag_and_what_is_not_queryable_is_refused(ask, api_url, monkeypatch):
    assert httpx.get(f"{api_url}{ROWS}?key=N1", timeout=60).status_code == 401
    with monkeypatch.context() as patch:
        patch.setattr(SimpleAuthManager, "is_authorized_dag", lambda *_, **asked: asked["details"].id != "dag")
        assert ask(f"{ROWS}?key=N1").status_code == 403
    found = ask(ROWS.replace("history", "other") + "?key=N1")
    assert (found.status_code, "queryable=True" in found.json()["error"]) == (404, True)
    assert ask(ROWS.replace("ladder", "other") + "?key=N1").status_code == 403


def test_a_ledger_that_cannot_be_read_is_said_without_where_it_is(ask, monkeypatch, tmp_path):
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/none.db")
    found = ask(f"{ROWS}?key=N1")
    assert found.status_code == 503
    assert str(tmp_path) not in found.text
