"""Whatever text comes in, readers give its rows or refuse it by their own error, and nothing else.

A few examples in each commit, and many of those without Spark in a soak. What a soak finds becomes an `@example`.
"""

from __future__ import annotations

import csv
import io
import json
import string
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.corpus.places import Written
from tests.weir_spark.sources.conftest import resolved

from weir.code.sql_rules import sql_problems
from weir.dataflow import files_source
from weir.dataflow.state_schema import declared_fields
from weir.errors import Misconfigured
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json, region_job_from_json
from weir.formats.manifest import Manifest
from weir.formats.region_job import RegionReport
from weir.formats.suite import suite_from_json

GOLDEN = Path(__file__).parents[1] / "golden"
MANY = settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

WORDS = st.sampled_from(
    [
        "select",
        "from",
        "where",
        "join",
        "table",
        "with",
        "as",
        "union",
        "all",
        "lateral",
        "view",
        "values",
        "(",
        ")",
        ",",
        ".",
        ";",
        "*",
        "=",
        "small",
        "prices",
        "id",
        "`small`",
        "`pri``ces`",
        "'text'",
        '"text"',
        "--",
        "/*",
        "*/",
        "/*+",
        "{{",
        "}}",
        "|",
        "|>",
        "${x}",
        "identifier(",
        "range(3)",
        "explode(",
        "interval",
        "1",
        "1.5e3",
        ":x",
        "?",
        "\n",
        "\\'",
        "a.b",
    ]
)
QUERIES = st.one_of(st.lists(WORDS, max_size=25).map(" ".join), st.text(max_size=60))
UNKNOWN = st.sampled_from(["small, prices", "small join prices", "(select * from prices)", "prices", "`prices` p"])
AROUND = st.sampled_from(
    [
        "select * from {}",
        "with t as (select * from {}) select * from t, small",
        "select id from small where id in (select id from {})",
        "select * from small union select * from {}",
        "from {} select 1",
        "select (select max(id) from {}) m from small",
    ]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\n"), min_size=1, max_size=12)


def any_query(text):
    assert all(isinstance(problem, str) for problem in sql_problems(text, ("small",), {}))


def query_of_another_table(around, table):
    assert sql_problems(around.format(table), ("small",), {}) != []


def any_schema(text):
    with suppress(Misconfigured):
        declared_fields(text)


def any_suite(data):
    with suppress(Misconfigured):
        suite_from_json("suite", data)


READERS = {
    "region-job-v1.json": region_job_from_json,
    "region-report-v1.json": partial(from_json, RegionReport),
    "manifest-v1.json": partial(from_json, Manifest),
    "checkpoint-v1.json": partial(from_json, Checkpoint),
}


def any_document(reader, name, at, instead):
    """A document one of whose bytes became others."""
    data = (GOLDEN / name).read_bytes()
    place = at % len(data)
    with suppress(Misconfigured):
        reader(data[:place] + instead + data[place + 1 :])


DOCUMENTS = st.tuples(st.sampled_from(sorted(READERS)), st.integers(0, 10**6), st.binary(max_size=3))
SCHEMAS = st.one_of(
    st.text(string.ascii_lowercase + " ,<>():`'", max_size=40),
    st.lists(
        st.sampled_from(
            [
                "a",
                "b",
                "INT",
                "BIGINT",
                "DECIMAL(",
                "10",
                ",",
                ")",
                "STRUCT<",
                ">",
                "ARRAY<",
                "MAP<",
                ":",
                "NOT",
                "NULL",
                "COMMENT",
                "'x'",
                "`",
            ]
        )
    ).map(" ".join),
)


@pytest.mark.parametrize("how", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.soak)])
class TestText:
    """What is read without Spark."""

    def test_a_query_has_problems_or_none(self, how):
        how(given(QUERIES)(example("select 'x")(example("/*")(any_query))))()

    def test_a_query_of_another_table_is_always_refused(self, how):
        how(given(AROUND, UNKNOWN)(query_of_another_table))()

    def test_a_schema_is_read_or_refused(self, how):
        how(given(SCHEMAS)(any_schema))()

    def test_a_suite_is_read_or_refused(self, how):
        how(
            given(
                st.one_of(
                    st.binary(max_size=40),
                    st.recursive(
                        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
                        lambda inner: (
                            st.lists(inner, max_size=3)
                            | st.dictionaries(
                                st.sampled_from(
                                    ["expectations", "type", "kwargs", "meta", "blames", "severity", "column"]
                                ),
                                inner,
                            )
                        ),
                    ).map(lambda found: json.dumps(found).encode()),
                )
            )(any_suite)
        )()

    def test_a_document_with_other_bytes_is_read_or_refused(self, how):
        def one(drawn):
            name, at, instead = drawn
            any_document(READERS[name], name, at, instead)

        how(given(DOCUMENTS)(one))()


def as_csv(rows):
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([("id", "name"), *rows])
    return out.getvalue().encode()


def as_json(rows):
    return "".join(json.dumps({"id": number, "name": name}) + "\n" for number, name in rows).encode()


@pytest.mark.spark
@pytest.mark.parametrize(("format_", "written"), [("csv", as_csv), ("json", as_json)])
def test_rows_that_python_writes_come_as_they_are(engine, jobs, store, code_of, tmp_path, format_, written):
    tables = []
    FEW(given(st.lists(TEXTS, min_size=1, max_size=4))(lambda names: tables.append(tuple(names))))()
    rows = [(number, name) for number, name in enumerate(name for names in tables for name in names)]
    (tmp_path / f"a.{format_}").write_bytes(written(rows))
    reader = {"header": "true"} if format_ == "csv" else {}
    given_source = partial(files_source, "rows", f"{tmp_path}/*", format=format_, schema="id BIGINT, name STRING")
    source = given_source(reader=reader)
    (split,) = resolved(source)
    _, code = code_of("def nothing(ctx):\n    pass\n")
    stage = jobs.stage("rows", source.function, jobs.output("rows"), is_source=True, split=split)
    (output,) = engine.run(jobs.region(stage, code=code), store).outputs
    found = sorted(tuple(row.values()) for row in Written(output, store).arrow().to_pylist())
    assert [pair for pair in zip(found, rows, strict=True) if pair[0] != pair[1]] == []
