"""A Connect server with a token answers its own clients, and no other user of the machine can find the token out."""

from __future__ import annotations

import logging
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.client.retries import DefaultPolicy
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir_spark.transport.connect import ConnectEngine

pytestmark = pytest.mark.spark

SEVERAL = """
def numbers(ctx):
    assert sorted(row.id for row in ctx.spark.range(0, 40_000, 1, 4).toLocalIterator(prefetchPartitions=True))
    assert ctx.spark.range(20).count() == 20
    return ctx.spark.range(10)
"""


@pytest.fixture
def new_job(jobs, pipeline):
    module = pipeline(SEVERAL)
    return lambda: jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers")))


@pytest.fixture(params=["", "/;token=another"])
def stranger(request, server):
    """The URL of a client that does not know the token."""
    return f"{server.address}{request.param}"


def test_a_client_without_the_token_is_refused(stranger):
    session = SparkSession.builder.remote(f"{stranger}{';' if ';' in stranger else '/;'}user_id=weir").create()
    session.client.set_retry_policies([DefaultPolicy(max_retries=1)])
    with pytest.raises(PySparkException, match=r"(?i)token"):
        session.range(1).collect()
    session.client.close()


def test_a_region_without_the_token_fails_and_says_what_to_set(stranger, new_job):
    with pytest.raises(Misconfigured, check=of_kind("transport.token_refused")) as refused:
        ConnectEngine(stranger, retries=1).run(new_job(), str(uuid.uuid4()), lambda line: None)
    assert "another" not in str(refused.value)


def test_the_token_stands_on_no_command_line_and_in_no_line_of_a_log(server, new_job):
    lines = []
    ConnectEngine(server.url).run(new_job(), str(uuid.uuid4()), lines.append)
    leader = psutil.Process(server.leader.pid)
    alive = [one for one in (leader, *leader.children(recursive=True)) if one.status() != psutil.STATUS_ZOMBIE]
    commands = [" ".join(one.cmdline()) for one in alive]
    assert any("SparkConnectServer" in command for command in commands)
    assert server.token not in "\n".join([*commands, *lines])


class BusyServer(ThreadPoolExecutor):
    """The threads in which pyspark releases operations, where each release takes a while."""

    def submit(self, release):
        def late():
            time.sleep(0.3)
            release()

        return super().submit(late)


def test_a_session_ends_after_all_its_operations_were_released(server, new_job, monkeypatch, caplog):
    """Or the server refuses what it hears of the session, and pyspark logs each refusal."""
    monkeypatch.setenv("SPARK_CONNECT_LOG_LEVEL", "info")
    logger = logging.getLogger("pyspark.sql.connect.logging")
    monkeypatch.setattr(logger, "disabled", False)
    with BusyServer(8) as threads, caplog.at_level(logging.INFO, logger.name):
        monkeypatch.setattr(ExecutePlanResponseReattachableIterator, "_release_thread_pool", threads)
        ConnectEngine(server.url).run(new_job(), str(uuid.uuid4()), lambda line: None)
    assert caplog.records
    assert [each.getMessage() for each in caplog.records if "failed" in each.getMessage()] == []


def test_the_log_of_connect_stays_off_where_another_configuration_has_enabled_it(server, new_job, monkeypatch):
    monkeypatch.delenv("SPARK_CONNECT_LOG_LEVEL", raising=False)
    logger = logging.getLogger("pyspark.sql.connect.logging")
    monkeypatch.setattr(logger, "disabled", False)
    ConnectEngine(server.url).run(new_job(), str(uuid.uuid4()), lambda line: None)
    assert logger.disabled
