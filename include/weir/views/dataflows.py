"""All dataflows at a glance: how their runs stand, what is at rest, and who is behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.ledger.checkpoints import newest_checkpoint
from weir.ledger.clears import pending_clears
from weir.ledger.database.columns import taken
from weir.ledger.database.tables import QualityCheckRow, RunRow
from weir.ledger.deliveries import pending_deliveries
from weir.ledger.housekeeping import ALL, UPKEEP, last_done
from weir.ledger.names import require_dataflow
from weir.ledger.outbox import waiting_receivers
from weir.ledger.runs import dag_ids_of, run_by_id
from weir.ledger.snapshot import run_state
from weir.quality.check_queries import NOT_RIGHT
from weir.recovery.rules.standing import Stand, Standing
from weir.recovery.run_plans import Reach
from weir.recovery.standing import all_standings, open_runs, unknown_standings, unsuccessful_runs
from weir.retention.sizes import bytes_at_rest, dataflows
from weir.telemetry.gauges import bytes_at_rest as bytes_at_rest_by_keeper
from weir.units import seconds_since
from weir.views.graphs import RunGraph, graph_of
from weir.views.runs import RunOverview, run_overviews

LATE: Final = timedelta(minutes=30)
"""Upkeep runs every three minutes, and a run of it is stopped after this time."""

NEWEST = 30
"""How many of the newest runs of a dataflow are asked how they stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestCheckpoint:
    """The newest complete checkpoint of a dataflow that keeps state."""

    number: int
    epoch: str
    completed_at: datetime
    age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """When upkeep was last done, of all dataflows; `is_late` where that is longer ago than it should ever be."""

    done_at: datetime
    age_seconds: float
    is_late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowOverview:
    """A dataflow. `open` says how its runs stand that are not published, that run again, or that are red.

    `violated` counts the checks that are not met in the newest checked epoch, `behind` are receivers of notifications
    and targets that have not got what they are to get.
    """

    dataflow: str
    dag_ids: tuple[str, ...]
    newest: RunOverview | None
    open: tuple[Standing, ...]
    pending_clears: int
    bytes_at_rest: int
    checkpoint: NewestCheckpoint | None
    violated: int
    behind: tuple[str, ...]

    @property
    def stopped(self) -> tuple[Standing, ...]:
        """Those that do not go on by themselves."""
        return tuple(each for each in self.open if each.stand is Stand.STOPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowDetails:
    """A dataflow, its newest runs, oldest first, and the graph of the newest that is closed, else of the newest.

    `older` is how many runs are left out. `graph_run` and `graph` are None before the first run has begun. `kept` has
    the bytes at rest by what keeps them, where that was asked: it takes a look at all stored results. By the same run,
    `shadow_of` is the dataflow that it runs beside ("": none).
    """

    overview: DataflowOverview
    runs: tuple[RunOverview, ...]
    older: int
    graph_run: str | None
    graph: RunGraph | None
    kept: Mapping[str, int] | None
    shadow_of: str


def upkeep_of(services: Services) -> Upkeep | None:
    """Return when upkeep was last done; None where it never was. Raises Retryable."""
    with services.ledger.transaction() as session:
        done_at = last_done(session, UPKEEP, ALL)
    if done_at is None:
        return None
    age = seconds_since(done_at, services.now())
    return Upkeep(done_at=done_at, age_seconds=age, is_late=age > LATE.total_seconds())


def dataflow_details(services: Services, dataflow: str, reach: Reach, *, with_kept: bool = False) -> DataflowDetails:
    """Return one dataflow. Raises Misconfigured for one that the ledger does not know, and Retryable."""
    with services.ledger.transaction() as session:
        require_dataflow(session, dataflow)
        dags = dag_ids_of(session, dataflow)
        runs, older = run_overviews(session, dataflow, NEWEST)
        drawn = _run_to_draw(session, dataflow)
        run = None if drawn is None else run_by_id(session, drawn)
        graph = None if run is None else graph_of(session, run, run_state(session, run))
    return DataflowDetails(
        overview=_overview(services, reach, dataflow, dags, runs),
        runs=tuple(runs),
        older=older,
        graph_run=drawn,
        graph=graph,
        kept=bytes_at_rest_by_keeper(services, dataflow) if with_kept else None,
        shadow_of="" if run is None else run.dataflow.shadow_of,
    )


def _run_to_draw(session: Session, dataflow: str) -> str | None:
    query = select(RunRow.id).where(RunRow.dataflow == dataflow, RunRow.is_pinned).limit(1)
    newest = RunRow.epoch.desc()
    return session.scalar(query.where(RunRow.closed_at.is_not(None)).order_by(newest)) or session.scalar(
        query.order_by(newest)
    )


def dataflow_overviews(
    services: Services, reach: Reach, dag_ids: Collection[str] | None = None
) -> list[DataflowOverview]:
    """Return the dataflows of these DAGs, or all, by name. Raises Retryable."""
    with services.ledger.transaction() as session:
        known = {name: dag_ids_of(session, name) for name in dataflows(session)}
    wanted = sorted(name for name, dags in known.items() if dag_ids is None or {*dags} & {*dag_ids})
    return [_overview(services, reach, name, known[name], _newest_runs(services, name)) for name in wanted]


def _newest_runs(services: Services, dataflow: str) -> list[RunOverview]:
    with services.ledger.transaction() as session:
        return run_overviews(session, dataflow, NEWEST)[0]


def _overview(
    services: Services, reach: Reach, name: str, dags: tuple[str, ...], runs: Sequence[RunOverview]
) -> DataflowOverview:
    standings = standings_of_runs(services, [each.run for each in runs if each.run], name, reach)
    with services.ledger.transaction() as session:
        return DataflowOverview(
            dataflow=name,
            dag_ids=dags,
            newest=runs[-1] if runs else None,
            open=tuple(standings),
            pending_clears=pending_clears(session, name),
            bytes_at_rest=bytes_at_rest(session, name),
            checkpoint=_checkpoint(session, name, services.now()),
            violated=_violated(session, name),
            behind=tuple(_behind(session, name, services.now())),
        )


def _checkpoint(session: Session, dataflow: str, now: datetime) -> NewestCheckpoint | None:
    row = newest_checkpoint(session, dataflow)
    if row is None or row.completed_at is None:
        return None
    return taken(NewestCheckpoint, row, age_seconds=seconds_since(row.completed_at, now))


def _violated(session: Session, dataflow: str) -> int:
    newest = session.scalar(select(func.max(QualityCheckRow.epoch)).where(QualityCheckRow.dataflow == dataflow))
    query = select(func.count()).select_from(QualityCheckRow).where(QualityCheckRow.dataflow == dataflow)
    return session.scalar(query.where(QualityCheckRow.epoch == newest, QualityCheckRow.outcome.in_(NOT_RIGHT))) or 0


def _behind(session: Session, dataflow: str, now: datetime) -> list[str]:
    receivers = [f"receiver {each.receiver.name}" for each in waiting_receivers(session, dataflow, now)]
    targets = dict.fromkeys(f"target of {row.sink}" for row in pending_deliveries(session, dataflow))
    return [*receivers, *targets]


def standings_of_runs(services: Services, runs: Sequence[str], dataflow: str | None, reach: Reach) -> list[Standing]:
    """Return how runs stand that are open, run again or are red, and open DagRuns of which no task has begun.

    The latter two are known only where Airflow is reached.
    """
    still_open = open_runs(services, runs)
    with reach() as asked:
        closed = [each for each in unsuccessful_runs(services, runs, asked) if each not in still_open]
        known = all_standings(services, [*still_open, *closed], asked)
        unknown = unknown_standings(services, asked, dataflow)
    told = [known[each] for each in (*still_open, *closed) if each in known]
    return [*(each for each in told if each.stand is not Stand.PUBLISHED), *(each for _, each in unknown)]
