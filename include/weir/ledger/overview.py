"""What the ledger tells people. Invariant: it changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.errors import Misconfigured
from weir.ledger.models import AttemptRow, OwedClearRow, PublicationRow, RunRow
from weir.ledger.runs import named_run, run_by_id, runs_of
from weir.ledger.snapshot import run_state
from weir.recovery.run_state import RunState
from weir.topology.regions import RegionId

Row = TypeVar("Row", AttemptRow, OwedClearRow)

_TASK = re.compile(r"^(?P<task>[^\[\]]+)(\[(?P<index>\d+)\])?$")


@dataclass(frozen=True, slots=True)
class RunOverview:
    """A run, and how many of its regions have valid results, stale ones, or none that can be read."""

    id: str
    dataflow: str
    epoch: str
    dag_id: str
    run_id: str
    is_pinned: bool
    valid: int
    stale: int
    missing: int
    published: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """One region's attempts and the clears that were decided for it, oldest first."""

    region: RegionId
    attempts: tuple[AttemptRow, ...]
    clears: tuple[OwedClearRow, ...]


def run_overviews(session: Session, dataflow: str | None = None) -> list[RunOverview]:
    """All runs, of one dataflow or of all, by dataflow and epoch."""
    return [_overview(session, row) for row in runs_of(session, dataflow)]


def _overview(session: Session, row: RunRow) -> RunOverview:
    valid, stale, missing = (0, 0, 0)
    if row.pinned is not None:
        valid, stale, missing = _counts(run_state(session, run_by_id(session, row.id)))
    return RunOverview(
        row.id,
        row.dataflow,
        row.epoch,
        row.dag_id,
        row.run_id,
        row.pinned is not None,
        valid,
        stale,
        missing,
        _published(session, row.id),
    )


def _counts(state: RunState) -> tuple[int, int, int]:
    written = [outputs for region in state.topology.region_ids() if (outputs := state.topology.outputs(region))]
    valid = sum(all(state.is_done(each) for each in outputs) for outputs in written)
    stale = sum(
        all(each in state.results for each in outputs) and not all(state.is_valid(each) for each in outputs)
        for outputs in written
    )
    return valid, stale, len(written) - valid - stale


def _published(session: Session, run: str) -> dict[str, int]:
    query = (
        select(PublicationRow.sink, func.max(PublicationRow.version))
        .where(PublicationRow.run == run, PublicationRow.published_at.is_not(None))
        .group_by(PublicationRow.sink)
        .order_by(PublicationRow.sink)
    )
    return dict(session.execute(query).tuples().all())


def task_history(session: Session, run: str, task: str) -> list[TaskHistory]:
    """What happened to `task` ("joined", or "joined[1]" for one map index) in a run, by subtask.

    Raises Misconfigured for an unknown run or task, with those that are known.
    """
    row, found = named_run(session, run), _TASK.match(task)
    name = found["task"] if found else task
    index = int(found["index"]) if found and found["index"] else None
    attempts = list(session.scalars(select(AttemptRow).where(AttemptRow.run == row.id).order_by(AttemptRow.began_at)))
    clears = list(session.scalars(select(OwedClearRow).where(OwedClearRow.run == row.id).order_by(OwedClearRow.id)))
    known: dict[RegionId, str] = {}
    rows: list[AttemptRow | OwedClearRow] = [*attempts, *clears]
    for each in rows:
        known[RegionId(each.region, each.subtask)] = each.task_id
    regions = [
        region
        for region, task_id in sorted(known.items())
        if name in (task_id, region.name) and index in (None, region.subtask)
    ]
    if not regions:
        raise Misconfigured(
            f"nothing is known of a task {task} in run {row.id}: it has not begun there, or has another name. "
            f"Known are {', '.join(str(region) for region in sorted(known)) or 'none yet'}"
        )
    return [TaskHistory(region, _of(region, attempts), _of(region, clears)) for region in regions]


def _of(region: RegionId, rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(each for each in rows if (each.region, each.subtask) == (region.name, region.subtask))
