"""Which input Spark's words are about; they are those of Spark 4.3, of both kinds of sessions."""

import pytest

from weir.errors import InputUnreadable
from weir.formats.region_job import CopyToRead, CopyToWrite, InputToRead, PartitionToRead, RegionJob, StageToRun
from weir.topology.partitions import PLAIN, Layout
from weir_spark.results.reader import unreadable_input

STORE = "file:///data/the store/flow/20130101T000000Z"
KEYED = Layout(("k",), 128)
NAME = "part-00002-3bc467ca-fbb2-4268-aa70-600b40aa0fa6-c000.zstd.parquet"

CONNECT = (
    "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {}. File does not exist. It is possible "
    "the underlying files have been updated. SQLSTATE: KD001"
)
CLASSIC = (
    "An error occurred while calling o74.parquet.\n: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] "
    "Encountered error while reading file {}.  SQLSTATE: KD001\n\tat org.apache.spark.sql.errors.QueryExecutionErrors$"
)
GONE = "[PATH_NOT_FOUND] Path does not exist: {}. SQLSTATE: 42K03"
OTHER_TYPE = (
    "[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] Encountered error while reading file {}. Data type mismatches"
)


def job():
    path = f"{STORE}/clean/{KEYED.id}/1/t0003-aaaaaaaaaaaa"
    before = "file:///data/the store/flow/20121231T000000Z/totals/plain/0/t0001-cccccccccccc"
    inputs = (
        InputToRead(
            argument="flights",
            layout=KEYED,
            spark_schema="{}",
            partitions=(PartitionToRead("clean", 1, (f"{path}/{NAME}",), "t0003-aaaaaaaaaaaa"),),
        ),
        InputToRead(
            argument="yesterday",
            layout=PLAIN,
            spark_schema="{}",
            partitions=(PartitionToRead("totals", 0, (f"{before}/{NAME}",), "t0001-cccccccccccc", "run"),),
        ),
    )
    resumed = f"{STORE}/wide/copy/0/t0001-bbbbbbbbbbbb"
    stage = StageToRun(
        name="joined",
        function="m:f",
        is_source=False,
        subtask=0,
        parallelism=1,
        pipelined={},
        inputs=inputs,
        outputs=(),
        copy=CopyToWrite("flow/20130101T000000Z/joined/copy/0/t0002-dddddddddddd", "", ""),
        resume=CopyToRead(
            attempt="t0001-bbbbbbbbbbbb",
            folder="",
            files=(f"{resumed}/{NAME}",),
            spark_schema="{}",
            code="",
            session={},
            inputs=(),
            copies=(),
        ),
    )
    return RegionJob(
        attempt="t0002-dddddddddddd",
        dataflow="flow",
        epoch="e",
        interval=("", ""),
        region="joined",
        subtask=0,
        store="file:///data/store",
        report="r/report.json",
        stages=(stage,),
        parameters={},
    )


def said(text, path):
    return unreadable_input(Exception(text.format(path)), job())


@pytest.mark.parametrize("text", [CONNECT, CLASSIC, GONE])
def test_an_unreadable_file_is_reported_with_its_partition_and_attempt(text):
    path = f"file:/data/the%20store/flow/20130101T000000Z/clean/{KEYED.id}/1/t0003-aaaaaaaaaaaa/{NAME}"
    error = said(text, path)
    assert isinstance(error, InputUnreadable)
    wanted = f"could not read clean[1] ({KEYED.id}) of attempt t0003-aaaaaaaaaaaa, which joined reads as 'flights'"
    assert wanted in str(error)
    assert NAME in str(error)


def test_the_result_of_an_earlier_run_is_reported_with_its_run():
    path = f"s3a://bucket/flow/20121231T000000Z/totals/plain/0/t0001-cccccccccccc/{NAME}"
    assert "totals[0] (plain) of run of attempt t0001-cccccccccccc" in str(said(CONNECT, path))


@pytest.mark.parametrize(
    ("path", "copy"),
    [
        (f"{STORE}/wide/copy/0/t0001-bbbbbbbbbbbb/{NAME}", "the copy of joined[0] of attempt t0001-bbbbbbbbbbbb"),
        (f"{STORE}/joined/copy/0/t0002-dddddddddddd/{NAME}", "the copy of joined[0] of attempt t0002-dddddddddddd"),
    ],
)
def test_copies_of_earlier_attempts_and_of_this_one_are_distinguished(path, copy):
    assert copy in str(said(CONNECT, path))


@pytest.mark.parametrize(
    "path",
    [
        f"file:///home/me/clean/{KEYED.id}/1/t0003-bbbbbbbbbbbb/{NAME}",
        f"{STORE}/clean/{KEYED.id}/1/t0003-aaaaaaaaaaaa/part-00003.parquet",
        "file:///home/me/flights.parquet",
        "file:///home/me/flights.csv",
    ],
)
def test_an_error_about_a_file_that_the_job_does_not_name_is_left_as_it_is(path):
    assert said(CONNECT, path) is None


def test_a_file_of_another_type_is_not_unreadable_for_a_moment():
    assert said(OTHER_TYPE, f"{STORE}/clean/{KEYED.id}/1/t0003-aaaaaaaaaaaa/{NAME}") is None


def test_an_error_that_only_mentions_a_file_is_not_about_reading_it():
    path = f"{STORE}/clean/{KEYED.id}/1/t0003-aaaaaaaaaaaa/{NAME}"
    assert unreadable_input(ValueError(f"no luck with {path}"), job()) is None
