"""Cached stages of a region on Spark: copied once, resumed from, and never believed without reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from urllib.request import urlopen

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.formats.codec import from_json, to_json
from weir.formats.manifest import StageCopy
from weir.topology.partitions import Layout
from weir_spark.region import region
from weir_spark.region.temporary import Temporary
from weir_spark.results.digest import digest_of
from weir_spark.results.reader import read_input

pytestmark = pytest.mark.spark

BY_KEY = Layout(("key",), 128)

PIPELINE = """
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql.types import StringType


def _seen(folder, stage):
    @F.udf(StringType())
    def seen(text):
        with open(f"{folder}/{stage}", "a") as file:
            file.write("x")
        return text

    return seen


def _observed(ctx, stage, rows):
    return rows.withColumn("text", _seen(ctx.parameters["seen"], stage)("text"))


def numbers(ctx):
    rows = ctx.spark.range(100).select((F.col("id") % 7).alias("key"), F.uuid().alias("text"))
    return _observed(ctx, "numbers", rows)


def wide(ctx, numbers):
    return _observed(ctx, "wide", numbers.withColumn("more", F.col("key") + 1))


def chance(ctx):
    return _observed(ctx, "chance", ctx.spark.sql("select id % 7 key, uuid() text from range(100)"))


def report(ctx, wide):
    if ctx.parameters.get("fails"):
        raise ValueError("no luck")
    return wide


def failing(ctx, wide):
    return wide.select(F.raise_error(F.lit("no luck")).cast("string").alias("key"))
"""


@pytest.fixture
def seen(tmp_path):
    """How many rows each stage was computed for."""
    folder = tmp_path / "seen"
    folder.mkdir()

    def count() -> dict[str, int]:
        return {file.name: len(file.read_text()) for file in sorted(folder.iterdir())}

    count.folder = str(folder)
    return count


@pytest.fixture
def lines():
    return []


@pytest.fixture
def run(spark, store, lines):
    def do(job):
        return region.run(job, spark, store, lines.append)

    return do


@pytest.fixture
def new_job(jobs, pipeline, seen):
    """A region of three stages, of which the first two are cached, each into a copy of its own."""
    module = pipeline(PIPELINE)

    def make(numbers=None, wide=None, last="report", **parameters):
        return jobs.region(
            jobs.stage("numbers", f"{module}:numbers", is_source=True, **(numbers or {"copy": jobs.copy("numbers")})),
            jobs.stage(
                "wide", f"{module}:wide", pipelined={"numbers": "numbers"}, **(wide or {"copy": jobs.copy("wide")})
            ),
            jobs.stage("report", f"{module}:{last}", jobs.output("report"), pipelined={"wide": "wide"}),
            parameters={"seen": seen.folder, **parameters},
        )

    return make


def digest(spark, jobs, report):
    return digest_of(read_input(spark, jobs.read("x", report)))


def fails(run, job):
    with pytest.raises(ValueError, match="no luck"):
        run(job)
    return job


def test_each_cached_stage_is_computed_once_and_described_last(run, new_job, store, seen, jobs, spark) -> None:
    job = new_job()
    report = run(job)
    assert seen() == {"numbers": 100, "wide": 100}
    for stage in job.stages[:2]:
        copy = from_json(StageCopy, store.read(f"{stage.copy.folder}/copy.json"))
        rows = read_input(spark, replace(jobs.read("x", report.outputs[0]), spark_schema=copy.spark_schema))
        assert (copy.stage, copy.attempt, copy.made_from, copy.code) == (
            stage.name,
            job.attempt,
            "from this",
            report.code,
        )
        assert (copy.digest.rows, sum(file.rows for file in copy.files)) == (100, 100)
        assert rows.columns == (["key", "text"] if stage.name == "numbers" else ["key", "text", "more"])
    assert report.resumed == ()


def test_a_copy_names_the_results_and_copies_that_it_was_read_from(run, new_job, jobs, pipeline, store) -> None:
    source = pipeline("def given(ctx):\n    return ctx.spark.range(5).selectExpr('id key')\n")
    written = run(jobs.region(jobs.stage("given", f"{source}:given", jobs.output("given"))))
    reading = pipeline("def a(ctx, given):\n    return given\n\ndef b(ctx, a):\n    return a\n")
    read = jobs.read("given", *written.outputs)
    first, second = jobs.copy("a"), jobs.copy("b")
    run(
        jobs.region(
            jobs.stage("a", f"{reading}:a", inputs=(read,), copy=first),
            jobs.stage("b", f"{reading}:b", pipelined={"a": "a"}, copy=second),
            jobs.stage("c", f"{reading}:b", jobs.output("c"), pipelined={"a": "b"}),
        )
    )
    a, b = (from_json(StageCopy, store.read(f"{each.folder}/copy.json")) for each in (first, second))
    assert (a.inputs, a.copies) == ((read.partitions[0].attempt,), ())
    assert (b.inputs, b.copies) == (a.inputs, (first.folder,))


def test_a_retry_computes_nothing_before_the_newest_copy_and_logs_it(run, new_job, jobs, seen, lines, spark) -> None:
    before = fails(run, new_job(fails=True))
    first = seen()
    resume = jobs.resume(before.stages[1].copy)
    report = run(new_job(wide={"copy": jobs.copy("wide"), "resume": resume}))
    assert seen() == first
    assert report.resumed == ("wide",)
    assert f"resuming after wide: its rows are read from the copy of attempt {before.attempt}" in lines
    # The rows are random: only those of the first attempt can be the same again.
    copied = replace(jobs.read("x", report.outputs[0]), partitions=())
    files = (replace(jobs.read("x", report.outputs[0]).partitions[0], files=resume.files),)
    assert digest(spark, jobs, report.outputs[0]) == digest_of(read_input(spark, replace(copied, partitions=files)))


def test_a_retry_resumes_after_the_first_copy_where_there_is_no_second(run, new_job, jobs, seen) -> None:
    before = fails(run, new_job(wide={"copy": None}, fails=True))
    resume = jobs.resume(before.stages[0].copy)
    report = run(new_job(numbers={"copy": jobs.copy("numbers"), "resume": resume}))
    assert (seen()["numbers"], report.resumed) == (100, ("numbers",))


@pytest.mark.parametrize(("field", "other"), [("code", "sha256:other"), ("session", {"spark.version": "1"})])
def test_a_copy_of_other_code_or_settings_is_not_used(run, new_job, jobs, seen, lines, store, field, other) -> None:
    before = fails(run, new_job(fails=True))
    resume = replace(jobs.resume(before.stages[1].copy), **{field: other})
    copy = jobs.copy("wide")
    report = run(new_job(wide={"copy": copy, "resume": resume}))
    assert (seen(), report.resumed) == ({"numbers": 200, "wide": 200}, ())
    assert any(line.startswith(f"the copy of wide by attempt {before.attempt} was made") for line in lines)
    assert from_json(StageCopy, store.read(f"{copy.folder}/copy.json")).code == report.code


def test_a_stage_with_results_of_its_own_writes_them_from_its_copy(run, new_job, jobs, pipeline, seen, spark) -> None:
    module = pipeline(PIPELINE)

    def job(**more):
        return jobs.region(
            jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers"), jobs.output("numbers", BY_KEY), **more),
            jobs.stage("report", f"{module}:report", jobs.output("report"), pipelined={"wide": "numbers"}),
            parameters={"seen": seen.folder},
        )

    first = job(copy=jobs.copy("numbers"))
    reports = [run(first), run(job(resume=jobs.resume(first.stages[0].copy)))]
    assert seen() == {"numbers": 100}
    contents = {
        digest_of(read_input(spark, jobs.read("x", output)).select("key", "text"))
        for report in reports
        for output in report.outputs
    }
    assert len(contents) == 1


def test_notes_of_the_coordinator_are_in_the_log(run, new_job, lines) -> None:
    run(replace(new_job(), notes=("the copy of wide is not used: damaged",)))
    assert "the copy of wide is not used: damaged" in lines


def test_rows_that_cannot_be_copied_are_refused_with_the_stage(run, jobs, pipeline) -> None:
    module = pipeline("def twice(ctx):\n    return ctx.spark.sql('select 1 a, 2 A')\n\ndef b(ctx, x):\n    return x\n")
    stages = (
        jobs.stage("twice", f"{module}:twice", copy=jobs.copy("twice")),
        jobs.stage("b", f"{module}:b", jobs.output("b"), pipelined={"x": "twice"}),
    )
    with pytest.raises(Misconfigured, check=of_kind("results.columns_alike", stage="twice")):
        run(jobs.region(*stages))


def test_an_empty_stage_is_copied_and_read(run, jobs, pipeline) -> None:
    module = pipeline(
        "def none(ctx):\n    return ctx.spark.range(0).selectExpr('id a')\n\ndef b(ctx, x):\n    return x\n"
    )
    first = jobs.copy("none")

    def job(**more):
        return jobs.region(
            jobs.stage("none", f"{module}:none", **more),
            jobs.stage("b", f"{module}:b", jobs.output("b"), pipelined={"x": "none"}),
        )

    assert run(job(copy=first)).outputs[0].digest.rows == 0
    report = run(job(resume=jobs.resume(first)))
    assert (report.outputs[0].digest.rows, report.resumed) == (0, ("none",))


# Persisted within one attempt


@pytest.fixture
def persisting(new_job, jobs, pipeline, seen):
    """A region whose first stage is persisted, and read by two others."""
    module = pipeline(PIPELINE)

    def make(last="report", first="numbers"):
        return jobs.region(
            jobs.stage("numbers", f"{module}:{first}", is_source=True, is_persisted=True),
            jobs.stage("one", f"{module}:report", jobs.output("one"), pipelined={"wide": "numbers"}),
            jobs.stage("two", f"{module}:{last}", jobs.output("two"), pipelined={"wide": "numbers"}),
            parameters={"seen": seen.folder},
        )

    return make


@pytest.fixture
def kept(server, spark):
    """What the server keeps of rows at the moment, but for what it kept when the test began."""
    address = f"{server.ui_url}/api/v1/applications/{spark.conf.get('spark.app.id')}/storage/rdd"

    def everything():
        with urlopen(address, timeout=60) as answer:  # noqa: S310  # the loopback interface
            return {each["id"]: each["name"] for each in json.load(answer)}

    before = everything()
    return lambda: [name for number, name in everything().items() if number not in before]


def test_persisted_rows_are_unpersisted_at_the_end(spark, kept, lines, persisting, store) -> None:
    with Temporary(persisting(), store, lines.append) as temporary:
        temporary.persist("numbers", spark.range(3)).count()
        assert len(kept()) == 1
    assert (kept(), lines) == ([], [])


def test_rows_that_cannot_be_unpersisted_are_logged_and_hide_no_failure(session_of, lines, persisting, store) -> None:
    session = session_of()

    def fails() -> None:
        with Temporary(persisting(), store, lines.append) as temporary:
            temporary.persist("numbers", session.range(3))
            session.stop()
            raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        fails()
    assert lines[0].startswith("Spark may still keep rows of numbers: ")


def test_a_persisted_stage_is_computed_once_for_all_its_readers_and_let_go(run, persisting, seen, kept) -> None:
    report = run(persisting())
    assert seen() == {"numbers": 100}
    assert len({output.digest for output in report.outputs}) == 1
    assert kept() == []


def test_rows_that_spark_makes_by_chance_are_the_same_for_all_readers_of_a_persisted_stage(run, persisting, seen):
    """Spark Connect resolves a plan at each use, and `uuid()` in SQL gets another seed each time."""
    report = run(persisting(first="chance"))
    assert seen() == {"chance": 100}
    assert len({output.digest for output in report.outputs}) == 1


def test_persisted_rows_are_unpersisted_when_the_attempt_fails(run, persisting, kept) -> None:
    with pytest.raises(Exception, match="no luck"):
        run(persisting("failing"))
    assert kept() == []


def test_an_attempt_never_gets_the_rows_that_another_one_persists(run, persisting, seen) -> None:
    run(persisting())
    run(persisting())
    assert seen() == {"numbers": 200}


OWN_SESSION = """
import os, sys
from pathlib import Path

os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
from pyspark.sql import SparkSession

from weir.formats.codec import region_job_from_json
from weir.store.store import Store
from weir_spark.region import region

session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
for path in sys.argv[1:]:
    job = region_job_from_json(Path(path).read_bytes())
    try:
        report = region.run(job, session, Store.open(job.store))
        print("REPORT", len({str(each.digest) for each in report.outputs}), *report.resumed)
    except Exception as error:
        print("FAILED", "no luck" in str(error))
    manager = session._jsparkSession.sharedState().cacheManager()
    print("KEPT", not manager.isEmpty(), session.sparkContext._jsc.getPersistentRDDs().size())
session.stop()
"""


@pytest.mark.soak
def test_a_session_of_its_own_persists_copies_and_resumes_as_well(new_job, persisting, jobs, run, seen, tmp_path):
    before = fails(run, new_job(fails=True))
    resumed = new_job(wide={"copy": jobs.copy("wide"), "resume": jobs.resume(before.stages[1].copy)})
    files = []
    for number, job in enumerate((persisting(), persisting("failing"), new_job(), resumed)):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_bytes(to_json(job))
    program = tmp_path / "program.py"
    program.write_text(OWN_SESSION)
    done = subprocess.run(
        [sys.executable, str(program), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "modules"), "PYSPARK_PYTHON": sys.executable},
    )
    said = [line for line in done.stdout.splitlines() if line.split(" ")[0] in ("REPORT", "FAILED", "KEPT")]
    assert said == [
        "REPORT 1",
        "KEPT False 0",
        "FAILED True",
        "KEPT False 0",
        "REPORT 1",
        "KEPT False 0",
        "REPORT 1 wide",
        "KEPT False 0",
    ], done.stdout + done.stderr[-2000:]
