"""Kills on a stack as teams run it: Airflow and ledger on PostgreSQL, a cluster of two workers, both engines.

One stack, one DagRun an engine: each test leaves its run green. What it came to is compared with plain Python, and the
tries with those that the fault costs.
"""

import json
import signal
from pathlib import Path

import psutil
import pytest
from ladder import expected_totals
from ladder_stack import LadderStack
from tests.chaos.server_faults import running_executors
from tests.servers.postgres import running_postgres

from weir_dev.stack.airflow_components import API_SERVER, SCHEDULER
from weir_dev.stack.processes import record, send
from weir_dev.stack.spark_cluster import worker_name
from weir_dev.stack.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.soak, pytest.mark.timeout(900)]

FLOWS = Path(__file__).parents[1] / "flows"
SUBMITTED = "ladder_submitted"
SHAPE = {"parallelism": {"totals": 1}}
WORKERS = 2


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    with running_postgres(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="module")
def deployment(stack_request, database, tmp_path_factory):
    """The deployment, with its control file beside it."""
    control = tmp_path_factory.mktemp("ladder") / "control.json"
    submitted = {"parallelism": {"numbers": 1, "totals": 1}, "spark_conn_id": "spark_default"}
    dags = {"ladder": SHAPE, SUBMITTED: submitted}
    control.write_text(json.dumps({"dags": dags}))
    environment = {
        "WEIR_LADDER": str(control),
        "PYTHONPATH": str(FLOWS),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.url("airflow"),
        "WEIR_LEDGER": database.url("weir"),
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    }
    with Stack(stack_request(FLOWS / "dags", environment=environment, spark_workers=WORKERS, spark_cores=1)) as started:
        yield started, control


def on(deployment, dag):
    driver = LadderStack(*deployment, dag)
    driver.wait(lambda: driver.api.has_dag(dag), f"the DAG {dag}")
    driver.api.unpause(dag)
    return driver


@pytest.fixture(scope="module")
def connected(deployment):
    """The ladder by Spark Connect."""
    driver = on(deployment, "ladder")
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def submitted(deployment, connected):
    """The ladder by spark-submit, when the other one has run: two cores do not do both at once any faster."""
    connected.await_green(connected.run())
    driver = on(deployment, SUBMITTED)
    yield driver
    driver.close()


@pytest.fixture
def engine(request):
    """The driver of the DAG that the test is about; its run is green, and so it must be afterwards."""
    driver = request.getfixturevalue(request.param)
    driver.await_green(driver.run())
    yield driver
    driver.change(milliseconds_a_row=0)
    driver.let_go("doubled")


by_connect = pytest.mark.parametrize("engine", ["connected"], indirect=True)


by_submit = pytest.mark.parametrize("engine", ["submitted"], indirect=True)


def kill_program(driver, name):
    """SIGKILL, and wait until the keeper has started it again."""
    killed = driver.stack.state.process(name)
    send(killed, signal.SIGKILL)
    driver.wait(lambda: is_back(driver.stack.state, killed), f"another {name}")


def is_back(state, killed):
    return state.process(killed.name) not in (None, killed) and killed.name in state.ready


def held(driver, subtask=0):
    """Clear a subtask of `doubled` and let it stop in its middle: its run, the tries before, and the process there."""
    run_id = driver.run()
    before = driver.tries(run_id)
    driver.hold("doubled")
    driver.clear(run_id, "doubled", subtask)
    return run_id, before, driver.await_reached("doubled", subtask)


def after(driver, run_id, before):
    """Wait until all is green and right; which task instances ran again, how often."""
    driver.await_green(run_id)
    assert driver.totals() == expected_totals(driver.settings())
    return driver.again(run_id, before)


@by_connect
def test_a_run_without_faults_takes_one_try_each(engine):
    assert after(engine, engine.run(), {}) == dict.fromkeys(engine.tries(engine.run()), 1)


@by_connect
def test_a_killed_scheduler_costs_the_running_task_one_try(engine):
    run_id, before, _ = held(engine)
    kill_program(engine, SCHEDULER)
    engine.let_go("doubled")
    assert after(engine, run_id, before) == {"doubled[0]": 2}
    assert engine.failures_since("doubled", 0, before["doubled[0]"]) == ["killed", None]


@by_connect
def test_a_killed_api_server_costs_nobody_else_anything(engine):
    run_id, before, _ = held(engine)
    kill_program(engine, API_SERVER)
    engine.let_go("doubled")
    assert set(after(engine, run_id, before)) == {"doubled[0]"}


@by_connect
def test_a_restart_of_postgresql_costs_nobody_else_anything(engine, database):
    run_id, before, _ = held(engine)
    database.stop()
    engine.let_go("doubled")  # its commit finds no ledger, and Airflow no database
    database.start()
    assert set(after(engine, run_id, before)) == {"doubled[0]"}


@by_connect
def test_a_killed_executor_costs_no_try(engine):
    run_id, before = engine.run(), engine.tries(engine.run())
    engine.start_slow(run_id, 0, milliseconds_a_row=200)
    send(busy_executor(engine), signal.SIGKILL)
    assert after(engine, run_id, before) == {"doubled[0]": 1}


@by_connect
def test_a_killed_worker_costs_no_try(engine):
    run_id, before = engine.run(), engine.tries(engine.run())
    engine.start_slow(run_id, 0, milliseconds_a_row=200)
    kill_program(engine, busy_executor(engine).name)
    assert after(engine, run_id, before) == {"doubled[0]": 1}


def busy_executor(driver):
    """The executor that runs a task of the Connect server, under the name of its worker."""
    driver.wait(driver.busy_executors, "an executor at work")
    ids = driver.busy_executors()
    return next(one for one in executors(driver) if id_of(one) in ids)


def id_of(executor):
    words = psutil.Process(executor.pid).cmdline()
    return words[words.index("--executor-id") + 1]


def executors_since(driver, pid):
    """The executors that were started after a process: those of the region that it drives."""
    began = psutil.Process(pid).create_time()
    return [one for one in executors(driver) if psutil.Process(one.pid).create_time() > began]


def has_a_task(executor):
    """Whether an executor was given a task, as its own log says, which is in its working directory."""
    return "Running task" in (Path(psutil.Process(executor.pid).cwd()) / "stderr").read_text()


def executors(driver):
    state = driver.stack.state
    return running_executors([state.process(worker_name(number)) for number in range(1, WORKERS + 1)])


def test_spark_submit_takes_one_try_each_and_publishes_what_spark_connect_does(connected, submitted):
    run_id = submitted.run()
    assert after(submitted, run_id, {}) == dict.fromkeys(submitted.tries(run_id), 1)
    assert submitted.digests() == connected.digests()


@by_submit
def test_killed_executors_of_a_submitted_region_cost_no_try(engine):
    run_id, before = engine.run(), engine.tries(engine.run())
    driver = engine.start_slow(run_id, 0, milliseconds_a_row=200)
    engine.wait(lambda: any(map(has_a_task, executors_since(engine, driver))), "an executor of the driver at work")
    for executor in executors_since(engine, driver):
        send(executor, signal.SIGKILL)
    assert after(engine, run_id, before) == {"doubled[0]": 1}


@by_submit
def test_a_killed_driver_costs_one_try_and_no_restart_of_the_strategy(engine):
    run_id, before, pid = held(engine)
    send(record("driver", pid), signal.SIGKILL)
    engine.let_go("doubled")
    assert after(engine, run_id, before) == {"doubled[0]": 2}
    assert engine.failures_since("doubled", 0, before["doubled[0]"]) == ["engine", None]


@by_submit
def test_the_driver_of_a_killed_task_is_ended_by_the_next_try(engine):
    run_id, before, pid = held(engine)
    driver = record("driver", pid)
    send(engine.work("doubled[0]").process.task, signal.SIGKILL)
    assert driver.is_alive()
    engine.wait(lambda: not driver.is_alive(), "the end of the driver without a task")
    engine.let_go("doubled")
    assert after(engine, run_id, before) == {"doubled[0]": 2}
    assert engine.failures_since("doubled", 0, before["doubled[0]"]) == ["killed", None]
