"""The request to a Spark program that tries a stage, and its answer.

Invariant: both are JSON; unknown versions are refused.

The rows of the stage lie where the reports name them, in the store that the jobs name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from weir.errors import Misconfigured
from weir.formats.codec import (
    region_job_from_json,
    region_job_to_json,
    region_report_from_json,
    region_report_to_json,
)
from weir.formats.region_job import RegionJob, RegionReport

VERSION: Final = 1

FORMATS: Final = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json", "ndjson": "json"}
"""Spark's name of the format of a sample, by the end of its files' names."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The rows of an input, by its argument: a file or folder, as an absolute path, in one of Spark's formats."""

    argument: str
    path: str
    format: str


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """Compute a stage: a job for each subtask, the samples of its inputs, and how many rows to show."""

    stage: str
    jobs: tuple[RegionJob, ...]
    samples: tuple[Sample, ...]
    shown: int


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """The reports of the jobs, in their order; or the error of one, with the traceback of the stage's own code."""

    reports: tuple[RegionReport, ...] = ()
    error: str = ""
    traceback: str = ""


def trial_request_to_json(request: TrialRequest) -> str:
    """Encode the request to the program."""
    return json.dumps(
        {
            "version": VERSION,
            "stage": request.stage,
            "jobs": [json.loads(region_job_to_json(job)) for job in request.jobs],
            "samples": [asdict(each) for each in request.samples],
            "shown": request.shown,
        }
    )


def trial_request_from_json(text: str) -> TrialRequest:
    """Decode the request. Raises Misconfigured on an unknown version."""
    found = _known(text)
    jobs = (region_job_from_json(data) for data in _documents(found["jobs"]))
    samples = tuple(Sample(**each) for each in found["samples"])
    return TrialRequest(found["stage"], tuple(cast("RegionJob", job) for job in jobs), samples, found["shown"])


def trial_answer_to_json(answer: TrialAnswer) -> str:
    """Encode the program's answer."""
    return json.dumps(
        {
            "version": VERSION,
            "reports": [json.loads(region_report_to_json(report)) for report in answer.reports],
            "error": answer.error,
            "traceback": answer.traceback,
        }
    )


def trial_answer_from_json(text: str) -> TrialAnswer:
    """Decode the program's answer. Raises Misconfigured on an unknown version."""
    found = _known(text)
    reports = tuple(region_report_from_json(data) for data in _documents(found["reports"]))
    return TrialAnswer(reports, found["error"], found["traceback"])


def _documents(found: Iterable[Any]) -> Iterable[bytes]:
    return (json.dumps(each).encode() for each in found)


def _known(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    if found.get("version") != VERSION:
        raise Misconfigured(
            f"the trial has version {found.get('version')!r}, expected {VERSION}: use the program of the same Weir "
            "version"
        )
    return found
