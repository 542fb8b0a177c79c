"""The Spark application that runs one region: what `spark_jobs/run_region.py` starts. Invariant: JSON in, JSON out.

A job that fails leaves `failure.json` where its report would be, so that its task can raise the error also where it
only sees that the driver ended. A file in the attempt's folder stops the driver, from any process and any machine: it
never reports a result after that.

A driver in a YARN cluster is told secrets by a file that it deletes at once, or by a credential provider: nothing of
them gets into a setting, an argument, an environment or a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from weir.connections import (
    TASK_VARIABLE,
    VARIABLE,
    VARIABLE_OF_VARIABLE,
    Connection,
    LookUps,
    asking,
    from_environment,
    variable_from_environment,
)
from weir.errors import EngineLost, Fenced, Message, Misconfigured, Retryable, WeirError
from weir.formats.codec import own_job_from_json, to_json
from weir.formats.region_failure import failure_of
from weir.formats.region_job import FAILURE_NAME, STOP_NAME, RegionReport, SparkJob
from weir.secrecy import without_secrets
from weir.settings import STORE_OPTIONS_VARIABLE, store_options
from weir.store.errors import NotFound
from weir.store.stop_file import is_stop_requested
from weir.store.store import Store
from weir.wording import shortened
from weir_spark.transport.failures import in_place_of, is_checkpoint_lost, of_code_or_rows, of_file_system
from weir_spark.transport.progress import INTERVAL_SECONDS, ProgressLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Step = Callable[[SparkJob, SparkSession, Store], RegionReport | None]
    """What a driver does in its session."""


_LOST = (
    "stopped SparkContext",
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "All masters are unresponsive",
    "Master removed our application",
    "Application has been killed",
)

_LOST_GATEWAY = frozenset({"Py4JNetworkError", "ConnectionRefusedError"})

_EXIT_CODES: tuple[tuple[type[WeirError], int], ...] = ((Retryable, 75), (Fenced, 77), (Misconfigured, 78))
_OTHER = 1
_CANCEL_SECONDS = 5.0
POLL_SECONDS = 2.0
"""How often a driver looks for the file that stops it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the command line names; return the exit code."""
    given = _parser().parse_args(arguments)
    try:
        told = _told(given)
        options = store_options(told) or {}
        job = _read_job(given.job, options)
        if given.remote:
            _run_on_server(job, options, given)
        else:
            compute = partial(_compute, look_ups_of_driver(told, of_provider if given.provider else None))
            _run_and_report(job, Store.open(job.store, options), _write_inputs if given.inputs else compute)
    except WeirError as error:
        print(without_secrets(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return _exit_code(error)
    except Exception:  # noqa: BLE001  Python would write it with the secrets that functions were handed
        print(without_secrets(traceback.format_exc()), file=sys.stderr)
        return _OTHER
    return 0


def _told(given: argparse.Namespace) -> dict[str, str]:
    """Return the variables of the environment, and what the task has handed over besides. Raises Retryable."""
    told = dict(os.environ)
    if given.options:
        told[STORE_OPTIONS_VARIABLE] = given.options
    if given.secrets:
        told |= read_and_delete(given.secrets)
    if given.provider and STORE_OPTIONS_VARIABLE not in told:
        found = of_provider(STORE_OPTIONS_VARIABLE)
        told |= {} if found is None else {STORE_OPTIONS_VARIABLE: found}
    return told


def _run_on_server(job: SparkJob, options: dict[str, Any], given: argparse.Namespace) -> None:
    from weir_spark.transport.connect import ConnectEngine  # noqa: PLC0415  # needs grpc, which spark-submit may not have

    ConnectEngine(given.remote, options, retries=given.retries).run(job, given.session_id, _log)


def _run_and_report(job: SparkJob, store: Store, step: Step) -> None:
    try:
        with stopped_by_file(store, job, lambda fenced: _end_at_once(job, store, fenced)):
            _run_in_own_session(job, store, step)
    except Exception as error:
        translated = in_place_of(error, translate_of_own_session(error, job.region), job)
        _report_failure(job, store, translated)
        if translated is error:
            raise
        raise translated from error


def translate_of_own_session(error: Exception, region: str) -> Exception:
    """Return the error to raise in the place of `error`, of a session of its own; itself if no kind of Weir fits."""
    if isinstance(error, WeirError):
        return error
    return (
        of_file_system(error, region)
        or (EngineLost.of("transport.executor_lost", region=region) if is_checkpoint_lost(error) else None)
        or _cluster_lost(error, region)
        or of_code_or_rows(error, region)
        or error
    )


def _cluster_lost(error: Exception, region: str) -> EngineLost | None:
    names = {base.__name__ for base in type(error).__mro__}
    line = next((line for line in str(error).splitlines() if any(text in line for text in _LOST)), None)
    if line is None and not names & _LOST_GATEWAY:
        return None
    return EngineLost.of("transport.cluster_lost", region=region, line=shortened((line or str(error)).strip(": "), 300))


@contextmanager
def stopped_by_file(
    store: Store, job: SparkJob, end: Callable[[Fenced], None], poll_seconds: float = POLL_SECONDS
) -> Iterator[None]:
    """Call `end`, in a thread, once the attempt's folder has the stop file. Raises Fenced if it is there already."""
    fenced = Fenced.of("transport.stopped_by_file", region=job.region, attempt=job.attempt, stop_name=STOP_NAME)
    if is_stop_requested(store, job.folder):
        raise fenced
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(poll_seconds):
            try:
                is_stopped = is_stop_requested(store, job.folder)
            except WeirError:
                continue  # the store did not answer; the next poll asks again
            if is_stopped and not is_over.is_set():
                end(fenced)
                return

    thread = threading.Thread(target=watch, name="weir-stop-file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


def _run_in_own_session(job: SparkJob, store: Store, step: Step) -> None:
    from pyspark import SparkConf  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    # A child process inherits this from one with a remote session, and pyspark would ask for a server's URL.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    builder = SparkSession.builder.appName(f"weir {job.dataflow} {job.region}[{job.subtask}]")
    quiet = {} if SparkConf().contains("spark.log.level") else {"spark.log.level": "WARN"}
    session = builder.config(map={**quiet, **job.spark_conf}).getOrCreate()
    _log(f"region {job.region}[{job.subtask}] runs on Spark {session.version}, {session.sparkContext.master}")
    try:
        report = step(job, session, store)
    finally:
        session.stop()
    if report is not None:
        store.create(job.report, to_json(report))


def _compute(look_ups: LookUps, job: SparkJob, session: SparkSession, store: Store) -> RegionReport:
    from weir_spark.region import region  # noqa: PLC0415  # after the arguments are known to be right
    from weir_spark.region.application import rows_of_application  # noqa: PLC0415

    progress = ProgressLog(_log)
    with polled(session.sparkContext.statusTracker(), progress):
        return region.run(job, session, store, progress.log, look_ups, rows_of_application)


def _write_inputs(job: SparkJob, session: SparkSession, store: Store) -> None:
    """Write what an application reads: there is no report before it has ended."""
    from weir_spark.region.application import write_inputs  # noqa: PLC0415

    progress = ProgressLog(_log)
    with polled(session.sparkContext.statusTracker(), progress):
        write_inputs(job, session, store, progress.log)


@contextmanager
def polled(tracker: Any, progress: ProgressLog, every_seconds: float = INTERVAL_SECONDS) -> Iterator[None]:
    """Hand over the progress of a driver's own session from time to time, in a thread, until the block ends."""
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.wait(every_seconds):
            try:
                found = [stage for each in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(each))]
            except Exception:  # noqa: BLE001  # the session has ended: who uses it raises why
                return
            tasks, completed = sum(each.numTasks for each in found), sum(each.numCompletedTasks for each in found)
            progress.progress(tasks, completed, running=sum(each.numActiveTasks for each in found))

    thread = threading.Thread(target=poll, name="weir-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


def look_ups_of_driver(environ: Mapping[str, str], of_provider: Callable[[str], str | None] | None = None) -> LookUps:
    """Return the look-ups of a driver: in its variables, then in client mode by its task, or in a credential provider.

    Where a cluster has nothing, an error names the cluster's own way.
    """
    task = asking(environ[TASK_VARIABLE]) if TASK_VARIABLE in environ else None

    def found_for(name: str) -> Mapping[str, str]:
        found = None if of_provider is None or environ.get(name) else of_provider(name)
        return environ if found is None else {name: found}

    def connection(conn_id: str) -> Connection:
        name = f"{VARIABLE}{conn_id.upper()}"
        if task is not None and not environ.get(name):
            return task.connection(conn_id)
        with _with_advice(name):
            return from_environment(conn_id, found_for(name))

    def variable(key: str) -> str:
        name = f"{VARIABLE_OF_VARIABLE}{key.upper()}"
        if task is not None and name not in environ:
            return task.variable(key)
        with _with_advice(name):
            return variable_from_environment(key, found_for(name))

    return LookUps(connection, variable)


@contextmanager
def _with_advice(name: str) -> Iterator[None]:
    try:
        yield
    except Misconfigured as error:
        message = Message("transport.secret_missing", error=error, name=name, alias=name.lower())
        raise Misconfigured(message) from None


def _end_at_once(job: SparkJob, store: Store, fenced: Fenced) -> NoReturn:
    """End the process from another thread, whatever the main one runs: the code of a stage never looks for the file."""
    cancelling = threading.Thread(target=_cancel_all_jobs, daemon=True)
    cancelling.start()
    print(f"Fenced: {fenced}", file=sys.stderr, flush=True)
    _report_failure(job, store, fenced)
    cancelling.join(_CANCEL_SECONDS)
    sys.stdout.flush()
    os._exit(_exit_code(fenced))


def _cancel_all_jobs() -> None:
    from pyspark import SparkContext  # noqa: PLC0415

    context = SparkContext._active_spark_context  # noqa: SLF001  # the public function would make one
    if context is not None:
        with suppress(Exception):  # the process ends in a moment, and its jobs with it
            context.cancelAllJobs()


def _report_failure(job: SparkJob, store: Store, error: Exception) -> None:
    """Write the failure into the attempt's folder; if even that fails, the exit code still has its kind."""
    try:
        store.create(f"{job.folder}/{FAILURE_NAME}", to_json(failure_of(error, job.attempt)))
    except WeirError as unwritten:
        print(f"{FAILURE_NAME} could not be written: {unwritten}", file=sys.stderr, flush=True)


def _read_job(url: str, options: Mapping[str, Any]) -> SparkJob:
    """Read a job by its path or URL, as a store beside it would: a store in HDFS is not read by fsspec."""
    folder, _, name = url.rpartition("/")
    try:
        return own_job_from_json(Store.open(folder or ".", options).read(name))
    except NotFound as error:
        raise Retryable.of("transport.job_unreadable", url=url, error=error) from error


def _exit_code(error: WeirError) -> int:
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), _OTHER)


def _log(line: str) -> None:
    print(without_secrets(line), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run one region of a dataflow on Spark.")
    parser.add_argument("job", help="path or URL of the region's job.json")
    parser.add_argument("--inputs", action="store_true", help="only write the inputs of the region's application")
    parser.add_argument("--options", help="options of the store as JSON, none of them secret")
    parser.add_argument("--secrets", help="URL of a file with variables for this driver alone, which deletes it")
    parser.add_argument("--provider", action="store_true", help="look for variables in a Hadoop credential provider")
    parser.add_argument("--remote", help="a Spark Connect server, sc://host:port; without it, a session of its own")
    parser.add_argument("--session-id", default=str(uuid.uuid4()), help="the session's id, a UUID")
    parser.add_argument("--retries", type=int, default=8, help="tries at a server that does not answer: 8 are 25 s")
    return parser


def read_and_delete(url: str) -> dict[str, str]:
    """Return what the task has written for this driver alone, by variable, and delete the file. Raises Retryable."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  only where a JVM is

    jvm, settings = _jvm(), _settings()
    try:
        path = jvm.org.apache.hadoop.fs.Path(url)
        files = path.getFileSystem(settings)
        stream = files.open(path)
        try:
            text = str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        files.delete(path, False)  # noqa: FBT003  Java has no names of arguments: not recursive
    except Py4JJavaError as error:
        raise Retryable.of("transport.secrets_unreadable", url=url, error=error.java_exception) from error
    found: dict[str, str] = json.loads(text)
    return found


def of_provider(name: str) -> str | None:
    """Return what the credential providers of Hadoop's settings have under a name in lower case; None if nothing."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  only where a JVM is

    try:
        found = _settings().getPasswordFromCredentialProviders(name.lower())
    except Py4JJavaError as error:
        raise Misconfigured.of("transport.provider_unusable", name=name, error=error.java_exception) from error
    return None if found is None else "".join(found)


def _settings() -> Any:
    """Return Hadoop's settings as Spark sees them."""
    jvm = _jvm()
    return jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(jvm.org.apache.spark.SparkConf())


def _jvm() -> Any:
    """Return the JVM that has started this process: that of spark-submit, or of YARN's ApplicationMaster."""
    from pyspark import SparkContext  # noqa: PLC0415

    SparkContext._ensure_initialized()  # noqa: SLF001  a context would take its settings before the job is known
    return SparkContext._jvm  # noqa: SLF001
