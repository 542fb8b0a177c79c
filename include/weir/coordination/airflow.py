"""How task instances are cleared in Airflow: compare first, then clear.

Invariant: nothing is cleared that has not the expected try or has not finished, so a clear that comes twice, late, or
from several consumers at once does its work once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MISSING = "missing"
"""The state that is answered for a task instance that Airflow does not know."""


@dataclass(frozen=True, slots=True)
class ClearItem:
    """A task instance to clear if it is finished and has `expected_try` (None: whatever its try)."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    expected_try: int | None


@dataclass(frozen=True, slots=True)
class ClearAnswer:
    """What was found and done. `state` is Airflow's word, None for a task instance without a state yet."""

    item: ClearItem
    state: str | None
    try_number: int
    cleared: bool


class Clearer(Protocol):
    """Weir's hand in Airflow: the plugin's endpoint, its REST API, its database under `dag.test()`, or a fake."""

    def clear(self, wanted: Sequence[ClearItem], note: str) -> list[ClearAnswer]:
        """Clear what matches; answer for each item, in order. Raises Retryable or Misconfigured."""
        ...

    def inspect(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Answer as `clear` would, and change nothing."""
        ...

    def start(self, dag_id: str, run_id: str) -> str:
        """Set a queued run running, whatever `max_active_runs` says; answer the state that it was found in."""
        ...

    def exists(self, dag_id: str, run_id: str) -> bool | None:
        """Whether Airflow has this DagRun; None where that is not known: it does not know the DAG, either."""
        ...
