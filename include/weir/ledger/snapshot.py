"""A run as the ledger knows it. Invariant: decisions see one instant, read in one transaction, never a mixture."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.attempts import newest_attempts
from weir.ledger.models import AttemptRow, ConsumptionRow, OwedClearRow, ResultRow
from weir.ledger.owed import clears_of_run
from weir.ledger.runs import Run
from weir.recovery.run_state import AttemptState, CurrentResult, ReadResult, RegionState, RunState
from weir.results.partition_state import PartitionState
from weir.topology.regions import PartitionId, RegionId, Topology

ENDED = (AttemptState.COMMITTED.value, AttemptState.ADOPTED.value, AttemptState.FAILED.value)


def run_state(session: Session, run: Run, topology: Topology | None = None) -> RunState:
    """The present state of `run`."""
    reads = _reads(session, run.id)
    query = (
        select(ResultRow, AttemptRow.try_number)
        .join(AttemptRow, AttemptRow.id == ResultRow.attempt)
        .where(ResultRow.run == run.id, ResultRow.is_current)
    )
    results = {}
    for row, try_number in session.execute(query):
        partition = PartitionId(row.stage, row.subtask, row.layout)
        results[partition] = _current(row, try_number, partition, tuple(reads[row.attempt]))
    return RunState(run.id, topology or Topology(run.dataflow), results, _regions(session, run.id))


def _current(row: ResultRow, try_number: int, partition: PartitionId, reads: tuple[ReadResult, ...]) -> CurrentResult:
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
    )


def _reads(session: Session, run: str) -> dict[str, list[ReadResult]]:
    """What each attempt of `run` was made from."""
    found: dict[str, list[ReadResult]] = defaultdict(list)
    query = (
        select(ConsumptionRow).join(AttemptRow, AttemptRow.id == ConsumptionRow.attempt).where(AttemptRow.run == run)
    )
    for row in session.scalars(query):
        partition = PartitionId(row.stage, row.subtask, row.layout)
        found[row.attempt].append(ReadResult(partition, row.input_attempt, row.digest))
    return found


def _regions(session: Session, run: str) -> dict[RegionId, RegionState]:
    repairs: dict[RegionId, list[OwedClearRow]] = defaultdict(list)
    for owed in clears_of_run(session, run):
        repairs[RegionId(owed.region, owed.subtask)].append(owed)
    attempts = newest_attempts(session, run)
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


def reads_of(session: Session, attempt: str) -> tuple[ReadResult, ...]:
    """What `attempt` was made from."""
    rows = session.scalars(select(ConsumptionRow).where(ConsumptionRow.attempt == attempt))
    return tuple(
        ReadResult(PartitionId(row.stage, row.subtask, row.layout), row.input_attempt, row.digest) for row in rows
    )
