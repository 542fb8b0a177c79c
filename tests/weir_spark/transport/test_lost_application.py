from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkValueError
from pyspark.sql.types import StructType
from tests.messages.kinds import of_kind

from weir.errors import DiskFull, EngineLost, Fenced, Misconfigured, Retryable
from weir_spark.transport.driver import translate_of_own_session


class Py4JNetworkError(Exception):
    """As py4j names it."""


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        RuntimeError("An error occurred.\n: java.lang.IllegalStateException: Cannot call on a stopped SparkContext"),
        RuntimeError("Job aborted: Master removed our application: KILLED"),
        RuntimeError("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_3_0 not found!"),
    ],
)
def test_a_lost_cluster_is_a_lost_engine(error) -> None:
    assert type(translate_of_own_session(error, "a-b")) is EngineLost


def test_a_plan_that_spark_refuses_is_for_a_person() -> None:
    assert type(translate_of_own_session(AnalysisException("no column x"), "a-b")) is Misconfigured


def test_a_type_that_spark_does_not_have_is_for_a_person() -> None:
    with pytest.raises(PySparkValueError) as error:
        StructType.fromJson({"fields": [{"name": "n", "type": "bignt", "nullable": True, "metadata": {}}]})
    told = translate_of_own_session(error.value, "a-b")
    assert type(told) is Misconfigured
    assert "region a-b: a schema has a type that Spark does not have: [CANNOT_PARSE_DATATYPE]" in str(told)


def test_an_option_that_spark_does_not_take_is_for_a_person() -> None:
    error = IllegalArgumentException("got windows-1252", errorClass="INVALID_PARAMETER_VALUE.CHARSET")
    assert type(translate_of_own_session(error, "a-b")) is Misconfigured


def test_a_full_disk_is_reported_as_such() -> None:
    error = RuntimeError("Caused by: java.io.IOException: No space left on device")
    assert type(translate_of_own_session(error, "a-b")) is DiskFull


CALL_FAILED = """An error occurred while calling o114.parquet.
: java.net.{error}: Call From worker/10.0.0.3 to namenode:8020 failed on connection exception
\tat org.apache.hadoop.util.dynamic.DynConstructors$Ctor.newInstance(DynConstructors.java:70)
\tat org.apache.hadoop.net.NetUtils.wrapWithMessage(NetUtils.java:1021)
\tat org.apache.hadoop.net.NetUtils.wrapException(NetUtils.java:875)
\tat org.apache.hadoop.ipc.Client.call(Client.java:1558)"""


@pytest.mark.parametrize(
    "text",
    [
        CALL_FAILED.format(error="ConnectException"),
        CALL_FAILED.format(error="SocketTimeoutException"),
        ": org.apache.hadoop.hdfs.server.namenode.SafeModeException: Cannot create file. Name node is in safe mode.",
        ": org.apache.hadoop.ipc.StandbyException: Operation category READ is not supported in state standby",
    ],
)
def test_a_namenode_that_is_away_is_no_failure_of_the_stage(text) -> None:
    told = translate_of_own_session(RuntimeError(text), "a-b")
    assert of_kind("transport.namenode_away", region="a-b")(told)
    assert type(told) is Retryable


def test_a_namenode_of_a_name_that_nobody_knows_is_left_as_it_is() -> None:
    error = RuntimeError(CALL_FAILED.format(error="UnknownHostException"))
    assert translate_of_own_session(error, "a-b") is error


@pytest.mark.parametrize("error", [Fenced("newer"), ValueError("of a stage")])
def test_an_error_of_no_known_kind_is_left_as_it_is(error) -> None:
    assert translate_of_own_session(error, "a-b") is error
