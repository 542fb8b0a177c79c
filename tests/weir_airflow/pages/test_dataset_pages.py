"""What pages tell of data sets: those that a user's DAGs publish and read, and nothing of other DAGs."""

from dataclasses import replace

import httpx
import pytest
from tests.builders.ledgers import fast_folder
from tests.weir.datasets.neighbours import Neighbours, reader, trips

from weir.dataflow import Dataflow, dataset, sink, source

FIRST, SECOND = "scheduled__2013-01-01", "scheduled__2013-01-02"

DAGS = """
from datetime import datetime, UTC
from airflow.sdk import DAG, BaseOperator

for name in ("trips", "report"):
    with DAG(name, schedule=None, start_date=datetime(2013, 1, 1, tzinfo=UTC)):
        BaseOperator(task_id="read")
"""


@pytest.fixture(scope="module")
def town(enter_dags):
    """Trips are read by a report, and by a dataflow of a DAG that nobody may read; the second day is waited for."""
    from airflow.api.common.delete_dag import delete_dag

    file, _ = enter_dags("dags_of_data_sets.py", DAGS)
    with fast_folder() as folder:
        town = Neighbours(folder)
        town.add(trips())
        town.add(reader(zones=dataset("trips.zones")))
        town.add(reader("secret", zones=dataset("trips.zones")))
        for name in town.airflows:
            town.run(name, 1)
        town.airflows["report"].dag_run(2)
        town.go_on()
        town.folder = folder
        yield town
        town.ledger.close()
    file.unlink()
    for name in ("trips", "report"):
        delete_dag(name)  # other tests look at all DAGs


@pytest.fixture
def get(api_url, tokens, town, monkeypatch):
    monkeypatch.setenv("WEIR_STORE", str(town.folder / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{town.folder}/ledger.db")

    def ask(name, **asked):
        headers = {"Cookie": f"_token={tokens['reader']}"}
        answer = httpx.get(f"{api_url}/weir/{name}", params=asked, headers=headers, timeout=60)
        return answer.status_code, answer.text

    return ask


def test_all_data_sets_are_listed_and_drawn_with_who_reads_and_waits_and_nothing_of_other_dags(get):
    status, text = get("dataflows")
    assert status == 200
    assert "<svg" in text
    assert "trips.zones" in text
    assert "report@20130102T000000Z" in text
    assert "secret" not in text


def test_an_asset_that_a_source_names_is_drawn_where_no_dataflow_reads_another(get, tmp_path, monkeypatch):
    alone = Neighbours(tmp_path)
    alone.add(Dataflow("trips", [source("raw", "pipelines.trips:raw", asset="calls"), sink("raw", "zones")]))
    alone.run("trips", 1)
    alone.ledger.close()
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    _, text = get("dataflows")
    assert "asset:calls, of Airflow" in text
    assert "trips.zones is made of asset:calls" in text


def test_a_run_tells_what_its_inputs_read_and_what_they_wait_for(get):
    _, text = get("dags/report/run", run_id=FIRST)
    assert "read.zones" in text
    assert "trips@20130101T000000Z" in text
    _, text = get("dags/report/run", run_id=SECOND)
    assert "not decided yet" in text
    assert "trips@20130102T000000Z" in text


def test_a_run_tells_what_would_run_again_if_what_it_has_published_changed(get):
    status, text = get("dags/trips/run", run_id=FIRST, changed="zones")
    assert status == 200
    assert "report@20130101T000000Z" in text
    assert "secret" not in text
    assert "1 runs of dataflows that you may not read" in text
    assert "it changed?" in get("dags/trips/run", run_id=FIRST)[1]


def test_what_was_not_published_is_not_found(get):
    assert get("dags/trips/run", run_id=FIRST, changed="zone")[0] == 404


def test_the_results_of_a_run_name_its_readers_in_other_dataflows_whom_the_user_may_see(get):
    status, text = get("dags/trips/results", run_id=FIRST, dataflow="trips", stage="zones")
    assert status == 200
    assert "of report@20130101T000000Z" in text
    assert "and 1 more" in text
    assert "secret" not in text


@pytest.mark.parametrize(("name", "is_seen"), [("trips", True), ("secret", False)])
def test_a_shadow_is_shown_beside_its_dataflow_to_who_may_see_that(get, tmp_path, monkeypatch, name, is_seen):
    own = Neighbours(tmp_path)
    own.add(replace(trips(), name=name))
    own.add(replace(trips(), name="report", shadow_of=name))
    for day in (1, 2):
        own.content["report"] |= {"by_zone": "an edit"} if day == 2 else {}
        own.run(name, day)
        own.run("report", day)
    own.ledger.close()
    monkeypatch.setenv("WEIR_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{tmp_path}/ledger.db")
    status, text = get("dags/report/dataflow")
    assert status == 200
    assert (f"Beside {name}" in text) == is_seen
    told = f'<span class="bad">zones</span>: <code>weir compare {name}@20130102T000000Z report@20130102T000000Z</code>'
    assert (told in text) == is_seen
    assert text.count("zones</span>") == is_seen
