from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.messages.kinds import of_kind

import weir_spark
from weir.errors import Fenced, Misconfigured
from weir.formats.codec import from_json, to_json
from weir.formats.region_job import RegionReport
from weir_spark.transport.connect import ConnectEngine

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("seen_at_work")]

RUN_REGION = Path(weir_spark.__file__).parents[1] / "run_region.py"

FAST = """
def numbers(ctx):
    return ctx.spark.range(10)
"""

SLOW = """
import time
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

@F.udf(LongType())
def slowly(x):
    time.sleep(0.5)
    return x

def numbers(ctx):
    return ctx.spark.range(0, 400, 1, 2).select(slowly("id").alias("id"))
"""


class Running:
    """An engine at work in a thread."""

    def __init__(self, url, job) -> None:
        self.engine = ConnectEngine(url)
        self.session_id = str(uuid.uuid4())
        self.lines: list[str] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(job,))
        self.thread.start()

    def _run(self, job) -> None:
        try:
            self.engine.run(job, self.session_id, self.lines.append)
        except BaseException as error:  # noqa: BLE001  # the test looks at it
            self.error = error

    def wait_until_it_computes(self) -> None:
        deadline = time.monotonic() + 60
        while not any("Spark's tasks" in line for line in self.lines):
            assert self.thread.is_alive(), self.error
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.05)

    def ended(self, seconds: float = 60) -> BaseException | None:
        self.thread.join(seconds)
        assert not self.thread.is_alive()
        return self.error


@pytest.fixture
def job(jobs, pipeline):
    def make(text: str):
        module = pipeline(text)
        return jobs.region(jobs.stage("numbers", f"{module}:numbers", jobs.output("numbers")))

    return make


def test_a_region_runs_and_leaves_its_report(server, store, job) -> None:
    lines: list[str] = []
    made = job(FAST)
    ConnectEngine(server.url).run(made, str(uuid.uuid4()), lines.append)
    report = from_json(RegionReport, store.read(made.report))
    assert (report.attempt, report.outputs[0].digest.rows) == (made.attempt, 10)
    assert lines[0].startswith("region numbers[0] runs on Spark 4")
    assert lines[-1].startswith("wrote numbers (plain): 10 rows")


def test_a_session_ends_with_its_attempt(server, job) -> None:
    session_id = str(uuid.uuid4())
    ConnectEngine(server.url).run(job(FAST), session_id, lambda line: None)
    again = SparkSession.builder.remote(f"{server.url};user_id=weir;session_id={session_id}").create()
    with pytest.raises(PySparkException, match="SESSION_CLOSED"):
        again.range(1).collect()
    again.client.close()  # or this process asks the server for ten minutes when both end


def test_two_engines_at_once_have_sessions_of_their_own_and_leave_the_others_alone(server, spark, store, job) -> None:
    text = "def numbers(ctx):\n    return ctx.spark.sql('select current_user() u, 1 id')\n"
    made = [job(text), job(SLOW.replace("400", "8"))]
    running = [Running(server.url, each) for each in made]
    assert [each.ended() for each in running] == [None, None]
    assert len({each.session_id for each in running}) == 2
    assert spark.range(3).count() == 3


def test_interrupting_from_elsewhere_fences_the_attempt(server, store, job) -> None:
    made = job(SLOW)
    running = Running(server.url, made)
    running.wait_until_it_computes()
    ConnectEngine(server.url).interrupt(running.session_id)
    assert isinstance(running.ended(), Fenced)
    assert made.report not in [name for name, _ in store.list("")]
    ConnectEngine(server.url).interrupt(running.session_id)


def test_an_attempt_that_was_interrupted_before_it_began_never_begins(server, job) -> None:
    session_id = str(uuid.uuid4())
    ConnectEngine(server.url).interrupt(session_id)
    with pytest.raises(Fenced):
        ConnectEngine(server.url).run(job(FAST), session_id, lambda line: None)


def test_stopping_from_another_thread_ends_the_work(server, job) -> None:
    running = Running(server.url, job(SLOW))
    running.wait_until_it_computes()
    began = time.monotonic()
    running.engine.stop()
    assert isinstance(running.ended(), Fenced)
    assert time.monotonic() - began < 15


def test_a_stopped_engine_starts_nothing(server, job) -> None:
    engine = ConnectEngine(server.url)
    engine.stop()
    with pytest.raises(Fenced, check=of_kind("engines.stopped")):
        engine.run(job(FAST), str(uuid.uuid4()), lambda line: None)


@pytest.mark.soak
def test_progress_is_logged_but_not_too_often(server, job) -> None:
    running = Running(server.url, job(SLOW.replace("400", "24")))
    assert running.ended() is None
    progress = [line for line in running.lines if "Spark's tasks" in line]
    assert 1 <= len(progress) <= 5


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("def numbers(ctx):\n    return ctx.spark.sql('select nothing')\n", Misconfigured, "UNRESOLVED_COLUMN"),
        ("def numbers(ctx):\n    return ctx.spark.sql('selec 1')\n", Misconfigured, "PARSE_SYNTAX_ERROR"),
        ("def numbers(ctx):\n    import no_such_library\n", Misconfigured, "no_such_library"),
        ("def numbers(ctx):\n    return {}['x']\n", KeyError, "x"),
        (
            "def numbers(ctx):\n    return ctx.spark.sql('select 1 / id x from range(2)')\n",
            PySparkException,
            "DIVIDE_BY_ZERO",
        ),
    ],
)
def test_errors_are_of_the_kind_that_names_who_must_act(server, job, text, kind, message) -> None:
    with pytest.raises(kind, match=message):
        ConnectEngine(server.url).run(job(text), str(uuid.uuid4()), lambda line: None)


def test_errors_come_without_the_stack_of_the_server(server, job) -> None:
    with pytest.raises(Misconfigured) as caught:
        ConnectEngine(server.url).run(
            job("def numbers(ctx):\n    return ctx.spark.sql('select nothing')\n"), str(uuid.uuid4()), lambda line: None
        )
    assert "JVM stacktrace" not in str(caught.value)


EDITED = """
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType

def answer():
    return {answer}

@F.udf(IntegerType())
def ask(x):
    return answer()

@F.pandas_udf(LongType())
def add(x):
    return x + answer()

def numbers(ctx):
    return ctx.spark.range(1).select(ask("id").alias("id"), add("id").alias("sum"))
"""


def test_a_udf_that_workers_cannot_import_is_refused_with_the_way_to_write_it(server, job) -> None:
    module_level = EDITED.format(answer=1).replace("IntegerType()", "'int'")
    with pytest.raises(Misconfigured, check=of_kind("transport.failed_with_advice")):
        ConnectEngine(server.url).run(job(module_level), str(uuid.uuid4()), lambda line: None)


@pytest.mark.soak
def test_a_function_edited_between_two_tries_on_one_warm_server_runs_in_its_new_form(
    server, spark, store, jobs, tmp_path, monkeypatch
) -> None:
    package = tmp_path / "edited" / "edited_pipelines"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    found = []
    for answer in (1, 2):
        (package / "flows.py").write_text(EDITED.format(answer=answer))
        made = jobs.region(jobs.stage("numbers", "edited_pipelines.flows:numbers", jobs.output("numbers")))
        store.create(f"job-{answer}.json", to_json(made))
        run_region(f"{store.url}/job-{answer}.json", "--remote", server.url)
        report = from_json(RegionReport, store.read(made.report))
        found.append((spark.read.parquet(*jobs.files(report.outputs[0])).first().asDict(), report.code))
    assert [rows for rows, _ in found] == [{"id": 1, "sum": 1}, {"id": 2, "sum": 2}]
    assert found[0][1] != found[1][1]


def run_region(*arguments: str, expected: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(RUN_REGION), *arguments], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr
