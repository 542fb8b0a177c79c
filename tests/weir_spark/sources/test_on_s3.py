"""Files and tables in an S3 as sources: listed by Weir's own clients, read by Spark's S3A connector."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog
from tests.messages.kinds import of_kind
from tests.servers.s3 import client_of
from tests.weir_spark.s3a import BUCKET
from tests.weir_spark.sources.conftest import Attempt, looked_up, resolved, resolved_range

from weir.connections import Connection, S3Account
from weir.dataflow import delta_source, files_source, iceberg_source
from weir.errors import Misconfigured
from weir.store.store import Store
from weir_spark.session import active
from weir_spark.sources.accounts import delta_options

pytestmark = [pytest.mark.spark, pytest.mark.soak]

AWKWARD = "a [b] {c}/d=e f%20+&'ü"
"""A folder with what S3, Hadoop and Spark escape, each in its own way."""


@pytest.fixture
def lake(s3_server):
    """The connection of sources to the S3."""
    given = s3_server.storage_options
    extra = {"endpoint_url": given["endpoint_url"], "region_name": "us-east-1"}
    return Connection(id="lake", kind="aws", login=given["key"], password=given["secret"], extra=extra)


@pytest.fixture
def folder():
    """A prefix for this test alone."""
    return f"{uuid.uuid4().hex}/{AWKWARD}"


@pytest.fixture
def table_url():
    """Where a Delta table may be: delta-rs takes some names for others, which Weir refuses."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/a {{b}}/d=e f+&'ü"


@pytest.fixture
def attempt(s3a_session, s3_server):
    store = Store.open(f"s3://{BUCKET}/{uuid.uuid4().hex}", s3_server.storage_options)
    with active(s3a_session):
        yield Attempt(s3a_session, store, [])


@pytest.fixture
def put(s3_server):
    client = client_of(s3_server.url)

    def object_of(key, content):
        body = content
        if isinstance(content, pa.Table):
            sink = pa.BufferOutputStream()
            pq.write_table(content, sink)
            body = sink.getvalue().to_pybytes()
        client.put_object(Bucket=BUCKET, Key=key, Body=body)

    return object_of


def table_of(*values, **more):
    return pa.table({"v": pa.array(values, pa.int64()), **more})


def pattern_of(folder):
    return "".join({"[": "[[]", "{": "{{", "}": "}}"}.get(each, each) for each in folder)


def test_lines_and_parquet_of_awkward_names_are_read_with_the_columns_of_their_folders(attempt, put, lake, folder):
    put(f"{folder}/day=2013-01-01/b +%2F.csv", b"1,one\n2,two\n")
    put(f"{folder}/day=2013-01-02/c.csv", b"3,three\n")
    csv = files_source(
        "orders",
        f"s3://{BUCKET}/{pattern_of(folder)}/day=*/*.csv",
        format="csv",
        schema="id BIGINT, name STRING, day DATE",
        conn_id="lake",
        parallelism=2,
    )
    rows = attempt.rows(csv, resolved(csv, lake), lake)
    assert [(*row[:2], str(row[2])) for row in rows] == [
        (1, "one", "2013-01-01"),
        (2, "two", "2013-01-01"),
        (3, "three", "2013-01-02"),
    ]
    put(f"{folder}/p/x=1/one.parquet", table_of(1))
    put(f"{folder}/p/x=2/two.parquet", table_of(2))
    parquet = files_source("orders", f"s3a://{BUCKET}/{pattern_of(folder)}/p/*/*.parquet", conn_id="lake")
    assert attempt.rows(parquet, resolved(parquet, lake), lake) == [(1, 1), (2, 2)]


def test_an_object_that_was_written_anew_is_refused_and_what_is_new_is_read_once(attempt, put, lake, folder):
    more = {"format": "csv", "schema": "id BIGINT", "conn_id": "lake"}
    new = files_source("orders", f"s3://{BUCKET}/{pattern_of(folder)}/*.csv", read="new", **more)
    put(f"{folder}/a.csv", b"1\n")
    first = resolved_range(new, lake)
    put(f"{folder}/b.csv", b"2\n")
    second = resolved_range(new, lake, previous=first)
    assert [attempt.rows(new, each.splits, lake) for each in (first, second)] == [[(1,)], [(2,)]]
    put(f"{folder}/b.csv", b"3\n")
    with pytest.raises(Misconfigured, check=of_kind("sources.file_changed")):
        attempt.rows(new, second.splits, lake)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_version_of_a_delta_table_is_read_though_the_table_has_moved_on(attempt, lake, table_url, scheme):
    url = table_url.replace("s3", scheme, 1)
    options = delta_options(url, "lake", looked_up(lake))
    write_deltalake(url, table_of(1, 2, s=["a b/c%20+", None]), partition_by=["s"], storage_options=options)
    orders = delta_source("orders", url, conn_id="lake", parallelism=2)
    splits = resolved(orders, lake)
    write_deltalake(url, table_of(3, s=["x"]), mode="overwrite", storage_options=options)
    assert attempt.rows(orders, splits, lake) == [(1, "a b/c%20+"), (2, None)]
    assert attempt.rows(orders, resolved(orders, lake), lake) == [(3, "x")]


def test_the_commits_of_a_delta_table_are_read_once(attempt, lake, table_url):
    options = delta_options(table_url, "lake", looked_up(lake))
    orders = delta_source("orders", table_url, conn_id="lake", read="new")
    write_deltalake(table_url, table_of(1), storage_options=options)
    first = resolved_range(orders, lake)
    write_deltalake(table_url, table_of(2), mode="append", storage_options=options)
    second = resolved_range(orders, lake, previous=first)
    assert [attempt.rows(orders, each.splits, lake) for each in (first, second)] == [[(1,)], [(2,)]]


def test_a_snapshot_of_an_iceberg_table_is_read_though_the_table_has_moved_on(attempt, lake, folder, tmp_path):
    account = S3Account.of_connection(lake)
    extra = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{BUCKET}/{folder.partition('/')[0]}",
        "s3.endpoint": account.endpoint,
        "s3.access-key-id": account.key,
        "s3.secret-access-key": account.secret,
        "s3.region": account.region,
    }
    catalog = load_catalog("lake", **extra)
    catalog.create_namespace("db")
    table = catalog.create_table("db.orders", schema=table_of(1, s=["a"]).schema)
    with table.update_spec() as spec:
        spec.add_identity("s")
    table.append(table_of(1, 2, s=["a b/c%20+", None]))
    connection = Connection(id="lake", kind="iceberg", extra=extra)
    orders = iceberg_source("orders", "lake.db.orders", parallelism=2)
    splits = resolved(orders, connection)
    table.overwrite(table_of(3, s=["x"]))
    assert attempt.rows(orders, splits, connection) == [(1, "a b/c%20+"), (2, None)]
    assert attempt.rows(orders, resolved(orders, connection), connection) == [(3, "x")]
