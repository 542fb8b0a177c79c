"""Checks the data interval of a run, and the order of the epochs of a dataflow that goes on, before a task of it runs.

Invariants: an epoch begins before it ends; without a schedule it may be a moment. With state, an epoch continues the
state of the epoch before it in time; no epoch is inserted before one that has already continued an older state, and no
change of the DAG file loses a state or changes its meaning. So it is with the positions of sources that go on.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.dataflow import Dataflow, Stage
from weir.dataflow.state_evolution import require_compatible
from weir.errors import Misconfigured
from weir.ledger.database.tables import RunRow, SourceSplitRow
from weir.ledger.restores import left_out


def require_interval(interval: tuple[datetime, datetime], dag_id: str, run_id: str, schedule: str) -> None:
    """Require a data interval with time zones that begins before it ends. Raises Misconfigured.

    Without a `schedule` both ends may be one: a person has started the run for a moment.
    """
    start, end = interval
    if start.tzinfo is None or end.tzinfo is None:
        raise Misconfigured.of("ledger.interval_without_zone", of_run=_of_run(interval, dag_id, run_id), advice=_ADVICE)
    try:
        is_empty, is_reversed = start.astimezone(UTC) == end.astimezone(UTC), end < start
    except OverflowError as error:
        raise Misconfigured.of(
            "ledger.interval_out_of_range", of_run=_of_run(interval, dag_id, run_id), advice=_ADVICE
        ) from error
    if is_reversed or (is_empty and schedule):
        what = "ends before it begins" if is_reversed else "has no length, so that no row is in it"
        by = (
            f" The schedule {schedule} gives it: write CronDataIntervalTimetable, or interval= to it."
            if schedule
            else ""
        )
        raise Misconfigured.of(
            "ledger.interval_wrong", of_run=_of_run(interval, dag_id, run_id), what=what, by=by, advice=_ADVICE
        )


_ADVICE = (
    "Delete this run, and have the scheduler or a backfill make one, or trigger it over Airflow's REST API with "
    "data_interval_start and data_interval_end. Nothing was run"
)


def _of_run(interval: tuple[datetime, datetime], dag_id: str, run_id: str) -> str:
    return f"the data interval of run {run_id} of DAG {dag_id} ({interval[0].isoformat()} to {interval[1].isoformat()})"


def require_same_kind(row: RunRow, new: Dataflow) -> None:
    """Refuse to go on as a shadow with the run of a dataflow that publishes, or the reverse. Raises Misconfigured."""
    begun = new.shadow_of if row.pinned is None else row.pinned.get("shadow_of", "")
    if begun != new.shadow_of:
        begun, declared = (f"as a shadow of {each}" if each else "as no shadow" for each in (begun, new.shadow_of))
        raise Misconfigured.of("ledger.shadow_changed", run=row.id, begun=begun, declared=declared)


def require_sound_epoch(session: Session, row: RunRow, new: Dataflow, *, is_backwards: bool) -> None:
    """Check a run that is about to be pinned to `new`; its predecessor is known. Raises Misconfigured.

    `is_backwards`: Airflow has queued the epoch before it after it.
    """
    before = _before(session, row)
    _require_sources(session, row, before, new)
    if new.goes_on:
        _require_interval(row)
        _require_order(row, before, is_backwards=is_backwards)
        _require_no_later(session, row)
    if before is not None and before.pinned is not None:
        old = Dataflow.from_json(before.pinned)
        if old.keeps_state:
            gone = left_out(session, row.dataflow, before.epoch)
            require_compatible(old, new, f"run {before.id}", f"run {row.id}", gone)


def _require_sources(session: Session, row: RunRow, before: RunRow | None, new: Dataflow) -> None:
    """Refuse a dataflow that would lose the position of a source: its rows would be read again, or left out."""
    names = [each.name for each in new.stages if each.goes_on]
    query = select(SourceSplitRow.stage).where(SourceSplitRow.run == row.id, SourceSplitRow.position.is_not(None))
    for kept in session.scalars(query):
        if kept not in names:
            raise Misconfigured.of("ledger.range_without_source", run=row.id, stage=kept, dataflow=row.dataflow)
    for going in new.stages:
        if going.goes_on:
            _require_no_later_range(session, row, going)
    if before is None or before.pinned is None:
        return
    old = {each.name for each in Dataflow.from_json(before.pinned).stages if each.goes_on}
    gone = sorted(old - {*names} - {each.moved_from for each in new.stages})
    known = old | _read_before(session, row) if gone else old
    came = sorted(
        each.name for each in new.stages if each.goes_on and each.name not in old and each.moved_from not in known
    )
    if gone and came:
        raise Misconfigured.of("ledger.source_renamed", gone=gone[0], came=came[0], before=before.id, run=row.id)


def _read_before(session: Session, row: RunRow) -> set[str]:
    """Return the names of the sources of which earlier epochs have read a range."""
    query = select(SourceSplitRow.stage).join(RunRow, RunRow.id == SourceSplitRow.run)
    query = query.where(RunRow.dataflow == row.dataflow, RunRow.epoch < row.epoch, SourceSplitRow.position.is_not(None))
    return {*session.scalars(query.distinct())}


def _require_no_later_range(session: Session, row: RunRow, stage: Stage) -> None:
    if session.get(SourceSplitRow, (row.id, stage.name)) is not None:
        return
    query = (
        select(SourceSplitRow.stage, RunRow)
        .join(RunRow, RunRow.id == SourceSplitRow.run)
        .where(RunRow.dataflow == row.dataflow, RunRow.epoch > row.epoch, SourceSplitRow.position.is_not(None))
        .order_by(RunRow.epoch)
    )
    for name, later in session.execute(query):
        if not _names_in(later, name).isdisjoint(stage.names):
            raise Misconfigured.of(
                "ledger.range_resolved_later", epoch=row.epoch, dataflow=row.dataflow, later=later.id, stage=name
            )


def _names_in(row: RunRow, source: str) -> frozenset[str]:
    """Return the names by which a run knows a source that goes on."""
    stages = () if row.pinned is None else Dataflow.from_json(row.pinned).stages
    return next((frozenset(each.names) for each in stages if each.name == source), frozenset({source}))


def _before(session: Session, row: RunRow) -> RunRow | None:
    if row.predecessor is None:
        return None
    query = select(RunRow).where(RunRow.dataflow == row.dataflow, RunRow.epoch == row.predecessor)
    return session.scalar(query)


def _require_interval(row: RunRow) -> None:
    if row.interval_start < row.interval_end:
        return
    at = f"{row.interval_start:%Y-%m-%d %H:%M}"
    raise Misconfigured.of("ledger.interval_empty", run_id=row.run_id, dag_id=row.dag_id, at=at, dataflow=row.dataflow)


def _require_order(row: RunRow, before: RunRow | None, *, is_backwards: bool) -> None:
    if not is_backwards or before is None or before.pinned is not None:
        return
    raise Misconfigured.of(
        "ledger.backfill_runs_backwards",
        run_id=row.run_id,
        dag_id=row.dag_id,
        before=before.run_id,
        dataflow=row.dataflow,
        epoch=row.epoch,
        earlier=before.epoch,
    )


def _require_no_later(session: Session, row: RunRow) -> None:
    """Refuse an epoch if a later one has already continued without it."""
    query = (
        select(RunRow)
        .where(RunRow.dataflow == row.dataflow, RunRow.epoch > row.epoch, RunRow.deleted_at.is_(None))
        .where(RunRow.predecessor.is_(None) | (RunRow.predecessor < row.epoch))
        .order_by(RunRow.epoch)
    )
    for later in session.scalars(query):
        if later.pinned is not None and Dataflow.from_json(later.pinned).goes_on:
            raise Misconfigured(_too_late(row, later))


def _too_late(row: RunRow, later: RunRow) -> str:
    since = "is the first of all"
    if later.predecessor is not None:
        since = f"has gone on from the state of epoch {later.predecessor}"
    return (
        f"epoch {row.epoch} of dataflow {row.dataflow} comes too late: the dataflow keeps state, and epoch "
        f"{later.epoch} (run {later.run_id}) {since}. Epochs of such a dataflow are computed in order: a backfill that "
        "runs backwards, or begins before the first epoch, is refused. To have later epochs computed again with this "
        f"one, `weir run adopt {later.id}`, then clear {row.run_id}, then {later.run_id}. Or delete this run: then "
        "later epochs go on without its rows. Nothing was run"
    )
