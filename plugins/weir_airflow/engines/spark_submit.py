"""The engine that submits each region as a Spark application, by the Spark provider's hook.

Invariant: a region counts as computed when its report is in the store, whatever spark-submit says.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from weir.connections import FROM_ENVIRONMENT, answering, as_variable
from weir.errors import Fenced, Misconfigured, WeirError
from weir.extras import needed_for
from weir.formats.codec import from_json
from weir.formats.region_failure import RegionFailure, error_of
from weir.formats.region_job import FAILURE_NAME, JOB_NAME, application_of, connections_of, staging_of
from weir.settings import STORE_OPTIONS_VARIABLE
from weir.store.errors import NotFound
from weir.store.stop_file import request_stop
from weir_airflow.engines import yarn
from weir_airflow.engines.cluster_secrets import ClusterSecrets
from weir_airflow.engines.submission import arguments_of, write_application

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow.sdk import Connection

    from weir.connections import LookUps
    from weir.coordination.values import SparkWork
    from weir.formats.region_job import SparkJob, StageToRun
    from weir.store.store import Store
    from weir_airflow.engines.submission import Submission

    WriteBundle = Callable[[Path], tuple[str, str]]
    """Writes program and modules of a driver into an empty folder; answers their paths."""


SUBMITTED: Final = frozenset({"spark", "k8s"})
"""Types of connections that lead to a master for spark-submit; a connection by URI has that of its scheme."""

CLUSTER: Final = "cluster"
CLIENT: Final = "client"
_ONE_DRIVER: Final = {
    # A second driver of one attempt would find the first one's files.
    "spark.yarn.maxAppAttempts": "1",
    "spark.yarn.submit.waitAppCompletion": "true",
    "spark.kubernetes.submit.waitAppCompletion": "true",
}

_DRIVER_PYTHON: Final = "spark.pyspark.driver.python"

_ANSWER_SECONDS: Final = 30.0
"""How long to wait for an answer on a file system that caches for a while that a file was missing."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A job that is computed: Weir's driver and its modules, a folder of the run's own, and who is told."""

    job: SparkJob
    program: str
    modules: str
    scratch: str
    on_progress: Callable[[str], None]


class SubmitEngine:
    """Runs regions by spark-submit, as a connection of the Spark provider says: master, deploy mode, queue, and so on.

    `options` are those of the store's file system, `look_ups` finds the connections and variables that functions ask
    for. In client mode a driver gets the options, and connections that sources name, by its environment, and asks this
    process for all others. In cluster mode they stay here, and the driver has to find its own where it runs.
    """

    def __init__(
        self,
        connection: Connection,
        store: Store,
        options: Mapping[str, Any],
        write_bundle: WriteBundle,
        look_ups: LookUps = FROM_ENVIRONMENT,
    ) -> None:
        self._connection = connection
        self._store = store
        self._options = options
        self._write_bundle = write_bundle
        self._look_ups = look_ups
        self._secrets = ClusterSecrets(connection, store, options, look_ups)
        self._running: tuple[Submission, str, str] | None = None
        self._is_stopped = threading.Event()

    def run(self, job: SparkJob, session_id: str, on_progress: Callable[[str], None]) -> None:
        """Submit the job, wait for its end, and return if its report is there.

        Raises the failure that the job has written; if there is none, Retryable where its driver was killed or its
        cluster could not be reached, else SubmissionFailed with the last lines of spark-submit's output.
        """
        del session_id  # the application has an id of its own
        with tempfile.TemporaryDirectory(prefix="weir-submit-", ignore_cleanup_errors=True) as scratch:
            run = _Run(job, *self._write_bundle(Path(scratch)), scratch, on_progress)
            stage = application_of(job)
            if stage is None:
                self._take_answer(job, self._driver(run))
                return
            try:
                self._run_application(run, stage)
                self._take_answer(job, self._driver(run))
            finally:
                self._delete(staging_of(job, stage), on_progress)

    def _run_application(self, run: _Run, stage: StageToRun) -> None:
        """Have a driver write the inputs of an application, then submit this and wait for its end.

        One after the other: two at once would wait for each other in a cluster that has no room for both.
        """
        if deploy_mode_of(self._connection) == CLUSTER:
            raise Misconfigured.of(
                "engines.application_in_cluster",
                stage=stage.name,
                function=stage.function,
                client=CLIENT,
                conn_id=self._connection.conn_id,
                cluster=CLUSTER,
            )
        job = run.job
        preparing = self._driver(run, "--inputs")
        if preparing.exit_code != 0:
            self._take_answer(job, preparing)
        owner = f"stage {stage.name}[{job.subtask}]: the application {stage.function}"
        application = self._submission(
            run,
            application_args=arguments_of(job, stage, self._store),
            java_class=(stage.application.main_class if stage.application else "") or None,
        )
        environment = {k: v for k, v in self._environment(job).items() if k != STORE_OPTIONS_VARIABLE}
        path = write_application(job, stage, self._store, run.scratch)
        run.on_progress(f"Submitting the application {stage.function} of stage {stage.name}[{job.subtask}]")
        self._await(run, application, path, environment)
        if application.exit_code != 0:
            raise application.failure_of_application(owner)

    def _driver(self, run: _Run, *options: str) -> Submission:
        """Submit a driver of Weir's for the job, and wait for its end."""
        job = run.job
        given = [f"{job.store}/{job.folder}/{JOB_NAME}", *options]
        run.on_progress(f"Submitting region {job.region}[{job.subtask}] to {master_of(self._connection)}")
        with self._handed(job) as more, self._answering(run.scratch) as where:
            submission = self._submission(run, py_files=run.modules, application_args=[*given, *more])
            self._await(run, submission, run.program, self._environment(job) | where)
        return submission

    def _handed(self, job: SparkJob) -> AbstractContextManager[list[str]]:
        """Hand a driver in a cluster of YARN what it needs, until it ends; other drivers have an environment for it."""
        return self._secrets.handed(job) if is_in_yarn_cluster(self._connection) else nullcontext([])

    def _await(self, run: _Run, submission: Submission, program: str, environment: dict[str, str]) -> None:
        """Run a submission to its end. Raises Fenced if it was stopped."""
        job = run.job
        self._running = (submission, job.folder, job.attempt)
        try:
            self._raise_if_stopped(job)
            submission.run(program, environment, run.scratch)
        finally:
            self._running = None
        self._raise_if_stopped(job)

    def _delete(self, folder: str, on_progress: Callable[[str], None]) -> None:
        try:
            self._store.delete_folder(folder)
        except WeirError as error:
            on_progress(f"The files in {folder} remain until the next sweep: {error}")

    def interrupt(self, work: SparkWork) -> None:
        """Write the stop file of an earlier attempt; its driver reads it every two seconds, wherever it is.

        What waits in a queue of YARN has no driver yet, and is killed. Raises Retryable.
        """
        request_stop(self._store, work.folder)
        self._kill_on_yarn(work.attempt)
        if is_in_yarn_cluster(self._connection):
            self._secrets.delete_of(work.attempt, work.folder)

    def stop(self) -> None:
        """End the submission, and its driver by the stop file; `run` then raises Fenced."""
        self._is_stopped.set()
        running = self._running
        if running is None:
            return
        submission, folder, attempt = running
        # Both may take long, or hang: neither waits for the other.
        stopping = threading.Thread(target=request_stop, args=(self._store, folder), daemon=True)
        stopping.start()
        try:
            submission.kill()
            with suppress(WeirError):  # the file ends its driver, once it has one
                self._kill_on_yarn(attempt)
        finally:
            stopping.join()

    def _kill_on_yarn(self, attempt: str) -> None:
        if is_on_yarn(self._connection):
            yarn.kill(attempt, environment_of_spark())

    def _submission(self, run: _Run, **more: Any) -> Submission:
        with needed_for("spark-submit"):
            from weir_airflow.engines.submission import Submission  # noqa: PLC0415  the provider is slow to import

        job = run.job
        return Submission(
            self._connection,
            on_progress=run.on_progress,
            conf={**job.spark_conf, **self._settings_of_mode(), **self._tags(job)},
            name=f"weir {job.dataflow} {job.region}[{job.subtask}] {job.attempt}",
            deploy_mode=deploy_mode_of(self._connection),
            **more,
        )

    def _settings_of_mode(self) -> dict[str, str]:
        if deploy_mode_of(self._connection) != CLUSTER:
            # Settings that name the Python of containers would count for a driver on this machine, too.
            return {_DRIVER_PYTHON: python_of_driver(os.environ)} if is_on_yarn(self._connection) else {}
        return _ONE_DRIVER | (self._secrets.settings if is_in_yarn_cluster(self._connection) else {})

    def _tags(self, job: SparkJob) -> dict[str, str]:
        if not is_on_yarn(self._connection):
            return {}
        given = job.spark_conf.get(yarn.TAGS_SETTING)
        return {yarn.TAGS_SETTING: ",".join([*([given] if given else []), yarn.tag_of(job.attempt)])}

    def _answering(self, scratch: str) -> AbstractContextManager[dict[str, str]]:
        """Answer a driver on this machine, until it ends."""
        if deploy_mode_of(self._connection) == CLUSTER:
            return nullcontext({})
        return answering(scratch, self._look_ups.hiding())

    def _environment(self, job: SparkJob) -> dict[str, str]:
        """Return the environment of this process, with what spark-submit and a driver in client mode need."""
        environment = environment_of_spark()
        if deploy_mode_of(self._connection) == CLUSTER:
            environment.pop(STORE_OPTIONS_VARIABLE, None)
            return environment
        environment["PYSPARK_DRIVER_PYTHON"] = python_of_driver(environment)
        if master_of(self._connection).startswith("local"):
            environment.setdefault("PYSPARK_PYTHON", sys.executable)
        if self._options:
            environment[STORE_OPTIONS_VARIABLE] = json.dumps(dict(self._options))
        return environment | dict(as_variable(self._look_ups.connection(each)) for each in connections_of(job))

    def _take_answer(self, job: SparkJob, submission: Submission) -> None:
        """Return if the report is there; raise what the driver says, or what its end means."""
        try:
            self._await_answer(job, submission)
        except Exception as error:
            if submission.application.where_its_log_is:
                error.add_note(submission.application.where_its_log_is)
            raise

    def _await_answer(self, job: SparkJob, submission: Submission) -> None:
        # Where the driver runs elsewhere, the end of spark-submit may be seen before the driver's last file.
        patience = _ANSWER_SECONDS if submission.is_in_cluster and submission.exit_code == 0 else 0.0
        deadline = time.monotonic() + patience
        while True:
            if self._has(job.report):
                return
            with suppress(NotFound):
                raise error_of(from_json(RegionFailure, self._store.read(f"{job.folder}/{FAILURE_NAME}")))
            if time.monotonic() >= deadline:
                break
            self._is_stopped.wait(1.0)
            self._raise_if_stopped(job)
        # If the driver still runs, it must not go on at the same time as that of the next attempt.
        request_stop(self._store, job.folder)
        with suppress(WeirError):  # the file ends its driver, once it has one
            self._kill_on_yarn(job.attempt)
        raise submission.failure_without_answer(job.region)

    def _has(self, path: str) -> bool:
        try:
            self._store.size(path)
        except NotFound:
            return False
        return True

    def _raise_if_stopped(self, job: SparkJob) -> None:
        if self._is_stopped.is_set():
            raise Fenced.of("engines.stopped", region=job.region, attempt=job.attempt)


def master_of(connection: Connection) -> str:
    """Return the master for spark-submit, spelled as the Spark provider's hook does.

    Raises Misconfigured if there is none, or if it cannot run Python in the connection's deploy mode.
    """
    host = connection.host or ""
    if not host:
        raise Misconfigured.of("engines.master_missing", conn_id=connection.conn_id)
    is_whole = connection.conn_type == "spark" and ("://" in host or not connection.port)
    master = host if is_whole else f"{connection.conn_type}://{host}"
    master = f"{master}:{connection.port}" if connection.port else master
    if deploy_mode_of(connection) == CLUSTER and master.startswith(("spark://", "local")):
        raise Misconfigured.of(
            "engines.master_unfit_for_cluster",
            conn_id=connection.conn_id,
            cluster=CLUSTER,
            master=master,
            client=CLIENT,
        )
    return master


def deploy_mode_of(connection: Connection) -> str:
    """Return the connection's extra `deploy-mode`, by default `client`. Raises Misconfigured for an unknown one."""
    found = connection.extra_dejson.get("deploy-mode") or CLIENT
    if found not in {CLIENT, CLUSTER}:
        raise Misconfigured.of(
            "engines.deploy_mode_unknown", conn_id=connection.conn_id, found=found, client=CLIENT, cluster=CLUSTER
        )
    return str(found)


def python_of_driver(environment: Mapping[str, str]) -> str:
    """Return the Python of drivers on this machine: the one that was chosen, or that of this process."""
    return environment.get("PYSPARK_DRIVER_PYTHON") or sys.executable


def is_on_yarn(connection: Connection) -> bool:
    """Report whether a connection leads to YARN."""
    return connection.conn_type in SUBMITTED and (connection.host or "") == "yarn"


def is_in_yarn_cluster(connection: Connection) -> bool:
    """Report whether the drivers that a connection submits run in containers of YARN."""
    return is_on_yarn(connection) and deploy_mode_of(connection) == CLUSTER


def environment_of_spark() -> dict[str, str]:
    """Return the environment of this process for Spark's own programs."""
    # With this variable a driver would look for a Spark Connect server.
    return _with_spark({key: value for key, value in os.environ.items() if key != "SPARK_CONNECT_MODE_ENABLED"})


def _with_spark(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment with a spark-submit: that on PATH, or else pyspark's own as the last one of PATH."""
    found = find_spec("pyspark")
    path = environment.get("PATH", os.defpath)
    program = shutil.which("spark-submit", path=path)
    if found is None or found.origin is None:
        return environment
    home = Path(found.origin).parent
    if program is None:
        return {"SPARK_HOME": str(home), **environment, "PATH": f"{path}{os.pathsep}{home / 'bin'}"}
    if Path(program).parent == Path(sys.executable).parent:
        # The script that pip installed there finds Spark by the first Python on PATH.
        return {"SPARK_HOME": str(home), **environment}
    return environment
