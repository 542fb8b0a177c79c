"""Looks at the rows of stored results: of those that a drill has restored, or that somebody asks about.

Invariant: it only reads. A result that cannot be read is a finding; a Spark that does not answer is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from weir.errors import WeirError
from weir.formats.checks import CheckReason, CheckReport, ExpectationResult
from weir.formats.codec import region_job_from_json, region_report_to_json
from weir.formats.region_job import RegionJob, RegionReport, RestoredToCheck
from weir.formats.suite import Severity
from weir_spark.checks.integrity import check_restored
from weir_spark.region.session import active, configure, measured, session_of_program

READABLE = "weir_readable"
"""The built-in check that only a failure is told of: Spark can read all rows."""

_UNREADABLE = re.compile(r"\[(FAILED_READ_FILE|PATH_NOT_FOUND|CANNOT_READ_FILE_FOOTER|PARQUET_)[^\]]*\]")


def check_all(job: RegionJob, session: SparkSession, say: Callable[[str], None] = print) -> RegionReport:
    """Look at all that a job names; the report is returned, not written."""
    seconds: dict[str, float] = {}
    checks: list[CheckReport] = []
    with active(session), measured(seconds, "check"):
        settings = configure(session, job.spark_conf)
        for each in job.to_check:
            checks += looked_at(session, each, job.why, say)
    return RegionReport(
        attempt=job.attempt, outputs=(), code="", session=settings, metrics=seconds, checks=tuple(checks)
    )


def looked_at(
    session: SparkSession, stored: RestoredToCheck, why: CheckReason, say: Callable[[str], None]
) -> tuple[CheckReport, ...]:
    """What is found in the rows of one partition, in an active session."""
    try:
        return check_restored(session, stored, why=why, say=say)
    except PySparkException as error:
        if not _UNREADABLE.search(str(error)):
            raise
        return (_unreadable(stored, why, str(error).split("\n", 1)[0]),)


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
    """Answer the job that the command line names; returns the exit code."""
    given = _parser().parse_args(arguments)
    try:
        job = region_job_from_json(Path(given.job).read_bytes())
        session = session_of_program("weir verify", given.remote, {"spark.ui.enabled": "false"})
        try:
            settings = configure(session, {})
            with active(session):
                for each in job.to_check:
                    checks = looked_at(session, each, job.why, _say)
                    _print(
                        RegionReport(
                            attempt=job.attempt, outputs=(), code="", session=settings, metrics={}, checks=checks
                        )
                    )
        finally:
            session.stop()
    except (WeirError, OSError, PySparkException) as error:
        print(f"{type(error).__name__}: {str(error).split(chr(10), 1)[0]}", file=sys.stderr)
        return 1
    return 0


def _print(report: RegionReport) -> None:
    print(json.dumps(json.loads(region_report_to_json(report))), flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Look at the rows of stored results.")
    parser.add_argument("job", help="path of the job")
    parser.add_argument("--remote", help="a Spark Connect server, sc://host:port; without it, a session of its own")
    return parser


if __name__ == "__main__":
    sys.exit(main())
