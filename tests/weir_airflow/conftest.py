"""A real Airflow for these tests: its own home, a migrated database, its real API with Weir's plugin.

Airflow reads its environment when it is first imported, so this module sets it before any test module imports Airflow.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
DATABASE = "WEIR_TESTS_AIRFLOW_DATABASE"
"""The URL of another database than SQLite; `test_postgresql.py` runs other modules with it."""
PASSWORDS = {"worker": "worker-secret", "reader": "reader-secret"}

_DAYS, _DAY = itertools.count(), timedelta(days=1)

_HOME = Path(tempfile.mkdtemp(prefix="weir-airflow-"))
assert "airflow.configuration" not in sys.modules, "Airflow was imported before its test environment was set"
(_HOME / "passwords.json").write_text(json.dumps(PASSWORDS))
(_HOME / "dags").mkdir()
os.environ.update(
    AIRFLOW_HOME=str(_HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(_HOME / "dags"),
    AIRFLOW__CORE__PLUGINS_FOLDER=str(PROJECT / "plugins"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS="worker:user,reader:viewer",
    AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(_HOME / "passwords.json"),
    AIRFLOW__CORE__FERNET_KEY="Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYmFyYmF6MTIzNDU=",
    AIRFLOW__API_AUTH__JWT_SECRET="a secret of the tests, and of nobody else",
    AIRFLOW__API__SECRET_KEY="another secret of the tests",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=os.environ.get(DATABASE, f"sqlite:///{_HOME}/airflow.db"),
    AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
)


def pytest_sessionfinish():
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The home of a migrated Airflow; SQLite is migrated once for all processes, and copied."""
    if DATABASE in os.environ:
        _migrate()
        return _HOME
    own, kept = _HOME / "airflow.db", PROJECT / ".weir" / "tests" / f"airflow-{version('apache-airflow-core')}.db"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            _migrate()
            new = kept.with_suffix(".new")
            _copy(own, new)
            new.rename(kept)
        else:
            _copy(kept, own)
    return _HOME


def _copy(database, target):
    """Copy through SQLite: this process may have opened the one, and each may have a write-ahead log."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def _migrate():
    migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(migrate, check=True, capture_output=True, timeout=300)


@pytest.fixture(scope="session")
def api_url(airflow_home):
    """Airflow's real API with the plugin."""
    from airflow.api_fastapi.app import create_app

    with served(create_app()) as url:
        yield url


@contextmanager
def served(app):
    """Serve an app over HTTP by a thread of this process."""
    import uvicorn

    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive(), "the API server did not start"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="session")
def enter_dags(airflow_home):
    """Write a DAG file, enter what it has into Airflow's database, and return it and the bag that it was read into.

    What it has are DAGs, or an error if it does not import.
    """
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    def enter(name, text, *, imports=True):
        file = airflow_home / "dags" / name
        file.write_text(text)
        manager = DagBundlesManager()
        manager.sync_bundles_to_db()
        bundle = next(iter(manager.get_all_dag_bundles()))
        bundle.initialize()
        bag = BundleDagBag(dag_folder=file, bundle_path=bundle.path, bundle_name=bundle.name)
        assert bool(bag.import_errors) is not imports
        sync_bag_to_db(bag, bundle.name, bundle.version)
        return file, bag

    return enter


@pytest.fixture(scope="session")
def river(enter_dags):
    """The DAG `river` in Airflow's database: `spring`, then `delta` with three subtasks, then `mouth`."""
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.session import create_session

    enter_dags("river.py", _RIVER)
    with create_session() as session:
        return DBDagBag().get_latest_version_of_dag("river", session=session)


_RIVER = """
from datetime import datetime, UTC
from airflow.sdk import DAG, BaseOperator, CronDataIntervalTimetable

class Flow(BaseOperator):
    def __init__(self, *, arm=0, **kwargs):
        super().__init__(**kwargs)
        self.arm = arm

daily = CronDataIntervalTimetable("@daily", timezone="UTC")
with DAG("river", schedule=daily, start_date=datetime(2013, 1, 1, tzinfo=UTC), is_paused_upon_creation=False):
    spring, mouth = Flow(task_id="spring"), Flow(task_id="mouth")
    delta = Flow.partial(task_id="delta").expand(arm=[0, 1, 2])
    spring >> delta >> mouth
"""


@pytest.fixture
def new_run(river):
    """Make a run of the DAG `river`: `new_run("success", spring=("success", 1))` gives its run id.

    Task instances that are not named have succeeded in their first try; `delta_1` names a subtask. Runs that a test
    leaves running are finished after it, so that they hold no place among the active runs.
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    def make(state, **tasks):
        day = datetime(2013, 1, 1, tzinfo=UTC) + next(_DAYS) * _DAY
        run_id = f"scheduled__{(day + _DAY).isoformat()}"
        with create_session() as session:
            river.create_dagrun(
                run_id=run_id,
                logical_date=day,
                data_interval=(day, day + _DAY),
                run_after=day + _DAY,
                run_type=DagRunType.SCHEDULED,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState(state),
                start_date=day,
                session=session,
            )
            for ti in session.query(TaskInstance).filter_by(dag_id="river", run_id=run_id):
                name = ti.task_id if ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
                ti.state, ti.try_number = tasks.get(name, ("success", 1))
        made.append(run_id)
        return run_id

    made = []
    yield make
    with create_session() as session:
        session.query(DagRun).filter(DagRun.dag_id == "river", DagRun.run_id.in_(made)).update({"state": "failed"})


@pytest.fixture
def look(river):
    """Look at a run: its state, and of a task instance state, try number and note."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    class Look:
        def run(self, run_id):
            with create_session() as session:
                return session.query(DagRun.state).filter_by(dag_id="river", run_id=run_id).scalar()

        def queued_at(self, run_id):
            with create_session() as session:
                return session.query(DagRun.queued_at).filter_by(dag_id="river", run_id=run_id).scalar()

        def run_note(self, run_id):
            with create_session() as session:
                return session.query(DagRun).filter_by(dag_id="river", run_id=run_id).one().note

        def task(self, run_id, task_id, map_index=-1):
            with create_session() as session:
                ti = session.query(TaskInstance).filter_by(run_id=run_id, task_id=task_id, map_index=map_index).one()
                return ti.state, ti.try_number, ti.note

    return Look()


@pytest.fixture
def triggerer(airflow_home):
    """Let Airflow's database have a triggerer that lives; called with False, one that was killed."""
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session

    def make(*, is_alive=True):
        with create_session() as session:
            job = Job(heartrate=5)
            job.job_type, job.state = "TriggererJob", "running"
            job.latest_heartbeat = datetime.now(UTC) + timedelta(hours=1 if is_alive else -1)  # however slow the test
            session.add(job)

    yield make
    with create_session() as session:
        session.query(Job).filter(Job.job_type == "TriggererJob").delete()


@pytest.fixture
def pool(airflow_home):
    """A pool in which deferred tasks are counted."""
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session() as session:
        session.add(Pool(pool="narrow", slots=1, description="", include_deferred=True))
    yield "narrow"
    with create_session() as session:
        session.query(Pool).filter(Pool.pool == "narrow").delete()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A YARN and an HDFS of two nodes each, of a module's own; its tests are skipped where their jars cannot be had."""
    from tests.servers.hadoop import running_hdfs
    from tests.servers.java import JarsMissing
    from tests.servers.yarn.cluster import running_yarn

    folder = tmp_path_factory.mktemp("cluster")
    try:
        with running_hdfs(folder / "hdfs", 2) as hdfs, running_yarn(hdfs, folder / "yarn") as yarn:
            yield yarn
    except JarsMissing as missing:
        pytest.skip(str(missing))
