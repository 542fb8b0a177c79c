"""Regions that the real spark-submit runs, on this machine and as if it were elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from base64 import b64encode
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from tests.builders.jobs import Jobs
from tests.corpus.files import FILES, laid_out
from tests.corpus.places import Written
from tests.weir_spark.sources.conftest import context_of, looked_up, resolved

from weir.code.functions import load
from weir.connections import LookUps
from weir.coordination.values import SparkWork
from weir.dataflow import json as kafka_json
from weir.dataflow import kafka_source
from weir.errors import EngineLost, Fenced
from weir.formats.codec import from_json, to_json
from weir.formats.region_failure import JobFailed, RegionFailure
from weir.formats.region_job import RegionReport
from weir.topology.partitions import PLAIN, Layout
from weir_dev.stack.spark_server import spark_home

pytestmark = pytest.mark.spark

PIPELINE = """
import json, os, time
from base64 import b64encode
from pathlib import Path
from urllib.parse import quote

from pyspark.sql import functions as F
from pyspark.sql.types import LongType


@F.udf(LongType())
def doubled(number):
    return 2 * number


def numbers(ctx):
    return ctx.spark.range(1000).select("id", doubled("id").alias("twice"), (F.col("id") % 7).alias("k"))


def small(ctx):
    ctx.spark.range(3).createOrReplaceTempView("t")
    return ctx.spark.sql("select id from t")


def large(ctx):
    ctx.spark.range(100, 103).createOrReplaceTempView("t")
    return ctx.spark.sql("select id from t")


def refused(ctx):
    # Files that have to be refused, by the kind of error that ends a task without another try.
    from weir.errors import WeirError
    from weir_spark.sources.files import read
    from weir_spark.transport.failures import of_code_or_rows, unreadable_source

    found = []
    for name, split in ctx.parameters["refused"].items():
        try:
            read(ctx, split).collect()
        except Exception as error:
            told = error if isinstance(error, WeirError) else of_code_or_rows(error, "r")
            told = told or unreadable_source(error, "r", "/no/store")
            found.append((name, type(told).__name__))
    return ctx.spark.createDataFrame(found, "name STRING, error STRING")


def waiting(ctx):
    folder = Path(ctx.parameters["folder"])
    (folder / "new").write_text(json.dumps([os.getpid(), os.getppid()]))
    (folder / "new").rename(folder / "driver.json")
    while True:
        time.sleep(0.1)


def failing(ctx):
    import weir

    raise ArithmeticError(f"{weir.__file__} {os.getcwd()} {sorted(os.environ)}")


def entrusted(ctx):
    bank, token = ctx.connection("bank"), ctx.variable("bank_token")
    told = f"{bank.login} {bank.password[::-1]} {token[::-1]}"
    forms = f"{quote(bank.password, safe='')} {b64encode((bank.login + ':' + bank.password).encode()).decode()}"
    print("told", bank.password, token, forms)
    raise LookupError(f"{told}; {bank.password}, {token}, {bank.extra['api_key']}, {forms}")
"""

TASK = """
import sys
from pathlib import Path
from airflow.sdk import Connection
from weir.formats.codec import region_job_from_json
from weir.store.store import Store
from weir_airflow.engines.engines import engine_for

job = region_job_from_json(Path(sys.argv[1]).read_bytes())
connection = Connection(conn_id="spark_default", conn_type="spark", host="local[1]")
engine_for(connection, Store.open(job.store), {}).run(job, "", print)
"""

YARN_CLIENT = """
# What Spark's client for YARN does in cluster mode: it sends program and modules to another machine, has the driver
# started there, tells its states, and ends well once the application has an end.
import pathlib, shutil, subprocess, sys, tempfile

words, given, settings = sys.argv[1:], {}, []
while words[0].startswith("--"):
    settings += words[:2] if words[0] == "--conf" else []
    given[words[0]] = words[1]
    words = words[2:]
assert (given["--master"], given["--deploy-mode"]) == ("yarn", "cluster"), given
there = pathlib.Path(tempfile.mkdtemp(dir=ELSEWHERE))
program, modules = (shutil.copy(path, there) for path in (words[0], given["--py-files"]))
print("Submitted application application_1_0001", flush=True)
command = [SPARK_SUBMIT, "--master", "local[2]", *settings, "--py-files", modules, program, *words[1:]]
with (there / "stdout").open("wb") as output:
    subprocess.run(command, cwd=there, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT)
print("Application report for application_1_0001 (state: FINISHED)", flush=True)
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """The folder of the pipeline, which only this process knows."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "submitted_pipeline.py").write_text(PIPELINE)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("submitted_pipeline", None)


@pytest.fixture
def new_job(store, modules, tmp_path):
    """Describe a region of one stage, as the task does before it runs an engine."""
    jobs = Jobs(store)

    def make(stage, *layouts, **more):
        outputs = [jobs.output(stage, layout) for layout in layouts or (PLAIN,)]
        function = f"submitted_pipeline:{stage}"
        job = jobs.region(jobs.stage(stage, function, *outputs), parameters={"folder": str(tmp_path)}, **more)
        store.create(f"{job.folder}/job.json", to_json(job))
        return job

    return make


@pytest.fixture
def yarn(engine, tmp_path, monkeypatch):
    """An engine for a cluster with drivers of its own: another folder, a bare environment, only what travels."""
    elsewhere, programs = tmp_path / "elsewhere", tmp_path / "programs"
    elsewhere.mkdir()
    programs.mkdir()
    environment = {
        "PATH": "/usr/bin:/bin",
        "JAVA_HOME": os.environ["JAVA_HOME"],
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "WEIR_TEST_RUN": os.environ["WEIR_TEST_RUN"],
    }
    known = f"ELSEWHERE, ENVIRONMENT = {str(elsewhere)!r}, {environment!r}\n"
    known += f"SPARK_SUBMIT = {str(spark_home() / 'bin' / 'spark-submit')!r}\n"
    (programs / "spark-submit").write_text(f"#!{sys.executable}\n{known}{YARN_CLIENT}")
    (programs / "spark-submit").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return engine(host="yarn", extra='{"deploy-mode": "cluster"}')


@pytest.fixture
def driver(tmp_path):
    """The processes of a driver that waits, Python and JVM, once it does."""

    def find():
        told = tmp_path / "driver.json"
        await_that(told.exists)
        found = [psutil.Process(pid) for pid in json.loads(told.read_text())]
        told.unlink()
        return found

    return find


def await_that(condition, seconds=180):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ended(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def work_of(job):
    return SparkWork(job.attempt, "spark-submit:local[1]", "s", job.folder)


AWKWARD = (
    "csv: quotes doubled as RFC 4180 has them",
    "csv: a backslash is a character",
    "csv: UTF-16, with the order of its bytes and the end of a line",
    "json: beyond 2^53",
    "parquet: a column that the first file lacks",
    "parquet: types that are widened",
    "a partition column in the folder's name",
    "a linked folder below **",
    "names with blanks and signs",
)
REFUSED = (
    "csv: a quoted line end without multiLine",
    "csv: a column too few in a line",
    "csv: gzip that is cut",
    "csv: a header in another order",
    "csv: bytes that are no UTF-8",
    "json: milliseconds where a timestamp is",
    "json: a field twice in a line",
    "json: half of a character",
    "parquet: compressed by Brotli",
    "parquet: bytes that are no text, declared as text",
)


@pytest.fixture
def awkward(store, modules, tmp_path):
    """Describe a region with names, and files, as others write them; it tells which files it refuses."""
    cases = {case.what: case for case in FILES}

    def declared(at, what):
        folder = tmp_path / f"case {at}"
        folder.mkdir()
        source = laid_out(cases[what], folder)
        return source.function, resolved(source)[0]

    sources = {f"file_{at}": declared(at, what) for at, what in enumerate(AWKWARD)}
    refused = {what: declared(f"{at} of refused", what)[1] for at, what in enumerate(REFUSED)}
    jobs = Jobs(store)

    def make():
        stages = [jobs.stage("numbers", "submitted_pipeline:numbers", jobs.output("numbers", Layout(("k",), 16)))]
        names = ("small", "large", "refused")
        stages += [jobs.stage(name, f"submitted_pipeline:{name}", jobs.output(name)) for name in names]
        stages += [
            jobs.stage(name, function, jobs.output(name), is_source=True, split=split)
            for name, (function, split) in sources.items()
        ]
        settings = {"spark.sql.shuffle.partitions": "3"}
        job = jobs.region(*stages, spark_conf=settings, parameters={"refused": refused})
        store.create(f"{job.folder}/job.json", to_json(job))
        return job

    return make


def test_both_transports_give_the_same_rows_digests_code_and_settings(server, awkward, engine, store):
    by_submission, by_connect = awkward(), awkward()
    engine().run(by_submission, "", lambda _: None)
    engine(**server.connection).run(by_connect, "00000000-0000-4000-8000-000000000001", lambda _: None)
    one, other = (from_json(RegionReport, store.read(job.report)) for job in (by_submission, by_connect))
    assert [each.digest for each in one.outputs] == [each.digest for each in other.outputs]
    assert [each.spark_schema for each in one.outputs] == [each.spark_schema for each in other.outputs]
    assert (one.code, one.session) == (other.code, other.session)
    numbers, small, large, told, *files = (Written(each, store).arrow() for each in one.outputs)
    assert len(numbers) == 1000
    assert (small["id"].to_pylist(), large["id"].to_pylist()) == ([0, 1, 2], [100, 101, 102])
    assert dict(zip(told["name"].to_pylist(), told["error"].to_pylist(), strict=True)) == dict.fromkeys(
        REFUSED, "Misconfigured"
    )
    right = {case.what: sorted(case.rows, key=repr) for case in FILES if case.what in AWKWARD}
    assert {what: rows_of(each) for what, each in zip(AWKWARD, files, strict=True)} == right


def rows_of(table):
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


SECRETS = ("opens#sesame!", "tok-8-vvv", "kkk-7-kkk")
FORMS = ("opens%23sesame%21", b64encode(b"me:opens#sesame!").decode())


@pytest.fixture
def entrusting(store):
    """An engine on this machine whose task finds a connection and a variable that no environment has."""
    from airflow.sdk import Connection

    from weir_airflow.connections.connections import user_connection, user_variable
    from weir_airflow.engines.engines import engine_for

    password, token, key = SECRETS
    bank = json.dumps({"conn_type": "http", "login": "me", "password": password, "extra": {"api_key": key}})

    def in_airflow(look_up):
        def found(name):
            with pytest.MonkeyPatch.context() as airflow:
                airflow.setenv("AIRFLOW_CONN_BANK", bank)
                airflow.setenv("AIRFLOW_VAR_BANK_TOKEN", token)
                return look_up(name)

        return found

    look_ups = LookUps(in_airflow(user_connection), in_airflow(user_variable))
    return engine_for(Connection(conn_id="spark_default", conn_type="spark", host="local[1]"), store, {}, look_ups)


def test_a_driver_asks_its_task_for_secrets_and_they_are_recorded_nowhere(entrusting, new_job, store):
    from airflow.sdk._shared.secrets_masker import redact

    job = new_job("entrusted")
    with pytest.raises(JobFailed) as raised:
        entrusting.run(job, "", lambda _: None)
    backwards = " ".join(each[::-1] for each in SECRETS[:2])
    assert f"me {backwards}; ***, ***, ***, *** ***" in str(raised.value)
    files = [path for path in Path(store.url.removeprefix("file://")).rglob("*") if path.is_file()]
    assert {"job.json", "failure.json"} <= {path.name for path in files}
    written = b"".join(path.read_bytes() for path in files).decode(errors="replace")
    assert [each for each in (*SECRETS, *FORMS) if each in f"{written}{raised.value}"] == []
    assert redact(" ".join([*SECRETS, FORMS[0]])) == "*** *** *** ***"  # as Airflow writes what the driver prints
    assert FORMS[1][4:-3] not in redact(FORMS[1])


@pytest.mark.soak
def test_a_driver_in_a_cluster_needs_nothing_but_what_travels(yarn, new_job, store):
    job = new_job("numbers", spark_conf={"spark.executor.memory": "700m"})
    yarn.run(job, "", lambda _: None)
    report = from_json(RegionReport, store.read(job.report))
    assert report.outputs[0].digest.rows == 1000
    assert report.session["spark.executor.memory"] == "700m"


@pytest.mark.soak
def test_a_failure_in_a_cluster_is_raised_although_its_client_ends_well(yarn, new_job, tmp_path):
    with pytest.raises(JobFailed) as raised:
        yarn.run(new_job("failing"), "", lambda _: None)
    assert type(raised.value).__name__ == "ArithmeticError"
    message = str(raised.value)
    assert ".zip/weir/__init__.py" in message
    assert f"{tmp_path}/elsewhere/" in message
    assert "WEIR_STORE" not in message


def test_a_driver_with_a_stop_file_never_begins(engine, new_job, store, tmp_path):
    job = new_job("waiting")
    engine().interrupt(work_of(job))
    with pytest.raises(Fenced, match="was stopped by the file"):
        engine().run(job, "", lambda _: None)
    assert not (tmp_path / "driver.json").exists()


@pytest.mark.soak
def test_a_driver_that_is_killed_is_the_engine_s_failure(engine, new_job, driver):
    job, errors = new_job("waiting"), []

    def run():
        try:
            engine().run(job, "", lambda _: None)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    python, _ = driver()
    python.kill()
    thread.join(120)
    assert isinstance(errors[0], EngineLost)
    assert "was killed" in str(errors[0])


def test_the_driver_of_a_dead_task_ends_when_the_next_attempt_interrupts_it(
    engine, new_job, driver, store, modules, tmp_path
):
    job = new_job("waiting")
    file = Path(store.url.removeprefix("file://")) / job.folder / "job.json"
    with (tmp_path / "task.log").open("wb") as log:
        task = subprocess.Popen(
            [sys.executable, "-c", TASK, str(file)],
            env={**os.environ, "PYTHONPATH": str(modules)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    processes = driver()
    task.send_signal(signal.SIGKILL)
    task.wait(30)
    assert not any(ended(each) for each in processes)
    engine().interrupt(work_of(job))
    await_that(lambda: all(ended(each) for each in processes))
    assert from_json(RegionFailure, store.read(f"{job.folder}/failure.json")).error == "Fenced"


@pytest.mark.soak
def test_a_driver_reads_the_records_of_a_topic_that_a_server_reads(server, modules, store, kafka_broker):
    from airflow.sdk import Connection

    from weir_airflow.engines.engines import engine_for

    broker = kafka_broker.connection("broker")
    events = kafka_source("events", "broker", topic=kafka_broker.create_topic("events"), value=kafka_json("v BIGINT"))
    producer = Producer({"bootstrap.servers": kafka_broker.address})
    for number in range(1000):
        producer.produce(events.options["topic"], json.dumps({"v": number}), str(number))
    assert producer.flush(30) == 0
    (split,) = load(events.resolve, "events")(context_of(events, broker)).splits
    jobs, look_ups, digests = Jobs(store), LookUps(looked_up(broker), {}.__getitem__), []
    for place in ({"conn_type": "spark", "host": "local[2]"}, server.connection):
        stage = jobs.stage("events", events.function, jobs.output("events"), is_source=True, split=split)
        job = jobs.region(stage)
        store.create(f"{job.folder}/job.json", to_json(job))
        engine_for(Connection(conn_id="spark", **place), store, {}, look_ups).run(job, str(uuid.uuid4()), print)
        (output,) = from_json(RegionReport, store.read(job.report)).outputs
        digests.append(output.digest)
    assert digests[0].rows == 1000
    assert digests[0] == digests[1]
