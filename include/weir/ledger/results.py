"""Stores results, and changes their states.

Invariant 2: a commit replaces all outputs of a region in one transaction, or none.

Invariant of states: all state transitions go through `transition`, which refuses illegal ones and records the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ScalarSelect, bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from weir.errors import Fault, Loss
from weir.execution.metrics import LOSSES
from weir.execution.partition_state import PartitionState, StateEntry, require_transition
from weir.execution.run_state import AttemptState, CurrentResult
from weir.formats.manifest import Stored
from weir.ledger.counts import count
from weir.ledger.database.columns import taken
from weir.ledger.database.tables import AttemptRow, ResultEventRow, ResultRow, RunRow, Table
from weir.store.probe import PartitionRef
from weir.topology.ids import AttemptId, Digest, run_ref
from weir.topology.layouts import ResultSize
from weir.topology.regions import PartitionId, RegionId

# Built once: to build a statement costs more than to execute it.
_CURRENT = select(ResultRow).where(
    ResultRow.run == bindparam("run"),
    ResultRow.stage == bindparam("stage"),
    ResultRow.subtask == bindparam("subtask"),
    ResultRow.layout == bindparam("layout"),
    ResultRow.is_current,
)

_PLACE = ("stage", "subtask", "layout")

_DAMAGED = select(ResultRow.attempt, ResultRow.stage, ResultRow.subtask, ResultRow.layout).where(
    ResultRow.attempt.in_(bindparam("attempts", expanding=True)), ResultRow.fault == Fault.DAMAGED.value
)

_LATEST_CLOSED = (
    select(RunRow.id)
    .where(RunRow.dataflow == bindparam("dataflow"), RunRow.closed_at.is_not(None), RunRow.has_dag_run)
    .order_by(RunRow.created_at.desc(), RunRow.epoch.desc())
    .limit(1)
)

_SIZES = (
    select(ResultRow.stage, func.sum(ResultRow.bytes))
    .where(ResultRow.run == bindparam("run"), ResultRow.is_current)
    .group_by(ResultRow.stage, ResultRow.layout)
)

ResultKey = tuple[str, str, int, str]
"""The attempt, stage, subtask and layout of a result, which no other result has."""

_OUT_OF_USE = (PartitionState.LOST.value, PartitionState.QUARANTINED.value, PartitionState.RELEASED.value)
_TOUCHED = update(RunRow.__table__).where(RunRow.__table__.c.id == bindparam("of")).values(released_at=None)  # type: ignore[arg-type]
_NEW_RESULTS = insert(Table.metadata.tables[ResultRow.__tablename__])


@dataclass(frozen=True, slots=True, kw_only=True)
class NewResult:
    """A result partition whose files and manifest have been written."""

    partition: PartitionId
    folder: str
    manifest_sha256: str
    digest: Digest
    rows: int
    bytes: int
    made_from: str | None = None
    differs_from: AttemptId | None = None
    versions: tuple[str, ...]

    @classmethod
    def of(cls, stored: Stored, made_from: str | None = None) -> NewResult:
        """Return what the ledger records of a result in the store."""
        manifest = stored.manifest
        return cls(
            partition=stored.partition,
            folder=stored.folder,
            manifest_sha256=stored.manifest_sha256,
            digest=Digest(str(manifest.digest)),
            rows=manifest.rows,
            bytes=manifest.bytes,
            made_from=made_from,
            versions=manifest.versions,
        )


def replace_results(session: Session, run: str, attempt: str, results: Iterable[NewResult], now: datetime) -> None:
    """Make the results of `attempt` current."""
    new = [_columns(run, attempt, each, now) for each in results]
    for columns in new:
        supersede(session, run, PartitionId(*(columns[name] for name in _PLACE)), f"recomputed by {attempt}", now)
    if new:
        session.execute(_TOUCHED, {"of": run})
    session.flush()
    if new:
        session.connection().execute(_NEW_RESULTS, new)


def enter_superseded(session: Session, run: str, attempt: str, results: Iterable[NewResult], now: datetime) -> None:
    """Add results of `attempt` that others have superseded since, and whose bytes are there."""
    new = [_columns(run, attempt, each, now) | {"is_current": False} for each in results]
    if new:
        session.execute(_TOUCHED, {"of": run})
        session.connection().execute(_NEW_RESULTS, new)


def quarantine_results(
    session: Session, run: str, attempt: str, results: Iterable[NewResult], reason: str, now: datetime
) -> None:
    """Add the results of `attempt` in quarantine: readable for inspection, and never current."""
    state = PartitionState.QUARANTINED.value
    in_quarantine = {"is_current": False, "state": state, "state_reason": reason}
    new = [ResultRow(**{**_columns(run, attempt, each, now), **in_quarantine}) for each in results]
    if not new:
        return
    session.execute(_TOUCHED, {"of": run})
    session.add_all(new)
    session.flush()
    session.add_all(ResultEventRow(result=each.id, state=state, at=now, reason=reason) for each in new)


def _columns(run: str, attempt: str, new: NewResult, now: datetime) -> dict[str, Any]:
    return {
        "run": run,
        "stage": new.partition.stage,
        "subtask": new.partition.subtask,
        "layout": new.partition.layout,
        "attempt": attempt,
        "is_current": True,
        "state": PartitionState.FINISHED.value,
        "state_at": now,
        "folder": new.folder,
        "manifest_sha256": new.manifest_sha256,
        "digest": new.digest,
        "rows": new.rows,
        "bytes": new.bytes,
        "made_from": new.made_from,
        "differs_from": new.differs_from,
        "versions": list(new.versions),
    }


def supersede(session: Session, run: str, partition: PartitionId, reason: str, now: datetime) -> None:
    """Take the current result of a partition out of use, if there is one."""
    old = session.scalar(
        _CURRENT, {"run": run, "stage": partition.stage, "subtask": partition.subtask, "layout": partition.layout}
    )
    if old is not None:
        _supersede(session, old, reason, now)


def _supersede(session: Session, old: ResultRow, reason: str, now: datetime) -> None:
    """Take a result out of use; if its bytes exist it stays finished until it is released."""
    old.is_current = False
    if old.state in _OUT_OF_USE:
        transition(session, old, PartitionState.SUPERSEDED, reason, now)


def supersede_all(
    session: Session, run: str, reason: str, now: datetime, attempts: Collection[str] | None = None
) -> int:
    """Take all current results of `run`, or of these attempts of it, out of use and return their number."""
    query = select(ResultRow).where(ResultRow.run == run, ResultRow.is_current)
    rows = list(session.scalars(query if attempts is None else query.where(ResultRow.attempt.in_(attempts))))
    for row in rows:
        _supersede(session, row, reason, now)
    session.execute(_TOUCHED, {"of": run})
    return len(rows)


def newest_result() -> ScalarSelect[int]:
    """Return, in SQL, the highest number of a result: what has begun or was decided by now knows of all up to it."""
    return select(func.coalesce(func.max(ResultRow.id), 0)).scalar_subquery()


def has_results(session: Session, run: str) -> bool:
    """Report whether a run has a result that is in use."""
    query = select(ResultRow.id).where(ResultRow.run == run, ResultRow.is_current).limit(1)
    return session.scalar(query) is not None


def results_in(session: Session, run: str, folders: Iterable[str]) -> list[ResultRow]:
    """Return the results of `run` in these folders, current or not."""
    return list(session.scalars(select(ResultRow).where(ResultRow.run == run, ResultRow.folder.in_(set(folders)))))


def record_losses(session: Session, losses: Iterable[Loss], now: datetime) -> None:
    """Mark the results of the probed attempts lost, or quarantined where they are suspected."""
    for loss in losses:
        query = select(ResultRow).where(
            ResultRow.attempt == loss.attempt,
            ResultRow.stage == loss.stage,
            ResultRow.subtask == loss.subtask,
            ResultRow.layout == loss.layout,
            ResultRow.state == PartitionState.FINISHED.value,
        )
        for row in session.scalars(query):
            is_there = loss.fault is Fault.SUSPECTED
            to = PartitionState.QUARANTINED if is_there else PartitionState.LOST
            transition(session, row, to, f"{loss.fault.value}: {loss.detail}", now)
            row.fault = loss.fault.value
            count(session, LOSSES.of(1, session.get_one(RunRow, row.run).dataflow, loss.fault.value))


def record_found(session: Session, results: Iterable[CurrentResult], now: datetime) -> None:
    """Mark lost results finished again whose files are back."""
    for result in results:
        if result.state is PartitionState.LOST:
            row = session.get_one(ResultRow, result.result)
            if row.state == PartitionState.LOST.value:
                transition(session, row, PartitionState.FINISHED, "the files are back", now)
                row.fault = None
                session.execute(_TOUCHED, {"of": row.run})


def damaged_results(session: Session, attempts: Iterable[str]) -> frozenset[ResultKey]:
    """Return the results of `attempts` that were found damaged, current or not; their other results are whole."""
    asked = sorted(set(attempts))
    if not asked:
        return frozenset()
    rows = session.execute(_DAMAGED, {"attempts": asked})
    return frozenset((attempt, stage, subtask, layout) for attempt, stage, subtask, layout in rows)


def transition(session: Session, row: ResultRow, to: PartitionState, reason: str, now: datetime) -> None:
    """Change the state of a result to `to`. Raises IllegalTransition with its history."""
    newest = (StateEntry(PartitionState(row.state), row.state_at, row.state_reason),)
    try:
        require_transition(_name(row), newest, to)
    except Exception:
        require_transition(_name(row), history_of(session, row), to)
        raise
    row.state, row.state_at, row.state_reason = to.value, now, reason
    session.add(ResultEventRow(result=row.id, state=to.value, at=now, reason=reason))


def history_of(session: Session, row: ResultRow) -> tuple[StateEntry, ...]:
    """Return the states of a result since its attempt began, oldest first."""
    session.flush()
    attempt = session.get_one(AttemptRow, row.attempt)
    events = session.scalars(select(ResultEventRow).where(ResultEventRow.result == row.id).order_by(ResultEventRow.id))
    later = [StateEntry(PartitionState(each.state), each.at, each.reason) for each in events]
    written = StateEntry(PartitionState.WRITING, attempt.began_at, f"by {attempt.id}")
    return (written, *committed_entry(attempt, later), *later)


def committed_entry(attempt: AttemptRow, later: Sequence[StateEntry]) -> tuple[StateEntry, ...]:
    """Return the entry of a result's commit; a result that was quarantined before its commit has none."""
    never = bool(later) and later[0].state is PartitionState.QUARANTINED
    if never and attempt.state != AttemptState.COMMITTED.value:
        return ()
    return (StateEntry(PartitionState.FINISHED, attempt.ended_at or attempt.began_at, "committed"),)


def _name(row: ResultRow) -> str:
    return f"{row.stage}[{row.subtask}] ({row.layout}) of {row.attempt} in {row.run}"


def latest_sizes(session: Session, dataflow: str) -> dict[str, ResultSize]:
    """Return the sizes of results by stage, in their largest layout, of the newest run of a dataflow that is closed."""
    connection = session.connection()
    run = connection.scalar(_LATEST_CLOSED, {"dataflow": dataflow})
    found: dict[str, ResultSize] = {}
    if run is None:
        return found
    for stage, size in connection.execute(_SIZES, {"run": run}):
        found[stage] = max(ResultSize(int(size), run), found.get(stage, ResultSize(0, run)))
    return found


def layouts_of_run(session: Session, run: str) -> dict[str, set[str]]:
    """Return the ids of all layouts in which a run has ever written each stage."""
    query = select(ResultRow.stage, ResultRow.layout).where(ResultRow.run == run).distinct()
    found: dict[str, set[str]] = {}
    for stage, layout in session.execute(query):
        found.setdefault(stage, set()).add(layout)
    return found


# Results that differ although their inputs and code do not


@dataclass(frozen=True, slots=True)
class NotDeterministic:
    """A non-deterministic result: that of `attempt` differs from that of `differs_from`, of equal inputs and code."""

    run: str
    stage: str
    subtask: int
    attempt: str
    differs_from: str

    def __str__(self) -> str:
        return f"{self.stage}[{self.subtask}] of {self.attempt} differs from that of {self.differs_from}"


def findings_of(session: Session, attempts: Collection[str]) -> tuple[NotDeterministic, ...]:
    """Return the non-deterministic results of attempts, once for each stage and subtask."""
    query = (
        select(ResultRow)
        .where(ResultRow.attempt.in_(attempts), ResultRow.differs_from.is_not(None))
        .order_by(ResultRow.id)
    )
    found = (
        NotDeterministic(row.run, row.stage, row.subtask, row.attempt, row.differs_from or "")
        for row in session.scalars(query)
    )
    return tuple(dict.fromkeys(found))


def results_made_of(session: Session, dataflow: str, keys: Collection[str], most: int) -> list[tuple[ResultRow, str]]:
    """Return the newest stored results of attempts that have one of these keys, each with its key.

    None of a key of which a result was distrusted, or differs from another one: which of them is right is not known.
    """
    is_doubted = ResultRow.differs_from.is_not(None) | (ResultRow.fault == Fault.SUSPECTED.value)
    of_key = select(AttemptRow.made_of).join(ResultRow, ResultRow.attempt == AttemptRow.id)
    doubted = set(session.scalars(of_key.where(AttemptRow.made_of.in_(keys), is_doubted)))
    is_sound = ResultRow.fault.is_(None) & ResultRow.deleted_at.is_(None)
    query = (
        select(ResultRow, AttemptRow.made_of)
        .join(AttemptRow, AttemptRow.id == ResultRow.attempt)
        .join(RunRow, RunRow.id == ResultRow.run)
        .where(AttemptRow.made_of.in_(set(keys) - doubted), RunRow.dataflow == dataflow, is_sound)
        .where(ResultRow.state == PartitionState.FINISHED.value, ResultRow.is_current)
        .order_by(ResultRow.id.desc())
        .limit(most)
    )
    return [(row, str(key)) for row, key in session.execute(query).tuples()]


def attempts_with_keys(session: Session, run: str) -> dict[RegionId, tuple[str, str]]:
    """Return the attempts of a run's current results, each with the key of what it has made them of, by region."""
    query = select(AttemptRow).join(ResultRow, ResultRow.attempt == AttemptRow.id)
    rows = session.scalars(query.where(AttemptRow.run == run, ResultRow.is_current, AttemptRow.made_of.is_not(None)))
    return {RegionId(row.region, row.subtask): (row.id, str(row.made_of)) for row in rows}


def not_deterministic_regions(session: Session, runs: Collection[str], current: str) -> frozenset[RegionId]:
    """Return the regions of `runs` with non-deterministic results; those of `current` have no run."""
    query = (
        select(AttemptRow.run, AttemptRow.region, AttemptRow.subtask)
        .join(ResultRow, ResultRow.attempt == AttemptRow.id)
        .where(AttemptRow.run.in_(runs), ResultRow.differs_from.is_not(None))
    )
    return frozenset(
        RegionId(region, subtask, run_ref(run, current)) for run, region, subtask in session.execute(query)
    )


def reference(row: ResultRow) -> PartitionRef:
    """Return the reference by which the store is asked for a result."""
    return taken(PartitionRef, row)
