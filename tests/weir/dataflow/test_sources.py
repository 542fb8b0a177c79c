"""How ready-made sources are declared, and what is refused there."""

import subprocess
import sys

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import (
    Dataflow,
    delta,
    delta_source,
    files,
    files_source,
    iceberg_source,
    jdbc_source,
    postgres_source,
    sink,
    source,
)
from weir.dataflow.dataflow import stage_from_json, stage_to_json
from weir.errors import Misconfigured

QUERY = "select * from orders where at >= %(start)s and at < %(end)s"
SOURCES = {
    "files": files_source("orders", "/data/{start:%Y-%m-%d}/*.csv", format="csv", schema="id BIGINT", parallelism=2),
    "delta": delta_source("orders", "/lake/orders/", conn_id="lake", parallelism=2, deterministic=False),
    "iceberg": iceberg_source("orders", "catalog.db.orders"),
    "postgres": postgres_source("orders", "shop", QUERY),
    "jdbc": jdbc_source("orders", "shop", "orders", driver="org.h2.Driver", reader={"fetchsize": "1000"}),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_is_data_that_reads_back_equal(kind):
    stage = SOURCES[kind]
    flow = Dataflow("flow", [stage, sink(stage, "copy")])
    assert Dataflow.from_json(flow.to_json()).stages == flow.stages
    assert stage_from_json(stage_to_json(stage)) == stage
    assert (stage.function, stage.resolve) == (f"weir_spark.sources.{kind}:read", f"weir_spark.sources.{kind}:resolve")


def test_options_are_those_that_were_given():
    assert SOURCES["delta"].options == {"path": "/lake/orders", "conn_id": "lake"}
    assert SOURCES["postgres"].options == {"conn_id": "shop", "query": QUERY}
    assert not SOURCES["delta"].deterministic


def test_a_declaration_imports_no_library():
    told = "import sys, weir.dataflow as d; d.delta_source('o', '/l'); d.postgres_source('o', 'c', 'q')"
    heavy = "('pyspark', 'pyarrow', 'deltalake', 'pyiceberg', 'psycopg2', 'fsspec', 'weir_spark')"
    done = subprocess.run(
        [sys.executable, "-c", f"{told}; print([each for each in {heavy} if each in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("declare", "problem"),
    [
        (lambda: files_source("o", "data/*.parquet"), "path must be absolute"),
        (lambda: files_source("o", "/data/{day}/*.parquet"), r"has the placeholder \{day\}.*\{start:%Y-%m-%d\}"),
        (lambda: files_source("o", "/data/{start"), "is no text with placeholders"),
        (lambda: files_source("o", "/d/*", format="orc"), "format must be one of parquet, csv, json, not 'orc'"),
        (lambda: files_source("o", "/d/*", format="csv"), "schema= is needed"),
        (lambda: files_source("o", "/d/*", if_empty="empty"), "schema= is needed"),
        (lambda: files_source("o", "/d/*", if_empty="maybe"), "if_empty must be"),
        (lambda: files_source("o", "/d/*", schema="id BIGINT,"), "schema"),
        (lambda: files_source("o", "/d/*", schema="id BIGINT, tail VARCHAR(6)"), "'tail'"),
        (lambda: files_source("o", "/d/*", schema="legs ARRAY<STRUCT<tail: CHAR(6)>>"), "'legs'"),
        (lambda: delta_source("o", "lake/orders"), "path must be absolute"),
        (lambda: delta_source("o", "/l", partition={"day": "{day}"}), r"the placeholder \{day\}"),
        (lambda: iceberg_source("o", "c.d.t", partition={"day": 1}), r"partition\['day'\] must be a text"),
        (lambda: iceberg_source("o", "orders"), 'must be "catalog.namespace.table"'),
        (lambda: postgres_source("o", "c", "select '%' "), "any other percent sign is doubled"),
        (lambda: postgres_source("o", "c", "select %(day)s"), r"may have %\(start\)s and %\(end\)s"),
        (lambda: postgres_source("o", "", "select 1"), "conn_id is '': write the id of an Airflow"),
        (lambda: jdbc_source("o", "c", "select * from t where at > '{begin}'"), r"the placeholder \{begin\}"),
    ],
)
def test_a_wrong_declaration_says_what_to_write(declare, problem):
    with pytest.raises(Misconfigured, match=problem):
        declare()


@pytest.mark.parametrize("kind", ["DECIMAL(10,2)", "numeric", "DOUBLE", "REAL", "ARRAY<STRUCT<a: FLOAT>>"])
@pytest.mark.parametrize("locale", ["de-DE", "fr"])
def test_numbers_of_another_language_are_read_as_texts(kind, locale):
    """Spark takes 1.234 for 1234 as DECIMAL, and for 1.234 as DOUBLE."""
    given = {"format": "json", "reader": {"Locale": locale}}
    with pytest.raises(Misconfigured, match="STRING for price "):
        files_source("prices", "/in/*", schema=f"price {kind}, id BIGINT", **given)
    assert files_source("prices", "/in/*", schema="price STRING, id BIGINT, day DATE", **given)
    assert files_source("prices", "/in/*", schema=f"price {kind}", format="json", reader={"locale": "en_GB"})


@pytest.mark.parametrize(
    ("stage", "problem"),
    [
        (source("o", "m:f", options={"a": 1}), of_kind("dataflow.options_without_resolve")),
        (source("o", "m:f", resolve="m:r", options={"a": {1}}), of_kind("dataflow.options_malformed")),
        (source("o", "m:f", resolve="m:r", options={"password": "hunter22"}), of_kind("dataflow.invalid")),
        (jdbc_source("o", "c", "t", reader={"password": "hunter22"}), of_kind("dataflow.invalid")),
    ],
)
def test_options_are_for_the_resolver_and_have_no_secrets(stage, problem):
    with pytest.raises(Misconfigured, check=problem) as raised:
        Dataflow("flow", [stage, sink(stage, "copy")])
    assert "hunter22" not in str(raised.value)


@pytest.mark.parametrize("path", ["/a/50%20off", "/a/br[1]", "/a/x^", "/a/x|y", "/a/back\\slash", "/a/tab\tx"])
def test_a_path_at_which_delta_rs_would_look_elsewhere_is_refused(path):
    for declare in (lambda: delta_source("orders", path), lambda: delta(path)):
        with pytest.raises(Misconfigured, check=of_kind("dataflow.delta_path_misread")):
            declare()


@pytest.mark.parametrize("path", ["s3://b/50%20off/t", "s3://b/h#1/t", "s3://b/q?x/t", "file:///a%20b/t"])
def test_a_url_that_means_another_table_is_refused(path):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.delta_path_misread")):
        delta_source("orders", path)


@pytest.mark.parametrize("path", ["/a/my lake/50% off/h#1/q?x/a+b/at:10/ä日本/{x}", "s3://b/my lake/ä/at:10/a+b"])
def test_other_awkward_names_are_taken(path):
    assert delta_source("orders", path).options["path"] == path


def test_a_folder_has_one_spelling_and_no_name_that_is_too_long():
    assert delta("/a//b///").options["path"] == delta("/a/b").options["path"] == "/a/b"
    assert files("/a//b/").options["path"] == "/a/b"
    assert files("s3://b/x/").options["path"] == "s3://b/x"
    for declare, name in ((files, "x" * 246), (delta, "ä" * 128)):
        with pytest.raises(Misconfigured, check=of_kind("dataflow.target_path_too_long")):
            declare(f"/a/{name}")
