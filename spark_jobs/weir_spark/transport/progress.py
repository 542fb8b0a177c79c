"""Logs the progress of a Spark query. Invariant: at most one line in two seconds, however many stages and updates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

INTERVAL_SECONDS = 2.0


class SparkStage(Protocol):
    """Progress of one of Spark's stages, as Connect reports it (pyspark's StageInfo)."""

    stage_id: int
    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int
    done: bool


class ProgressLog:
    """A progress handler of a Connect session; `clock` counts seconds."""

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._logged_at = clock()
        self._last = ""

    def __call__(
        self,
        stages: Iterable[SparkStage] | None,
        inflight_tasks: int,
        operation_id: str | None,  # noqa: ARG002  # pyspark's interface
        done: bool,  # noqa: FBT001  # pyspark's interface
    ) -> None:
        """Log the progress of the query, unless a line was just logged or nothing has changed."""
        line = _line(list(stages or ()), inflight_tasks)
        now = self._clock()
        if done or not line or line == self._last or now - self._logged_at < INTERVAL_SECONDS:
            return
        self._logged_at, self._last = now, line
        self._log(line)


def _line(stages: list[SparkStage], running: int) -> str:
    if not stages:
        return ""
    finished = sum(stage.done for stage in stages)
    tasks = sum(stage.num_tasks for stage in stages)
    completed = sum(stage.num_completed_tasks for stage in stages)
    read = sum(stage.num_bytes_read for stage in stages) / 2**20
    return (
        f"Spark: {finished} of {len(stages)} stages done, {completed} of {tasks} tasks done, {running} running, "
        f"{read:.1f} MiB read"
    )
