"""What all tests share: a Java, how a stack is asked for, and the proof that nothing is left running."""

from __future__ import annotations

import gc
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, closing
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest
from tests import schedule, spark_classes, store_guard
from tests.builders.ledgers import sharing_engine
from tests.postgres_ledgers import ledger_that_stays_connected
from tests.progress import Progress
from tests.servers.small_disk import may_mount, why_no_own_mounts, with_own_mounts

from weir.java import find_java
from weir_dev.stack.state import StackRequest

ROOT = Path(__file__).parents[1]
MARK = "WEIR_TEST_RUN"
LAST_DAY = "2013-01-05"
"""The `flight_delays` of a test's stack has runs from 2013-01-01 to this day, once it is unpaused."""

CALM_AIRFLOW = {
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",  # what changes is touched (`ladder_stack.py`)
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "60",
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "3",
}
"""A stack of tests waits most of the time: while it does, the processor is for other tests."""

OF_TESTS = ROOT / ".weir" / "tests"
"""What the tests of this checkout keep for those to come."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""JVMs of tests live for seconds: what they compile at leisure takes half of that time, and is ready when they end."""

# Programs that tests start by the hundred find the modules of this tree compiled, also where it is not wanted.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser):
    """Add the option for tests that take long and prove little more each time."""
    parser.addoption("--soak", action="store_true", help="run the tests marked soak, and no others: chaos, many seeds")


def pytest_xdist_auto_num_workers(config):
    """`./weir test` asks for `-n auto`."""
    return schedule.processes(config)


def pytest_xdist_make_scheduler(config, log):
    """Hand out the tests by lane."""
    config.option.loadscopereorder = False
    return schedule.ByLane(config, log)


def pytest_collection(session):
    """Nothing of what is made while tests are collected is garbage."""
    if not is_first_of_several(session.config):
        gc.disable()


def pytest_collection_finish(session):
    """What there is stays to the end: the collector need not look at it again and again, nor at each few objects."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 50)


def pytest_collection_modifyitems(config, items):
    """Leave out soaks, or all else; in several processes, put the tests into the order of their lanes."""
    chosen, others = [], []
    for item in items:
        is_soak = item.get_closest_marker("soak") is not None
        (chosen if is_soak == config.getoption("soak") else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: schedule.place(item.nodeid))


def pytest_configure(config):
    # SIGTERM ends the tests as Ctrl-C does: fixtures are torn down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ[MARK] = f"{os.environ.get(MARK, '')}/{uuid.uuid4().hex}"  # of several processes: below their parent's
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark asks for `python3`, which may be another one
    os.environ.update(find_java(ROOT / ".weir" / "java", os.environ).environment(os.environ))
    if not config.getoption("benchmark_only", default=False) and spark_classes.OPTIONS not in os.environ:
        classes = spark_classes.file_in(OF_TESTS)
        os.environ[spark_classes.OPTIONS] = f"{QUICK_JAVA} {spark_classes.options(classes)}"
    if hasattr(config, "workerinput"):
        schedule.compile_share(config)
    if is_first_of_several(config) and config.option.verbose == 0:
        config.pluginmanager.register(Progress(config), "weir-progress")


def is_first_of_several(config):
    """Report whether this process hands out tests to others."""
    return bool(config.getoption("numprocesses", default=None)) and not hasattr(config, "workerinput")


def pytest_unconfigure(config):
    """A process of several has seconds to end what it started when the tests are stopped; then its parent does."""
    gc.unfreeze()  # DuckDB prints what it believes to have leaked, after the closing line
    if is_first_of_several(config):
        for process in _started_by_tests():
            process.kill()


def pytest_runtest_setup(item):
    """Skip tests on a small disk where nobody but root may have one."""
    if _needs_own_mounts(item) and why_no_own_mounts():
        pytest.skip(f"this user may mount no small disk here: {why_no_own_mounts()}")


def pytest_runtest_protocol(item, nextitem):
    """Run the tests of a module on small disks in namespaces of their own, where this process may not mount."""
    if not _needs_own_mounts(item) or why_no_own_mounts():
        return None
    if item.path not in SMALL_DISKS:
        items = [each for each in item.session.items if each.path == item.path and _needs_own_mounts(each)]
        SMALL_DISKS[item.path] = _run_with_own_mounts(items)
    outcome, said = SMALL_DISKS[item.path][item.name]
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for when in ("setup", "call", "teardown"):
        given = (outcome, said) if when == "call" else ("passed", None)
        report = pytest.TestReport(item.nodeid, item.location, {}, *given, when)
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


SMALL_DISKS = {}
"""By module, the outcomes of its tests in namespaces of their own."""


def _needs_own_mounts(item):
    return "disk" in item.fixturenames and not may_mount()


def _run_with_own_mounts(items):
    """Run tests of one module in one process with mounts of its own; answers outcome and text by name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *(item.nodeid for item in items)]
        run = subprocess.run(with_own_mounts(command), cwd=ROOT, check=False, capture_output=True, text=True)
        cases = ET.parse(report).iter("testcase") if report.exists() else ()  # noqa: S314  # pytest has written it
        right = {case.get("name") for case in cases if case.find("failure") is None and case.find("error") is None}
    said = f"{run.stdout}{run.stderr}"
    return {item.name: ("passed", None) if item.name in right else ("failed", said) for item in items}


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running():
    """At the end of all tests, no process that they started is alive: no child, and none that has this run's mark."""
    yield
    deadline = time.monotonic() + 15
    while (left := _started_by_tests()) and time.monotonic() < deadline:
        time.sleep(0.2)
    told = "".join(f"\n  {_told(process)}" for process in left)
    for process in left:
        process.kill()
    assert not left, f"left running by the tests:{told}"


def _started_by_tests():
    children = set(psutil.Process().children(recursive=True))
    marked = {one for one in psutil.process_iter() if _has_mark(one)}
    return [one for one in children | marked if _counts(one)]


def _has_mark(process):
    try:
        return process.pid != os.getpid() and process.environ().get(MARK, "").startswith(os.environ[MARK])
    except psutil.Error:
        return False


def _counts(process):
    try:
        is_tracker = "multiprocessing.resource_tracker" in " ".join(process.cmdline())  # ends with this process
        return process.status() != psutil.STATUS_ZOMBIE and not is_tracker
    except psutil.Error:
        return False


def _told(process):
    """What somebody who has only a log needs to find out which test has left a process, and why it has not ended."""
    try:
        with process.oneshot():
            age = time.time() - process.create_time()
            seconds = sum(process.cpu_times()[:2])
            return (
                f"{process.pid}, a child of {_name_of(process.parent())}, {process.status()}, started {age:.0f} s ago, "
                f"{seconds:.1f} s of processor time, in {process.cwd()}: {shlex.join(process.cmdline())[:600]}"
            )
    except psutil.Error as error:
        return f"{process.pid}, gone since: {error}"


def _name_of(parent):
    if parent is None:
        return "nobody"
    try:
        return f"{parent.pid} ({shlex.join(parent.cmdline())[:100]})"
    except psutil.Error:
        return f"{parent.pid}"


@pytest.fixture(scope="session", autouse=True)
def no_store_in_transactions():
    """In no test the store is asked in a transaction that others wait for."""
    with store_guard.watched():
        yield


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once():
    """All ledgers on SQLite share the statements that were compiled, also those that commands open by their URL."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir.ledger.ledger.sqlite_engine", sharing_engine)
        yield


@pytest.fixture(scope="session")
def stack_request(tmp_path_factory):
    """Describe a stack that ends with the tests; each call is for a stack of its own, in a folder with a space."""

    def request(*dags, environment=None, **more):
        return StackRequest.owned_by_this_process(
            folder=tmp_path_factory.mktemp("stack") / "of tests",
            dags=(ROOT / "dags", *dags),
            plugins=ROOT / "plugins",
            cache=ROOT / ".weir" / "cache",
            environment=CALM_AIRFLOW | ({"WEIR_FLIGHTS_LAST_DAY": LAST_DAY} if environment is None else environment),
            **more,
        )

    return request


@pytest.fixture(scope="session")
def new_server(tmp_path_factory):
    """Start one more Spark Connect server, for a test that wants to lose it."""
    from tests.servers.spark import running_server

    return lambda: running_server(tmp_path_factory.mktemp("spark-server"), collects_every="1min")


@pytest.fixture(scope="session")
def server(new_server):
    """The one Spark Connect server that tests without a stack share."""
    with spark_classes.recording(spark_classes.file_in(OF_TESTS), new_server) as started:
        yield started


@pytest.fixture(scope="session")
def session_of(server):
    """Make a session as Weir configures it; all end with the tests."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    from weir_spark.session import configure

    made = []

    def make():
        session = SparkSession.builder.remote(f"{server.url};user_id=weir;session_id={uuid.uuid4()}").create()
        # A DataFrame that is collected after the server has gone would otherwise ask for it for ten minutes.
        session.client.set_retry_policies([DefaultPolicy(max_retries=2)])
        configure(session, {})
        made.append(session)
        return session

    yield make
    for session in made:
        session.stop()


@pytest.fixture(scope="session")
def shared_session(session_of):
    """A session that tests share."""
    return session_of()


@pytest.fixture
def spark(shared_session):
    """The shared session, active as it is while Weir works: a test before may have left another one active."""
    from weir_spark.session import active

    with active(shared_session):
        yield shared_session


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """The one PostgreSQL server that tests share; nobody says that a server's time zone is UTC."""
    from tests.servers.postgres import running_postgres

    with running_postgres(tmp_path_factory.mktemp("postgres"), {"timezone": "Asia/Kathmandu"}) as started:
        yield started


@pytest.fixture
def new_postgres_url(postgres):
    """Make a new ledger on PostgreSQL, as often as it is called; its URL."""
    from tests.servers.postgres import new_postgres_url

    with ExitStack() as stack:
        yield lambda: stack.enter_context(new_postgres_url(postgres))


@pytest.fixture
def empty_postgres_ledger(new_postgres_url):
    """Open a new ledger on PostgreSQL, as often as it is called; it keeps its connections until the test ends."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(ledger_that_stays_connected(new_postgres_url())))


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory):
    """The one HDFS that tests share; they are skipped where its servers cannot be had."""
    from tests.servers.hadoop import running_hdfs
    from tests.servers.java import JarsMissing

    try:
        with running_hdfs(tmp_path_factory.mktemp("hdfs") / "of tests") as server:
            yield server
    except JarsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory):
    """The one broker that tests share; they are skipped where it cannot be had."""
    from tests.servers.java import JarsMissing
    from tests.servers.kafka import running_kafka

    try:
        with running_kafka(tmp_path_factory.mktemp("kafka") / "of tests") as broker:
            yield broker
    except JarsMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def hdfs_url(hdfs_server):
    """A folder for this test alone."""
    return f"{hdfs_server.url}/{uuid.uuid4()}/weir"
