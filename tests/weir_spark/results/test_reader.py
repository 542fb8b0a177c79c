from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.formats.region_job import InputToRead, OutputReport, PartitionToRead
from weir.store.store import Store
from weir.topology.partitions import KeyFilter, Layout
from weir_spark.results import writer
from weir_spark.results.digest import digest_of
from weir_spark.results.reader import read_input

pytestmark = pytest.mark.spark

BY_KEY = Layout(("key",), 8)


@pytest.fixture
def rows(spark):
    return spark.range(500).select((F.col("id") % 50).alias("key"), F.col("id").cast("string").alias("value"))


@pytest.fixture
def written(store, jobs, rows):
    def write(df=rows, layout=BY_KEY) -> OutputReport:
        output = jobs.output("numbers", layout)
        return writer.report(writer.write(df, "numbers", output), "numbers", output, store)

    return write


def folder_of(store: Store, report: OutputReport) -> Path:
    return Path(store.url.removeprefix("file://"), report.folder)


def test_the_ranges_of_key_groups_together_are_all_rows_once(spark, jobs, rows, written) -> None:
    report = written()
    parts = [read_input(spark, jobs.read("numbers", report, key_groups=each)) for each in ((0, 2), (3, 3), (4, 7))]
    assert all(0 < part.count() < 500 for part in parts)
    assert digest_of(parts[0].union(parts[1]).union(parts[2])) == digest_of(rows)


def test_partitions_of_another_layout_are_filtered_and_every_row_is_read_once(spark, jobs, rows, written) -> None:
    own, plain = written(rows.where("key < 20")), written(rows.where("key between 20 and 30"), Layout())
    other = written(rows.where("key > 30"), Layout(("value",), 8))
    parts = []
    for each in ((0, 2), (3, 3), (4, 7)):
        read = jobs.read("numbers", own, plain, other, key_groups=each)
        first, second, third = read.partitions
        second, third = dataclasses.replace(second, layout="plain"), dataclasses.replace(third, layout=other.layout.id)
        mixed = dataclasses.replace(read, partitions=(first, second, third), filter=KeyFilter(BY_KEY, each))
        alone = dataclasses.replace(mixed, partitions=(second, third))
        parts.append(read_input(spark, mixed))
        assert 0 < read_input(spark, alone).count() < parts[-1].count()
    assert digest_of(parts[0].union(parts[1]).union(parts[2])) == digest_of(rows)


def test_without_a_range_all_rows_are_read_and_no_column_of_weir(spark, jobs, rows, written) -> None:
    read = read_input(spark, jobs.read("numbers", written()))
    assert read.columns == ["key", "value"]
    assert digest_of(read) == digest_of(rows)


def test_partitions_are_read_together(spark, jobs, rows, written) -> None:
    two = [written(rows.where("key < 10")), written(rows.where("key >= 10"))]
    assert digest_of(read_input(spark, jobs.read("numbers", *two))) == digest_of(rows)


def test_an_input_without_files_is_empty_and_has_its_schema(spark, jobs, rows, written) -> None:
    read = jobs.read("numbers", written())
    nothing = dataclasses.replace(read, partitions=(PartitionToRead("numbers", 0, ()),), key_groups=(0, 3))
    assert digest_of(read_input(spark, nothing)) == digest_of(rows.where("false"))


def test_a_stranger_among_the_files_is_not_read(spark, store, jobs, rows, written) -> None:
    report, stranger = written(), written(rows.limit(1))
    source = folder_of(store, stranger) / stranger.files[0].name
    (folder_of(store, report) / "part-99999.zstd.parquet").write_bytes(source.read_bytes())
    assert read_input(spark, jobs.read("numbers", report)).count() == 500


def test_folders_that_look_like_hive_partitions_add_no_column(spark, tmp_path, rows) -> None:
    store = Store.open(str(tmp_path / "key=7"))
    store.initialise()
    output = dataclasses.replace(_output(store), layout=Layout())
    report = writer.report(writer.write(rows, "numbers", output), "numbers", output, store)
    from_there = read_input(spark, _read_all(store, report))
    assert digest_of(from_there) == digest_of(rows)


def _output(store: Store):
    from weir.formats.region_job import OutputToWrite

    return OutputToWrite(Layout(), "numbers/0/t1", store.spark_url("numbers/0/t1"))


def _read_all(store: Store, report: OutputReport):
    from weir.formats.region_job import InputToRead

    files = tuple(store.spark_url(f"{report.folder}/{file.name}") for file in report.files)
    return InputToRead(
        argument="numbers",
        layout=report.layout,
        spark_schema=report.spark_schema,
        partitions=(PartitionToRead("numbers", 0, files),),
    )


def test_a_store_may_have_spaces_and_percent_signs_in_its_path(spark, tmp_path, rows) -> None:
    store = Store.open(str(tmp_path / "a b%20c é"))
    store.initialise()
    output = _output(store)
    report = writer.report(writer.write(rows, "numbers", output), "numbers", output, store)
    assert digest_of(read_input(spark, _read_all(store, report))) == digest_of(rows)


def test_a_missing_file_is_an_error_even_if_the_server_ignores_missing_files(spark, store, jobs, rows, written) -> None:
    report = written()
    read = read_input(spark, jobs.read("numbers", report, key_groups=(0, 3)))
    (folder_of(store, report) / report.files[0].name).unlink()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(PySparkException, match=r"PATH_NOT_FOUND|FILE_NOT_EXIST"):
            read.count()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_a_damaged_file_is_an_error_even_if_the_server_ignores_corrupt_files(spark, store, jobs, written) -> None:
    report = written()
    path = folder_of(store, report) / report.files[0].name
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(bytes(data))
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(PySparkException):
            read_input(spark, jobs.read("numbers", report, key_groups=(0, 7))).agg(
                F.max("key"), F.max("value")
            ).collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


DECLARED = "value STRING, key BIGINT"


def test_an_input_of_the_epoch_before_is_empty_in_the_first_one_and_has_the_declared_columns(spark, jobs) -> None:
    read = InputToRead(
        argument="before", layout=BY_KEY, spark_schema="", partitions=(), key_groups=(0, 3), declared_schema=DECLARED
    )
    rows = read_input(spark, read)
    assert (rows.count(), rows.schema.simpleString()) == (0, "struct<value:string,key:bigint>")


def test_a_result_of_the_epoch_before_has_the_declared_columns_in_their_order(spark, jobs, rows, written) -> None:
    read = dataclasses.replace(jobs.read("before", written(), key_groups=(0, 7)), declared_schema=DECLARED)
    assert read_input(spark, read).columns == ["value", "key"]
    assert digest_of(read_input(spark, read).select("key", "value")) == digest_of(rows)


def test_a_result_of_the_epoch_before_without_rows_has_the_declared_columns(spark, jobs, rows, written) -> None:
    read = dataclasses.replace(jobs.read("before", written(rows.where("key < 0"))), declared_schema=DECLARED)
    assert (read_input(spark, read).count(), read_input(spark, read).columns) == (0, ["value", "key"])


@pytest.mark.parametrize(
    "declared", ["value STRING", "value STRING, key INT", "value STRING, Key BIGINT", "value STRING, key BIGINT, n INT"]
)
def test_a_result_with_other_columns_than_declared_is_refused_with_both(spark, jobs, written, declared) -> None:
    read = dataclasses.replace(jobs.read("before", written()), declared_schema=declared)
    shown = r"declared with the schema value string.*, but the result of numbers of the epoch before has key bigint, "
    with pytest.raises(Misconfigured, match=f"{shown}", check=of_kind("results.schema_differs", argument="before")):
        read_input(spark, read)


@pytest.mark.parametrize("declared", ["value STRINGS", "value", "("])
def test_a_schema_that_is_none_is_refused(spark, declared) -> None:
    with pytest.raises(Misconfigured, check=of_kind("results.schema_malformed", argument="before")):
        read_input(
            spark,
            InputToRead(
                argument="before",
                layout=BY_KEY,
                spark_schema="",
                partitions=(),
                key_groups=None,
                declared_schema=declared,
            ),
        )


def test_a_declared_schema_is_compared_without_nullability_at_any_depth(spark, jobs, written) -> None:
    rows = spark.sql("select 1L key, array(struct(1 x)) nested, map('a', 1) m")
    declared = "key BIGINT NOT NULL, nested ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>"
    read = dataclasses.replace(jobs.read("before", written(rows)), declared_schema=declared)
    assert read_input(spark, read).count() == 1
