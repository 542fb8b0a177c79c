"""What attempts were made from.

Invariant: the partitions of an input are one row, shared by all who read the same ones; so an exchange between p and q
subtasks costs p + q, as Flink's consumed groups do.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.ledger.models import AttemptRow, ConsumptionRow, ReadSetRow
from weir.recovery.run_state import AttemptState, ReadResult, ReadSet
from weir.results.manifest import InputRead
from weir.topology.regions import PartitionId, RegionId

_Key = tuple[str, str, str, str]


def record_reads(session: Session, attempt: str, reads: Iterable[InputRead]) -> None:
    """Write down what `attempt` was made from."""
    inputs: dict[_Key, list[list[object]]] = defaultdict(list)
    for read in reads:
        inputs[read.argument, read.run, read.stage, read.layout].append([read.subtask, read.attempt, read.digest])
    for (argument, run, stage, layout), members in inputs.items():
        name = _known_set(session, sorted(members, key=str))
        session.add(
            ConsumptionRow(attempt=attempt, argument=argument, run=run, stage=stage, layout=layout, read_set=name)
        )


def _known_set(session: Session, members: list[list[object]]) -> str:
    name = hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).hexdigest()
    if session.get(ReadSetRow, name) is None:
        session.add(ReadSetRow(id=name, members=members))
        session.flush()
    return name


def reads_by_attempt(session: Session, run: str, current: str = "") -> dict[str, list[ReadSet]]:
    """What each attempt of `run` was made from; partitions of the run `current` have ids without a run."""
    found: dict[str, list[ReadSet]] = defaultdict(list)
    shared: dict[tuple[str, str, str, str], ReadSet] = {}
    query = (
        select(ConsumptionRow, ReadSetRow.members)
        .join(AttemptRow, AttemptRow.id == ConsumptionRow.attempt)
        .join(ReadSetRow, ReadSetRow.id == ConsumptionRow.read_set)
        .where(AttemptRow.run == run)
    )
    for row, members in session.execute(query):
        key = (row.read_set, row.run, row.stage, row.layout)
        if key not in shared:
            shared[key] = ReadSet(tuple(_members(row, members, current)))
        found[row.attempt].append(shared[key])
    return found


def reads_of(session: Session, attempt: str, current: str = "") -> tuple[ReadResult, ...]:
    """What `attempt` was made from; partitions of the run `current` have ids without a run."""
    query = (
        select(ConsumptionRow, ReadSetRow.members)
        .join(ReadSetRow, ReadSetRow.id == ConsumptionRow.read_set)
        .where(ConsumptionRow.attempt == attempt)
    )
    return tuple(read for row, members in session.execute(query) for read in _members(row, members, current))


def _members(row: ConsumptionRow, members: list[list[object]], current: str) -> Iterator[ReadResult]:
    run = "" if row.run == current else row.run
    for subtask, attempt, digest in members:
        yield ReadResult(PartitionId(row.stage, int(str(subtask)), row.layout, run), str(attempt), str(digest))


def readers_in_other_runs(session: Session, run: str, stage: str, layout: str) -> list[AttemptRow]:
    """The newest committed attempts of regions of other runs that read a result of `run`, oldest epoch first."""
    query = (
        select(AttemptRow)
        .join(ConsumptionRow, ConsumptionRow.attempt == AttemptRow.id)
        .where(
            ConsumptionRow.run == run,
            ConsumptionRow.stage == stage,
            ConsumptionRow.layout == layout,
            AttemptRow.run != run,
            AttemptRow.state == AttemptState.COMMITTED.value,
        )
        .order_by(AttemptRow.run, AttemptRow.try_number)
    )
    newest = {(row.run, RegionId(row.region, row.subtask)): row for row in session.scalars(query)}
    return list(newest.values())
