"""Stages that are queries in SQL files, on a Connect server and in a driver of its own."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest

from weir.code.archive import pack, top_level
from weir.code.version import code_version
from weir.errors import Misconfigured
from weir.formats.codec import from_json
from weir.formats.region_failure import RegionFailure
from weir.formats.region_job import CodeToRun, RegionReport
from weir.topology.partitions import PLAIN, Layout
from weir_spark.region import region
from weir_spark.region.context import StageContext
from weir_spark.region.sql import rows_of_query

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


ALL_TYPES = """
    1 AS k, 1Y AS tiny, 1S AS short, 1L AS long, 1.5F AS float, 1.5D AS double, 1.50BD AS decimal, 'a' AS text,
    X'00' AS binary, true AS boolean, DATE'2020-01-01' AS day, TIMESTAMP'2020-01-01' AS at,
    TIMESTAMP_NTZ'2020-01-01' AS local, INTERVAL 1 DAY AS days, INTERVAL 1 MONTH AS months, array(1) AS list,
    map('a', named_struct('b c', 1)) AS map,
    named_struct('x', 1, 'y.z', array('a')) AS struct, parse_json('1') AS variant, null AS nothing
"""
READ_INPUTS_ONLY = {
    "all": "SELECT * FROM numbers",
    "joins": "SELECT n.k, (SELECT max(k) FROM numbers) AS m FROM numbers n, range(3) r, sql_keywords(), LATERAL "
    "(SELECT n.k + 1 AS l) JOIN VALUES (1, now()) AS v(a, b) "
    "LATERAL VIEW explode(n.list) t AS x WHERE EXISTS (TABLE numbers)",
    "pipe": "WITH RECURSIVE t(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM t WHERE n < 5) FROM identifier('numbers') "
    "|> AGGREGATE max(k) AS k GROUP BY text |> UNION (SELECT 'a', n FROM t) |> PIVOT (max(text) FOR k IN (1))",
    "texts": "SELECT 'a\n  b\nRelation c' AS a, plus_one(k) AS k FROM numbers -- end \\",
}
READ_MORE = {
    "identifier": ("SELECT k FROM numbers, identifier('pri' || 'ces')", "prices"),
    "path": ("SELECT k FROM numbers, text.`{folder}`", "files as text"),
    "view": ("SELECT k FROM numbers, seen", "seen"),
    "view of the catalog": ("SELECT k FROM numbers, kept", "kept"),
    "hidden": ("SELECT k FROM (WITH prices AS (TABLE numbers) TABLE prices), prices", "prices"),
    "function": ("SELECT highest() AS k FROM numbers", "prices"),
    "variable": ("SELECT k + seen_last AS k FROM numbers", "seen_last"),
}
CATALOG = (
    "CREATE TABLE prices (id BIGINT) USING parquet LOCATION '{folder}'",
    "CREATE TEMPORARY VIEW seen AS SELECT 1 AS a",
    "CREATE VIEW kept AS SELECT 1 AS a",
    "CREATE FUNCTION plus_one(x INT) RETURNS INT RETURN x + 1",
    "CREATE FUNCTION highest() RETURNS INT RETURN (SELECT max(id) FROM prices)",
    "DECLARE VARIABLE seen_last INT DEFAULT 5",
)
DROP = ("TABLE prices", "VIEW kept", "FUNCTION plus_one", "FUNCTION highest")


def answers(session, folder):
    """What becomes of each query in a session, by its engine alone: the number of its columns, or the refusal."""
    day = datetime(2013, 1, 1, tzinfo=UTC)
    context = StageContext(
        epoch="20130101T000000Z", interval=(day, day), subtask=0, parallelism=1, parameters={}, spark=session
    )
    inputs = {"numbers": session.sql(f"SELECT {ALL_TYPES}")}
    inputs["wide"] = session.range(1).selectExpr(*(f"id AS c{place}" for place in range(300)))
    session.conf.set("spark.sql.maxPlanStringLength", "300")
    folder.mkdir()
    found, notes, seen = {}, [], {}
    for statement in CATALOG:
        session.sql(statement.format(folder=folder))
    try:
        for name, query in {**READ_INPUTS_ONLY, **{f"more: {k}": q for k, (q, _) in READ_MORE.items()}}.items():
            try:
                text = query.replace("{folder}", str(folder))
                looked_at = seen[name] = set()
                rows = rows_of_query("stage s", "s.sql", text, context, inputs, notes.append, looked_at)
                found[name] = len(rows.columns)
            except Misconfigured as error:
                found[name] = str(error)
    finally:
        for each in DROP:
            session.sql(f"DROP {each}")
    shown = {name: sorted(looked_at) for name, looked_at in seen.items()}
    return {**found, "notes": notes, "seen": shown, "length": session.conf.get("spark.sql.maxPlanStringLength")}


def assert_only_inputs_are_read(found):
    assert {name: found[name] for name in READ_INPUTS_ONLY if not isinstance(found[name], int)} == {}
    for name, (_, read) in READ_MORE.items():
        assert read in str(found[f"more: {name}"])
        assert "stage s: s.sql" in found[f"more: {name}"]
    assert found["length"] == "300"
    assert len(found["notes"]) == 1
    assert "plus_one" in found["notes"][0]
    assert {name for name, looked_at in found["seen"].items() if "catalog" in looked_at} == {
        name for name, query in READ_INPUTS_ONLY.items() if "plus_one" in query
    }


def test_a_query_that_reads_more_than_its_inputs_is_refused_before_a_row_is_read(session_of, tmp_path):
    session = session_of()
    assert_only_inputs_are_read(answers(session, tmp_path / "prices"))


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


ANSWERS = """
from pathlib import Path
from tests.weir_spark.region.test_sql import answers
from weir_spark.program import session_of_program
from weir_spark.session import configure

def answer(folder):
    session = session_of_program("sql", None, {})
    configure(session, {})
    try:
        return answers(session, Path(folder))
    finally:
        session.stop()
"""


def test_a_driver_of_its_own_runs_the_same_queries(codes_in_driver, drivers, job_of, rows, store, tmp_path):
    good, bad = job_of({"bound": BOUND}, parameters=PARAMETERS), job_of({"bad": "SELECT k,\n  kk\nFROM numbers"})
    assert codes_in_driver(good, bad) == [0, 78]
    assert_only_inputs_are_read(drivers.run(ANSWERS, str(tmp_path / "prices")))
    (output,) = from_json(RegionReport, store.read(good.report)).outputs
    assert sorted(row["k"] for row in rows(output)) == [1, 2]
    failure = from_json(RegionFailure, store.read(f"{bad.folder}/failure.json"))
    assert failure.message.startswith("stage bad: bad.sql, line 2: kk\n[UNRESOLVED_COLUMN")
