"""Defines the interface to Airflow: compare the try of a task instance, then clear it.

Invariant: a task instance is cleared only if it has the expected try and has finished, so a clear that is delivered
twice, late, or by several consumers at once takes effect once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Final, Protocol

MOST_RUNS: Final = 50
"""The largest number of open runs that a question about a DAG answers."""

_ITEMS_A_REQUEST: Final = 1000


@dataclass(frozen=True, slots=True)
class ClearItem:
    """A task instance to clear if it is finished and has `expected_try` (None: whatever its try).

    One that was skipped is cleared only if it is expected to be: a task that skipped itself would skip again. `note`,
    if there is one, is left at it.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    expected_try: int | None
    is_skipped: bool = False
    note: str = field(default="", compare=False)


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


@dataclass(frozen=True, slots=True)
class SeenRun:
    """A DagRun's state in Airflow, and its note ("" where there is none)."""

    state: str
    note: str


@dataclass(frozen=True, slots=True)
class SeenDag:
    """Whether a person has paused a DAG, whether a scheduler of Airflow runs, and whether the DAG's file imports."""

    is_paused: bool
    has_scheduler: bool
    has_import_errors: bool = False


@dataclass(frozen=True, slots=True)
class UserRights:
    """Whether Airflow lets a user read, and edit, the task instances of a DAG.

    `unknown` says why it cannot be told, such as that there is no such user; empty if it can.
    """

    reads: bool = False
    edits: bool = False
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A DagRun of an earlier epoch, and its data interval."""

    run_id: str
    interval: tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A DagRun that is no success, and its data interval; one with a partition has its start alone, twice."""

    run_id: str
    state: str
    interval: tuple[datetime, datetime]


class Clearer(Protocol):
    """Access to Airflow: the plugin's endpoint, the database under `dag.test()`, or a fake."""

    def clear(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
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


class AirflowStates(Clearer, Protocol):
    """Access to Airflow that also tells of DagRuns and DAGs."""

    def seen_run(self, dag_id: str, run_id: str) -> SeenRun | None:
        """Return state and note of a DagRun; None where there is none. Raises Retryable or Misconfigured."""
        ...

    def seen_dag(self, dag_id: str) -> SeenDag | None:
        """Return whether a DAG may go on; None where Airflow does not know it. Raises Retryable or Misconfigured."""
        ...

    def pause(self, dag_id: str, *, is_paused: bool) -> None:
        """Pause or unpause a DAG. Raises Retryable or Misconfigured."""
        ...

    def clear_run(self, dag_id: str, run_id: str) -> int:
        """Clear the task instances of a DagRun, if none runs, as the DAG is now; return how many.

        Raises Retryable or Misconfigured.
        """
        ...

    def open_runs(self, dag_id: str, zone: str = "UTC") -> list[OpenRun]:
        """Return the newest DagRuns of a DAG that are no success, and begin at a time; the zone is that of their keys.

        Raises Retryable or Misconfigured.
        """
        ...


def by_dag(wanted: Sequence[ClearItem]) -> Iterator[tuple[str, list[ClearItem]]]:
    """Divide items by DAG, and those of a DAG into as many as one request may have."""
    for dag_id, group in groupby(sorted(set(wanted), key=_order), key=lambda item: item.dag_id):
        items = list(group)
        for start in range(0, len(items), _ITEMS_A_REQUEST):
            yield dag_id, items[start : start + _ITEMS_A_REQUEST]


def _order(item: ClearItem) -> tuple[str, str, str, int, int]:
    expected = -1 if item.expected_try is None else item.expected_try
    return (item.dag_id, item.run_id, item.task_id, item.map_index, expected)
