"""Spark that hangs in the store: its work can be stopped all the same."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import uuid
from contextlib import contextmanager

import pytest

from weir.errors import Fenced
from weir.formats.codec import from_json
from weir.formats.region_job import RegionReport
from weir_spark.transport.connect import ConnectEngine

pytestmark = pytest.mark.spark

STAGES = "def numbers(ctx):\n    return ctx.spark.range(1000)\ndef same(ctx, numbers):\n    return numbers\n"


@contextmanager
def leased(path):
    """Let whoever opens the file wait in the kernel, as for a network file system: a lease is to be given up first."""
    holder = os.open(path, os.O_RDWR)
    fcntl.fcntl(holder, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored
    fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    try:
        yield lambda: fcntl.fcntl(holder, fcntl.F_GETLEASE) != fcntl.F_WRLCK
    finally:
        os.close(holder)


def test_a_region_whose_read_hangs_can_be_interrupted_and_computed_when_the_store_answers(
    server, store, jobs, pipeline
) -> None:
    module, engine = pipeline(STAGES), ConnectEngine(server.url, retries=2)
    source = jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers")))
    engine.run(source, str(uuid.uuid4()), lambda line: None)
    (read,) = from_json(RegionReport, store.read(source.report)).outputs
    inputs = (jobs.read("numbers", read),)

    def consumer():
        return jobs.region(jobs.stage("same", f"{module}:same", jobs.output("same"), inputs=inputs))

    session, errors = str(uuid.uuid4()), []

    def run():
        try:
            engine.run(consumer(), session, lambda line: None)
        except Exception as error:  # noqa: BLE001  # the test looks at it
            errors.append(error)

    file = store.url.removeprefix("file://") + f"/{read.folder}/{read.files[0].name}"
    with leased(file) as is_waited_for:
        thread = threading.Thread(target=run)
        thread.start()
        while not is_waited_for():
            assert thread.is_alive()
        ConnectEngine(server.url).interrupt(session)
        thread.join(60)
        assert [type(error) for error in errors] == [Fenced], errors
    again = consumer()
    engine.run(again, str(uuid.uuid4()), lambda line: None)
    assert from_json(RegionReport, store.read(again.report)).outputs[0].digest == read.digest
