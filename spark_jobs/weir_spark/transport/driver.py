"""The Spark application that runs one region: what `spark_jobs/run_region.py` starts. Invariant: JSON in, JSON out.

A job that fails leaves `failure.json` where its report would be, so that its task can raise what happened also where
it sees no more of the driver than that it ended.

How a driver of its own is told to end: by a file in its attempt's folder, from any process and any machine.

Invariant: a driver that was told to end never reports a result of an attempt that began after it was told.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import fsspec

from weir.errors import Fenced, Misconfigured, Retryable, WeirError
from weir.formats.codec import region_failure_to_json, region_job_from_json, region_report_to_json
from weir.formats.region_failure import failure_of
from weir.formats.region_job import FAILURE_NAME, STOP_NAME, RegionJob
from weir.settings import store_options
from weir.store.stop_file import is_stop_requested
from weir.store.store import Store
from weir_spark.results.reader import unreadable_input
from weir_spark.transport.failures import translate_of_own_session

_EXIT_CODES: tuple[tuple[type[WeirError], int], ...] = ((Retryable, 75), (Fenced, 77), (Misconfigured, 78))
_OTHER = 1
_CANCEL_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the command line names; returns the exit code."""
    given = _parser().parse_args(arguments)
    try:
        options = store_options(os.environ) or {}
        job = _read_job(given.job, options)
        if given.remote:
            _run_on_server(job, options, given)
        else:
            _run_and_tell(job, Store.open(job.store, options))
    except WeirError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return _exit_code(error)
    return 0


def _run_on_server(job: RegionJob, options: dict[str, Any], given: argparse.Namespace) -> None:
    from weir_spark.transport.connect import ConnectEngine  # noqa: PLC0415  # needs grpc, which spark-submit may not have

    ConnectEngine(given.remote, options, retries=given.retries).run(job, given.session_id, _say)


def _run_and_tell(job: RegionJob, store: Store) -> None:
    try:
        with stopped_by_file(store, job, lambda fenced: _end_at_once(job, store, fenced)):
            _run_in_own_session(job, store)
    except Exception as error:
        translated = translate_of_own_session(error, job.region)
        if translated is error:
            translated = unreadable_input(error, job) or error
        _tell_failure(job, store, translated)
        if translated is error:
            raise
        raise translated from error


def _run_in_own_session(job: RegionJob, store: Store) -> None:
    from pyspark import SparkConf  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from weir_spark.region import region  # noqa: PLC0415  # after the arguments are known to be right

    # A parent process with a remote session hands this down, and pyspark would ask for a server's URL.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    builder = SparkSession.builder.appName(f"weir {job.dataflow} {job.region}[{job.subtask}]")
    quiet = {} if SparkConf().contains("spark.log.level") else {"spark.log.level": "WARN"}
    session = builder.config(map={**quiet, **job.spark_conf}).getOrCreate()
    _say(f"region {job.region}[{job.subtask}] runs on Spark {session.version}, {session.sparkContext.master}")
    try:
        report = region.run(job, session, store, _say)
    finally:
        session.stop()
    store.create(job.report, region_report_to_json(report))


def _end_at_once(job: RegionJob, store: Store, fenced: Fenced) -> NoReturn:
    """Give up, from another thread, whatever the main one is doing: a stage's own code may never ask."""
    cancelling = threading.Thread(target=_cancel_all_jobs, daemon=True)
    cancelling.start()
    print(f"Fenced: {fenced}", file=sys.stderr, flush=True)
    _tell_failure(job, store, fenced)
    cancelling.join(_CANCEL_SECONDS)
    sys.stdout.flush()
    os._exit(_exit_code(fenced))


def _cancel_all_jobs() -> None:
    from pyspark import SparkContext  # noqa: PLC0415

    context = SparkContext._active_spark_context  # noqa: SLF001  # asking in the public way would make one
    if context is not None:
        with suppress(Exception):  # the process ends in a moment, and its jobs with it
            context.cancelAllJobs()


def _tell_failure(job: RegionJob, store: Store, error: Exception) -> None:
    """Leave the failure in the attempt's folder; if even that fails, the exit code still says what kind it was."""
    try:
        store.create(f"{job.folder}/{FAILURE_NAME}", region_failure_to_json(failure_of(error, job.attempt)))
    except WeirError as untold:
        print(f"{FAILURE_NAME} could not be written: {untold}", file=sys.stderr, flush=True)


def _read_job(url: str, options: Mapping[str, Any]) -> RegionJob:
    try:
        with fsspec.open(url, "rb", **options) as file:
            return region_job_from_json(file.read())
    except OSError as error:
        raise Retryable(f"the job {url} could not be read: {type(error).__name__}: {error}") from error
    except ImportError as error:
        raise Misconfigured(f"the job {url} cannot be read where the driver runs: {error}") from error


def _exit_code(error: WeirError) -> int:
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), _OTHER)


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run one region of a dataflow on Spark.")
    parser.add_argument("job", help="path or URL of the region's job.json")
    parser.add_argument("--remote", help="a Spark Connect server, sc://host:port; without it, a session of its own")
    parser.add_argument("--session-id", default=str(uuid.uuid4()), help="the session's id, a UUID")
    parser.add_argument("--retries", type=int, default=8, help="tries at a server that does not answer: 8 are 25 s")
    return parser


POLL_SECONDS = 2.0


@contextmanager
def stopped_by_file(
    store: Store, job: RegionJob, end: Callable[[Fenced], None], poll_seconds: float = POLL_SECONDS
) -> Iterator[None]:
    """Call `end`, in a thread, once somebody tells this job to stop. Raises Fenced if somebody has already."""
    fenced = Fenced(f"region {job.region}: attempt {job.attempt} was told to stop, by {STOP_NAME} in its folder")
    if is_stop_requested(store, job.folder):
        raise fenced
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(poll_seconds):
            try:
                is_told = is_stop_requested(store, job.folder)
            except WeirError:
                continue  # a store that does not answer has told nothing
            if is_told and not is_over.is_set():
                end(fenced)
                return

    thread = threading.Thread(target=watch, name="weir-stop-file", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
