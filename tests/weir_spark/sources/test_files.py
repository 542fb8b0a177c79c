"""Files as a source: a listing that is fixed once a run."""

import gzip
import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.messages.kinds import of_kind
from tests.servers.s3 import client_of, options_of, running_s3
from tests.weir_spark.sources.conftest import context_of, looked_up, resolved

from weir.connections import Connection
from weir.dataflow import Resolved, files_source
from weir.errors import Misconfigured, Retryable, WeirError
from weir.execution.late_files import late_files
from weir_spark.sources import files, listing
from weir_spark.sources.accounts import fsspec_options
from weir_spark.transport.failures import of_code_or_rows, unreadable_source

CSV = {"format": "csv", "schema": "id BIGINT, name STRING"}


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data [of tests]"


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def source_of(data, pattern="*.csv", **more):
    folder = str(data).replace("[", "[[]")
    return files_source("orders", f"{folder}/{pattern}", **{**CSV, **more})


def names(split):
    return [Path(each["path"]).name for each in split["files"]]


def test_the_files_of_the_epoch_are_listed_and_divided_by_size(data):
    for name, size in (("a", 10), ("b", 10), ("c", 20)):
        put(data / f"2013-01-01/{name}.csv", "x" * size)
    put(data / "2013-01-02/d.csv", "x")
    put(data / "2013-01-01/b.txt", "x")
    first, second = resolved(source_of(data, "{start:%Y-%m-%d}/*.csv", parallelism=2))
    assert (names(first), names(second)) == (["a.csv", "b.csv"], ["c.csv"])
    assert first["reads"].startswith("3 file(s), 40 bytes, that matched ")
    assert first["reads"].endswith("/2013-01-01/*.csv")


def listed_again(stage, splits):
    context = replace(context_of(stage), recorded=Resolved(splits, None))
    return late_files(splits, files.listed_again(context), "2013-01-03T00:00:00+00:00")


def test_a_listing_is_compared_by_names_and_marks(data):
    source = source_of(data, "{start:%Y-%m-%d}/*.csv", parallelism=2)
    for name in "abc":
        put(data / f"2013-01-01/{name}.csv", "1,x\n")
    splits = resolved(source)
    assert listed_again(source, splits) is None
    put(data / "2013-01-01/b.csv", "2,x\n")
    put(data / "2013-01-01/d.csv", "3,x\n")
    (data / "2013-01-01/c.csv").unlink()
    late = listed_again(source, splits)
    assert [Path(path).name for each in (late.added, late.rewritten, late.vanished) for path in each.first] == [
        "d.csv",
        "b.csv",
        "c.csv",
    ]
    shutil.rmtree(data / "2013-01-01")
    assert listed_again(source, splits).vanished.count == 3


def test_a_file_is_the_same_though_more_files_are_listed_by_their_times(data, monkeypatch):
    source = source_of(data, "{start:%Y-%m-%d}/*.csv")
    for name in "ab":
        put(data / f"2013-01-01/{name}.csv", "1,x\n")
    by_content = resolved(source)
    with monkeypatch.context() as patch:
        patch.setattr(listing, "HASHED_BYTES", 2)
        by_time = resolved(source)
        assert listed_again(source, by_content) is None
        put(data / "2013-01-01/a.csv", "2,x\n")
        assert listed_again(source, by_content).rewritten.count == 1
    put(data / "2013-01-01/a.csv", "1,x\n")
    assert (listed_again(source, by_content), listed_again(source, by_time).rewritten.count) == (None, 1)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"late": "yes"}, "dataflow.late_unknown"),
        ({"late": "report", "late_epochs": 0}, "dataflow.late_epochs_wrong"),
        ({"late": "report", "read": "new"}, "dataflow.late_with_new"),
        ({"late": "correct"}, "dataflow.late_without_interval"),
    ],
)
def test_late_files_are_those_of_an_interval(given, kind):
    with pytest.raises(Misconfigured, check=of_kind(kind)):
        source_of("/in", **given)


def test_the_day_may_be_that_of_the_schedules_zone(data):
    for day in ("2012-12-31", "2013-01-01"):
        put(data / f"{day}.csv", "x")
    for zone, day in (("America/New_York", "2012-12-31"), ("Asia/Kolkata", "2013-01-01")):
        (split,) = resolved(source_of(data, "{start_local:%Y-%m-%d}.csv"), zone=zone)
        assert names(split) == [f"{day}.csv"]


def test_hidden_files_and_unfinished_writes_are_left_out_as_spark_does(data):
    for name in ("a.csv", "_b.csv", ".c.csv", "_temporary/0/d.csv", "day=1/e.csv", "_day=1/f.csv"):
        put(data / name, "1,x")
    (split,) = resolved(source_of(data, "**/*.csv"))
    assert names(split) == ["f.csv", "a.csv", "e.csv"]


def test_a_file_that_goes_while_it_is_listed_has_the_task_try_again(data, monkeypatch):
    put(data / "a.csv", "1,x")
    mark = listing.file_mark

    def removed_before(path, hashed_bytes):
        Path(path).unlink()
        return mark(path, hashed_bytes)

    monkeypatch.setattr(listing, "file_mark", removed_before)
    with pytest.raises(Retryable, check=of_kind("sources.listing_failed")):
        resolved(source_of(data))


def test_no_file_is_an_error_or_no_rows(data):
    with pytest.raises(Misconfigured, check=of_kind("sources.no_file_matches", epoch="20130101T000000Z")):
        resolved(source_of(data))
    assert resolved(source_of(data, if_empty="empty", parallelism=2))[1]["files"] == []


def test_a_small_listing_is_known_by_content_and_a_large_one_by_time(data, monkeypatch):
    put(data / "a.csv", "1,x")
    assert set(resolved(source_of(data))[0]["files"][0]) == {"path", "size", "sha256"}
    monkeypatch.setattr(listing, "HASHED_BYTES", 2)
    assert set(resolved(source_of(data))[0]["files"][0]) == {"path", "size", "modified_ns"}


def test_an_account_of_an_object_store_is_that_of_a_connection_else_of_the_environment(monkeypatch):
    aws = Connection(id="lake", kind="aws", login="key", password="hunter22")
    assert fsspec_options("s3://lake/*", "lake", looked_up(aws)) == {"key": "key", "secret": "hunter22"}
    other = Connection(id="lake", kind="generic", extra={"storage_options": {"anon": True}})
    assert fsspec_options("gs://lake/*", "lake", looked_up(other)) == {"anon": True}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    for scheme in ("s3", "s3a"):
        assert fsspec_options(f"{scheme}://lake/*", None, looked_up())["endpoint_url"] == "http://minio:9000"
    assert fsspec_options("/lake/*", None, looked_up()) == {}


def test_objects_of_s3_are_known_by_their_tags():
    with running_s3() as server:
        bucket, client = f"of-tests-{uuid.uuid4()}", client_of(server.url)
        server.make_bucket(bucket)
        for name in ("a", "b"):
            client.put_object(Bucket=bucket, Key=f"in/{name}.csv", Body=b"1,x")
        lake = Connection(id="lake", kind="generic", extra={"storage_options": options_of(server.url)})
        stage = files_source("orders", f"s3://{bucket}/in/*.csv", conn_id="lake", **CSV)
        (split,) = resolved(stage, lake)
        assert [each["path"] for each in split["files"]] == [f"s3://{bucket}/in/{name}.csv" for name in ("a", "b")]
        assert files.as_listed(split, lambda _conn_id: lake) == [each["path"] for each in split["files"]]
        client.put_object(Bucket=bucket, Key="in/c.csv", Body=b"3,z")
        assert len(files.as_listed(split, lambda _conn_id: lake)) == 2
        client.put_object(Bucket=bucket, Key="in/a.csv", Body=b"1,y")
        said = r"in/a\.csv has changed since this run listed it: expected .*ETag.*`weir run adopt RUN`"
        with pytest.raises(Misconfigured, match=said):
            files.as_listed(split, lambda _conn_id: lake)
        client.delete_object(Bucket=bucket, Key="in/a.csv")
        with pytest.raises(Retryable, check=of_kind("sources.file_gone")):
            files.as_listed(split, lambda _conn_id: lake)


@pytest.mark.spark
def test_every_attempt_reads_the_listed_files_as_they_were_or_says_that_they_changed(data, attempt):
    stage = source_of(data, parallelism=2)
    first = put(data / "a[1]{*}.csv", "1,x\n2,\n")
    put(data / "b.csv.gz", gzip.compress(b"3,z\n"))
    splits = resolved(source_of(data, "*.csv*", parallelism=2))
    put(data / "c.csv", "4,later\n")
    assert attempt.rows(stage, splits) == [(1, "x"), (2, None), (3, "z")]
    changed = next(split for split in splits if first.name in names(split))
    put(first, "1,y\n2,\n")
    with pytest.raises(Misconfigured, check=of_kind("sources.mark_changed")):
        attempt.read(stage, changed)
    first.unlink()
    with pytest.raises(Retryable, check=of_kind("sources.mark_unreadable")):
        attempt.read(stage, changed)


@pytest.mark.spark
def test_a_line_that_does_not_fit_the_schema_is_an_error(data, attempt):
    put(data / "a.csv", "1,x\nnone,y\n")
    assert type(refused(attempt, source_of(data))) is Misconfigured
    permissive = source_of(data, reader={"mode": "PERMISSIVE"})
    assert attempt.rows(permissive, resolved(permissive)) == [(1, "x"), (None, "y")]


@pytest.mark.spark
def test_a_header_with_other_names_than_the_schema_is_an_error(data, attempt):
    put(data / "a.csv", "s,id\n1,2\n")
    with_header = source_of(data, reader={"header": "true"})
    (split,) = resolved(with_header)
    with pytest.raises(Exception, match="FAILED_READ_FILE") as told:
        attempt.read(with_header, split).collect()
    said = str(of_code_or_rows(told.value, "orders"))
    assert "a.csv has the header 's, id', and is read as 'id, name': write schema= in the order of the header" in said
    by_place = source_of(data, reader={"header": "true", "enforceSchema": "true"})
    assert attempt.rows(by_place, resolved(by_place)) == [(1, "2")]


@pytest.mark.spark
def test_a_subtask_without_files_has_the_columns_of_those_with_some(data, attempt):
    data.mkdir()
    pq.write_table(pa.table({"id": [1], "s": ["x"]}), data / "a.parquet")
    stage = files_source("orders", str(data).replace("[", "[[]") + "/*.parquet", parallelism=2)
    read = [attempt.read(stage, split) for split in resolved(stage)]
    assert sorted(rows.count() for rows in read) == [0, 1]
    assert read[0].schema == read[1].schema
    empty = source_of(data, if_empty="empty")
    assert attempt.read(empty, resolved(empty)[0]).columns == ["id", "name"]


@pytest.mark.spark
def test_json_is_read_line_by_line(data, attempt):
    put(data / "a.json", '{"id": 1, "name": "x"}\n{"id": 2}\n')
    stage = source_of(data, "*.json", format="json")
    assert attempt.rows(stage, resolved(stage)) == [(1, "x"), (2, None)]


AWKWARD = [
    "a b",
    "h#1",
    "q?x",
    "50%",
    "p%20q",
    "a+b",
    "br[1]",
    "c{1}",
    "ü€",
    "new\nline",
    "back\\slash",
    "st*r",
    "a,b'\";~",
]


@pytest.mark.spark
def test_whatever_characters_are_in_the_names_of_files_and_folders_they_are_read(data, attempt):
    for at, name in enumerate(AWKWARD):
        put(data / f"k={name}/{name}.csv", f"{at},x\n")
    stage = source_of(data, "**/*.csv", schema="id BIGINT, name STRING, k STRING")
    texts = {(at, "x", name.replace("p%20q", "p q")) for at, name in enumerate(AWKWARD)}
    assert set(attempt.rows(stage, resolved(stage))) == texts
    for at in (1, 3, 9):
        one = source_of(data, f"k={AWKWARD[at]}/*.csv", schema="id BIGINT, name STRING, k STRING")
        assert attempt.rows(one, resolved(one)) == [(at, "x", AWKWARD[at])]


def test_lines_that_spark_cannot_find_are_refused_when_they_are_declared_or_listed(data, monkeypatch):
    for reader in ({"encoding": "UTF-16"}, {"charset": "utf-16le"}, {"encoding": "utf_32", "lineSep": "\n"}):
        with pytest.raises(Misconfigured, check=of_kind("dataflow.encoding_without_lines")):
            source_of(data, reader=reader)
    source_of(data, reader={"encoding": "UTF-16", "multiLine": "true"})
    put(data / "a.csv", "1,x\n")
    monkeypatch.setattr(files, "_WHOLE_BYTES", 3)
    assert len(resolved(source_of(data))) == 1
    with pytest.raises(Misconfigured, check=of_kind("sources.file_too_large", bytes="4", most="3")):
        resolved(source_of(data, reader={"MultiLine": "true"}))


def test_a_column_of_another_type_in_any_file_is_refused_when_the_run_lists_it(data):
    data.mkdir()
    for name, kind in (("a", pa.int64()), ("b", pa.timestamp("us"))):
        pq.write_table(pa.table({"id": pa.array([1], pa.int64()).cast(kind)}), data / f"{name}.parquet")
    with pytest.raises(Misconfigured, check=of_kind("sources.parquet_schema_differs")):
        resolved(source_of(data, "*.parquet", format="parquet", schema="id BIGINT"))


UNREADABLE = {
    "cut.csv.gz": gzip.compress(bytes(range(256)).hex().encode() * 20)[:200],
    "plain.csv.gz": b"1,x\n" * 100,
    "plain.parquet": b"id,name\n1,x\n",
}


@pytest.mark.spark
def test_a_file_whose_bytes_cannot_be_read_is_for_a_person_and_told_with_its_cause(data, attempt):
    data.mkdir()
    for name, content in UNREADABLE.items():
        put(data / name, content)
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "name": ["x"]}), data / "long.parquet")
    pq.write_table(pa.table({"id": [1], "ID": [2], "name": ["x"]}), data / "twice.parquet")
    causes = {"cut.csv.gz": "EOF", "plain.csv.gz": "gzip", "plain.parquet": "no Parquet file"}
    causes |= {"long.parquet": "the column id is INT64", "twice.parquet": "two columns"}
    for name, cause in causes.items():
        schema = CSV["schema"].replace("BIGINT", "INT")
        stage = source_of(data, name, format="csv" if "csv" in name else "parquet", schema=schema)
        told = refused(attempt, stage)
        assert type(told) is Misconfigured
        assert f"{data}/{name}" in str(told)
        assert cause in str(told)


def refused(attempt, stage, use=lambda rows: rows.collect()):
    """The error of an attempt, as its task raises it."""
    with pytest.raises(Exception) as error:  # noqa: PT011  it is translated
        use(attempt.read(stage, resolved(stage)[0]))
    told = error.value
    return told if isinstance(told, WeirError) else of_code_or_rows(told, "a") or unreadable_source(told, "a", "/store")
