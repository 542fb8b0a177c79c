"""What docs/check.md shows is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from weir.dataflow import Dataflow, Stage, blocking, files_source, keyed_state, sink, source
from weir.errors import Misconfigured

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "check.md").read_text()
PICTURE = re.findall(r"(?s)```\n\$ weir check dags\n(.*?)```", GUIDE)[0]
SHOWN = re.findall(r"(?m)^\| (.+?) \| `(.+)` \|$", GUIDE.partition("## What parsing finds")[2])
OTHERS = [
    (
        'a group in a `DAG(schedule="@daily")`',
        (
            "the schedule of the DAG 'etl' gives its runs no data interval ...: write "
            'schedule=CronDataIntervalTimetable("@daily", timezone="UTC") to the DAG'
        ),
    ),
    (
        '`Stage("b", "m:b", blocking(a))`',
        'stage \'b\': inputs must be a list or a dict of exchanges, not blocking("a"): write inputs=[blocking("a")]',
    ),
    (
        '`source("a", clean)`',
        'function must look like "module:function" (write "pipelines.trips:clean"), not the function clean',
    ),
    (
        '`sink(a, "a")`',
        'the sink \'a\' has the name of a stage: give the data set another name, as in sink("a", "a_published")',
    ),
    (
        '`files_source("a", "/data/{{ ds }}")`',
        "has a template of Airflow, {{ ds }}, which is not rendered here: write {start:%Y-%m-%d}",
    ),
]
ROWS = SHOWN + OTHERS
START = datetime(2025, 1, 1, tzinfo=UTC)

a = source("a", "m:a")


def clean(ctx, a):
    """A stage function that is given as an object."""


clean.__module__ = "pipelines.trips"


def dag(**arguments):
    from weir_airflow import dataflow_dag

    flow = Dataflow("trips", [a, sink(a, "raw")])
    return dataflow_dag(flow, **{"schedule": "@daily", "start_date": START, **arguments})


def group():
    from airflow.sdk import DAG

    from weir_airflow import dataflow_group

    with DAG("etl", schedule="@daily", start_date=START):
        dataflow_group(Dataflow("trips", [a, sink(a, "raw")]))


def undivided_state():
    state = keyed_state("seen", key="tail", schema="tail STRING")
    b = Stage("b", "m:b", [blocking(a, broadcast=True)], parallelism=2, state=state)
    return Dataflow("trips", [a, b, sink(b, "raw")])


MISTAKES = {
    '`start_date="2025-01-01"`': lambda: dag(start_date="2025-01-01"),
    '`schedule="@dayly"`': lambda: dag(schedule="@dayly"),
    'a group in a `DAG(schedule="@daily")`': group,
    '`blocking(a, key="k")`': lambda: blocking(a, key="k"),
    '`Stage("b", "m:b", blocking(a))`': lambda: Stage("b", "m:b", blocking(a)),
    '`source("a", clean)`': lambda: Dataflow("trips", [source("a", clean), sink("a", "raw")]),
    '`sink(a, "a")`': lambda: Dataflow("trips", [a, sink(a, "a")]),
    '`files_source("a", "/data/{{ ds }}")`': lambda: files_source("a", "/data/{{ ds }}"),
    "a keyed state of several subtasks whose stage reads no input by columns": undivided_state,
    '`schema="tailnum STRING, flights BIGNT"`': lambda: files_source("a", "/a", schema="tailnum STRING, flights BIGNT"),
    '`Stage("b", "p:b", [...], paralelism=4)`': lambda: Stage("b", "p:b", [blocking(a)], paralelism=4),
}


def test_every_mistake_of_the_table_is_made_here():
    assert len(SHOWN) == 6
    assert {mistake for mistake, _ in ROWS} == set(MISTAKES)


@pytest.mark.parametrize(("mistake", "answer"), ROWS)
def test_a_mistake_has_its_answer(mistake, answer):
    with pytest.raises(Misconfigured) as error:
        MISTAKES[mistake]()
    for part in answer.split(" ..."):
        assert part in str(error.value)


def test_the_picture_is_what_the_command_prints(tmp_path):
    """Of the README's pipeline, with a wrong letter in the name of a function."""
    functions, dag_file = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "README.md").read_text())
    for folder in ("dags", "pipelines"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    (tmp_path / "pipelines" / "trips.py").write_text(functions)
    (tmp_path / "dags" / "trips.py").write_text(dag_file.replace("trips:clean", "trips:claen"))
    path = os.pathsep.join([str(tmp_path), *(str(ROOT / each) for each in ("include", "plugins"))])
    done = subprocess.run(
        [sys.executable, "-m", "weir.cli.main", "check", "dags"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "AIRFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.replace(f"{tmp_path}/", "") == PICTURE
