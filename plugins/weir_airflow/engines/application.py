"""What spark-submit is given of a stage's application: its file, and its arguments.

Invariant: the file is that of the code which the attempt's job names, not the one that is deployed now.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from weir.code.application_rules import bound, name_in_archive
from weir.errors import Internal, Message, Misconfigured
from weir.formats.region_job import RegionJob, staged_input, staged_output, staging_of
from weir.intervals import in_zone, interval_of
from weir.store.code import read_archive

if TYPE_CHECKING:
    from weir.formats.region_job import SparkJob, StageToRun
    from weir.store.store import Store


def write_application(job: SparkJob, stage: StageToRun, store: Store, scratch: str) -> str:
    """Write the application of a stage from the archive of its job's code; return the path. Raises Misconfigured."""
    code = job.code if isinstance(job, RegionJob) else None
    if code is None:
        raise Internal(Message("engines.application_without_code", region=job.region))
    content = read_archive(code, store).files.get(name_in_archive(stage.function))
    if content is None:
        raise Misconfigured(Message("engines.application_file_missing", stage=stage.name, function=stage.function))
    # In a folder of its own: Python looks for modules beside a program first.
    path = Path(scratch, "application", PurePosixPath(stage.function).name)
    path.parent.mkdir()
    path.write_bytes(content)
    return str(path)


def arguments_of(job: SparkJob, stage: StageToRun, store: Store) -> list[str]:
    """Return the arguments of an application with their values. Raises Misconfigured."""
    if stage.application is None or not isinstance(job, RegionJob):
        raise Internal(Message("engines.not_an_application", stage=stage.name))
    staging = staging_of(job, stage)
    values: dict[str, Any] = {
        "output": store.spark_url(staged_output(staging)),
        "ctx.epoch": job.epoch,
        **_bounds_of(job),
        "ctx.subtask": stage.subtask,
        "ctx.parallelism": stage.parallelism,
        **{f"inputs.{each.argument}": store.spark_url(staged_input(staging, each.argument)) for each in stage.inputs},
        **{f"ctx.parameters.{name}": value for name, value in job.parameters.items()},
    }
    return bound(stage.application.arguments, values)


def _bounds_of(job: SparkJob) -> dict[str, str]:
    """Return the bounds of the interval: in UTC, and in the schedule's zone."""
    start, end = (datetime.fromisoformat(each) for each in job.interval)
    found: dict[str, str] = {}
    for name, zone in (("interval", "UTC"), ("local_interval", job.zone)):
        interval = in_zone(interval_of(start, end), zone)
        for place in (0,) if start == end else (0, 1):
            at = interval[place].isoformat()
            found |= {f"ctx.{name}[{place}]": at, f"ctx.{name}[{place}].date": at[:10]}
    return found
