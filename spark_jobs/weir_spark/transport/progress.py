"""Logs the progress of Spark below what a region logs of its stages.

Invariant: at most one line in half a minute, counted from the last line of any kind, and none that repeats the one
before: of a stage that takes some seconds nothing is logged but its begin and its end, with its rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from weir.units import format_size

INTERVAL_SECONDS: Final = 30.0


class SparkStage(Protocol):
    """Progress of one of Spark's stages, as Connect reports it (pyspark's StageInfo)."""

    @property
    def num_tasks(self) -> int:
        """The tasks of the stage."""
        ...

    @property
    def num_completed_tasks(self) -> int:
        """How many of them are done."""
        ...

    @property
    def num_bytes_read(self) -> int:
        """What they have read."""
        ...


@dataclass(frozen=True, slots=True)
class StageOfTracker:
    """Progress of one of Spark's stages, as the driver's own tracker tells it: without bytes."""

    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int = 0


class ProgressLog:
    """A log that also handles the progress of a session; `clock` counts seconds."""

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._logged_at = clock()
        self._doing, self._last = "", ""

    def log(self, line: str) -> None:
        """Log a line of the region. One that says what begins ("writing joined (plain)") begins those after it, too."""
        verb = line.partition(" ")[0]
        self._doing = f"{line}: " if verb.endswith("ing") else ""
        self._logged_at = self._clock()
        self._log(line)

    def __call__(
        self,
        stages: Iterable[SparkStage] | None,
        inflight_tasks: int,
        operation_id: str | None,  # noqa: ARG002  # pyspark's interface
        done: bool,  # noqa: FBT001  # pyspark's interface
    ) -> None:
        """Log the progress of the query, unless a line was just logged or nothing has changed."""
        now = self._clock()
        if done or now - self._logged_at < INTERVAL_SECONDS:
            return
        line = _line(list(stages or ()), inflight_tasks)
        if line and line != self._last:
            self._logged_at, self._last = now, line
            self._log(f"{self._doing}{line}")


@contextmanager
def polled(tracker: Any, progress: ProgressLog, every_seconds: float = INTERVAL_SECONDS) -> Iterator[None]:
    """Hand over the progress of a driver's own session from time to time, in a thread, until the block ends."""
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.wait(every_seconds):
            try:
                found = [stage for each in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(each))]
            except Exception:  # noqa: BLE001  # the session has ended: who uses it raises why
                return
            stages = [StageOfTracker(each.numTasks, each.numCompletedTasks) for each in found]
            progress(stages, sum(each.numActiveTasks for each in found), None, done=False)

    thread = threading.Thread(target=poll, name="weir-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()


def _line(stages: list[SparkStage], running: int) -> str:
    tasks = sum(stage.num_tasks for stage in stages)
    if not tasks:
        return ""
    completed = sum(stage.num_completed_tasks for stage in stages)
    read = sum(stage.num_bytes_read for stage in stages)
    share = f"{completed * 100 // tasks} % of Spark's tasks are done ({completed} of {tasks}), {running} running"
    return f"{share}, {format_size(read)} read" if read else share
