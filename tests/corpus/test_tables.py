"""What a stranger's tables have comes as it is, or is refused in one try."""

from __future__ import annotations

from urllib.parse import quote

import psycopg2
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog
from tests.corpus.engines import Refused, on_both
from tests.corpus.places import Written
from tests.corpus.tables import PARTITIONS, SELECTED
from tests.weir_spark.sources.conftest import resolved

from weir.connections import Connection
from weir.dataflow import delta_source, iceberg_source, postgres_source
from weir.errors import Misconfigured

pytestmark = pytest.mark.spark

READ = [each for each in SELECTED if each.rows is not None]
MODULE = "def nothing(ctx):\n    pass\n"


@pytest.fixture
def database(postgres, monkeypatch):
    """A database that both kinds of sessions find by the environment."""
    url = postgres.url("strangers").replace("+psycopg2", "")
    login = psycopg2.extensions.parse_dsn(url)["user"]
    found = f"postgres://{login}:{quote(postgres.password)}@127.0.0.1:{postgres.port}/strangers"
    monkeypatch.setenv("AIRFLOW_CONN_STRANGERS", found)


def selected(jobs, at, case):
    source = postgres_source(f"case_{at}", "strangers", case.query)
    (split,) = resolved(source)
    return jobs.stage(f"case_{at}", source.function, jobs.output(f"case_{at}"), is_source=True, split=split)


def rows_of(report, store):
    return [[tuple(row.values()) for row in Written(each, store).arrow().to_pylist()] for each in report.outputs]


def test_rows_of_postgresql_come_as_they_are(engine, jobs, store, code_of, database):
    _, code = code_of(MODULE)
    job = jobs.region(*(selected(jobs, at, case) for at, case in enumerate(READ)), code=code)
    found = dict(zip((case.query for case in READ), rows_of(engine.run(job, store), store), strict=True))
    right = {case.query: case.rows for case in READ}
    assert {query: (found[query], right[query]) for query in right if found[query] != right[query]} == {}


@on_both([case for case in SELECTED if case.rows is None], lambda case: case.query)
def test_rows_of_postgresql_that_spark_cannot_have_are_refused_in_one_try(engine, jobs, store, code_of, database, case):
    _, code = code_of(MODULE)
    with pytest.raises((Misconfigured, Refused)) as refused:
        engine.run(jobs.region(selected(jobs, 0, case), code=code), store)
    assert getattr(refused.value, "kind", "Misconfigured") == "Misconfigured"
    assert case.names in str(refused.value)


def rows_by(case):
    """A table of the partitions of a case: the column `p` tells the value by its place, whatever becomes of `v`."""
    return pa.table({"p": list(range(len(case.values))), "v": pa.array(case.values, case.type)})


def of_delta(folder, case):
    write_deltalake(folder / "t", rows_by(case), partition_by=["v"])
    return resolved(delta_source("rows", str(folder / "t"), partition={"v": case.declared}))


def of_iceberg(folder, case):
    extra = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}
    catalog, rows = load_catalog("lake", **extra), rows_by(case)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", schema=rows.schema)
    with table.update_spec() as spec:
        spec.add_identity("v")
    table.append(rows)
    lake = Connection(id="lake", kind="iceberg", extra=extra)
    return resolved(iceberg_source("rows", "lake.db.t", partition={"v": case.declared}), lake)


@pytest.mark.parametrize("splits_of", [of_delta, of_iceberg])
@pytest.mark.parametrize("case", PARTITIONS, ids=lambda case: f"{case.type} {case.declared}")
def test_a_partition_is_known_by_its_value(tmp_path, splits_of, case):
    if case.found is None:
        with pytest.raises(Misconfigured):
            splits_of(tmp_path, case)
        return
    (split,) = splits_of(tmp_path, case)
    files = [url for group in split["groups"] for url in group["files"]]
    assert len(files) == len(case.found)
