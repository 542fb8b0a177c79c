"""The history of a run's results in the ledger: their attempts, consumers, readers and state transitions.

Invariant: nothing is changed, and no recorded event is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.execution.partition_state import PartitionState, StateEntry
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.attempts import name_of_try
from weir.ledger.database.tables import (
    AttemptRow,
    ConsumptionRow,
    LeaseRow,
    PublicationRow,
    ReadSetRow,
    ResultEventRow,
    ResultRow,
    RunRow,
)
from weir.ledger.leases import clock
from weir.ledger.results import committed_entry
from weir.ledger.runs import run_by_id, topology_of
from weir.ledger.snapshot import run_state
from weir.state.compactions import compaction_rows
from weir.topology.layouts import WrittenLayouts

_RUNNING = (AttemptState.RUNNING.value, AttemptState.WAITING.value)
_WITHOUT_RESULTS = (AttemptState.RETRYING.value, AttemptState.FAILED.value, AttemptState.FENCED.value)


@dataclass(frozen=True, slots=True)
class Consumer:
    """A committed attempt that has read a result."""

    run: str
    region: str
    subtask: int
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultHistory:
    """One result partition of one attempt; `is_valid` is None unless it is current.

    `readers` are the holders of leases on it; `published` are the versions that it is part of.
    """

    row: ResultRow
    attempt: AttemptRow
    is_valid: bool | None
    consumers: tuple[Consumer, ...]
    readers: tuple[str, ...]
    published: tuple[str, ...]
    story: tuple[StateEntry, ...]


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An attempt without results: writing, or abandoned."""

    attempt: AttemptRow
    state: PartitionState


@dataclass(frozen=True, slots=True)
class StageHistory:
    """The results of a stage in a run, by subtask, layout and attempt; and the attempts without results.

    `compacted` is the number of bytes that compactions have written, if the stage is a state. `chosen` are its layouts
    where they are not those that its readers declare.
    """

    stage: str
    results: tuple[ResultHistory, ...]
    unfinished: tuple[Unfinished, ...]
    compacted: int = 0
    chosen: WrittenLayouts | None = None


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run and the history of its stages, producers first."""

    run: RunRow
    stages: tuple[StageHistory, ...]


def run_history(session: Session, run: RunRow, stage: str | None, now: datetime) -> RunHistory:
    """Return the history of a run's results, or of one stage of it; `now` is the clock of this machine."""
    query = select(ResultRow).where(ResultRow.run == run.id)
    rows = list(session.scalars(query if stage is None else query.where(ResultRow.stage == stage)))
    attempts = {row.id: row for row in session.scalars(select(AttemptRow).where(AttemptRow.run == run.id))}
    known = _Known(session, run, now)
    results: dict[str, list[ResultHistory]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.subtask, row.layout, row.id)):
        results[row.stage].append(known.history(row, attempts[row.attempt]))
    regions = _regions(run, attempts.values(), rows)
    unfinished = _unfinished(attempts.values(), {row.attempt for row in rows} if stage is None else _made(session, run))
    order = list(dict.fromkeys([*regions, *results]))
    compacted: dict[str, int] = defaultdict(int)
    for made in compaction_rows(session, run.id):
        compacted[made.state] += made.written_bytes
    chosen = (None if run.pinned is None else topology_of(run.pinned).chosen) or {}
    return RunHistory(
        run,
        tuple(
            StageHistory(
                each,
                tuple(results[each]),
                tuple(one for one in unfinished if one.attempt.region == regions.get(each)),
                compacted[each],
                chosen.get(each),
            )
            for each in order
            if stage in (None, each)
        ),
    )


def stages_written(session: Session, runs: Collection[str]) -> list[str]:
    """Return the names of all stages that have results in some runs."""
    return list(
        session.scalars(select(ResultRow.stage).where(ResultRow.run.in_(runs)).distinct().order_by(ResultRow.stage))
    )


def _made(session: Session, run: RunRow) -> set[str]:
    return set(session.scalars(select(ResultRow.attempt).where(ResultRow.run == run.id)))


def _regions(run: RunRow, attempts: Iterable[AttemptRow], rows: Iterable[ResultRow]) -> dict[str, str]:
    """Return the region that writes each stage, producers first; of a run that is not pinned, of written stages."""
    if run.pinned is not None:
        topology = topology_of(run.pinned)
        return {each.stage: region.name for region in topology.region_ids() for each in topology.outputs(region)}
    of = {each.id: each.region for each in attempts}
    return {row.stage: of[row.attempt] for row in sorted(rows, key=lambda row: row.id)}


def _unfinished(attempts: Iterable[AttemptRow], made: Collection[str]) -> list[Unfinished]:
    """Return attempts that may have begun to write and have not committed."""
    found = []
    for each in sorted(attempts, key=lambda row: (row.subtask, row.try_number)):
        if each.id in made or each.region == CLOSE.name:
            continue
        if each.state in _RUNNING:
            found.append(Unfinished(each, PartitionState.WRITING))
        elif each.state in _WITHOUT_RESULTS:
            found.append(Unfinished(each, PartitionState.ABANDONED))
    return found


class _Known:
    """The ledger's data about all results of a run, read once."""

    def __init__(self, session: Session, run: RunRow, now: datetime) -> None:
        state = None if run.pinned is None else run_state(session, run_by_id(session, run.id))
        current = () if state is None else state.results.values()
        self._valid = {each.result: state.is_valid(each.partition) for each in current if state is not None}
        self._readers = _readers(session, run.id, now)
        self._consumers = _consumers(session, run.id)
        self._versions = _versions(session, run.id)
        self._events = _events(session, run.id)

    def history(self, row: ResultRow, attempt: AttemptRow) -> ResultHistory:
        later = self._events[row.id]
        by = f"by {name_of_try(attempt)} of {attempt.region}"
        written = StateEntry(PartitionState.WRITING, attempt.began_at, by)
        return ResultHistory(
            row=row,
            attempt=attempt,
            is_valid=self._valid.get(row.id) if row.is_current else None,
            consumers=tuple(self._consumers[row.stage, row.layout, row.subtask, row.attempt]),
            readers=tuple(dict.fromkeys(self._readers[row.id])),
            published=tuple(self._versions[row.folder]),
            story=(written, *committed_entry(attempt, later), *later),
        )


def _readers(session: Session, run: str, now: datetime) -> dict[int, list[str]]:
    query = (
        select(LeaseRow)
        .join(ResultRow, ResultRow.id == LeaseRow.result)
        .where(ResultRow.run == run, LeaseRow.expires_at > clock(session, now))
    )
    found: dict[int, list[str]] = defaultdict(list)
    for row in session.scalars(query.order_by(LeaseRow.id)):
        found[row.result].append(row.holder)
    return found


def _consumers(session: Session, run: str) -> dict[tuple[str, str, int, str], list[Consumer]]:
    """Return the consumers of a run's results, by stage, layout, subtask and attempt; those of other runs, too."""
    query = (
        select(ConsumptionRow, ReadSetRow, AttemptRow)
        .join(ReadSetRow, ReadSetRow.id == ConsumptionRow.read_set)
        .join(AttemptRow, AttemptRow.id == ConsumptionRow.attempt)
        .where(ConsumptionRow.run == run)
        .order_by(AttemptRow.began_at, AttemptRow.id)
    )
    found: dict[tuple[str, str, int, str], list[Consumer]] = defaultdict(list)
    for read, read_set, by in session.execute(query):
        consumer = Consumer(by.run, by.region, by.subtask, by.id)
        for subtask, attempt, _digest in read_set.members:
            known = found[read.stage, read.layout, int(subtask), str(attempt)]
            if consumer not in known:
                known.append(consumer)
    return found


def _versions(session: Session, run: str) -> dict[str, list[str]]:
    """Return the published versions that each folder is part of."""
    query = select(PublicationRow).where(PublicationRow.run == run, PublicationRow.published_at.is_not(None))
    found: dict[str, list[str]] = defaultdict(list)
    for row in session.scalars(query.order_by(PublicationRow.id)):
        removed = " (removed)" if row.expired_at is not None else ""
        for folder in row.folders or ():
            found[folder].append(f"{row.sink} v{row.version}{removed}")
    return found


def _events(session: Session, run: str) -> dict[int, list[StateEntry]]:
    query = select(ResultEventRow).join(ResultRow, ResultRow.id == ResultEventRow.result).where(ResultRow.run == run)
    found: dict[int, list[StateEntry]] = defaultdict(list)
    for row in session.scalars(query.order_by(ResultEventRow.id)):
        found[row.result].append(StateEntry(PartitionState(row.state), row.at, row.reason))
    return found
