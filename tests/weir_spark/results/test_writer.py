from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.messages.kinds import of_kind

from weir.errors import Internal, Misconfigured
from weir.formats.region_job import OutputReport, OutputToWrite
from weir.store.store import Store
from weir.topology.key_hash import key_group
from weir.topology.partitions import KEY_GROUP_COLUMN, PLAIN, Layout
from weir_spark.results import writer
from weir_spark.results.digest import digest_of
from weir_spark.results.writer import check_rows

pytestmark = pytest.mark.spark

BY_ORIGIN = Layout(("origin", "hour"), 128)


@pytest.fixture
def flights(spark: SparkSession) -> DataFrame:
    return spark.range(900).select(
        F.element_at(F.array(F.lit("EWR"), F.lit("JFK"), F.lit("LGA")), (F.col("id") % 3 + 1).cast("int")).alias(
            "origin"
        ),
        (F.col("id") % 24).cast("smallint").alias("hour"),
        F.col("id").alias("flight"),
    )


def write(df: DataFrame, output: OutputToWrite, store: Store) -> OutputReport:
    return writer.report(writer.write(df, "flights", output), "flights", output, store)


def path_of(store: Store, report: OutputReport, number: int = 0) -> Path:
    return Path(store.url.removeprefix("file://"), report.folder, report.files[number].name)


def test_a_small_keyed_result_is_one_file_and_nothing_beside_it(store, jobs, flights) -> None:
    report = write(flights.repartition(7), jobs.output("flights", BY_ORIGIN), store)
    assert len(report.files) == 1
    assert [entry.name for entry in path_of(store, report).parent.iterdir()] == [report.files[0].name]
    assert report.files[0].rows == report.digest.rows == 900


def test_rows_are_sorted_by_key_group_and_keys(store, jobs, flights) -> None:
    report = write(flights, jobs.output("flights", BY_ORIGIN), store)
    rows = pq.read_table(path_of(store, report)).select([KEY_GROUP_COLUMN, "origin", "hour"]).to_pylist()
    found = [tuple(row.values()) for row in rows]
    assert found == sorted(found)
    assert len({group for group, _, _ in found}) > 20


def test_key_groups_are_those_of_the_implementation_without_spark(store, jobs, flights) -> None:
    report = write(flights, jobs.output("flights", BY_ORIGIN), store)
    for row in pq.read_table(path_of(store, report)).to_pylist():
        assert row[KEY_GROUP_COLUMN] == key_group((("string", row["origin"]), ("smallint", row["hour"])), 128)


def test_rows_without_a_key_have_a_key_group_too(spark, store, jobs) -> None:
    rows = spark.sql("select * from values (string(null), 1), ('JFK', null) t(origin, hour)")
    report = write(rows, jobs.output("flights", BY_ORIGIN), store)
    found = {row["origin"]: row[KEY_GROUP_COLUMN] for row in pq.read_table(path_of(store, report)).to_pylist()}
    assert found[None] == key_group((("string", None), ("int", 1)), 128)
    assert found["JFK"] == key_group((("string", "JFK"), ("int", None)), 128)


def test_the_segments_tell_the_key_groups_of_each_row_group(store, jobs, flights) -> None:
    report = write(flights, jobs.output("flights", BY_ORIGIN), store)
    groups = pq.read_table(path_of(store, report))[KEY_GROUP_COLUMN].to_pylist()
    *row_groups, tail = report.files[0].segments
    assert [segment.key_groups for segment in row_groups] == [(min(groups), max(groups))]
    assert tail.is_tail


def test_the_recorded_schema_has_no_column_of_weir(store, jobs, flights) -> None:
    report = write(flights, jobs.output("flights", BY_ORIGIN), store)
    names = [field["name"] for field in json.loads(report.spark_schema)["fields"]]
    assert names == ["origin", "hour", "flight"]


def test_a_plain_result_keeps_the_order_of_its_stage(store, jobs, flights) -> None:
    report = write(flights.coalesce(1).orderBy(F.desc("flight")), jobs.output("flights"), store)
    assert pq.read_table(path_of(store, report))["flight"].to_pylist() == list(range(899, -1, -1))


def test_the_digest_is_that_of_the_rows(store, jobs, flights) -> None:
    plain, keyed = (write(flights, jobs.output("flights", layout), store) for layout in (PLAIN, BY_ORIGIN))
    assert plain.digest == digest_of(flights)
    assert keyed.digest.schema == plain.digest.schema
    assert keyed.digest != plain.digest


def test_writing_the_same_rows_again_gives_the_same_digest(store, jobs, flights) -> None:
    first = write(flights, jobs.output("flights", BY_ORIGIN), store)
    second = write(flights.repartition(5).orderBy(F.desc("flight")), jobs.output("flights", BY_ORIGIN), store)
    assert (first.digest, first.folder != second.folder) == (second.digest, True)


@pytest.mark.parametrize("layout", [PLAIN, BY_ORIGIN], ids=lambda layout: layout.id)
def test_an_empty_result_has_a_schema_and_a_digest(store, jobs, flights, layout) -> None:
    report = write(flights.where("flight < 0"), jobs.output("flights", layout), store)
    assert (report.digest.rows, report.digest.xor, report.digest.low_sum) == (0, 0, 0)
    assert report.digest.schema == digest_of(flights).schema


def test_pages_have_checksums_indexes_and_zstd(store, jobs, flights) -> None:
    report = write(flights, jobs.output("flights", BY_ORIGIN), store)
    column = pq.ParquetFile(path_of(store, report)).metadata.row_group(0).column(0)
    assert (column.compression, column.has_offset_index, column.has_column_index) == ("ZSTD", True, True)
    start = column.dictionary_page_offset or column.data_page_offset
    flip_a_bit(path_of(store, report), start + column.total_compressed_size - 5)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.ParquetFile(path_of(store, report), page_checksum_verification=True).read(["origin"])


def flip_a_bit(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def test_a_folder_that_exists_is_never_written_to(store, jobs, flights) -> None:
    output = jobs.output("flights")
    write(flights, output, store)
    with pytest.raises(PySparkException, match="PATH_ALREADY_EXISTS"):
        writer.write(flights, "flights", output)


def test_files_with_other_rows_than_spark_wrote_are_not_reported(store, jobs, flights) -> None:
    output = jobs.output("flights")
    written = writer.write(flights, "flights", output)
    fewer = dataclasses.replace(written, digest=dataclasses.replace(written.digest, rows=899))
    with pytest.raises(Internal, check=of_kind("results.rows_differ", rows="900", written="899")):
        writer.report(fewer, "flights", output, store)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select 1 flight", "returns no column 'origin', 'hour'"),
        ("select 'JFK' Origin, 1 hour", "returns no column 'origin' .*it returns Origin, hour: did you mean 'Origin'"),
        ("select 1.5D origin, 1 hour", "key column origin: .*double"),
        ("select array(1) origin, 1 hour", "key column origin: .*array"),
        ("select 'JFK' origin, 1 hour, 2 _weir_key_group", "'_weir_key_group': names that start with _weir_"),
        ("select 'JFK' origin, 1 hour, 2 Hour", "two columns that Spark cannot tell apart: 'hour' and 'Hour'"),
        ("select 'JFK' origin, 1 hour, parse_json('1') raw", "column raw is of type variant"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_before_anything_is_computed(spark, query, message) -> None:
    with pytest.raises(Misconfigured, match=f"stage flights.*{message}"):
        check_rows(spark.sql(query), "flights", [BY_ORIGIN])
