"""The request to a Spark program that tries a stage, and its answer.

Invariant: both are JSON; unknown versions are refused.

The rows of the stage lie where the reports name them, in the store that the jobs name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weir.formats.region_job import RegionJob, RegionReport
from weir.typed_json import message_from_json, message_to_json

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
    return message_to_json(VERSION, request)


def trial_request_from_json(text: str) -> TrialRequest:
    """Decode the request. Raises Misconfigured on an unknown version."""
    return message_from_json(VERSION, TrialRequest, text)


def trial_answer_to_json(answer: TrialAnswer) -> str:
    """Encode the program's answer."""
    return message_to_json(VERSION, answer)


def trial_answer_from_json(text: str) -> TrialAnswer:
    """Decode the program's answer. Raises Misconfigured on an unknown version."""
    return message_from_json(VERSION, TrialAnswer, text)
