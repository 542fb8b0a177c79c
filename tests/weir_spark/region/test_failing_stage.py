"""Of which stage an error is said, where Spark computes several as one plan."""

from __future__ import annotations

import pytest

from weir.errors import Misconfigured
from weir_spark.region import region
from weir_spark.sources.marks import file_mark

pytestmark = pytest.mark.spark

PIPELINE = """
from pyspark.sql import functions as F

def source(ctx):
    return ctx.spark.range(5)

def _helped(rows):
    return rows.select((1 / (F.col("id") - 2)).alias("id"))

def misses(ctx, rows):
    kept = rows.where("id > 1")
    return kept.select(
        F.col("kilometres")
    )

def calls_udf(ctx, rows):
    def doubled(x):
        return 2 * int("x")

    return rows.select(F.udf(doubled, "bigint")("id").alias("id"))

def divides(ctx, rows):
    return rows.select(
        (1 / (F.col("id") - 2)).alias("id"))

def divides_in_text(ctx, rows):
    return rows.selectExpr("1 / (id - 2) as id")

def is_helped(ctx, rows):
    return _helped(rows)

def out(ctx, rows):
    return rows.where("id is not null")
"""


def jobs_of(jobs, module, tmp_path):
    """Regions of a source, a stage in the middle and a last one, by the name of the stage in the middle."""

    def of(middle, source="source", **given):
        return jobs.region(
            jobs.stage("source", f"{module}:source" if source == "source" else source, is_source=True, **given),
            jobs.stage(middle, f"{module}:{middle}", pipelined={"rows": "source"}),
            jobs.stage("out", f"{module}:out", jobs.output("out"), pipelined={"rows": middle}),
        )

    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and nothing else")
    split = {"format": "parquet", "schema": "id BIGINT", "pattern": str(tmp_path / "*.parquet")}
    split["files"] = [file_mark(tmp_path / "cut.parquet")]
    names = ("misses", "calls_udf", "divides", "divides_in_text", "is_helped")
    return {
        **{name: of(name) for name in names},
        "divides of files": of("divides", "weir_spark.sources.files:read", split=split),
    }


EXPECTED = {
    "calls_udf": 'in stage calls_udf, {module}.py, line 18: return 2 * int("x")',
    "divides": 'in stage divides, {module}.py, line 24: (1 / (F.col("id") - 2)).alias("id"))',
    "divides_in_text": "in one of the stages source, divides_in_text, out, which Spark computes together",
    "is_helped": "in one of the stages source, is_helped, out, which Spark computes together, {module}.py, line 8: ",
    "divides of files": "in stage source",
}
MISSES = "stage misses: Spark refuses its plan: [UNRESOLVED_COLUMN"


def test_an_error_is_said_of_the_stage_that_has_it(spark, store, jobs, pipeline, tmp_path) -> None:
    module = pipeline(PIPELINE)
    given = jobs_of(jobs, module, tmp_path)
    with pytest.raises(Misconfigured) as refused:
        region.run(given.pop("misses"), spark, store, lambda line: None)
    assert str(refused.value).startswith(MISSES)
    assert str(refused.value).endswith(f'\n{module}.py, line 13: F.col("kilometres")')
    for name, job in given.items():
        with pytest.raises(Exception, match=r".") as error:
            region.run(job, spark, store, lambda line: None)
        assert error.value.__notes__[0].startswith(EXPECTED[name].format(module=module)), name


def test_a_session_of_its_own_says_the_same(ends_in_driver, jobs, pipeline, tmp_path) -> None:
    module = pipeline(PIPELINE)
    given = jobs_of(jobs, module, tmp_path)
    given = {name: given[name] for name in ("misses", "calls_udf", "divides of files")}
    ends = dict(zip(given, ends_in_driver(*given.values()), strict=True))
    assert ends.pop("misses").message.startswith(MISSES)
    for name, end in ends.items():
        assert EXPECTED[name].format(module=module) in end.message, name
