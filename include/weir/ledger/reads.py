"""Stores the inputs that attempts have read, and the epochs of other dataflows that the inputs of a run name.

Invariants: the partitions of an input are one row, shared by all its readers; so an exchange between p and q subtasks
costs p + q, as Flink's consumed groups do. No row is shared by two dataflows, whose transactions do not exclude each
other. The epochs of a data set that an input reads are decided once in a run.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.orm import Session

from weir.execution.run_state import ReadResult, ReadSet
from weir.formats.manifest import InputRead
from weir.formats.run_record import RecordedDataset
from weir.ledger.database.dataset_tables import DatasetEpochRow, DatasetInputRow
from weir.ledger.database.tables import ConsumptionRow, ReadSetRow, ResultRow, Table
from weir.topology.ids import AttemptId, Digest, RunId, RunRef, run_ref
from weir.topology.regions import PartitionId

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

_TABLES = Table.metadata.tables
_NEW_READ, _NEW_SET = insert(_TABLES[ConsumptionRow.__tablename__]), insert(_TABLES[ReadSetRow.__tablename__])
_SETS = select(_SET.id, _SET.members).where(_SET.id.in_(bindparam("names", expanding=True)))
_KNOWN_SETS = select(_SET.id).where(_SET.id.in_(bindparam("names", expanding=True)))


def record_reads(session: Session, dataflow: str, attempt: str, reads: Iterable[InputRead]) -> None:
    """Record the inputs of `attempt`, which is one of `dataflow`."""
    inputs: dict[_Key, list[list[object]]] = defaultdict(list)
    for read in reads:
        inputs[read.argument, read.run, read.stage, read.layout].append([read.subtask, read.attempt, read.digest])
    if not inputs:
        return
    session.flush()
    for members in inputs.values():
        members.sort(key=str)
    names = {key: _name_of(members, _sharing(dataflow, key[1])) for key, members in inputs.items()}
    known = set(session.connection().scalars(_KNOWN_SETS, {"names": list(names.values())}))
    new = {name: inputs[key] for key, name in names.items() if name not in known}
    if new:
        session.connection().execute(_NEW_SET, [{"id": name, "members": members} for name, members in new.items()])
    rows = [
        {"attempt": attempt, "argument": argument, "run": run, "stage": stage, "layout": layout, "read_set": name}
        for (argument, run, stage, layout), name in names.items()
    ]
    session.connection().execute(_NEW_READ, rows)


def forget_reads(session: Session, attempt: str) -> None:
    """Delete the record of the inputs of `attempt`, which reads anew."""
    session.execute(delete(ConsumptionRow).where(ConsumptionRow.attempt == attempt))


def _sharing(dataflow: str, run: str) -> str:
    """Return who shares the row of what is read of a run: the readers of its own dataflow, or of one other one."""
    return "" if run.partition("@")[0] == dataflow else dataflow


def _name_of(members: list[list[object]], sharing: str) -> str:
    named = [sharing, members] if sharing else members
    return hashlib.sha256(json.dumps(named, separators=(",", ":")).encode()).hexdigest()


def resolved_inputs(session: Session, run: str) -> list[RecordedDataset]:
    """Return what the inputs of a run read of other dataflows, as far as that is resolved."""
    runs: dict[tuple[str, str], list[RunRef]] = defaultdict(list)
    epochs = select(DatasetEpochRow).where(DatasetEpochRow.run == run).order_by(DatasetEpochRow.of_run)
    for each in session.scalars(epochs):
        runs[each.stage, each.argument].append(RunRef(each.of_run))
    query = select(DatasetInputRow).where(DatasetInputRow.run == run)
    return [
        RecordedDataset(
            stage=row.stage,
            argument=row.argument,
            dataset=row.dataset,
            selection=row.selection,
            runs=tuple(runs[row.stage, row.argument]),
            left_out=tuple(row.left_out),
        )
        for row in session.scalars(query.order_by(DatasetInputRow.stage, DatasetInputRow.argument))
    ]


def enter_input(session: Session, run: str, found: RecordedDataset, now: datetime) -> None:
    """Record what an input reads, in the place of what it was resolved to by another selection."""
    row = session.get(DatasetInputRow, (run, found.stage, found.argument))
    if row is not None and (row.dataset, row.selection) == (found.dataset, found.selection):
        return
    place = (DatasetEpochRow.stage == found.stage) & (DatasetEpochRow.argument == found.argument)
    session.execute(delete(DatasetEpochRow).where(DatasetEpochRow.run == run, place))
    row = row or DatasetInputRow(run=run, stage=found.stage, argument=found.argument)
    row.dataset, row.selection, row.resolved_at = found.dataset, found.selection, now
    row.left_out = list(found.left_out)
    session.add(row)
    session.add_all(
        DatasetEpochRow(run=run, stage=found.stage, argument=found.argument, of_run=each, dataset=found.dataset)
        for each in found.runs
    )
    session.flush()


def forget_inputs(session: Session, run: str) -> None:
    """Forget what the inputs of a run read of other dataflows: its next begin resolves them anew."""
    session.execute(delete(DatasetEpochRow).where(DatasetEpochRow.run == run))
    session.execute(delete(DatasetInputRow).where(DatasetInputRow.run == run))


def readers_of(session: Session, run: str, dataset: str) -> list[RunId]:
    """Return the runs of other dataflows that read an epoch of a data set: that of `run`."""
    query = select(DatasetEpochRow.run).where(DatasetEpochRow.of_run == run, DatasetEpochRow.dataset == dataset)
    return [RunId(each) for each in session.scalars(query.distinct().order_by(DatasetEpochRow.run))]


def reads_of_current(session: Session, run: str, current: str | None = None) -> dict[str, list[ReadSet]]:
    """Return the inputs of the attempts whose results are current in `run`.

    Partitions of the run `current` are those of its own run.
    """
    session.flush()
    rows = session.connection().execute(_OF_CURRENT, {"run": run}).all()
    members = _members_of(session, {row[-1] for row in rows})
    shared: dict[_Key, ReadSet] = {}
    found: dict[str, list[ReadSet]] = defaultdict(list)
    for attempt, *source, name in rows:
        key = (*source, name)
        if key not in shared:
            shared[key] = ReadSet(tuple(_results_read(source, members[name], current)))
        found[attempt].append(shared[key])
    return found


def read_sets(session: Session, names: Iterable[str], source: Sequence[str], current: str) -> dict[str, ReadSet]:
    """Return read sets by name, of the `source` (run, stage, layout); partitions of the run `current` have no run."""
    members = _members_of(session, wanted := set(names))
    return {name: ReadSet(tuple(_results_read(source, members[name], current))) for name in wanted}


def reads_of(session: Session, attempt: str, current: str | None = None) -> tuple[ReadResult, ...]:
    """Return the inputs of `attempt`; partitions of the run `current` are those of its own run."""
    session.flush()
    rows = session.connection().execute(_OF_ATTEMPT, {"attempt": attempt}).all()
    members = _members_of(session, {row[-1] for row in rows})
    return tuple(read for _, *source, name in rows for read in _results_read(source, members[name], current))


def _members_of(session: Session, names: set[str]) -> Mapping[str, _Members]:
    """Return the members of read sets; a set is named by its content, so that it can be cached."""
    found = {name: members for name in names if (members := _known_members.get(name)) is not None}
    unknown = names - found.keys()
    if unknown:
        new = {
            name: tuple((int(subtask), str(attempt), str(digest)) for subtask, attempt, digest in members)
            for name, members in session.connection().execute(_SETS, {"names": list(unknown)}).tuples()
        }
        if len(_known_members) > _MOST_KNOWN:  # other threads go on with what they have found
            _known_members.clear()
        _known_members.update(new)
        found |= new
    return found


def _results_read(source: Sequence[str], members: _Members, current: str | None) -> Iterator[ReadResult]:
    """`source` is (run, stage, layout)."""
    run, stage, layout = source
    shown = run_ref(run, current)
    for subtask, attempt, digest in members:
        yield ReadResult(PartitionId(stage, subtask, layout, shown), AttemptId(attempt), Digest(digest))
