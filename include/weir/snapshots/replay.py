"""Computes epochs again from their sources, in order: `weir replay`.

Invariants: no run is freed unless all of them can begin: the first one goes on from a state that is there, or from
none. A run that is free has lost its results, and its published versions stay until it closes again. Each call goes on
where another one was interrupted: what is free already is only cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from weir.coordination.airflow import AirflowStates
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.airflow_words import run_again
from weir.execution.run_state import CLOSE
from weir.ledger.attempts import newest_attempts
from weir.ledger.database.tables import RunRow
from weir.ledger.runs import runs_of
from weir.recovery.adopt import adopt, unrepeatable
from weir.recovery.failovers import costs_of_attempts
from weir.recovery.rules.plan import Total, together, total_of
from weir.recovery.run_plans import runs_in_span
from weir.recovery.standing import Asked

_FIRST: Final = "00000000"
"""A day before all epochs."""


@dataclass(frozen=True, slots=True)
class RunToReplay:
    """A run that is computed again; `cost` is what its newest attempts have cost, `is_free` that it has no results."""

    run: str
    epoch: str
    dag_id: str
    run_id: str
    cost: Total
    is_free: bool


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The runs of a replay, oldest first; `impossible` says why it cannot begin, empty where it can.

    `before` is the run whose state the first one goes on from; empty where it is the first one of its dataflow.
    """

    dataflow: str
    runs: tuple[RunToReplay, ...]
    before: str
    impossible: str

    @property
    def cost(self) -> Total:
        """The cost of all runs, as they were computed last."""
        return together(each.cost for each in self.runs)


def replay_plan(services: Services, dataflow: str, first: str | None = None, last: str | None = None) -> ReplayPlan:
    """Return what a replay from an epoch comes to, by default of all epochs.

    Raises Misconfigured for a dataflow or a span that is not known.
    """
    with services.ledger.transaction() as session:
        rows = runs_in_span(session, dataflow, first or _FIRST, last)
        earlier = [each for each in runs_of(session, dataflow) if each.epoch < rows[0].epoch and not each.is_given_up]
        gone = [each for each in rows if each.deleted_at is not None and not each.is_given_up]
        why = [*_deleted(gone), *unrepeatable(session, rows[0].id)]
        runs = tuple(_to_replay(session, each) for each in rows if each.deleted_at is None)
    return ReplayPlan(dataflow, runs, earlier[-1].id if earlier else "", "; ".join(why))


def _to_replay(session: Session, row: RunRow) -> RunToReplay:
    newest = [tries[-1] for region, tries in newest_attempts(session, row.id).items() if region != CLOSE]
    cost = total_of(costs_of_attempts(session, newest).values())
    return RunToReplay(row.id, row.epoch, row.dag_id, row.run_id, cost, row.pinned is None)


def _deleted(gone: Sequence[RunRow]) -> Iterator[str]:
    for row in gone:
        yield (
            f"the DagRun of {row.id} was deleted in Airflow, so that its rows would be missing from all states after "
            f"it: {run_again(row.dag_id, row.interval_start)} has its interval computed, then replay"
        )


def replay(services: Services, plan: ReplayPlan, airflow: AirflowStates, said: Callable[[str], None]) -> int:
    """Free the runs of a plan, oldest first, and clear them in Airflow; return how many task instances are cleared.

    `said` is told of each run that is free. Raises Misconfigured where it is impossible, or a task of a run is running,
    and Retryable: what is free then stays free, and another call goes on.
    """
    if plan.impossible:
        raise Misconfigured.of("snapshots.replay_impossible", dataflow=plan.dataflow, why=plan.impossible)
    for each in plan.runs:
        if not each.is_free:
            adopt(services, each.run, discards=True, interrupts=False, asked=Asked(airflow=airflow))
            said(each.run)
    return sum(airflow.clear_run(each.dag_id, each.run_id) for each in plan.runs)
