"""A run as the ledger knows it. Invariant: decisions see one instant, read in one transaction, never a mixture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.ledger.attempts import newest_attempts
from weir.ledger.models import AttemptRow, OwedClearRow, ResultRow, RunRow
from weir.ledger.owed import clears_of_run
from weir.ledger.reads import reads_by_attempt
from weir.ledger.runs import Run, run_key, topology_of
from weir.recovery.run_state import AttemptState, CurrentResult, EarlierRun, ReadSet, RegionState, RunState
from weir.results.partition_state import PartitionState
from weir.topology.regions import PartitionId, RegionId, Topology

ENDED = (AttemptState.COMMITTED.value, AttemptState.ADOPTED.value, AttemptState.FAILED.value)


def run_state(session: Session, run: Run, topology: Topology | None = None, include: Collection[str] = ()) -> RunState:
    """The present state of `run`, and of those before it that its `previous` exchanges reach.

    Of these the one before it, all back to the oldest that is not closed, and all back to the earliest of `include`.
    """
    own = topology or run.topology
    results = _results(session, run.id, run.id)
    regions = _regions(session, run.id, run.id)
    before = run.predecessor_run if own.reads_previous else None
    earlier: dict[str, EarlierRun] = {}
    reaching, oldest_open = before, _oldest_open(session, run) if before is not None else ()
    while reaching is not None:
        found = _earlier(session, reaching, own)
        earlier[reaching] = found
        results |= _results(session, reaching, run.id)
        regions |= _regions(session, reaching, run.id)
        is_wanted = any(each < reaching for each in (*include, *oldest_open))
        reaching = found.predecessor if is_wanted and found.topology.reads_previous else None
    return RunState(run.id, own, results, regions, before, earlier)


def _earlier(session: Session, run: str, like: Topology) -> EarlierRun:
    row = session.get_one(RunRow, run)
    topology = like if row.pinned is None else topology_of(row.pinned)
    predecessor = None if row.predecessor is None else run_key(row.dataflow, row.predecessor)
    return EarlierRun(run, topology, predecessor, row.pinned is not None)


def _oldest_open(session: Session, run: Run) -> tuple[str, ...]:
    """The oldest run before `run` that is not closed, if there is one: before it all is valid."""
    query = select(func.min(RunRow.id)).where(
        RunRow.dataflow == run.dataflow.name, RunRow.epoch < run.epoch, RunRow.closed_at.is_(None)
    )
    oldest = session.scalar(query)
    return () if oldest is None else (oldest,)


def _results(session: Session, run: str, current: str) -> dict[PartitionId, CurrentResult]:
    reads = reads_by_attempt(session, run, current)
    query = (
        select(ResultRow, AttemptRow.try_number)
        .join(AttemptRow, AttemptRow.id == ResultRow.attempt)
        .where(ResultRow.run == run, ResultRow.is_current)
    )
    results = {}
    for row, try_number in session.execute(query):
        partition = PartitionId(row.stage, row.subtask, row.layout, "" if run == current else run)
        results[partition] = _current(row, try_number, partition, tuple(reads[row.attempt]))
    return results


def _current(row: ResultRow, try_number: int, partition: PartitionId, reads: tuple[ReadSet, ...]) -> CurrentResult:
    return CurrentResult(
        partition,
        row.id,
        row.attempt,
        try_number,
        PartitionState(row.state),
        row.folder,
        row.manifest_sha256,
        row.digest,
        row.rows,
        row.bytes,
        reads,
        row.made_from,
        row.fault,
    )


def _regions(session: Session, run: str, current: str) -> dict[RegionId, RegionState]:
    shown = "" if run == current else run
    repairs: dict[RegionId, list[OwedClearRow]] = defaultdict(list)
    for owed in clears_of_run(session, run):
        repairs[RegionId(owed.region, owed.subtask, shown)].append(owed)
    attempts = {replace(region, run=shown): rows for region, rows in newest_attempts(session, run).items()}
    return {
        region: _region(region, attempts.get(region, []), repairs.get(region, []))
        for region in attempts.keys() | repairs.keys()
    }


def _region(region: RegionId, attempts: list[AttemptRow], repairs: list[OwedClearRow]) -> RegionState:
    newest = attempts[-1] if attempts else None
    found = [row.found_try or 0 for row in repairs if row.is_void]
    return RegionState(
        region,
        max([newest.try_number if newest else 0, *found]),
        AttemptState(newest.state) if newest else None,
        max((row.try_number for row in attempts if row.state in ENDED), default=0),
        max((row.expected_try for row in repairs if not row.is_void), default=None),
    )


def committed_attempt(session: Session, run: str, region: RegionId) -> AttemptRow | None:
    """The newest committed attempt of `region`: the one whose results are current."""
    query = (
        select(AttemptRow)
        .where(
            AttemptRow.run == run,
            AttemptRow.region == region.name,
            AttemptRow.subtask == region.subtask,
            AttemptRow.state == AttemptState.COMMITTED.value,
        )
        .order_by(AttemptRow.try_number.desc())
        .limit(1)
    )
    return session.scalar(query)


def newest_try(session: Session, run: str, region: RegionId) -> int:
    """The number of the newest try of `region` that is registered; 0 where there is none."""
    query = select(func.max(AttemptRow.try_number)).where(
        AttemptRow.run == run, AttemptRow.region == region.name, AttemptRow.subtask == region.subtask
    )
    return session.scalar(query) or 0
