"""Airflow's LocalExecutor for a stack that mostly waits for its person.

The scheduler has one interval between two looks for work, and each look costs 20 ms of a processor, Airflow's and
the database's together: at an interval by which a chain of tasks loses no time, a quarter of a core. Invariant: while a
task runs, and for a while after that, the scheduler looks as often as it is set to.
"""

from __future__ import annotations

import time
from typing import Any, Final

import airflow.executors.local_executor

SETTLED_SECONDS: Final = 10.0
"""After so long without a task the scheduler is idle: a retry that is due soon is not made to wait."""

PAUSE_SECONDS: Final = 0.5
"""By this at most the first task after an idle time begins later, by half of it on average."""


class LocalExecutor(airflow.executors.local_executor.LocalExecutor):  # type: ignore[misc]  # Airflow's classes are not followed
    """Pauses the scheduler, which calls it in each of its loops, while there is nothing to do."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._busy_at = time.monotonic()

    def sync(self) -> None:
        """Do what Airflow's does; pause after it if no task was running for a while."""
        super().sync()
        now = time.monotonic()
        if self.running:
            self._busy_at = now
        elif now - self._busy_at > SETTLED_SECONDS:
            time.sleep(PAUSE_SECONDS)
