"""The ports that a task supplies to the drivers: coordinator, settling, engine, Airflow, wait and log.

Invariant: a port does one thing that only Airflow, an engine or a clock can do. The order of steps and what follows
from an error are the drivers'.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol

from weir.attempts.coordinator import Coordinator
from weir.attempts.rooms import Settling
from weir.coordination.airflow import AirflowStates
from weir.coordination.values import Awaiting, SparkWork, TaskKey
from weir.formats.region_job import SparkJob

Log = Callable[[str], None]


class Airflow(AirflowStates, Protocol):
    """Airflow as a task reaches it: it clears, tells of states, and reads and sets notes."""

    def note(self, key: TaskKey) -> str:
        """Return the task instance's note, "" where there is none. Raises Retryable or Misconfigured."""
        ...

    def annotate(self, key: TaskKey, note: str) -> None:
        """Set the task instance's note, which Airflow's UI shows. Raises Retryable or Misconfigured."""
        ...

    def annotate_run(self, dag_id: str, run_id: str, note: str) -> None:
        """Set the note of a DagRun. Raises Retryable or Misconfigured."""
        ...


class TaskPorts(Protocol):
    """One task's process."""

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the ledger and store that the task uses."""
        ...

    @property
    def settling(self) -> Settling:
        """What settles the task's dataflow in this process."""
        ...

    @property
    def airflow(self) -> Airflow:
        """Airflow's API, connected at the first use. Raises Misconfigured or Retryable."""
        ...

    def wait(self, awaiting: Awaiting) -> None:
        """Wait; return when the task has to begin again, or raise what has Airflow reschedule it."""
        ...

    def fail(self, reason: str) -> NoReturn:
        """Raise what has Airflow fail the task instance without asking its retry policy."""
        ...

    def skip(self, reason: str) -> NoReturn:
        """Raise what has Airflow skip the task instance."""
        ...

    def log(self, message: str) -> None:
        """Write a line to the task's log, from any thread."""
        ...

    def heartbeats(self, beat: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `beat` from time to time while the block runs."""
        ...


class TaskEngine(Protocol):
    """The engine that computes one task's jobs."""

    def prepare(self) -> None:
        """Prepare this process for the import of users' modules, which `begin` may import."""
        ...

    def interrupt(self, work: SparkWork) -> None:
        """Stop an earlier attempt's work; work that is not there is fine. Raises Retryable."""
        ...

    def connect(self) -> None:
        """Connect to the engine; from here on a kill of the task stops what `run` does. Raises Misconfigured."""
        ...

    def run(self, job: SparkJob, session_id: str, log: Log) -> None:
        """Compute the job; its report is in the store afterwards.

        Raises Retryable, InputUnreadable, Misconfigured, Fenced (also where `stop` was called), or the user's error.
        """
        ...

    def stop(self) -> None:
        """Stop what `run` does, from another thread, and do not wait for its end; a second call does no harm."""
        ...
