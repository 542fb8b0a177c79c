from __future__ import annotations

import sys
import textwrap
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkException
from pyspark.sql.connect.client.core import SparkConnectClient
from tests.messages.kinds import of_kind
from tests.weir_spark.sources.conftest import resolved

from weir.dataflow import files_source
from weir.errors import Internal, Misconfigured
from weir.formats.codec import from_json, to_json
from weir.formats.region_job import RegionReport
from weir.topology.partitions import PLAIN, Layout
from weir_spark.region import region
from weir_spark.results.digest import digest_of
from weir_spark.results.reader import read_input
from weir_spark.transport.connect import translate

pytestmark = pytest.mark.spark

BY_KEY = Layout(("key",), 128)


@pytest.fixture
def run(spark, store):
    def do(job, log=lambda line: None):
        return region.run(job, spark, store, log)

    return do


NUMBERS = """
def numbers(ctx):
    return ctx.spark.sql("select id key, string(id) text from range(100)")

def even(ctx, numbers):
    return numbers.where("key % 2 = 0")
"""


COMPUTES_NOTHING = {"sql_command", "create_dataframe_view"}
"""Such commands give a name to a plan, or a plan to a query."""


@pytest.fixture
def executed(monkeypatch):
    """What Spark is asked to execute from now on, by the kinds of commands; "root" is a plan whose rows are fetched."""
    kinds, execute = [], SparkConnectClient._execute_and_fetch_as_iterator

    def told(client, request, *more, **options):
        plan = request.plan
        kinds.append(plan.command.WhichOneof("command_type") if plan.HasField("command") else "root")
        return execute(client, request, *more, **options)

    monkeypatch.setattr(SparkConnectClient, "_execute_and_fetch_as_iterator", told)
    return kinds


def test_the_stages_of_a_region_are_one_plan_whose_last_result_is_written(run, jobs, pipeline, spark, executed) -> None:
    module = pipeline(NUMBERS)
    report = run(
        jobs.region(
            jobs.stage("numbers", f"{module}:numbers", is_source=True),
            jobs.stage("even", f"{module}:even", jobs.output("even", BY_KEY), pipelined={"numbers": "numbers"}),
        )
    )
    assert [kind for kind in executed if kind not in COMPUTES_NOTHING] == ["write_operation"]
    (output,) = report.outputs
    assert (output.stage, output.layout, output.digest.rows) == ("even", BY_KEY, 50)
    assert from_json(RegionReport, to_json(report)) == report
    assert report.session["spark.sql.session.timeZone"] == "UTC"
    assert {"prepare", "plan even", f"write even ({BY_KEY.id})", f"seal even ({BY_KEY.id})"} <= report.metrics.keys()


def test_a_blocking_input_is_read_by_the_key_groups_of_the_subtask(run, jobs, pipeline) -> None:
    module = pipeline(NUMBERS)
    written = run(jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers", BY_KEY))))
    seen = 0
    for subtask, groups in enumerate([(0, 42), (43, 85), (86, 127)]):
        read = jobs.read("numbers", *written.outputs, key_groups=groups)
        output = jobs.output("even", subtask=subtask)
        stage = jobs.stage("even", f"{module}:even", output, inputs=(read,), subtask=subtask, parallelism=3)
        seen += run(jobs.region(stage)).outputs[0].digest.rows
    assert seen == 50


def test_a_stage_knows_its_epoch_interval_subtask_parallelism_and_parameters(run, jobs, pipeline, spark) -> None:
    module = pipeline(
        textwrap.dedent("""
        def seen(ctx, split):
            times = [str(each) for each in ctx.interval]
            found = [ctx.epoch, *times, ctx.subtask, ctx.parallelism, ctx.parameters["a"]]
            return ctx.spark.createDataFrame([(str(found), split["airport"])], "found string, airport string")
        """)
    )
    stage = jobs.stage(
        "seen",
        f"{module}:seen",
        jobs.output("seen"),
        is_source=True,
        subtask=1,
        parallelism=3,
        split={"airport": "JFK"},
    )
    report = run(jobs.region(stage, parameters={"a": [1, 2]}))
    (row,) = read_input(spark, jobs.read("seen", *report.outputs)).collect()
    days = [datetime(2013, 1, day, tzinfo=UTC) for day in (1, 2)]
    assert row.asDict() == {
        "found": str(["20130101T000000Z", *map(str, days), 1, 3, [1, 2]]),
        "airport": "JFK",
    }


def test_a_sink_stages_the_rows_of_its_input(run, jobs, pipeline) -> None:
    module = pipeline(NUMBERS)
    report = run(
        jobs.region(
            jobs.stage("numbers", f"{module}:numbers", is_source=True),
            jobs.stage("published", "", jobs.output("published"), pipelined={"numbers": "numbers"}),
        )
    )
    assert [(output.stage, output.digest.rows) for output in report.outputs] == [("published", 100)]


RANDOM = """
from pyspark.sql import functions as F

def random(ctx):
    return ctx.spark.range(100).select(F.col("id").alias("key"), F.uuid().alias("text"))

def same(ctx, random):
    return random
"""


def test_a_stage_that_is_used_twice_is_computed_once(run, jobs, pipeline, spark) -> None:
    module = pipeline(RANDOM)
    report = run(
        jobs.region(
            jobs.stage("random", f"{module}:random", jobs.output("random"), jobs.output("random", BY_KEY)),
            jobs.stage("same", f"{module}:same", jobs.output("same"), pipelined={"random": "random"}),
        )
    )
    digests = {digest_of(read_input(spark, jobs.read("x", output)).select("key", "text")) for output in report.outputs}
    assert len(report.outputs) == 3
    assert len(digests) == 1


def test_the_report_has_the_version_of_the_code_that_the_job_names(run, jobs, pipeline) -> None:
    job = jobs.region(jobs.stage("numbers", f"{pipeline(NUMBERS)}:numbers", jobs.output("numbers")))
    assert run(job).code == job.code.version


def test_an_unknown_function_is_refused_before_anything_is_computed(run, jobs, pipeline, store) -> None:
    module = pipeline(NUMBERS)
    output = jobs.output("numbers")
    with pytest.raises(Misconfigured, check=of_kind("code.name_not_in_module", kind="function", owner="stage even")):
        run(
            jobs.region(
                jobs.stage("numbers", f"{module}:numbers", output),
                jobs.stage("even", f"{module}:evn", jobs.output("even"), pipelined={"numbers": "numbers"}),
            )
        )
    assert store.folders("flow") == ["_code"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("pass", "must return a Spark DataFrame, found NoneType .is a `return` missing"),
        ("return [1, 2]", "must return a Spark DataFrame, found list"),
        ("return ctx.spark.sql('select 1 other')", "returns no column 'key'"),
        ("return ctx.spark.sql('select double(1) key')", "key column key: a key column cannot be of type double"),
    ],
)
def test_a_stage_that_does_not_return_what_it_must_is_refused(run, jobs, pipeline, body, message) -> None:
    module = pipeline(f"def numbers(ctx):\n    {body}\n")
    with pytest.raises(Misconfigured, match=f"stage numbers.*{message}"):
        run(jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers", BY_KEY))))


REFUSED = """
from pyspark.sql import functions as F

def numbers(ctx):
    rows = ctx.spark.range(10)
    return rows.filter(
        F.col("kilometres") > 3
    )
"""


def test_a_plan_that_spark_refuses_is_told_with_the_stage_and_the_line_of_its_function(run, jobs, pipeline) -> None:
    module = pipeline(REFUSED)
    with pytest.raises(Misconfigured) as error:
        run(jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers"))))
    said, place = str(error.value).split("\n")
    assert said.startswith("stage numbers: Spark refuses its plan: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column")
    assert place == f'{module}.py, line 7: F.col("kilometres") > 3'


def test_a_line_that_does_not_fit_its_schema_is_told_with_the_file(run, jobs, pipeline, tmp_path) -> None:
    (tmp_path / "in.csv").write_text("name,key\nx,1\n")
    options = '.option("header", "true").option("mode", "FAILFAST")'
    body = f'return ctx.spark.read.schema("key BIGINT, name STRING"){options}.csv("{tmp_path}/in.csv")'
    module = pipeline(f"def numbers(ctx):\n    {body}\n")
    with pytest.raises(SparkException) as error:
        run(jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers"))))
    told = translate(error.value, "numbers", "sc://x", is_server_alive=True)
    assert type(told) is Misconfigured
    assert f"{tmp_path}/in.csv has a line that does not fit the schema that it is read by" in str(told)


def test_a_line_that_a_source_refuses_is_told_with_its_number_column_and_value(run, jobs, tmp_path) -> None:
    (tmp_path / "in.csv").write_text("k,n,d\n1,2,2013-01-01\n2,x1,2013-01-02\n3,4,2013-13-45\n")
    for schema, wrong in (
        ("k INT, n INT, d STRING", "n int has 'x1'"),
        ("k INT, n STRING, d DATE", "d date has '2013-13-45'"),
    ):
        given = files_source("in", f"{tmp_path}/in.csv", format="csv", schema=schema, reader={"header": "true"})
        (split,) = resolved(given)
        stage = replace(jobs.stage("in", given.function, jobs.output("in")), split=split)
        with pytest.raises(PySparkException) as error:
            run(jobs.region(stage))
        told = translate(error.value, "in", "sc://x", is_server_alive=True)
        assert type(told) is Misconfigured
        line = 3 if "x1" in wrong else 4
        assert str(told).startswith(f"region in: line {line} of in.csv: column {wrong}: ")


def test_an_error_of_a_function_has_its_stage_and_line(run, jobs, pipeline) -> None:
    module = pipeline('def numbers(ctx):\n    return {}["b"]\n')
    with pytest.raises(KeyError) as error:
        run(jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers"))))
    assert error.value.__notes__ == [f'in stage numbers, {module}.py, line 2: return {{}}["b"]']


def test_a_dataframe_of_another_session_is_refused(run, jobs, pipeline, session_of, monkeypatch) -> None:
    module = pipeline("import sys\n\ndef numbers(ctx):\n    return sys.other_session.range(3)\n")
    monkeypatch.setattr(sys, "other_session", session_of(), raising=False)
    with pytest.raises(Misconfigured, check=of_kind("region.dataframe_of_other_session")):
        run(jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers"))))


def test_a_sink_has_one_input(run, jobs) -> None:
    with pytest.raises(Internal, check=of_kind("region.sink_inputs", stage="published")):
        run(jobs.region(jobs.stage("published", "", jobs.output("published"))))


def test_plain_results_are_read_whole(run, jobs, pipeline, spark) -> None:
    module = pipeline(NUMBERS)
    written = run(jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers", PLAIN))))
    assert read_input(spark, jobs.read("numbers", *written.outputs)).count() == 100
