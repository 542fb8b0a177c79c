"""Defines the interface to Airflow: compare the try of a task instance, then clear it.

Invariant: a task instance is cleared only if it has the expected try and has finished, so a clear that is delivered
twice, late, or by several consumers at once takes effect once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

MISSING = "missing"
"""The state of a task instance that Airflow does not have."""


@dataclass(frozen=True, slots=True)
class ClearItem:
    """A task instance to clear if it is finished and has `expected_try` (None: whatever its try).

    One that was skipped is cleared only if it is expected to be: a task that skipped itself would skip again.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    expected_try: int | None
    is_skipped: bool = False


@dataclass(frozen=True, slots=True)
class ClearAnswer:
    """The task instance as found, and whether it was cleared. `state` is Airflow's, None if it has no state yet.

    `ti_id` is Airflow's id of its present try (empty: Airflow has none, or does not tell).
    """

    item: ClearItem
    state: str | None
    try_number: int
    cleared: bool
    ti_id: str = field(default="", compare=False)


class Clearer(Protocol):
    """Access to Airflow: the plugin's endpoint, the REST API, the database under `dag.test()`, or a fake."""

    def clear(self, wanted: Sequence[ClearItem], note: str) -> list[ClearAnswer]:
        """Clear the items that match and return an answer per item, in order. Raises Retryable or Misconfigured."""
        ...

    def inspect(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Return the answers of `clear` without a change."""
        ...

    def start(self, dag_id: str, run_id: str) -> str:
        """Set a queued run running that a later run waits for, and return the state that it had.

        It remains queued where as many runs of earlier epochs are running as `max_active_runs` allows.
        """
        ...

    def exists(self, dag_id: str, run_id: str) -> bool | None:
        """Report whether Airflow has this DagRun; None where Airflow does not know the DAG either.

        Raises Retryable or Misconfigured where Airflow does not answer or the account may not see the DAG.
        """
        ...
