"""The button "Data quality": on each task whose rows are checked, and there alone."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import pytest

FLOW = """
from datetime import datetime, UTC
from weir.dataflow import Dataflow, Stage, blocking, expectations, keyed_state, sink, source
from weir_airflow import dataflow_dag

raw = source("raw", "m:raw")
clean = Stage("clean", "m:clean", [blocking(raw)], quality=expectations("clean_rows"))
parts = Stage("parts", "m:parts", [blocking(clean, by="k")], parallelism=3, quality=expectations("parts"))
known = keyed_state("known", key="k", schema="k BIGINT", grows=True)
seen = Stage("seen", "m:seen", [blocking(parts, by="k")], state=known)
flow = Dataflow("gated", [raw, clean, parts, seen, sink(seen, "rows")])
dataflow_dag(flow, schedule="@daily", start_date=datetime(2013, 1, 1, tzinfo=UTC))
"""


@pytest.fixture(scope="module")
def dag(airflow_home, tmp_path_factory):
    from airflow.dag_processing.dagbag import DagBag

    folder = tmp_path_factory.mktemp("dags")
    (folder / "gated.py").write_text(FLOW)
    bag = DagBag(str(folder))
    assert not bag.import_errors
    return bag.dags["gated"]


def test_a_task_with_checks_has_the_button_and_another_has_not(dag):
    links = {task.task_id: [link.name for link in task.operator_extra_links] for task in dag.tasks}
    with_button = {task for task, names in links.items() if names == ["Data quality"]}
    assert with_button == {"clean", "parts", "seen-rows"}
    assert links["raw"] == links["weir_close"] == []


def test_a_mapped_task_has_it_when_it_runs_only_if_its_region_has_checks(dag):
    parts = dag.task_dict["parts"]
    assert parts.is_mapped
    running = parts.unmap({"subtask": 1})
    assert [link.name for link in running.operator_extra_links] == ["Data quality"]


def test_airflow_knows_the_button_of_a_serialized_dag(dag, monkeypatch):
    from airflow.serialization.serialized_objects import DagSerialization

    # Airflow's own clears read DAGs without links, and leave that setting behind in the process.
    monkeypatch.setattr(DagSerialization, "_load_operator_extra_links", True)
    served = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert {task.task_id for task in served.tasks if "Data quality" in task.extra_links} == {
        "clean",
        "parts",
        "seen-rows",
    }


@pytest.mark.parametrize(("base", "expected"), [("https://airflow.example/prefix/", "/prefix/weir"), ("", "/weir")])
def test_it_leads_to_the_task_instance_whatever_the_names_are(monkeypatch, base, expected):
    from weir_airflow.api.quality_link import quality_address

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base)
    run_id = f"scheduled__{datetime(2013, 1, 1, tzinfo=UTC).isoformat()}"
    found = urlsplit(quality_address("a dag/b", run_id, "group.parts", 1))
    assert found.path == f"{expected}/dags/a%20dag%2Fb/quality"
    assert parse_qs(found.query) == {"run_id": [run_id], "task_id": ["group.parts"], "map_index": ["1"]}
    assert parse_qs(urlsplit(quality_address("d", run_id, "t", None)).query)["map_index"] == ["-1"]
