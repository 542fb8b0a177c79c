from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import weir_spark
from weir.dataflow import keyed_state
from weir.formats.codec import from_json, to_json
from weir.formats.region_job import InputToRead, RegionReport, StateToRead
from weir.topology.partitions import Layout

pytestmark = pytest.mark.spark

RUN_REGION = Path(weir_spark.__file__).parents[1] / "run_region.py"
TEXT = "def numbers(ctx):\n    return ctx.spark.range(10)\n"


STATE = """
def count(key, rows, state):
    state.reducing("n", lambda one, other: one + other).add(len(rows))
    return key[0], state.value("n").get()

def tails(ctx, history, known):
    flights = ctx.spark.sql("select string(id % 3) tail from range(10)")
    history.upsert(flights.groupBy("tail").count().selectExpr("tail", "count n"))
    return known.per_key(flights, count, "tail STRING, n BIGINT")
"""
BY_TAIL = Layout(("tail",), 128)
EMPTY = StateToRead(
    state=keyed_state("history", key="tail", schema="tail STRING, n BIGINT"),
    files=(),
    tallies=(),
    updated=0,
    expired_until=None,
    is_full=False,
    epoch="20130101T000000Z",
)


@pytest.fixture
def run_region(store, jobs, tmp_path, monkeypatch):
    """Run the program on a job with one stage, in a process of its own; the report where it wrote one."""
    modules = tmp_path / "of the task"
    modules.mkdir()
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)

    def run(text: str, *arguments: str, expected: int = 0, stages=None):
        (modules / "program_pipeline.py").write_text(text)
        job = jobs.region(*(stages or [jobs.stage("numbers", "program_pipeline:numbers", jobs.output("numbers"))]))
        store.create("job.json", to_json(job))
        done = subprocess.run(
            [sys.executable, str(RUN_REGION), f"{store.url}/job.json", *arguments],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stderr if expected else from_json(RegionReport, store.read(job.report))

    return run


def test_it_runs_a_region_on_a_connect_server(server, run_region) -> None:
    assert run_region(TEXT, "--remote", server.url).outputs[0].digest.rows == 10


def test_it_keeps_state_in_a_session_of_its_own_with_the_same_digests(server, run_region, jobs, store) -> None:
    def stages():
        states = ("history", "known")
        read = [
            InputToRead(
                argument=each,
                layout=BY_TAIL,
                spark_schema="",
                partitions=(),
                key_groups=(0, 127),
                declared_schema=EMPTY.state.schema,
                state=EMPTY,
            )
            for each in states
        ]
        keeper = jobs.stage("tails", "program_pipeline:tails", jobs.output("tails"), is_source=True, inputs=tuple(read))
        more = {"pipelined": {"tails": "tails"}, "keeps_state_of": "tails"}
        return [keeper, *(jobs.stage(each, "", jobs.output(each, BY_TAIL), **more) for each in states)]

    own = run_region(STATE, stages=stages())
    store.delete("job.json")
    remote = run_region(STATE, "--remote", server.url, stages=stages())
    assert [each.digest for each in own.outputs] == [each.digest for each in remote.outputs]
    assert [each.digest.rows for each in own.outputs] == [3, 3, 3]
    assert len({str(each.digest) for each in own.outputs[1:]}) == 1


def test_a_version_that_is_gone_is_named_in_a_session_of_its_own_too(ends_in_driver, jobs, tmp_path) -> None:
    schema = {"type": "struct", "fields": [{"name": "v", "type": "long", "nullable": True, "metadata": {}}]}
    files = [{"values": {}, "files": [f"file://{tmp_path}/gone.parquet"]}]
    split = {"table": "/lake/orders", "version": 3, "schema": schema, "groups": files}
    stage = jobs.stage("orders", "weir_spark.sources.delta:read", jobs.output("orders"), is_source=True, split=split)
    (failure,) = ends_in_driver(jobs.region(stage))
    assert failure.error == "Misconfigured"
    assert "version 3 of the Delta table /lake/orders cannot be read any more" in failure.message


def test_its_exit_code_is_78_where_a_person_has_to_change_something(server, run_region) -> None:
    message = run_region("def other(ctx):\n    pass\n", "--remote", server.url, expected=78)
    assert "Misconfigured: stage numbers: the module program_pipeline has no function 'numbers'" in message


def test_a_plan_that_spark_refuses_in_a_session_of_its_own_is_told_with_the_line(
    ends_in_driver, jobs, pipeline
) -> None:
    module = pipeline("def numbers(ctx):\n    return ctx.spark.range(10).select('kilometres')\n")
    (failure,) = ends_in_driver(jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers"))))
    assert failure.error == "Misconfigured"
    assert failure.message.startswith("stage numbers: Spark refuses its plan: [UNRESOLVED_COLUMN.WITH_SUGGESTION]")
    assert f"{module}.py, line 2: return ctx.spark.range(10).select('kilometres')" in failure.message


def test_its_exit_code_is_75_where_another_try_may_help(run_region) -> None:
    assert "EngineLost" in run_region(TEXT, "--remote", "sc://127.0.0.1:1", "--retries", "2", expected=75)
