"""The one entry point of a Spark job: runs the region that a JSON file describes. Invariant: JSON in, JSON out.

    python run_region.py JOB.json --remote sc://host:port --session-id UUID
    spark-submit run_region.py JOB.json

JOB.json is a path or a URL that fsspec knows. The exit code says what the caller must do: 0 the report is written,
75 try again later, 78 a person has to change something, 77 a newer attempt is at work, 1 anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import fsspec

from weir.errors import Fenced, Misconfigured, Retryable, WeirError
from weir.results.codec import region_job_from_json, region_report_to_json
from weir.results.region_job import RegionJob
from weir.store.store import Store

_EXIT_CODES: tuple[tuple[type[WeirError], int], ...] = ((Retryable, 75), (Fenced, 77), (Misconfigured, 78))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the command line names; returns the exit code."""
    given = _parser().parse_args(arguments)
    try:
        with fsspec.open(given.job, "rb", **given.storage_options) as file:
            job = region_job_from_json(file.read())
        _run(job, given)
    except WeirError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)
    return 0


def _run(job: RegionJob, given: argparse.Namespace) -> None:
    if given.remote:
        from weir_spark.connect import ConnectEngine  # noqa: PLC0415  # needs grpc, which spark-submit may not have

        engine = ConnectEngine(given.remote, given.storage_options, retries=given.retries)
        engine.run(job, given.session_id, _say)
        return
    _run_in_own_session(job, given.storage_options)


def _run_in_own_session(job: RegionJob, storage_options: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from weir_spark import region  # noqa: PLC0415  # after the arguments are known to be right

    # A parent process with a remote session hands this down, and pyspark would ask for a server's URL.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    store = Store.open(job.store, storage_options)
    session = SparkSession.builder.appName(f"weir {job.dataflow} {job.region}").getOrCreate()
    try:
        report = region.run(job, session, store, _say)
    finally:
        session.stop()
    store.create(job.report, region_report_to_json(report))


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run one region of a dataflow on Spark.")
    parser.add_argument("job", help="path or URL of the region's job.json")
    parser.add_argument("--remote", help="a Spark Connect server, sc://host:port; without it, a session of its own")
    parser.add_argument("--session-id", default=str(uuid.uuid4()), help="the session's id, a UUID")
    parser.add_argument("--retries", type=int, default=8, help="tries at a server that does not answer: 8 are 25 s")
    parser.add_argument("--storage-options", type=json.loads, default={}, help="JSON for fsspec")
    return parser


if __name__ == "__main__":
    sys.exit(main())
