"""Airflow's LocalExecutor for a small machine: its workers are its slots, and it knows what they have.

Airflow's own (3.3.2) hands to its workers all that may run, and keeps no record of it (apache/airflow#71914):
- What is handed over comes first, whatever its run and its weight: sixteen runs side by side, and the closing task of
  a complete one at the end of the queue.
- Some forty task instances fill the pipe to the workers. The scheduler then stands still until one of them has ended,
  takes itself for dead, since it looks for orphans by the heartbeat before its last, and resets what is running.

The scheduler has one interval between two looks for work, and each look costs 20 ms of a processor, Airflow's and
the database's together: at an interval by which a chain of tasks loses no time, a quarter of a core. Invariants: no
more task instances are handed over than there are workers; while one runs, and for a while after that, the scheduler
looks as often as it is set to.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import airflow.executors.local_executor
from airflow.utils.state import TaskInstanceState

if TYPE_CHECKING:
    from collections.abc import Sequence


SETTLED_SECONDS: Final = 10.0
"""After so long without a task the scheduler is idle: a retry that is due soon is not made to wait."""

_OF_TASKS: Final = ("weir_airflow.dag", "weir_airflow.tasks.running", "weir_airflow.recovery.failing")
"""What each task of Weir imports of the plugin; of the rest, `weir.preloading` has taken care."""

PAUSE_SECONDS: Final = 0.5
"""By this at most the first task after an idle time begins later, by half of it on average."""


class LocalExecutor(airflow.executors.local_executor.LocalExecutor):  # type: ignore[misc]  # Airflow's classes are not followed
    """Counts what its workers have; pauses the scheduler, which calls it in each loop, while that is nothing."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._busy_at = time.monotonic()
        self._handed_over: Counter[Any] = Counter()

    def start(self) -> None:
        """Import what tasks will, then fork the workers, which fork the tasks."""
        for name in _OF_TASKS:
            with suppress(ImportError):  # the task that needs the module reports it
                import_module(name)
        super().start()

    def sync(self) -> None:
        """Do what Airflow's does; pause after it if no task was running for a while."""
        super().sync()
        now = time.monotonic()
        if self.running:
            self._busy_at = now
        elif now - self._busy_at > SETTLED_SECONDS:
            time.sleep(PAUSE_SECONDS)

    def try_adopt_task_instances(self, tis: Sequence[Any]) -> Sequence[Any]:
        """Return those that its workers do not have: what they have is no orphan, however late the scheduler is."""
        return [ti for ti in tis if not self.has_task(ti)]

    def change_state(self, key: Any, state: Any, info: Any = None, remove_running: bool = True) -> None:  # noqa: FBT001, FBT002  Airflow's
        """Record the end of a process; a try that was deferred and is resumed before that has another.

        Airflow takes a try that it does not find among the running ones for one that was killed (apache/airflow#72716).
        """
        left = self._handed_over.pop(key, 1) - 1
        is_resumed = left > 0 and state == TaskInstanceState.SUCCESS
        if is_resumed:
            self._handed_over[key] = left
        super().change_state(key, state, info, remove_running=remove_running and not is_resumed)

    def _process_workloads(self, workload_list: Sequence[Any]) -> None:
        """Hand task instances to the workers, and count them until a worker, or a missed heartbeat, reports the end."""
        keys = [workload.key for workload in workload_list]
        self.running.update(keys)
        self._handed_over.update(keys)
        super()._process_workloads(workload_list)
