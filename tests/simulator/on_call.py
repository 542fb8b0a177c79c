"""The person on call of a simulation, who acts on what stands still, and has to have been told of it.

Invariant: what is expected follows from Airflow's task instances alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tests.simulator.history.history import History

from weir.coordination.values import TaskKey
from weir.ledger.runs import epoch_of, run_key
from weir.testing.fakes.dag import FakeTask, interval_of

FULL_TOO_LONG: Final = "times environment since"
"""The error of a task that has found the disk full at more tries than it may (`maximum_environment_failures`)."""


class _Recorded(NamedTuple):
    kind: str
    document: str


class OnCall:
    """What a person has seen at each visit: the tries that had failed, and how often somebody was told of a run."""

    def __init__(self, history: History, dataflow: str) -> None:
        self._history, self._dataflow = history, dataflow
        self._seen: set[tuple[TaskKey, int]] = set()
        self._told: Counter[str] = Counter()
        self._visits = 0

    def visit(self, failed: Iterable[FakeTask]) -> Iterator[str]:
        """Yield the runs in which tasks have failed since the last visit, and of which nobody was told since, or often.

        A person sees to all that has failed at once: each run is told of once between two visits.
        """
        now = {(task.key, task.try_number): task for task in failed}
        told = self._count()
        runs = {run_key(self._dataflow, epoch_of(interval_of(key.run_id)[0])) for key, _ in now.keys() - self._seen}
        for run in sorted(runs) if self._history.ledger.runs() else ():  # receivers are those of a run that has begun
            if told[run] <= self._told[run]:
                yield f"{run} stands still, and nobody was told: {sorted(str(key) for key, _ in now)}"
        for of, count in told.items() if self._visits else ():
            if count > self._told[of] + 1:
                yield f"a person was told of {of} {count - self._told[of]} times"
        self._seen, self._told, self._visits = self._seen | now.keys(), told, self._visits + 1

    def _count(self) -> Counter[str]:
        rows = self._history.ledger.rows(_Recorded, "notification")
        return Counter(json.loads(row.document)["run"] for row in rows if row.kind == "person_needed")
