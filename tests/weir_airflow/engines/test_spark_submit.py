"""Regions by spark-submit: what goes to it, what comes back, and what its end without an answer means. No JVM here.

The program `spark-submit` of these tests is one of their own, found on PATH, as the hook finds Spark's.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.builders.jobs import Jobs
from tests.messages.kinds import of_kind

from weir import connections
from weir.errors import DiskFull, EngineLost, Fenced, Misconfigured, Retryable
from weir.formats.codec import to_json
from weir.formats.region_failure import JobFailed, RegionFailure, failure_of

SECRET = "hush-hush"
OPTIONS = {"key": "me", "secret": SECRET}
TELL = """import json, os, sys, pathlib
pathlib.Path({told!r}).write_text(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))
"""


@pytest.fixture
def job(store, tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "quiet_pipeline.py").write_text("def numbers(ctx): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    jobs = Jobs(store)
    made = jobs.region(
        jobs.stage("numbers", "quiet_pipeline:numbers", jobs.output("numbers")),
        spark_conf={"spark.executor.memory": "3g"},
    )
    store.create(f"{made.folder}/job.json", to_json(made))
    return made


@pytest.fixture
def spark_submit(tmp_path, monkeypatch):
    """Put a program of this text on PATH; what it was called with, if the text has TELL."""
    folder = tmp_path / "bin of tests"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    told = tmp_path / "told.json"

    def install(text: str, name: str = "spark-submit"):
        program = folder / name
        program.write_text(f"#!{sys.executable}\n" + TELL.format(told=str(told)) + text)
        program.chmod(0o755)
        return lambda: json.loads(told.read_text())

    return install


@pytest.fixture
def run(store, job):
    """Run the job by a connection of the type spark; `extra` is the connection's."""
    from airflow.sdk import Connection

    from weir_airflow.engines.engines import engine_for

    def submit(host="yarn", engine=lambda made: None, options=None, **extra):
        options = options or ({} if extra.get("deploy-mode") else OPTIONS)
        connection = Connection(conn_id="spark_default", conn_type="spark", host=host, extra=json.dumps(extra))
        made = engine_for(connection, store, options)
        engine(made)
        made.run(job, "", lambda _: None)

    return submit


def writes(store, path, data=b"{}"):
    """The text of a program that writes a file into the store, as a driver does."""
    return f"pathlib.Path({str(Path(store.url.removeprefix('file://')) / path)!r}).write_bytes({data!r})\n"


def test_a_region_is_computed_when_its_report_is_there_whatever_spark_submit_says(run, spark_submit, store, job):
    spark_submit(writes(store, job.report) + "sys.exit(1)\n")
    run()


def test_settings_that_only_a_start_can_set_go_with_the_submission(run, spark_submit, store, job):
    told = spark_submit(writes(store, job.report))
    run(queue="big")
    arguments = told()[0]
    assert arguments[arguments.index("--conf") + 1] == "spark.executor.memory=3g"
    assert arguments[arguments.index("--queue") + 1] == "big"
    assert arguments[arguments.index("--deploy-mode") + 1] == "client"
    assert arguments[-1] == f"{store.url}/{job.folder}/job.json"


def test_a_driver_on_this_machine_has_its_own_python_also_where_containers_have_another(run, spark_submit, store, job):
    told = spark_submit(writes(store, job.report))
    run()
    assert f"spark.pyspark.driver.python={sys.executable}" in told()[0]
    run(host="local[2]")
    assert not any("spark.pyspark.driver.python" in each for each in told()[0])


def test_the_store_s_secrets_reach_a_driver_in_client_mode_by_its_environment_only(run, spark_submit, store, job):
    told = spark_submit(writes(store, job.report))
    run()
    arguments, environment, _ = told()
    assert json.loads(environment["WEIR_STORE_OPTIONS"]) == OPTIONS
    assert SECRET not in json.dumps(arguments)
    assert SECRET not in store.read(f"{job.folder}/job.json").decode()


def test_no_secret_leaves_for_a_cluster(run, spark_submit, store, job, monkeypatch):
    monkeypatch.setenv("WEIR_STORE_OPTIONS", json.dumps(OPTIONS))
    told = spark_submit(writes(store, job.report))
    provider = "jceks://hdfs/user/weir/weir.jceks"
    run(options=OPTIONS, **{"deploy-mode": "cluster", "credential-provider": provider})
    assert SECRET not in json.dumps(told())
    assert f"spark.hadoop.hadoop.security.credential.provider.path={provider}" in told()[0]
    assert told()[0][-1] == "--provider"


def test_secrets_without_a_way_into_the_cluster_are_refused_before_anything_is_submitted(run, spark_submit, tmp_path):
    spark_submit("")
    wanted = of_kind("engines.secrets_without_a_way", names=["WEIR_STORE_OPTIONS"], staging="staging")
    with pytest.raises(Misconfigured, check=wanted) as raised:
        run(options=OPTIONS, **{"deploy-mode": "cluster"})
    assert SECRET not in str(raised.value)
    assert not (tmp_path / "told.json").exists()


def test_options_that_are_no_secret_are_an_argument_in_a_cluster(run, spark_submit, store, job):
    told = spark_submit(writes(store, job.report))
    run(options={"timeout": 20}, **{"deploy-mode": "cluster"})
    assert told()[0][-2:] == ["--options", '{"timeout": 20}']


def test_what_yarn_says_of_an_application_is_in_the_log_and_with_its_failure(store, job, spark_submit):
    from airflow.sdk import Connection

    from weir_airflow.engines.engines import engine_for

    spark_submit(f"print({YARN_SAYS!r})\nsys.exit(1)\n")
    said = []
    connection = Connection(conn_id="spark_default", conn_type="spark", host="yarn", extra='{"deploy-mode": "cluster"}')
    with pytest.raises(Retryable) as raised:
        engine_for(connection, store, {}).run(job, "", said.append)
    assert said[1:] == [
        "application_1_0002 was submitted to YARN",
        "application_1_0002 is ACCEPTED: it waits for room in its queue",
        "YARN says of application_1_0002: Queue's AM resource limit exceeded.",
        "The page of application_1_0002, with the logs of its driver and executors: http://rm:8088/proxy/2/",
        "application_1_0002 is FAILED",
    ]
    assert raised.value.__notes__ == [
        "The log of its driver: `yarn logs -applicationId application_1_0002`, and http://rm:8088/proxy/2/"
    ]


YARN_SAYS = """21:31:36 INFO YarnClientImpl: Submitted application application_1_0002
21:31:37 INFO Client: Application report for application_1_0002 (state: ACCEPTED)
21:31:37 INFO Client:
\t client token: N/A
\t diagnostics: Queue's AM resource limit exceeded.
\t ApplicationMaster host: N/A
\t tracking URL: http://rm:8088/proxy/2/
21:31:38 INFO Client: Application report for application_1_0002 (state: ACCEPTED)
21:31:39 INFO Client: Application report for application_1_0002 (state: FAILED)
\t diagnostics: N/A
User application exited with status 75
"""


@pytest.mark.parametrize(("mode", "is_given"), [("client", True), ("cluster", False)])
def test_connections_of_sources_reach_a_driver_in_client_mode_by_its_environment_only(
    spark_submit, store, job, mode, is_given
):
    from airflow.sdk import Connection

    from weir_airflow.engines.engines import engine_for

    reading = replace(job.stages[0], split={"conn_id": "shop", "query": "select 1"})
    submitted = replace(job, stages=(reading,))
    told = spark_submit(writes(store, job.report))
    extra = json.dumps({"deploy-mode": mode, "credential-provider": "jceks://hdfs/user/weir/weir.jceks"})
    found = Connection(conn_id="spark_default", conn_type="spark", host="yarn", extra=extra)
    shop = connections.Connection(id="shop", kind="postgres", login="me", password=SECRET)
    engine_for(found, store, OPTIONS, connections.LookUps({"shop": shop}.__getitem__, {}.__getitem__)).run(
        submitted, "", lambda _: None
    )
    arguments, environment, _ = told()
    assert SECRET not in json.dumps(arguments)
    assert (SECRET in environment.get("AIRFLOW_CONN_SHOP", "")) is is_given
    assert (SECRET in json.dumps(environment)) is is_given


def test_a_cluster_starts_one_driver_an_attempt_and_the_worker_waits_for_it(run, spark_submit, store, job):
    told = spark_submit(writes(store, job.report))
    run(**{"deploy-mode": "cluster"})
    arguments = told()[0]
    assert "spark.yarn.maxAppAttempts=1" in arguments
    assert "spark.yarn.submit.waitAppCompletion=true" in arguments


def test_a_driver_does_not_take_itself_for_a_client_of_a_connect_server(run, spark_submit, store, job, monkeypatch):
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    told = spark_submit(writes(store, job.report))
    run()
    assert "SPARK_CONNECT_MODE_ENABLED" not in told()[1]


def test_pyspark_s_own_spark_submit_is_on_the_path_where_there_is_no_other(run, spark_submit, store, job):
    told = spark_submit(writes(store, job.report), "spark3-submit")
    run(**{"spark-binary": "spark3-submit"})
    environment = told()[1]
    assert environment["PATH"].endswith("pyspark/bin")
    assert environment["SPARK_HOME"].endswith("pyspark")


def test_the_spark_submit_that_is_on_the_path_finds_its_own_spark(run, spark_submit, store, job):
    told = spark_submit(writes(store, job.report))
    run()
    assert "SPARK_HOME" not in told()[1]


def test_a_program_that_is_not_there_is_named(run, spark_submit):
    with pytest.raises(Misconfigured, check=of_kind("engines.program_missing", filename="spark2-submit")):
        run(**{"spark-binary": "spark2-submit"})


def test_nothing_is_left_of_what_was_written_to_submit_a_job(run, spark_submit, store, job):
    told = spark_submit(writes(store, job.report))
    run()
    arguments, _, folder = told()
    assert arguments[-2].startswith(folder)
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Retryable("come again"), Retryable, "^come again$"),
        (DiskFull("make room"), DiskFull, "^make room$"),
        (Misconfigured("mend it"), Misconfigured, "^mend it$"),
        (Fenced("too late"), Fenced, "^too late$"),
        (ModuleNotFoundError("no fsspec"), Misconfigured, "^no fsspec\nIts traceback in the Spark driver ends:"),
        (KeyError("origin"), JobFailed, "'origin'\nIts traceback in the Spark driver ends:"),
    ],
)
def test_the_task_raises_what_its_job_says(run, spark_submit, store, job, error, kind, text):
    failure = to_json(failure_of(error, job.attempt))
    spark_submit(writes(store, f"{job.folder}/failure.json", failure) + "sys.exit(1)\n")
    with pytest.raises(kind, match=text):
        run()


def test_an_application_s_error_keeps_the_name_of_its_class(run, spark_submit, store, job):
    failure = to_json(RegionFailure(job.attempt, "application", "PythonException", "it broke", "line 3"))
    spark_submit(writes(store, f"{job.folder}/failure.json", failure) + "sys.exit(1)\n")
    with pytest.raises(JobFailed, match="it broke") as raised:
        run()
    assert type(raised.value).__name__ == "PythonException"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("os.kill(os.getpid(), 9)", EngineLost, "its driver was killed .exit code -9."),
        ("sys.exit(137)", EngineLost, "its driver was killed .exit code 137."),
        ("print('All masters are unresponsive! Giving up.'); sys.exit(1)", EngineLost, "never reached it"),
        ("print('Application report for application_1_2 (state: KILLED)'); sys.exit(1)", EngineLost, "was killed"),
        ("sys.exit(75)", Retryable, "could not write what had failed"),
        ("sys.exit(78)", Misconfigured, "could not write what had failed"),
        ("print('ModuleNotFoundError: No module named \\'fsspec\\''); sys.exit(1)", Misconfigured, "lacks a package"),
    ],
)
def test_a_job_that_ends_without_an_answer_is_classified_by_exit_code_and_output(
    run, spark_submit, text, kind, message
):
    spark_submit(f"{text}\n")
    with pytest.raises(kind, match=message):
        run()


def test_an_unexplained_end_is_an_application_failure_and_shows_the_last_output(run, spark_submit):
    from weir_airflow.engines.submission import SubmissionFailed

    spark_submit("print('something odd')\nprint('the password=swordfish')\nsys.exit(3)\n")
    with pytest.raises(SubmissionFailed, match=r"exit code 3[\s\S]*something odd\nthe password=[*]+\n") as raised:
        run()
    assert "swordfish" not in str(raised.value)


def test_a_driver_that_may_still_run_is_stopped_when_its_task_gives_up(run, spark_submit, store, job):
    spark_submit("sys.exit(137)\n")
    with pytest.raises(Retryable):
        run()
    assert store.size(f"{job.folder}/stop") == 0


def test_in_a_cluster_success_without_an_answer_is_not_believed(run, spark_submit, monkeypatch):
    from weir_airflow.engines.submission import SubmissionFailed

    monkeypatch.setattr("weir_airflow.engines.spark_submit._ANSWER_SECONDS", 0.0)
    spark_submit("sys.exit(0)\n")
    with pytest.raises(SubmissionFailed, match="neither report"):
        run(**{"deploy-mode": "cluster"})


def test_in_a_cluster_an_answer_may_show_after_the_end_of_spark_submit(run, spark_submit, store, job):
    late = writes(store, job.report).rstrip()
    spark_submit(f"if not os.fork():\n    os.setsid(); import time; time.sleep(1)\n    {late}\n    os._exit(0)\n")
    run(**{"deploy-mode": "cluster"})


def test_a_job_of_a_task_that_was_stopped_is_not_submitted(run, spark_submit, tmp_path):
    spark_submit("")
    with pytest.raises(Fenced, check=of_kind("engines.stopped")):
        run(engine=lambda made: made.stop())
    assert not (tmp_path / "told.json").exists()


def test_a_stop_ends_spark_submit_and_tells_its_driver(run, spark_submit, store, job, tmp_path):
    import threading

    spark_submit("import time\nwhile True: time.sleep(1)\n")
    engines = []

    def stop_when_it_runs():
        while not (tmp_path / "told.json").exists():
            engines[0]._is_stopped.wait(0.05)
        engines[0].stop()

    stopping = threading.Thread(target=stop_when_it_runs)

    def begin(engine):
        engines.append(engine)
        stopping.start()

    with pytest.raises(Fenced, check=of_kind("engines.stopped")):
        run(engine=begin)
    stopping.join(30)
    assert store.size(f"{job.folder}/stop") == 0
