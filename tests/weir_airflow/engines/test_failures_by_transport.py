"""What real Spark makes of a stage that fails, on both transports, and what Weir makes of that."""

from __future__ import annotations

import sys
import uuid

import pytest
from tests.builders.jobs import Jobs

from weir.execution.failure_class import FailureClass, classify
from weir.execution.labels import exception_name
from weir.formats.codec import to_json
from weir.store.store import Store

pytestmark = pytest.mark.spark

PIPELINE = """
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from weir.errors import SuppressRestarts


class Closed(SuppressRestarts):
    pass


@F.udf(LongType())
def lacking(number):
    import no_such_library
    return number


@F.udf(LongType())
def giving_up(number):
    raise SuppressRestarts("the month is closed")


@F.udf(LongType())
def dividing(number):
    return 1 // 0


@F.pandas_udf(LongType())
def lacking_with_pandas(numbers):
    import no_such_library
    return numbers


def by(function, ctx):
    return ctx.spark.range(3).select(function("id").alias("id"))


def no_column(ctx):
    return ctx.spark.range(3).select("nothing")


def no_sql(ctx):
    return ctx.spark.sql("selec 1")


def no_path(ctx):
    return ctx.spark.read.parquet("/no/such/folder")


def no_module(ctx):
    import no_such_library


def no_module_in_udf(ctx):
    return by(lacking, ctx)


def no_module_in_pandas_udf(ctx):
    return by(lacking_with_pandas, ctx)


def no_restarts(ctx):
    raise SuppressRestarts("the month is closed")


def no_restarts_by_subclass(ctx):
    raise Closed("the month is closed")


def no_restarts_in_udf(ctx):
    return by(giving_up, ctx)


def no_number(ctx):
    return ctx.spark.range(1).select(F.lit("x").cast("int").alias("id"))


def no_division_in_udf(ctx):
    return by(dividing, ctx)


def no_key(ctx):
    return {}["month"]
"""

FATAL, APPLICATION = FailureClass.FATAL, FailureClass.APPLICATION

TABLE = {
    "no_column": (FATAL, "UNRESOLVED_COLUMN"),
    "no_sql": (FATAL, "PARSE_SYNTAX_ERROR"),
    "no_module": (FATAL, "no_such_library"),
    "no_module_in_udf": (FATAL, "ModuleNotFoundError"),
    "no_module_in_pandas_udf": (FATAL, "ModuleNotFoundError"),
    "no_restarts": (FATAL, "the month is closed"),
    "no_restarts_by_subclass": (FATAL, "the month is closed"),
    "no_restarts_in_udf": (FATAL, "SuppressRestarts: the month is closed"),
    "no_path": (APPLICATION, "PATH_NOT_FOUND"),
    "no_number": (APPLICATION, "CAST_INVALID_INPUT"),
    "no_division_in_udf": (APPLICATION, "ZeroDivisionError"),
    "no_key": (APPLICATION, "month"),
}

REPEATED = {"no_sql", "no_module_in_pandas_udf", "no_restarts_by_subclass", "no_division_in_udf"}
"""Errors that say no more than others."""

IN_WORKER = {
    "no_module_in_udf": "ModuleNotFoundError",
    "no_restarts_in_udf": "SuppressRestarts",
    "no_division_in_udf": "ZeroDivisionError",
}


@pytest.fixture
def failure_of_stage(tmp_path, monkeypatch, server):
    """Run a stage of the pipeline by spark-submit or on a Connect server; answers what the task then raises."""
    from airflow.sdk import Connection

    from weir_airflow.engines.engines import engine_for

    store = Store.open(str(tmp_path / "store"))
    store.initialise()
    (tmp_path / "failing_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    jobs = Jobs(store)
    connections = {
        "spark-submit": Connection(conn_id="spark_default", conn_type="spark", host="local[2]"),
        "Connect": Connection(conn_id="spark_default", **server.connection),
    }

    def run(stage, transport):
        job = jobs.region(jobs.stage(stage, f"failing_pipeline:{stage}", jobs.output(stage)))
        store.create(f"{job.folder}/job.json", to_json(job))
        engine = engine_for(connections[transport], store, {})
        with pytest.raises(Exception) as caught:  # noqa: PT011  which one is what is asked
            engine.run(job, str(uuid.uuid4()), lambda _: None)
        return caught.value

    yield run
    sys.modules.pop("failing_pipeline", None)


@pytest.mark.parametrize(
    ("transport", "stage"),
    [
        *(pytest.param("Connect", stage, marks=pytest.mark.soak if stage in REPEATED else ()) for stage in TABLE),
        # By spark-submit, that the driver's report says of an error of each origin what the client of a server says.
        ("spark-submit", "no_column"),
        *(
            pytest.param("spark-submit", stage, marks=pytest.mark.soak)
            for stage in ("no_restarts_by_subclass", "no_restarts_in_udf", "no_division_in_udf")
        ),
    ],
)
def test_what_no_retry_can_help_is_known_on_both_transports(failure_of_stage, transport, stage):
    expected, text = TABLE[stage]
    error = failure_of_stage(stage, transport)
    assert classify(error) is expected, repr(error)
    assert text in str(error)
    if stage in IN_WORKER:
        assert exception_name(error) == IN_WORKER[stage]
