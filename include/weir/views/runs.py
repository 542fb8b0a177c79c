"""The runs of dataflows, the state of their results, and what of them could not begin."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from itertools import groupby

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.execution.run_state import CLOSE, RunState
from weir.ledger.attempts import Origin
from weir.ledger.database.tables import AttemptRow, DataflowRow, FailedBeginRow, HousekeepingRow, RunRow
from weir.ledger.failed_begins import failed_begins, region_of_begin
from weir.ledger.housekeeping import CAUGHT_UP
from weir.ledger.names import require_dataflow
from weir.ledger.publications import published_versions
from weir.ledger.runs import run_by_id, run_key, runs_of
from weir.ledger.snapshot import run_state
from weir.ledger.sources import late_counts
from weir.topology.regions import RegionId


class Pin(Enum):
    """Whether a run is pinned to a dataflow, so that its regions are known."""

    NOT_BEGUN = "not begun"
    TO_COME = "to be pinned again"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True)
class RegionCounts:
    """How many regions of a run have which results; and the regions that have failed for good."""

    valid: int
    stale: int
    missing: int
    failed: tuple[RegionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverview:
    """A run of Airflow, the state of its results, and the regions of which no try was registered since one failed.

    `regions` is None where they are not known. `deleted_tries` are those of a DagRun that was deleted, in whose place
    this one has come, or that Airflow has lost. `run` is its id in the ledger; empty if it has none. `name` is what a
    command is given: Airflow's run id, which runs of other dataflows may have, only where another DagRun has the epoch.
    `late_files` have come, changed or gone since its sources had read them.
    """

    dataflow: str
    epoch: str
    run_id: str
    pin: Pin = Pin.NOT_BEGUN
    regions: RegionCounts | None = None
    run: str = ""
    name: str = ""
    not_begun: tuple[RegionId, ...] = ()
    published: Mapping[str, int] = field(default_factory=dict)
    deleted_tries: int = 0
    late_files: int = 0


@dataclass(frozen=True, slots=True)
class LostCommits:
    """A dataflow of which the ledger had lost commits, and when it caught up with the store; None if it has not yet."""

    dataflow: str
    caught_up_at: datetime | None


def lost_commits(session: Session, dataflow: str | None = None) -> list[LostCommits]:
    """Return of which dataflows the ledger has lost commits, or had."""
    query = (
        select(DataflowRow.name, DataflowRow.is_behind, HousekeepingRow.done_at)
        .outerjoin(HousekeepingRow, (HousekeepingRow.scope == DataflowRow.name) & (HousekeepingRow.job == CAUGHT_UP))
        .where(DataflowRow.is_behind | HousekeepingRow.done_at.is_not(None))
        .order_by(DataflowRow.name)
    )
    found = session.execute(query if dataflow is None else query.where(DataflowRow.name == dataflow)).tuples()
    return [LostCommits(name, None if is_behind else at) for name, is_behind, at in found]


def run_overviews(
    session: Session, dataflow: str | None = None, newest: int | None = None
) -> tuple[list[RunOverview], int]:
    """Return the runs of one dataflow or of all, by dataflow and epoch, and how many older ones were left out.

    `newest` is how many of each dataflow are wanted; all those of which no task could begin are. Raises Misconfigured
    for a dataflow that the ledger does not know.
    """
    known, failed = runs_of(session, dataflow), _by_run(failed_begins(session, dataflow))
    if dataflow is not None and not known and not failed:
        require_dataflow(session, dataflow)
    by_dataflow = (list(rows) for _, rows in groupby(known, lambda row: row.dataflow))
    rows = [row for each in by_dataflow for row in (each if newest is None else each[-newest:])]
    deleted, late = _deleted_tries(session, [row.id for row in rows]), late_counts(session, dataflow)
    found = [
        replace(
            _overview(session, row, failed.pop((row.dataflow, row.dag_id, row.run_id), [])),
            deleted_tries=deleted.get(row.id, 0),
            late_files=late[row.id],
        )
        for row in rows
    ]
    owned = {row.id for row in known}
    found += [
        RunOverview(
            dataflow=each[0].dataflow,
            epoch=each[0].epoch or "",
            run_id=run_id,
            name=_name_of(each[0], owned),
            not_begun=tuple(sorted(map(region_of_begin, each))),
        )
        for (*_, run_id), each in failed.items()
    ]
    return sorted(found, key=lambda each: (each.dataflow, each.epoch, each.run_id)), len(known) - len(rows)


def _deleted_tries(session: Session, runs: Collection[str]) -> dict[str, int]:
    query = (
        select(AttemptRow.run, func.count())
        .where(AttemptRow.run.in_(runs), ~AttemptRow.is_of_dag_run, AttemptRow.origin != Origin.RESTORED.value)
        .group_by(AttemptRow.run)
    )
    return dict(session.execute(query).tuples().all())


def _name_of(row: FailedBeginRow, owned: Collection[str]) -> str:
    run = None if row.epoch is None else run_key(row.dataflow, row.epoch)
    return row.run_id if run is None or run in owned else run


def _by_run(rows: Iterable[FailedBeginRow]) -> dict[tuple[str, str, str], list[FailedBeginRow]]:
    found: dict[tuple[str, str, str], list[FailedBeginRow]] = {}
    for row in rows:
        found.setdefault((row.dataflow, row.dag_id, row.run_id), []).append(row)
    return found


def _overview(session: Session, row: RunRow, failed: Sequence[FailedBeginRow]) -> RunOverview:
    newest = (
        select(AttemptRow.task_id, AttemptRow.map_index, func.max(AttemptRow.try_number))
        .where(AttemptRow.run == row.id)
        .group_by(AttemptRow.task_id, AttemptRow.map_index)
    )
    tries = {(task_id, index): number for task_id, index, number in session.execute(newest)} if failed else {}
    has_begun = session.scalar(select(AttemptRow.id).where(AttemptRow.run == row.id).limit(1)) is not None
    unpinned = Pin.TO_COME if has_begun else Pin.NOT_BEGUN
    still = (each for each in failed if tries.get((each.task_id, each.map_index), 0) < each.try_number)
    return RunOverview(
        dataflow=row.dataflow,
        epoch=row.epoch,
        run_id=row.run_id,
        pin=unpinned if row.pinned is None else Pin.PINNED,
        regions=None if row.pinned is None else _counts(run_state(session, run_by_id(session, row.id))),
        run=row.id,
        name=row.id,
        not_begun=tuple(sorted(map(region_of_begin, still))),
        published=published_versions(session, row.id),
    )


def _counts(state: RunState) -> RegionCounts:
    written = [outputs for region in state.topology.region_ids() if (outputs := state.topology.outputs(region))]
    valid = sum(all(state.is_done(each) for each in outputs) for outputs in written)
    stale = sum(
        all(each in state.results for each in outputs) and not all(state.is_valid(each) for each in outputs)
        for outputs in written
    )
    failed = tuple(each for each in (*state.topology.region_ids(), CLOSE) if state.region(each).has_failed)
    return RegionCounts(valid, stale, len(written) - valid - stale, failed)
