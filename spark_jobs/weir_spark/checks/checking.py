"""Checks the rows of stored results: for a restore test, or for `weir verify --expectations`.

Invariant: it only reads. A result that cannot be read is a finding; a Spark that does not answer is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from weir.errors import Misconfigured, WeirError, first_line
from weir.formats.checks import CheckReason, CheckReport, ExpectationResult
from weir.formats.codec import region_job_from_json, to_json
from weir.formats.region_job import CheckJob, RegionReport, RestoredToCheck
from weir.formats.suite import Severity
from weir_spark.checks.integrity import check_restored
from weir_spark.session import SPARK_ERRORS, Log, active, add_remote, configure, measured, session_of_program

READABLE = "weir_readable"
"""The built-in check that Spark can read all rows; only its failure is reported."""

_UNREADABLE = re.compile(r"\[(FAILED_READ_FILE|PATH_NOT_FOUND|CANNOT_READ_FILE_FOOTER|PARQUET_)[^\]]*\]")


def check_all(job: CheckJob, session: SparkSession, log: Log = print) -> RegionReport:
    """Check all partitions of a job, and return the report."""
    seconds: dict[str, float] = {}
    checks: list[CheckReport] = []
    with active(session), measured(seconds, "check"):
        settings = configure(session, job.spark_conf)
        for each in job.to_check:
            checks += check_partition(session, each, job.why, log)
    return RegionReport(
        attempt=job.attempt, outputs=(), code="", session=settings, metrics=seconds, checks=tuple(checks)
    )


def check_partition(
    session: SparkSession, stored: RestoredToCheck, why: CheckReason, log: Log
) -> tuple[CheckReport, ...]:
    """Check the rows of one partition, in an active session."""
    try:
        return check_restored(session, stored, why=why, log=log)
    except SPARK_ERRORS as error:
        if not _UNREADABLE.search(str(error)):
            raise
        return (_unreadable(stored, why, first_line(error)),)


def _unreadable(stored: RestoredToCheck, why: CheckReason, error: str) -> CheckReport:
    result = ExpectationResult(READABLE, {}, Severity.FAIL, success=False, error=error)
    return CheckReport.built_in(
        stored.stage,
        stored.subtask,
        why,
        stored.digest,
        stored.rows,
        result,
        run=stored.run,
        layout=stored.layout.id,
        attempt=stored.attempt,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what the job names, and print a report for each partition; return the exit code."""
    given = _parser().parse_args(arguments)
    try:
        job = _read_job(Path(given.job))
        session = session_of_program("weir verify", given.remote, {"spark.ui.enabled": "false"})
        try:
            settings = configure(session, {})
            with active(session):
                for each in job.to_check:
                    checks = check_partition(session, each, job.why, _log)
                    _print(
                        RegionReport(
                            attempt=job.attempt, outputs=(), code="", session=settings, metrics={}, checks=checks
                        )
                    )
        finally:
            session.stop()
    except (WeirError, OSError, *SPARK_ERRORS) as error:
        print(f"{type(error).__name__}: {str(error).split(chr(10), 1)[0]}", file=sys.stderr)
        return 1
    return 0


def _read_job(path: Path) -> CheckJob:
    job = region_job_from_json(path.read_bytes())
    if not isinstance(job, CheckJob):
        raise Misconfigured.of("checks.job_of_other_kind", path=path, name=type(job).__name__)
    return job


def _print(report: RegionReport) -> None:
    print(json.dumps(json.loads(to_json(report))), flush=True)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Check the rows of stored results.")
    parser.add_argument("job", help="path of the job")
    add_remote(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
