"""The stack that end-to-end tests share, and its API, ledger and store as they use them."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import at_once
import psutil
import pytest

from weir.ledger.ledger import Ledger
from weir.store.store import Store
from weir_dev.airflow_api import AirflowApi
from weir_dev.stack.credentials import PERSON, SERVICE
from weir_dev.stack.processes import session_members
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Phase

FLOWS = Path(__file__).parents[1] / "flows"


@pytest.fixture(scope="package")
def control(tmp_path_factory):
    """The control file of the shared stack: what DAGs it has beside the project's own (`flows/dags/ladder.py`)."""
    file = tmp_path_factory.mktemp("ladder") / "control.json"
    file.write_text('{"dags": {}}')
    return file


@pytest.fixture(scope="package")
def stack(stack_request, control):
    """The local stack of all tests that leave it whole; it starts when the first asks for it, and leaves nothing."""
    (control.parent / "code").mkdir()
    lake = control.parent / "lake"
    lake.mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": f"file://{lake}"}
    environment = {
        "WEIR_EXPECTATIONS": str(_all_suites(control.parent / "expectations")),
        "WEIR_LADDER": str(control),
        "AIRFLOW_CONN_LAKE": json.dumps({"conn_type": "iceberg", "extra": catalog}),
        "WEIR_KEEP": "7 days",  # of a dataflow that does not say it: what comes back is what a test has lost
        "PYTHONPATH": os.pathsep.join(map(str, (FLOWS, control.parent / "code"))),
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "1",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    }
    # Tasks that are held, and those that wait for them, each take a place.
    ladder = shutil.copytree(FLOWS / "dags", control.parent / "dags")
    dags = (ladder, FLOWS / "braid_dags")
    request = stack_request(*dags, environment=environment, parallelism=12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIR_JAVA", "bundled")  # as any machine has it
        with Stack(request) as started:
            yield started
            last = started.state
            everything = [*last.processes, *(member for one in last.processes for member in session_members(one))]
    assert [one for one in everything if one.is_alive()] == []
    assert [one.info["name"] for one in psutil.process_iter(["name", "environ"]) if _is_of(one, control)] == []
    assert started.state.phase is Phase.DOWN


def _is_of(process, control):
    """Whether a stack has started a process, in whatever session. Its ports may be those of others by now."""
    return (process.info["environ"] or {}).get("WEIR_LADDER") == str(control)


def _all_suites(folder):
    """Those of the project, which its own DAGs name, and those of the ladder."""
    for suites in (FLOWS.parents[1] / "include" / "expectations", FLOWS / "expectations"):
        shutil.copytree(suites, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="package")
def begun():
    """The futures of the tests of modules that have an AT_ONCE, of those that have begun."""
    return {}


@pytest.fixture(scope="module")
def outcomes(request, stack, control, begun):
    """The futures of the tests of a module that has an AT_ONCE; the next modules' tests begin with it."""
    if request.module not in begun:
        begun.update(at_once.start(stack, control, at_once.next_modules(request.session.items, request.module)))
    return begun[request.module]


@pytest.fixture(scope="package")
def api(stack):
    """The API as the person who may do everything."""
    session = AirflowApi(stack.url, PERSON, stack.credentials.person_password)
    yield session
    session.close()


@pytest.fixture(scope="package")
def service_api(stack):
    """The API as the account of the connection `weir_api`."""
    session = AirflowApi(stack.url, SERVICE, stack.credentials.service_password)
    yield session
    session.close()


@pytest.fixture
def ledger(stack):
    """The ledger of the shared stack."""
    opened = Ledger.open(stack.ledger_url)
    yield opened
    opened.close()


@pytest.fixture
def store(stack):
    """The store of the shared stack."""
    return Store.open(stack.store_url)


@pytest.fixture
def eventually():
    """Ask until the answer is true; the last answer is shown when time is up."""

    def ask(question, seconds=120):
        deadline = time.monotonic() + seconds
        while not (answer := question()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert answer, f"still {answer!r} after {seconds} s"
        return answer

    return ask
