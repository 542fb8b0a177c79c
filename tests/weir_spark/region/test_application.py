"""What an application finds, and what is read of what it has written."""

from __future__ import annotations

import pytest
from tests.messages.kinds import of_kind

from weir.code.application_rules import ApplicationFailed
from weir.formats.region_job import (
    ApplicationToRun,
    InputToRead,
    application_of,
    staged_input,
    staged_output,
    staging_of,
)
from weir.topology.partitions import PLAIN, Layout
from weir_spark.files.failures import refusal_in
from weir_spark.region import region
from weir_spark.region.application import rows_of_application, write_inputs

pytestmark = pytest.mark.spark

KEYED = Layout(("k",), 16)
NUMBERS = """
def numbers(ctx):
    return ctx.spark.range(100).selectExpr("id", "id % 7 AS k")
"""


@pytest.fixture
def job_of(jobs):
    """Describe a region of one application."""

    def make(*inputs, subtask=0):
        stage = jobs.stage(
            "routes",
            "routes.jar",
            jobs.output("routes", subtask=subtask),
            inputs=inputs,
            subtask=subtask,
            application=ApplicationToRun((), ""),
        )
        code = jobs.code("routes.jar", applications={"routes.jar": b"the bytes"})
        return jobs.region(stage, subtask=subtask, code=code)

    return make


@pytest.fixture
def staged(shared_session, store):
    """Write the inputs of a job; a folder of them, as an application reads it."""

    def stage(job, argument):
        write_inputs(job, shared_session, store, lambda _: None)
        folder = staged_input(staging_of(job, application_of(job)), argument)
        return shared_session.read.parquet(store.spark_url(folder))

    return stage


@pytest.fixture
def written(job_of, shared_session, store):
    """Have an application write; the job that reads it."""

    def write(rows):
        job = job_of()
        folder = staged_output(staging_of(job, application_of(job)))
        rows(shared_session).write.parquet(store.spark_url(folder))
        return job, folder

    return write


@pytest.fixture
def read(shared_session, store):
    def reads(job):
        return rows_of_application("stage routes", application_of(job), job, shared_session, store)

    return reads


def test_each_subtask_finds_the_rows_of_its_key_groups_and_no_column_of_weir(
    jobs, job_of, staged, pipeline, session_of, store
):
    stage = jobs.stage("numbers", f"{pipeline(NUMBERS)}:numbers", jobs.output("numbers", KEYED), is_source=True)
    (numbers,) = region.run(jobs.region(stage), session_of(), store, lambda _: None).outputs
    halves = [
        staged(job_of(jobs.read("read", numbers, key_groups=groups), subtask=subtask), "read")
        for subtask, groups in enumerate([(0, 7), (8, 15)])
    ]
    assert [each.columns for each in halves] == [["id", "k"]] * 2
    ids, keys = ([[row[name] for row in each.collect()] for each in halves] for name in ("id", "k"))
    assert sorted(ids[0] + ids[1]) == list(range(100))
    assert not set(keys[0]) & set(keys[1])


def test_the_first_epoch_finds_no_rows_with_the_declared_columns(job_of, staged):
    empty = InputToRead(
        argument="before", layout=PLAIN, spark_schema="", partitions=(), declared_schema="id BIGINT, day DATE"
    )
    found = staged(job_of(empty), "before")
    assert (found.dtypes, found.count()) == ([("id", "bigint"), ("day", "date")], 0)


def test_rows_are_read_with_the_columns_of_all_files_and_those_of_partitions(written, read, store):
    job, folder = written(lambda session: session.range(4))
    session = read(job).sparkSession
    session.range(2).selectExpr("id", "'x' AS text").write.mode("append").parquet(store.spark_url(folder))
    assert (read(job).columns, read(job).count()) == (["id", "text"], 6)
    job, _ = written(lambda session: session.range(4).selectExpr("id", "id % 2 AS half"))
    assert sorted(row["half"] for row in read(job).collect()) == [0, 0, 1, 1]


def test_nothing_is_read_of_an_output_that_spark_has_not_marked_as_whole(written, read, store):
    job, folder = written(lambda session: session.range(4))
    store.delete(f"{folder}/_SUCCESS")
    with pytest.raises(ApplicationFailed, check=of_kind("region.output_unfinished", whole="_SUCCESS")):
        read(job)


def test_nothing_is_read_of_a_second_write_that_did_not_end(written, read, store):
    job, folder = written(lambda session: session.range(4))
    store.create(f"{folder}/_temporary/0/part", b"")
    with pytest.raises(ApplicationFailed, check=of_kind("region.write_unfinished")):
        read(job)


def test_an_output_without_files_is_a_failure_of_the_application(job_of, read, store):
    job = job_of()
    store.create(f"{staged_output(staging_of(job, application_of(job)))}/_SUCCESS", b"")
    with pytest.raises(ApplicationFailed, check=of_kind("region.output_empty")):
        read(job)


def test_a_text_that_is_none_is_refused_where_it_is_used(written, read):
    job, _ = written(lambda session: session.range(1).selectExpr("id", "cast(X'FF' AS STRING) AS text"))
    assert read(job).select("id").count() == 1
    with pytest.raises(Exception) as error:  # noqa: PT011  it is told
        read(job).selectExpr("upper(text)").collect()
    assert ".parquet" in refusal_in(error.value)


def test_a_region_commits_what_was_written_by_the_usual_path(written, session_of, store):
    job, _ = written(lambda session: session.range(4))
    report = region.run(job, session_of(), store, lambda _: None, read_application=rows_of_application)
    assert (report.outputs[0].digest.rows, report.attempt) == (4, job.attempt)
    assert report.code == job.code.version
