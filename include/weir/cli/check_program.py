"""The program with Spark that looks at stored rows. Invariant: this process needs no Spark, nor a Java."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weir.cli.content_program import lines_of
from weir.errors import Misconfigured
from weir.results.codec import region_job_to_json, region_report_from_json
from weir.results.region_job import RegionReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weir.results.region_job import RegionJob


def checked(
    job: RegionJob, remote: str | None, environ: Mapping[str, str], watch: Callable[[int], None] = lambda _done: None
) -> RegionReport:
    """Have all that a job names looked at; `watch` is told how many partitions have been, as they come.

    `remote` is a Spark Connect server; without one it is that of the local stack while it is up, or a Spark in the
    program itself. Raises EngineLost if the program does not come to its end.
    """
    report = RegionReport(job.attempt, (), "", {}, {})
    done = 0
    for line in lines_of("check_results.py", region_job_to_json(job).decode(), remote, environ):
        try:
            found = region_report_from_json(line.encode())
        except Misconfigured:
            continue  # somebody else's word
        report = replace(report, checks=(*report.checks, *found.checks))
        done += 1
        watch(done)
    return report
