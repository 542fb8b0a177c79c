"""Checks the rows of stored results for `weir verify --expectations`. Invariant: it only reads."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence

from pyspark.sql import SparkSession

from weir.errors import Misconfigured
from weir.formats.codec import region_job_from_json, to_json
from weir.formats.region_job import CheckJob, RegionReport, SparkJob
from weir_spark.checks.integrity import check_partition
from weir_spark.program import answer_request


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what the job names, and print a report for each partition; return the exit code."""
    what = "Check the rows of stored results."
    return answer_request("weir verify", arguments, region_job_from_json, _check, description=what)


def _check(session: SparkSession, job: SparkJob, given: Namespace) -> None:
    if not isinstance(job, CheckJob):
        raise Misconfigured.of("checks.job_of_other_kind", path=given.request, name=type(job).__name__)
    for each in job.to_check:
        checks = check_partition(session, each, job.why, _log)
        report = RegionReport(attempt=job.attempt, outputs=(), code="", session={}, metrics={}, checks=checks)
        print(json.dumps(json.loads(to_json(report))), flush=True)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
