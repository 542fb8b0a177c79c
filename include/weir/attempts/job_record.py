"""The job and the report of one computation, in the store.

Invariant: both are whole files that nothing writes twice. The job's is for people, and for engines that start a process
of their own from it; the report's is all that an engine answers.
"""

from __future__ import annotations

from weir.results.codec import region_job_to_json, region_report_from_json
from weir.results.region_job import JOB_NAME, RegionJob, RegionReport
from weir.store.store import Store


def write_job(store: Store, job: RegionJob) -> None:
    """Write the job's record into the attempt's folder. Raises AlreadyExists or Retryable."""
    store.create(f"{job.folder}/{JOB_NAME}", region_job_to_json(job))


def read_report(store: Store, job: RegionJob) -> RegionReport:
    """Read the job's report. Raises NotFound, Misconfigured (another version), Corrupt or Retryable."""
    return region_report_from_json(store.read(job.report))
