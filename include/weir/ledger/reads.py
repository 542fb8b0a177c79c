"""What attempts were made from.

Invariant: the partitions of an input are one row, shared by all who read the same ones; so an exchange between p and q
subtasks costs p + q, as Flink's consumed groups do.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from weir.ledger.models import AttemptRow, ConsumptionRow, ReadSetRow, ResultRow
from weir.recovery.run_state import AttemptState, ReadResult, ReadSet
from weir.results.manifest import InputRead
from weir.topology.regions import PartitionId, RegionId

_Key = tuple[str, str, str, str]
_Members = tuple[tuple[int, str, str], ...]

_known_members: dict[str, _Members] = {}
_MOST_KNOWN = 1000

# Columns of tables rather than objects: these are read several times an attempt, and cost a tenth.
_READ, _RESULT, _SET = ConsumptionRow.__table__.c, ResultRow.__table__.c, ReadSetRow.__table__.c
_COLUMNS = (_READ.attempt, _READ.run, _READ.stage, _READ.layout, _READ.read_set)
_OF_ATTEMPT = select(*_COLUMNS).where(_READ.attempt == bindparam("attempt")).order_by(_READ.argument)
_OF_CURRENT = (
    select(*_COLUMNS)
    .where(_READ.attempt.in_(select(_RESULT.attempt).where(_RESULT.run == bindparam("run"), _RESULT.is_current)))
    .order_by(_READ.attempt, _READ.argument)
)


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


def reads_of_current(session: Session, run: str, current: str = "") -> dict[str, list[ReadSet]]:
    """What the attempts whose results are current in `run` were made from.

    Partitions of the run `current` have ids without a run.
    """
    session.flush()
    rows = session.execute(_OF_CURRENT, {"run": run}).all()
    members = _members_of(session, {row.read_set for row in rows})
    shared: dict[tuple[str, str, str, str], ReadSet] = {}
    found: dict[str, list[ReadSet]] = defaultdict(list)
    for row in rows:
        key = (row.read_set, row.run, row.stage, row.layout)
        if key not in shared:
            shared[key] = ReadSet(tuple(_results_read(row, members[row.read_set], current)))
        found[row.attempt].append(shared[key])
    return found


def reads_of(session: Session, attempt: str, current: str = "") -> tuple[ReadResult, ...]:
    """What `attempt` was made from; partitions of the run `current` have ids without a run."""
    session.flush()
    rows = session.execute(_OF_ATTEMPT, {"attempt": attempt}).all()
    members = _members_of(session, {row.read_set for row in rows})
    return tuple(read for row in rows for read in _results_read(row, members[row.read_set], current))


def _members_of(session: Session, names: set[str]) -> Mapping[str, _Members]:
    """The members of read sets. A set is named by its content, so whoever has read one need not read it again."""
    unknown = names - _known_members.keys()
    if unknown:
        if len(_known_members) > _MOST_KNOWN:
            _known_members.clear()
            unknown = names
        for name, members in session.execute(select(_SET.id, _SET.members).where(_SET.id.in_(unknown))):
            _known_members[name] = tuple(
                (int(subtask), str(attempt), str(digest)) for subtask, attempt, digest in members
            )
    return _known_members


def _results_read(row: Any, members: _Members, current: str) -> Iterator[ReadResult]:
    run = "" if row.run == current else row.run
    for subtask, attempt, digest in members:
        yield ReadResult(PartitionId(row.stage, subtask, row.layout, run), attempt, digest)


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
