"""Logs the progress of Spark below what a region logs of its stages.

Invariant: at most one line in half a minute, counted from the last line of any kind, and none that repeats the one
before: of a stage that takes some seconds nothing is logged but its begin and its end, with its rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from weir.units import format_size

INTERVAL_SECONDS: Final = 30.0


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
        stages: Iterable[Any] | None,
        inflight_tasks: int,
        operation_id: str | None,  # noqa: ARG002  # pyspark's interface
        done: bool,  # noqa: FBT001  # pyspark's interface
    ) -> None:
        """Log the progress of the query; `stages` are Spark's, as Connect reports them (pyspark's StageInfo)."""
        if not done:
            found = [(each.num_tasks, each.num_completed_tasks, each.num_bytes_read) for each in stages or ()]
            self.progress(*(sum(each) for each in zip(*found, strict=True)), running=inflight_tasks)

    def progress(self, tasks: int = 0, completed: int = 0, read: int = 0, *, running: int) -> None:
        """Log how many of Spark's tasks are done and running, and what they have read, where that is known.

        Nothing is logged where a line was just logged, or nothing has changed.
        """
        now = self._clock()
        if not tasks or now - self._logged_at < INTERVAL_SECONDS:
            return
        share = f"{completed * 100 // tasks} % of Spark's tasks are done ({completed} of {tasks}), {running} running"
        line = f"{share}, {format_size(read)} read" if read else share
        if line != self._last:
            self._logged_at, self._last = now, line
            self._log(f"{self._doing}{line}")
