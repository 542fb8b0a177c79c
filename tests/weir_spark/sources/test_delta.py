"""A Delta table as a source: the version of the run, whatever becomes of the table."""

import json
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.messages.kinds import of_kind
from tests.weir_spark.sources.conftest import looked_up, resolved, resolved_range

from weir.connections import Connection
from weir.dataflow import delta_source
from weir.errors import Misconfigured
from weir_spark.sources.accounts import delta_options

FEATURE = {"minReaderVersion": 3, "minWriterVersion": 7}


@pytest.fixture
def lake(tmp_path):
    return str(tmp_path / "lake of tests" / "orders")


def orders(path, parallelism=1):
    return delta_source("orders", path, parallelism=parallelism)


def rows(*values, **more):
    return pa.table({"v": pa.array(values, pa.int64()), **more})


def append_to_log(path, **actions):
    version = DeltaTable(path).version() + 1
    lines = [json.dumps({name: action}) for name, action in actions.items()]
    Path(path, "_delta_log", f"{version:020d}.json").write_text("\n".join(lines))


def action_of(path, name):
    lines = map(json.loads, Path(path, "_delta_log", f"{0:020d}.json").read_text().splitlines())
    return next(each[name] for each in lines if name in each)


def test_the_newest_version_is_named_with_its_files(lake):
    write_deltalake(lake, rows(1))
    write_deltalake(lake, rows(2), mode="append")
    (split,) = resolved(orders(lake))
    assert (split["table"], split["version"]) == (lake, 1)
    assert split["reads"].startswith(f"version 1 of the Delta table {lake}: 2 file(s), ")
    assert len(split["groups"][0]["files"]) == 2


def test_removed_files_are_not_read_and_each_file_goes_to_one_subtask(lake):
    for value in range(4):
        write_deltalake(lake, rows(value), mode="append")
    DeltaTable(lake).delete("v = 2")
    splits = resolved(orders(lake, parallelism=2))
    files = [file for split in splits for group in split["groups"] for file in group["files"]]
    assert len(files) == len(set(files)) == 3


def test_one_partition_is_read_by_the_bounds_of_the_interval(lake):
    days = pa.array([date(2013, 1, 1), date(2013, 1, 2), None], pa.date32())
    write_deltalake(lake, rows(1, 2, 3, day=days), partition_by=["day"])
    (split,) = resolved(delta_source("orders", lake, partition={"day": "{start:%Y-%m-%d}"}))
    assert [group["values"] for group in split["groups"]] == [{"day": "2013-01-01"}]
    assert f"of the Delta table {lake}, day = 2013-01-01: 1 file(s)" in split["reads"]
    with pytest.raises(Misconfigured, check=of_kind("sources.table_not_partitioned")):
        resolved(delta_source("orders", lake, partition={"v": "1"}))


@pytest.mark.parametrize(
    ("actions", "problem"),
    [
        (
            {"protocol": {**FEATURE, "readerFeatures": ["variantType"], "writerFeatures": ["variantType"]}},
            of_kind("sources.delta_features"),
        ),
        (
            {"protocol": {**FEATURE, "readerFeatures": ["fromTomorrow"], "writerFeatures": ["fromTomorrow"]}},
            of_kind("sources.delta_not_opened"),
        ),
    ],
)
def test_a_feature_that_plain_reading_does_not_respect_is_refused(lake, actions, problem):
    write_deltalake(lake, rows(1))
    append_to_log(lake, **actions)
    with pytest.raises(Misconfigured, check=problem):
        resolved(orders(lake))


def test_deletion_vectors_are_refused_only_where_there_are_some(lake):
    write_deltalake(lake, rows(1, 2, 3))
    names = ["deletionVectors"]
    append_to_log(lake, protocol={**FEATURE, "readerFeatures": names, "writerFeatures": names})
    assert resolved(orders(lake))[0]["version"] == 1
    add = action_of(lake, "add")
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "vBn[lx{q8@P<9BNH/isA",
        "offset": 1,
        "sizeInBytes": 36,
        "cardinality": 2,
    }
    gone = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1, "partitionValues": {}, "size": add["size"]}
    append_to_log(lake, remove=gone, add={**add, "deletionVector": vector})
    with pytest.raises(Misconfigured, check=of_kind("sources.delta_deletion_vectors")):
        resolved(orders(lake))


def test_column_mapping_is_refused(lake):
    write_deltalake(lake, rows(1))
    meta = action_of(lake, "metaData")
    schema = json.loads(meta["schemaString"])
    schema["fields"][0]["metadata"] = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    meta |= {"schemaString": json.dumps(schema), "configuration": {"delta.columnMapping.mode": "name"}}
    append_to_log(lake, protocol={"minReaderVersion": 2, "minWriterVersion": 5}, metaData=meta)
    with pytest.raises(Misconfigured, check=of_kind("sources.delta_column_mapping", mapping="name")):
        resolved(orders(lake))


def test_a_table_that_is_not_there_is_named(lake):
    with pytest.raises(Misconfigured, check=of_kind("sources.delta_not_opened")):
        resolved(orders(lake))


def test_an_account_of_an_object_store_is_that_of_a_connection():
    aws = Connection(id="lake", kind="aws", login="key", password="hunter22", extra={"region_name": "eu"})
    found = delta_options("s3://lake/orders", "lake", looked_up(aws))
    assert found == {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hunter22", "AWS_REGION": "eu"}
    other = Connection(id="lake", kind="generic", extra={"storage_options": {"allow_http": True}})
    assert delta_options("abfss://lake@orders", "lake", looked_up(other)) == {"allow_http": "True"}
    assert delta_options("/lake/orders", None, looked_up()) == {}


@pytest.mark.spark
def test_every_attempt_reads_the_version_of_the_run_though_the_table_has_moved_on(lake, attempt):
    write_deltalake(lake, rows(1, 2))
    splits = resolved(orders(lake, parallelism=2))
    before = attempt.rows(orders(lake), splits)
    write_deltalake(lake, rows(3), mode="append")
    DeltaTable(lake).delete("v = 1")
    DeltaTable(lake).optimize.compact()
    assert attempt.rows(orders(lake), splits) == before == [(1,), (2,)]
    assert attempt.rows(orders(lake), resolved(orders(lake))) == [(2,), (3,)]


@pytest.mark.spark
def test_the_version_is_read_when_its_log_is_gone_and_a_vacuumed_one_is_named(lake, attempt):
    write_deltalake(lake, rows(1))
    (split,) = resolved(orders(lake))
    DeltaTable(lake).delete("v = 1")
    log = Path(lake, "_delta_log")
    log.rename(f"{lake}/away")
    assert attempt.rows(orders(lake), [split]) == [(1,)]
    Path(lake, "away").rename(log)
    DeltaTable(lake).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(Misconfigured, check=of_kind("sources.table_file_gone")):
        attempt.read(orders(lake), split)


@pytest.mark.spark
def test_values_of_partitions_and_columns_that_were_added_later_are_read(lake, attempt):
    at = datetime(2013, 1, 1, 2, 3, 4, 5, UTC)
    days = pa.array([date(2013, 1, 1), None], pa.date32())
    more = {"day": days, "s": ["a b/c%20+", None], "at": pa.array([at, None], pa.timestamp("us", "UTC"))}
    more |= {"yes": pa.array([True, None]), "d": pa.array([None, None], pa.decimal128(9, 2))}
    write_deltalake(lake, rows(1, 2, **more), partition_by=["day", "s", "at", "yes", "d"])
    write_deltalake(
        lake,
        rows(3, **{name: column[:1] for name, column in more.items()}, w=["new"]),
        mode="append",
        schema_mode="merge",
    )
    found = attempt.rows(orders(lake), resolved(orders(lake, parallelism=3)))
    local = at.replace(tzinfo=None)
    assert [row[:1] + row[1:3] + row[4:] for row in found] == [
        (1, date(2013, 1, 1), "a b/c%20+", True, None, None),
        (2, None, None, None, None, None),
        (3, date(2013, 1, 1), "a b/c%20+", True, None, "new"),
    ]
    read = attempt.read(orders(lake), resolved(orders(lake))[0])
    assert {str(each.at) for each in read.selectExpr("string(at) at").collect()} == {str(local), "None"}


@pytest.mark.spark
def test_a_table_without_rows_has_its_columns_and_so_has_a_subtask_without_files(lake, attempt):
    DeltaTable.create(lake, schema=pa.schema([pa.field("v", pa.int64(), nullable=False), ("day", pa.string())]))
    empty = attempt.read(orders(lake), resolved(orders(lake))[0])
    write_deltalake(lake, rows(1, day=["x"]), mode="append")
    full, other = (
        attempt.read(orders(lake), split) for split in sorted(resolved(orders(lake, 2)), key=lambda s: not s["groups"])
    )
    assert (full.count(), other.count(), empty.count()) == (1, 0, 0)
    assert full.schema == other.schema == empty.schema


@pytest.mark.spark
def test_values_of_partitions_at_the_ends_of_their_types_are_read(lake, attempt):
    days, times = [2932897, -800000], [-62_135_596_800_000_001, 253_402_300_800_000_000]
    more = {
        "day": pa.array(days, pa.int32()).cast(pa.date32()),
        "at": pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "f": pa.array([float("nan"), float("-inf")], pa.float32()),
        "d": pa.array([Decimal("0.0000001"), Decimal("99.9999999")], pa.decimal128(9, 7)),
    }
    write_deltalake(lake, rows(1, 2, **more), partition_by=list(more))
    read = attempt.read(orders(lake), resolved(orders(lake))[0])
    found = read.selectExpr("v", "unix_date(day)", "unix_micros(at)", "string(f)", "d").orderBy("v").collect()
    assert [tuple(row) for row in found] == [
        (1, days[0], times[0], "NaN", Decimal("0.0000001")),
        (2, days[1], times[1], "-Infinity", Decimal("99.9999999")),
    ]


def new_orders(path, **more):
    return delta_source("orders", path, read="new", **more)


def values_in(found):
    """The values that are read, by the files that the splits name."""
    files = [file for split in found.splits for group in split["groups"] for file in group["files"]]
    return sorted(value for file in files for value in pq.read_table(unquote(urlparse(file).path))["v"].to_pylist())


def test_what_is_appended_is_read_once_also_after_the_table_was_optimized(lake):
    write_deltalake(lake, rows(1))
    first = resolved_range(new_orders(lake))
    write_deltalake(lake, rows(2), mode="append")
    write_deltalake(lake, rows(3), mode="append")
    DeltaTable(lake).optimize.compact()
    second = resolved_range(new_orders(lake), previous=first)
    third = resolved_range(new_orders(lake), previous=second)
    assert [values_in(each) for each in (first, second, third)] == [[1], [2, 3], []]
    assert [each.position["version"] for each in (first, second, third)] == [0, 3, 3]


def test_the_files_that_came_have_the_values_of_their_partitions(lake):
    write_deltalake(lake, rows(1, day=["a"]), partition_by=["day"])
    first = resolved_range(new_orders(lake))
    write_deltalake(lake, rows(2, 3, day=["b", None]), mode="append")
    (split,) = resolved_range(new_orders(lake), previous=first).splits
    assert [group["values"] for group in split["groups"]] == [{"day": None}, {"day": "b"}]


def overwritten(path):
    write_deltalake(path, rows(9), mode="overwrite")


def with_a_row_less(path):
    DeltaTable(path).delete("v = 1")


@pytest.mark.parametrize("change", [overwritten, with_a_row_less])
def test_a_commit_that_is_no_append_is_an_error(lake, change):
    write_deltalake(lake, rows(1, 2))
    first = resolved_range(new_orders(lake))
    change(lake)
    with pytest.raises(Misconfigured, check=of_kind("sources.delta_not_appended", version=1)):
        resolved_range(new_orders(lake), previous=first)


def test_a_commit_that_the_log_has_forgotten_is_an_error(lake):
    write_deltalake(lake, rows(1))
    first = resolved_range(new_orders(lake))
    write_deltalake(lake, rows(2), mode="append")
    DeltaTable(lake).create_checkpoint()
    Path(lake, "_delta_log", f"{1:020d}.json").unlink()
    with pytest.raises(Misconfigured, check=of_kind("sources.delta_commit_gone", version=1)):
        resolved_range(new_orders(lake), previous=first)


def test_a_table_that_was_created_again_is_an_error(lake):
    write_deltalake(lake, rows(1))
    first = resolved_range(new_orders(lake))
    shutil.rmtree(lake)
    write_deltalake(lake, rows(2))
    with pytest.raises(Misconfigured, check=of_kind("sources.delta_other_table")):
        resolved_range(new_orders(lake), previous=first)


def test_a_recorded_range_is_divided_anew_without_the_log(lake):
    write_deltalake(lake, rows(1))
    write_deltalake(lake, rows(2), mode="append")
    first = resolved_range(new_orders(lake))
    shutil.rmtree(Path(lake, "_delta_log"))
    again = resolved_range(new_orders(lake, parallelism=2), recorded=first)
    assert [len(split["groups"][0]["files"]) for split in again.splits] == [1, 1]
    assert (values_in(again), again.position) == ([1, 2], first.position)


def test_an_interval_has_no_part_in_what_is_new():
    with pytest.raises(Misconfigured, check=of_kind("dataflow.read_new_by_interval")):
        new_orders("/lake/orders", partition={"day": "{start:%Y-%m-%d}"})
