"""Airflow's words for the states of task instances and DagRuns, as the rules read them.

They are a module of their own, since rules import nothing that asks Airflow.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

MISSING: Final = "missing"
"""The state of a task instance that Airflow does not have: a word of Weir's."""

NOT_IN_AIRFLOW: Final = (MISSING, "removed")
"""The states of a task instance that will never run."""

CLEARABLE: Final = frozenset({"success", "failed", "upstream_failed"})
"""Finished states whose task instance would compute when it runs again; one that skipped itself would skip again."""

FINAL: Final = CLEARABLE | {"skipped", *NOT_IN_AIRFLOW}
"""The states in which a task instance stays."""

UNSUCCESSFUL: Final = ("queued", "running", "failed")
"""The states of a DagRun that is no success."""


def run_again(dag_id: str, start: datetime) -> str:
    """Return the command that creates the DagRun again of the interval that begins at `start`."""
    day = start.isoformat()
    return f"`weir airflow backfill create --dag-id {dag_id} --from-date {day} --to-date {day}`"
