"""An Iceberg table as a source: the snapshot of the run, whatever becomes of the table."""

from datetime import UTC, date, datetime
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import LongType
from tests.messages.kinds import of_kind
from tests.weir_spark.sources.conftest import resolved, resolved_range

from weir.connections import Connection
from weir.dataflow import iceberg_source
from weir.errors import Misconfigured

NAME = "lake.db.orders"
ORDERS = iceberg_source("orders", NAME, parallelism=2)


class Lake:
    """A catalog in a file, with one table."""

    def __init__(self, folder, columns, partition=()):
        folder.mkdir()
        self.folder = folder
        extra = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        self.connection = Connection(id="lake", kind="iceberg", extra=extra)
        self._catalog = load_catalog("lake", **extra)
        self._catalog.create_namespace("db")
        table = self._catalog.create_table("db.orders", schema=pa.schema(columns))
        with table.update_spec() as spec:
            for column in partition:
                spec.add_identity(column)

    @property
    def table(self):
        return self._catalog.load_table("db.orders")

    def append(self, **columns):
        schema = self.table.schema().as_arrow()
        self.table.append(pa.table(columns, schema=pa.schema([schema.field(name) for name in columns])))

    def splits(self, stage=ORDERS):
        return resolved(stage, self.connection)


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "lake of tests", [("v", pa.int32()), ("s", pa.string())])


def test_the_current_snapshot_is_named_with_its_files(lake):
    lake.append(v=[1], s=["a"])
    lake.append(v=[2], s=["b"])
    snapshot = lake.table.current_snapshot().snapshot_id
    splits = lake.splits()
    assert {(split["table"], split["snapshot"]) for split in splits} == {(NAME, snapshot)}
    assert splits[0]["reads"].startswith(f"snapshot {snapshot} of the Iceberg table {NAME}: 2 file(s), ")
    assert [len(group["files"]) for split in splits for group in split["groups"]] == [1, 1]


def test_a_table_without_snapshot_has_no_rows(lake):
    assert [(split["snapshot"], split["groups"]) for split in lake.splits()] == [(None, [])] * 2


def rename(lake):
    with lake.table.update_schema() as schema:
        schema.rename_column("s", "text")


def drop_and_add(lake):
    with lake.table.update_schema() as schema:
        schema.delete_column("v")
    with lake.table.update_schema() as schema:
        schema.add_column("v", LongType())


@pytest.mark.parametrize("change", [rename, drop_and_add])
def test_a_table_whose_names_have_changed_is_refused(lake, change):
    lake.append(v=[1], s=["a"])
    change(lake)
    with pytest.raises(Misconfigured, check=of_kind("sources.iceberg_column_renamed")):
        lake.splits()


def test_delete_files_are_refused(lake):
    lake.append(v=[1, 2], s=["a", "b"])
    (task,) = lake.table.scan().plan_files()
    path = lake.folder / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [task.file.file_path], "pos": pa.array([1], pa.int64())}), path)
    metrics = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        **{name: {} for name in metrics},
        **dict.fromkeys(("key_metadata", "split_offsets", "equality_ids", "sort_order_id")),
    )
    deletes.spec_id = 0
    with lake.table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(deletes)
    assert lake.table.scan().to_arrow().num_rows == 1
    with pytest.raises(Misconfigured, check=of_kind("sources.iceberg_delete_files")):
        lake.splits()


def test_a_type_that_spark_lacks_is_refused_by_name(tmp_path):
    lake = Lake(tmp_path / "lake", [("at", pa.time64("us"))])
    with pytest.raises(Misconfigured, check=of_kind("sources.iceberg_type_unknown", column="at", kind="time")):
        lake.splits()


def test_a_table_or_catalog_that_is_not_there_is_named(lake):
    with pytest.raises(Misconfigured, check=of_kind("sources.iceberg_not_opened", name="lake.db.others")):
        lake.splits(iceberg_source("o", "lake.db.others"))
    with pytest.raises(Misconfigured, match="no connection 'nowhere'"):
        lake.splits(iceberg_source("o", "nowhere.db.orders"))


@pytest.mark.spark
def test_every_attempt_reads_the_snapshot_of_the_run_though_the_table_has_moved_on(lake, attempt):
    lake.append(v=[1, 2], s=["a", None])
    splits = lake.splits()
    before = attempt.rows(ORDERS, splits)
    lake.append(v=[3], s=["c"])
    lake.table.delete("v = 1")
    lake.table.maintenance.expire_snapshots().by_id(splits[0]["snapshot"]).commit()
    assert attempt.rows(ORDERS, splits) == before == [(1, "a"), (2, None)]
    assert attempt.rows(ORDERS, lake.splits()) == [(2, None), (3, "c")]


@pytest.mark.spark
def test_a_snapshot_whose_files_are_gone_is_named(lake, attempt):
    lake.append(v=[1], s=["a"])
    split = next(each for each in lake.splits() if each["groups"])
    Path(split["groups"][0]["files"][0].removeprefix("file://")).unlink()
    with pytest.raises(Misconfigured, match=f"{split['snapshot']}", check=of_kind("sources.table_file_gone")):
        attempt.read(ORDERS, split)


@pytest.mark.spark
def test_wider_types_and_columns_that_were_added_later_are_read(lake, attempt):
    lake.append(v=[1], s=["a"])
    with lake.table.update_schema() as schema:
        schema.update_column("v", LongType())
        schema.add_column("w", LongType())
    lake.append(v=[2**40], s=["b"], w=[7])
    assert attempt.rows(ORDERS, lake.splits()) == [(1, "a", None), (2**40, "b", 7)]


@pytest.mark.spark
def test_values_of_identity_partitions_are_read_from_the_metadata(tmp_path, attempt):
    columns = [("v", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("s", pa.string())]
    lake = Lake(tmp_path / "lake", columns, partition=("day", "at", "s"))
    at = datetime(2013, 1, 1, 2, 3, 4, 5, UTC)
    lake.append(v=[1, 2], day=[date(2013, 1, 1), None], at=[at, None], s=["a b/c%20+", None])
    for file in (task.file for task in lake.table.scan().plan_files()):
        path = file.file_path.removeprefix("file://")
        pq.write_table(pq.read_table(path, partitioning=None).select(["v"]), path)  # as a file that came from Hive
    read = [attempt.read(ORDERS, split).selectExpr("v", "day", "string(at)", "s") for split in lake.splits()]
    assert sorted(tuple(row) for rows in read for row in rows.collect()) == [
        (1, date(2013, 1, 1), "2013-01-01 02:03:04.000005", "a b/c%20+"),
        (2, None, None, None),
    ]


NEW = iceberg_source("orders", NAME, parallelism=2, read="new")


def values_in(found):
    files = [file for split in found.splits for group in split["groups"] for file in group["files"]]
    return sorted(value for file in files for value in pq.read_table(unquote(urlparse(file).path))["v"].to_pylist())


def test_what_is_appended_is_read_once(lake):
    empty = resolved_range(NEW, lake.connection)
    lake.append(v=[1], s=["a"])
    first = resolved_range(NEW, lake.connection, previous=empty)
    lake.append(v=[2], s=["b"])
    lake.append(v=[3], s=["c"])
    second = resolved_range(NEW, lake.connection, previous=first)
    third = resolved_range(NEW, lake.connection, previous=second)
    assert [values_in(each) for each in (empty, first, second, third)] == [[], [1], [2, 3], []]


def overwrite(lake):
    lake.table.overwrite(lake.table.scan().to_arrow())


def delete_a_row(lake):
    lake.table.delete("v = 1")


@pytest.mark.parametrize("change", [overwrite, delete_a_row])
def test_a_snapshot_that_is_no_append_is_an_error(lake, change):
    lake.append(v=[1, 2], s=["a", "b"])
    first = resolved_range(NEW, lake.connection)
    change(lake)
    with pytest.raises(Misconfigured, check=of_kind("sources.iceberg_not_appended")):
        resolved_range(NEW, lake.connection, previous=first)


def test_a_table_that_was_rolled_back_or_created_again_is_an_error(lake, tmp_path):
    lake.append(v=[1], s=["a"])
    old = lake.table.current_snapshot().snapshot_id
    lake.append(v=[2], s=["b"])
    found = resolved_range(NEW, lake.connection)
    lake.table.manage_snapshots().set_current_snapshot(old).commit()
    with pytest.raises(Misconfigured, check=of_kind("sources.iceberg_not_followed")):
        resolved_range(NEW, lake.connection, previous=found)
    other = Lake(tmp_path / "other", [("v", pa.int32()), ("s", pa.string())])
    with pytest.raises(Misconfigured, check=of_kind("sources.iceberg_other_table")):
        resolved_range(NEW, other.connection, previous=found)


def test_a_snapshot_in_between_that_was_expired_is_an_error(lake):
    lake.append(v=[1], s=["a"])
    found = resolved_range(NEW, lake.connection)
    lake.append(v=[2], s=["b"])
    gone = lake.table.current_snapshot().snapshot_id
    lake.append(v=[3], s=["c"])
    lake.table.maintenance.expire_snapshots().by_id(gone).commit()
    with pytest.raises(Misconfigured, check=of_kind("sources.iceberg_not_followed")):
        resolved_range(NEW, lake.connection, previous=found)
