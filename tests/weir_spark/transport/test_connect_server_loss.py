"""What becomes of an attempt whose server goes away; each test has a server of its own to lose."""

from __future__ import annotations

import signal
import socket
import threading
import time
import uuid

import pytest
from tests.messages.kinds import of_kind

from weir.errors import EngineLost
from weir_spark.transport.connect import ConnectEngine

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("seen_at_work")]


def test_a_server_that_is_not_there_is_a_reason_to_try_again_later(jobs, pipeline) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"sc://127.0.0.1:{probe.getsockname()[1]}"
    module = pipeline("def numbers(ctx):\n    return ctx.spark.range(10)\n")
    made = jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers")))
    with pytest.raises(EngineLost, check=of_kind("transport.server_lost")):
        ConnectEngine(url, retries=2).run(made, str(uuid.uuid4()), lambda line: None)
    with pytest.raises(EngineLost, check=of_kind("transport.server_lost")):
        ConnectEngine(url, retries=2).interrupt(str(uuid.uuid4()))


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_losing_the_server_in_the_middle_is_a_reason_to_try_again_and_no_interruption(
    new_server, jobs, pipeline, how
) -> None:
    module = pipeline(
        "import time\n"
        "from pyspark.sql import functions as F\n"
        "def slowly(x):\n"
        "    time.sleep(0.5)\n"
        "    return x\n"
        "def numbers(ctx):\n"
        "    return ctx.spark.range(0, 400, 1, 2).select(F.udf(slowly, 'long')('id').alias('id'))\n"
    )
    made = jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers")))
    lines: list[str] = []
    errors: list[Exception] = []
    with new_server() as server:

        def run() -> None:
            try:
                ConnectEngine(server.url, retries=3).run(made, str(uuid.uuid4()), lines.append)
            except Exception as error:  # noqa: BLE001  # the test looks at it
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        wait_for(lambda: any("Spark's tasks" in line for line in lines) or not thread.is_alive())
        server.send(how)
        thread.join(90)
    assert [type(error) for error in errors] == [EngineLost], errors


def wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
