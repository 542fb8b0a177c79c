"""Stages that are queries in SQL files, on a Connect server and in a driver of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from weir.code.archive import pack, top_level
from weir.code.version import code_version
from weir.errors import Misconfigured
from weir.formats.codec import region_failure_from_json, region_job_to_json, region_report_from_json
from weir.formats.region_job import CodeToRun
from weir.topology.partitions import PLAIN, Layout
from weir_spark.region import region

pytestmark = pytest.mark.spark

BY_KEY = Layout(("k",), 128)
NUMBERS = """
def numbers(ctx):
    return ctx.spark.range(10).selectExpr("id AS k", "id % 3 AS r")
"""
BOUND = """
-- {{ nothing }} here
SELECT k, '{' AS brace, {{ ctx.epoch }} AS epoch, {{ ctx.interval[0] }} AS begun, {{ ctx.interval[1] }} AS ended,
       {{ ctx.subtask }} + {{ ctx.parallelism }} AS subtasks, {{ ctx.parameters.text }} AS text
FROM numbers
WHERE array_contains({{ ctx.parameters.wanted }}, k) AND k < {{ctx.parameters.least}};
"""
PARAMETERS = {"text": "'; DROP TABLE x; --", "wanted": [1, 2, 9], "least": 3}


@pytest.fixture
def job_of(jobs, store, pipeline):
    """Describe a region of the source `numbers`, and of queries by the names of their stages."""
    module = pipeline(NUMBERS)

    def make(queries, **more):
        sql = {f"{name}.sql": text for name, text in queries.items()}
        functions = (f"{module}:numbers", *sql)
        archive = pack(top_level(functions), sql)
        path = f"flow/_code/{archive.fingerprint}.zip"
        store.create(path, archive.data)
        stages = [jobs.stage("numbers", functions[0], is_source=True)]
        for name in queries:
            read = {"numbers": stages[-1].name}
            stages.append(jobs.stage(name, f"{name}.sql", jobs.output(name), pipelined=read))
        version = code_version(archive.files, functions)
        code = CodeToRun(version=version, archive=archive.fingerprint, path=path)
        return jobs.region(*stages, code=code, **more)

    return make


@pytest.fixture
def rows(store):
    def read(output):
        files = [store.spark_url(f"{output.folder}/{each.name}").removeprefix("file://") for each in output.files]
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]

    return read


@pytest.fixture
def run(spark, store):
    return lambda job: region.run(job, spark, store, lambda line: None)


@pytest.fixture
def in_driver(store):
    """Run jobs as spark-submit does, one after the other in sessions of their own; the exit code of each."""

    def submit(*submitted):
        for job in submitted:
            store.create(f"{job.folder}/job.json", region_job_to_json(job))
        program = (
            "import sys; from weir_spark.transport.driver import main; print([main([job]) for job in sys.argv[1:]])"
        )
        command = [sys.executable, "-c", program, *(f"{store.url}/{job.folder}/job.json" for job in submitted)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        return json.loads(ended.stdout.splitlines()[-1])

    return submit


def test_values_are_bound_and_inputs_are_tables(run, job_of, rows):
    (output,) = run(job_of({"bound": BOUND}, parameters=PARAMETERS)).outputs
    found = sorted(rows(output), key=lambda row: row["k"])
    assert [row["k"] for row in found] == [1, 2]
    row = {name: str(value) for name, value in found[0].items()}
    assert (row["brace"], row["epoch"], row["subtasks"]) == ("{", "20130101T000000Z", "1")
    assert (row["begun"][:19], row["ended"][:19]) == ("2013-01-01 00:00:00", "2013-01-02 00:00:00")
    assert row["text"] == PARAMETERS["text"]


def test_each_query_of_a_region_has_its_own_inputs(run, job_of, rows):
    """The session knows no view of these names: the query before is planned again when the region is written."""
    queries = {
        "odd": "SELECT k FROM numbers WHERE k % 2 = 1",
        "doubled": "WITH numbers AS (SELECT 2 * k AS k FROM numbers) SELECT k FROM numbers ORDER BY k",
        "last": "SELECT max(k) AS k FROM `numbers`",
    }
    found = {output.stage: sorted(row["k"] for row in rows(output)) for output in run(job_of(queries)).outputs}
    assert found == {"odd": [1, 3, 5, 7, 9], "doubled": [2, 6, 10, 14, 18], "last": [18]}


def test_a_query_reads_its_key_groups_of_a_blocking_input(run, job_of, jobs, rows):
    job = job_of({"counted": "SELECT r, k FROM numbers"})
    (stage,) = [each for each in job.stages if each.name == "counted"]
    written = run(job_with(job, stage, outputs=(jobs.output("counted", BY_KEY),))).outputs
    seen = []
    for subtask, groups in enumerate([(0, 63), (64, 127)]):
        read = jobs.read("numbers", *written, key_groups=groups)
        one = {"inputs": (read,), "pipelined": {}, "subtask": subtask, "parallelism": 2}
        (output,) = run(job_with(job, stage, alone=True, outputs=(jobs.output("counted", PLAIN),), **one)).outputs
        seen += [row["k"] for row in rows(output)]
    assert sorted(seen) == list(range(10))


def job_with(job, stage, *, alone=False, **changes):
    from dataclasses import replace

    changed = replace(stage, **changes)
    stages = (changed,) if alone else tuple(changed if each is stage else each for each in job.stages)
    return replace(job, stages=stages)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT k,\n  kk\nFROM numbers", "stage bad: bad.sql, line 2: kk\n[UNRESOLVED_COLUMN"),
        ("SELECT k\nFORM numbers", "stage bad: bad.sql, line 2: FORM numbers\n[PARSE_SYNTAX_ERROR"),
        (
            "SELECT k + {{ ctx.parameters.none }} FROM numbers",
            "stage bad: bad.sql: line 1: the dataflow has no parameter",
        ),
        ("SELECT 1", "stage bad: bad.sql: it does not read the input 'numbers'"),
    ],
)
def test_a_query_that_spark_refuses_is_named_by_file_and_line(run, job_of, query, expected):
    with pytest.raises(Misconfigured) as found:
        run(job_of({"bad": query}))
    assert expected in str(found.value)
    assert "SubqueryAlias" not in str(found.value)


def test_a_driver_of_its_own_runs_the_same_queries(in_driver, job_of, rows, store):
    good, bad = job_of({"bound": BOUND}, parameters=PARAMETERS), job_of({"bad": "SELECT k,\n  kk\nFROM numbers"})
    assert in_driver(good, bad) == [0, 78]
    (output,) = region_report_from_json(store.read(good.report)).outputs
    assert sorted(row["k"] for row in rows(output)) == [1, 2]
    failure = region_failure_from_json(store.read(f"{bad.folder}/failure.json"))
    assert failure.message.startswith("stage bad: bad.sql, line 2: kk\n[UNRESOLVED_COLUMN")
