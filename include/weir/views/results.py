"""Results of runs: their attempts, consumers, readers and state transitions, and why each is retained.

Invariant: no recorded event is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.services import Services
from weir.execution.partition_state import PartitionState, StateEntry
from weir.execution.run_state import CLOSE, AttemptState, RunState
from weir.ledger.attempts import name_of_try, taken_from
from weir.ledger.database.columns import taken
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
from weir.ledger.names import unknown_stage
from weir.ledger.results import committed_entry
from weir.ledger.runs import dataflow_of, run_by_id, runs_named, topology_of
from weir.ledger.snapshot import run_state
from weir.retention.release import release
from weir.state.compactions import compaction_rows
from weir.topology.partitions import PartitionId

_RUNNING = (AttemptState.RUNNING.value, AttemptState.WAITING.value)
_WITHOUT_RESULTS = (AttemptState.RETRYING.value, AttemptState.FAILED.value, AttemptState.FENCED.value)
_STORED = (PartitionState.FINISHED.value, PartitionState.QUARANTINED.value, PartitionState.RELEASED.value)

Reasons = Mapping[int, str]
"""Why a stored result is retained, or will be released next, by its number."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A committed attempt that has read a result."""

    run: str
    region: str
    subtask: int
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultView:
    """One result partition of one attempt; `is_valid` is None unless it is current, `invalid_because` unless it is not.

    `since` and `reason` are of its state, `kept` is why it is retained, or will be released next, where that was asked.
    `versions` are those of code, `code`, `archive` and `generation` what its attempt ran; `taken_from` is the attempt
    of which that has taken a copy. `read_now_by` are the holders of leases on it; `published` are the versions that it
    is part of.
    """

    subtask: int
    layout: str
    attempt: str
    try_number: int
    is_current: bool
    is_valid: bool | None
    invalid_because: str | None
    state: str
    since: datetime
    reason: str
    kept: str | None
    fault: str | None
    rows: int
    bytes: int
    digest: str
    differs_from: str | None
    folder: str
    data_deleted_at: datetime | None
    verified_at: datetime | None
    code: str | None
    archive: str | None
    generation: int | None
    versions: list[str] | None
    taken_from: str | None
    consumers: tuple[Consumer, ...]
    read_now_by: tuple[str, ...]
    published: tuple[str, ...]
    story: tuple[StateEntry, ...]

    @property
    def is_stored(self) -> bool:
        """Whether its files are there."""
        return self.data_deleted_at is None and self.state in _STORED


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedAttempt:
    """An attempt without results: writing, or abandoned."""

    region: str
    subtask: int
    attempt: str
    try_number: int
    state: PartitionState
    began_at: datetime
    ended_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class WrittenAs:
    """The layouts of a stage, where they are not those that its readers declare."""

    layouts: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResults:
    """The results of a stage in a run, by subtask, layout and attempt; and the attempts without results.

    A released state keeps the files that other results share, and those that its compactions have written.
    """

    stage: str
    bytes_at_rest: int
    bytes_compacted: int
    written_as: WrittenAs | None
    results: tuple[ResultView, ...]
    unfinished: tuple[UnfinishedAttempt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResults:
    """A run and its stages, producers first."""

    run: str
    dag_id: str
    run_id: str
    closed_at: datetime | None
    released_at: datetime | None
    deleted_at: datetime | None
    expired_at: datetime | None
    stages: tuple[StageResults, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """The results of runs; `is_one_run` says that one run was asked for, by its own name."""

    is_one_run: bool
    runs: tuple[RunResults, ...]


def results_of(services: Services, name: str | None, stage: str | None = None, *, with_reasons: bool) -> Results:
    """Return the results of a run, of a dataflow or of all, or of one stage.

    Why they are retained is asked for one run, and `with_reasons`. Raises Misconfigured for a name that is not known.
    """
    with services.ledger.transaction() as session:
        runs = runs_named(session, name)
    is_one_run = len(runs) == 1 and name is not None and name != dataflow_of(runs[0])
    kept = _kept(services, runs) if with_reasons or is_one_run else {}
    with services.ledger.transaction() as session:
        found = tuple(run_results(session, run, stage, services.now(), kept) for run in runs)
        if stage is not None and not any(each.stages for each in found):
            raise unknown_stage(name, stage, _stages_written(session, runs))
    return Results(is_one_run, found)


def _kept(services: Services, runs: Iterable[str]) -> Reasons:
    told = (each for run in runs for each in release(services, dataflow_of(run), [run], is_dry=True))
    return {each.stored.result: f"{'goes next' if each.is_released else 'kept'}: {each.reason}" for each in told}


def run_results(session: Session, name: str, stage: str | None, now: datetime, kept: Reasons) -> RunResults:
    """Return the results of a run, or of one stage of it; `now` is the clock of this machine."""
    run = session.get_one(RunRow, name)
    rows = list(session.scalars(select(ResultRow).where(ResultRow.run == run.id)))
    attempts = {row.id: row for row in session.scalars(select(AttemptRow).where(AttemptRow.run == run.id))}
    known = _Known(session, run, now, kept)
    results: dict[str, list[ResultView]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.subtask, row.layout, row.id)):
        results[row.stage].append(known.result(row, attempts[row.attempt]))
    regions = _regions(run, attempts.values(), rows)
    unfinished = _unfinished(attempts.values(), {row.attempt for row in rows})
    compacted: dict[str, int] = defaultdict(int)
    for made in compaction_rows(session, run.id):
        compacted[made.state] += made.written_bytes
    chosen = (None if run.pinned is None else topology_of(run.pinned).chosen) or {}
    stages = tuple(
        StageResults(
            stage=each,
            bytes_at_rest=sum(one.bytes for one in results[each] if one.is_stored) + compacted[each],
            bytes_compacted=compacted[each],
            written_as=WrittenAs(chosen[each].ids, chosen[each].reason) if each in chosen else None,
            results=tuple(results[each]),
            unfinished=tuple(one for one in unfinished if one.region == regions.get(each)),
        )
        for each in dict.fromkeys([*regions, *results])
        if stage in (None, each)
    )
    return taken(RunResults, run, run=run.id, stages=stages)


def _stages_written(session: Session, runs: Collection[str]) -> list[str]:
    return list(
        session.scalars(select(ResultRow.stage).where(ResultRow.run.in_(runs)).distinct().order_by(ResultRow.stage))
    )


def _regions(run: RunRow, attempts: Iterable[AttemptRow], rows: Iterable[ResultRow]) -> dict[str, str]:
    """Return the region that writes each stage, producers first; of a run that is not pinned, of written stages."""
    if run.pinned is not None:
        topology = topology_of(run.pinned)
        return {each.stage: region.name for region in topology.region_ids() for each in topology.outputs(region)}
    of = {each.id: each.region for each in attempts}
    return {row.stage: of[row.attempt] for row in sorted(rows, key=lambda row: row.id)}


def _unfinished(attempts: Iterable[AttemptRow], made: Collection[str]) -> list[UnfinishedAttempt]:
    """Return attempts that may have begun to write and have not committed."""
    states = dict.fromkeys(_RUNNING, PartitionState.WRITING) | dict.fromkeys(_WITHOUT_RESULTS, PartitionState.ABANDONED)
    return [
        taken(UnfinishedAttempt, row, attempt=row.id, state=states[row.state])
        for row in sorted(attempts, key=lambda row: (row.subtask, row.try_number))
        if row.id not in made and row.region != CLOSE.name and row.state in states
    ]


class _Known:
    """The ledger's data about all results of a run, read once."""

    def __init__(self, session: Session, run: RunRow, now: datetime, kept: Reasons) -> None:
        state = None if run.pinned is None else run_state(session, run_by_id(session, run.id))
        current = () if state is None else state.results.values()
        self._invalid = {each.result: _why_invalid(state, each.partition) for each in current if state is not None}
        self._readers = _readers(session, run.id, now)
        self._consumers = _consumers(session, run.id)
        self._versions = _versions(session, run.id)
        self._events = _events(session, run.id)
        self._kept = kept

    def result(self, row: ResultRow, attempt: AttemptRow) -> ResultView:
        later = self._events[row.id]
        by = f"by {name_of_try(attempt)} of {attempt.region}"
        written = StateEntry(PartitionState.WRITING, attempt.began_at, by)
        return taken(
            ResultView,
            row,
            try_number=attempt.try_number,
            is_valid=self._invalid.get(row.id) is None if row.is_current and row.id in self._invalid else None,
            invalid_because=self._invalid.get(row.id) if row.is_current else None,
            since=row.state_at,
            reason=row.state_reason,
            kept=self._kept.get(row.id),
            data_deleted_at=row.deleted_at,
            code=attempt.code,
            archive=attempt.archive,
            generation=attempt.generation,
            taken_from=taken_from(attempt) or None,
            consumers=tuple(self._consumers[row.stage, row.layout, row.subtask, row.attempt]),
            read_now_by=tuple(dict.fromkeys(self._readers[row.id])),
            published=tuple(self._versions[row.folder]),
            story=(written, *committed_entry(attempt, later), *later),
        )


def _why_invalid(state: RunState, partition: PartitionId) -> str | None:
    if state.is_valid(partition):
        return None
    return state.loss(partition, next(state.obstacles(partition))).detail


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
        for folder in row.folders:
            found[folder].append(f"{row.sink} v{row.version}{removed}")
    return found


def _events(session: Session, run: str) -> dict[int, list[StateEntry]]:
    query = select(ResultEventRow).join(ResultRow, ResultRow.id == ResultEventRow.result).where(ResultRow.run == run)
    found: dict[int, list[StateEntry]] = defaultdict(list)
    for row in session.scalars(query.order_by(ResultEventRow.id)):
        found[row.result].append(StateEntry(PartitionState(row.state), row.at, row.reason))
    return found
