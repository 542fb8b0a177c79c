"""Which input it was that Spark could not read. Invariant: only a file that the job was told to read is blamed.

Spark names a file; people and the coordinator think in result partitions and attempts. Whether a file is lost is not
decided here: it was not to be read for a moment, and the store is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from weir.errors import InputUnreadable
from weir.results.region_job import RegionJob, StageToRun

_UNREADABLE = re.compile(r"\[(FAILED_READ_FILE\.(?:FILE_NOT_EXIST|NO_HINT|CANNOT_READ_FILE_FOOTER)|PATH_NOT_FOUND)\]")
"""Spark's conditions; others of FAILED_READ_FILE are about types and file systems, which no other try changes."""

_FILE = re.compile(r"(?:[^/\s]+/){4}[^/\s]+\.parquet")
"""The end of a result file's path: stage, layout, subtask, attempt, file. None of them is ever spelled in two ways."""

_PARTS = 5


def unreadable_input(error: Exception, job: RegionJob) -> InputUnreadable | None:
    """The error to raise in the place of `error` if Spark could not read an input or a copy, else None.

    Spark Connect gives the condition and the path their own fields, a classic session only the text of Java's trace.
    """
    said = str(error)
    condition = _UNREADABLE.search(said)
    if condition is None:
        return None
    read = {"/".join(file.split("/")[-_PARTS:]): what for file, what in _files(job)}
    for found in _FILE.finditer(said, condition.start()):
        what = read.get(found.group()) or _own_copy(job, found.group())
        if what is not None:
            return InputUnreadable(f"region {job.region}: Spark could not read {what}: {condition[1]}, {found.group()}")
    return None


def _files(job: RegionJob) -> Iterator[tuple[str, str]]:
    """All files that the job was told to read, each with what it belongs to."""
    for stage in job.stages:
        for read in stage.inputs:
            for part in read.partitions:
                run = f" of {part.run}" if part.run else ""
                what = (
                    f"{part.stage}[{part.subtask}] ({read.layout.id}){run} of attempt {part.attempt}, which "
                    f"{stage.name} reads as {read.argument!r}"
                )
                yield from ((file, what) for file in part.files)
        if stage.resume is not None:
            yield from ((file, _copy(stage, stage.resume.attempt)) for file in stage.resume.files)


def _own_copy(job: RegionJob, file: str) -> str | None:
    folder = file.rpartition("/")[0]
    own = (each for each in job.stages if each.copy is not None and each.copy.folder.endswith(f"/{folder}"))
    return next((_copy(stage, job.attempt) for stage in own), None)


def _copy(stage: StageToRun, attempt: str) -> str:
    return f"the copy of {stage.name}[{stage.subtask}] of attempt {attempt}"
