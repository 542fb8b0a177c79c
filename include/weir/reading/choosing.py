"""Resolves the run and the stage that a reader names.

Invariant: a name with no match, or with several, is refused with the known names.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from weir.errors import Misconfigured
from weir.ledger.database.tables import PublicationRow, ResultRow, RunRow
from weir.ledger.names import NO_RUN, SHOWN, require_dataflow, unknown_run
from weir.ledger.publications import SHOWN_EARLY
from weir.ledger.runs import runs_of, topology_of
from weir.reading.availability import (
    Chosen,
    current_results,
    provisional_results,
    published_results,
    results_of_attempt,
)
from weir.topology.regions import Topology

When = str | date | datetime | None
"""A run: its id in the ledger (DATAFLOW@EPOCH) or in Airflow, its epoch, or a time in it; None: the newest."""


def choose(
    session: Session,
    dataflow: str,
    run: When,
    stage: str | None,
    attempt: str | None = None,
    version: int | None = None,
    *,
    provisional: bool = False,
) -> Chosen:
    """Find what is meant; of an `attempt` what it has written, also in quarantine; of a sink a version, or the newest.

    With `provisional`, of a sink its provisional rows, where it shows any.
    Raises Misconfigured for what is not known, and Unreadable for what cannot be read.
    """
    known = runs_of(session, dataflow)
    if not known:
        require_dataflow(session, dataflow)
        raise Misconfigured.of("reading.no_run", dataflow=dataflow, no_run=NO_RUN)
    wanted = None if run is None else _named(session, dataflow, known, run)
    if attempt is not None:
        return _of_attempt(session, dataflow, wanted, stage, attempt)
    begun = [each for each in known if each.pinned is not None]
    if not begun or (wanted is not None and wanted.pinned is None):
        row = wanted or known[-1]
        raise Misconfigured.of("reading.run_not_begun", row_id=row.id, run_id=row.run_id)
    topology = _topology(wanted or begun[-1])
    name = _stage(topology, stage)
    row = wanted or _newest(session, begun, topology, name, provisional=provisional)
    topology = _topology(row)
    require_written(row, topology, name)
    if name in topology.sinks:
        early = provisional_results(session, row, topology, name) if provisional else None
        if early is not None:
            return early
        return published_results(session, row, topology, name, version)
    return current_results(session, row, name)


def _of_attempt(session: Session, dataflow: str, run: RunRow | None, stage: str | None, attempt: str) -> Chosen:
    query = select(ResultRow).join(RunRow, RunRow.id == ResultRow.run)
    rows = list(session.scalars(query.where(RunRow.dataflow == dataflow, ResultRow.attempt == attempt)))
    rows = [row for row in rows if run is None or row.run == run.id]
    stages = sorted({row.stage for row in rows})
    if not rows or (stage is not None and stage not in stages):
        where = dataflow if run is None else run.id
        what = f"only {', '.join(stages)}" if rows else "nothing"
        raise Misconfigured.of(
            "reading.attempt_wrote_nothing", what=what, attempt=attempt, where=where, stage=stage or "result"
        )
    if stage is None and len(stages) > 1:
        raise Misconfigured.of("reading.attempt_wrote_several", attempt=attempt, stages=stages)
    return results_of_attempt(session, [row for row in rows if row.stage == (stage or stages[0])])


def _topology(row: RunRow) -> Topology:
    return topology_of(row.pinned or {})


# Which run


def run_named(session: Session, dataflow: str, run: str) -> RunRow:
    """Return the run that is named as `When` says. Raises Misconfigured for one that is not known."""
    known = runs_of(session, dataflow)
    if not known:
        require_dataflow(session, dataflow)
    return _named(session, dataflow, known, run)


def _named(session: Session, dataflow: str, known: list[RunRow], run: str | date) -> RunRow:
    if isinstance(run, str):
        for row in known:
            if run in (row.id, row.run_id, row.epoch):
                return row
    found = _at(known, _time(run))
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(f"{row.id} ({row.run_id})" for row in found[-SHOWN:])
        more = f" or {len(found) - SHOWN} earlier ones" if len(found) > SHOWN else ""
        raise Misconfigured.of("reading.run_ambiguous", dataflow=dataflow, run=run, listed=listed, more=more)
    raise unknown_run(session, str(run), dataflow)


def _time(run: str | date) -> date | None:
    if not isinstance(run, str):
        return run
    try:
        return date.fromisoformat(run)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(run)
        return found if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):  # of the first or last day there is
        return None


def _at(known: list[RunRow], time: date | None) -> list[RunRow]:
    """Return the runs whose interval begins on a day, or else contains it, or contains a time. All in UTC."""
    if time is None:
        return []
    if not isinstance(time, datetime):
        begun = [row for row in known if row.interval_start.date() == time]
        if begun:
            return begun
        time = datetime(time.year, time.month, time.day, tzinfo=UTC)
    at = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    return [row for row in known if row.interval_start <= at < row.interval_end]


def _newest(
    session: Session, begun: list[RunRow], topology: Topology, stage: str, *, provisional: bool = False
) -> RunRow:
    """Return the newest run in which the stage was computed, whatever its results' present state."""
    if stage in topology.sinks:
        is_published = PublicationRow.published_at.is_not(None)
        is_shown = or_(is_published, SHOWN_EARLY) if provisional else is_published
        query = select(PublicationRow.run).where(PublicationRow.sink == stage, is_shown)
    else:
        query = select(ResultRow.run).where(ResultRow.stage == stage, ResultRow.is_current)
    counts = Counter(session.scalars(query))
    for row in reversed(begun):
        own = _topology(row)
        if row.sealed_at is not None and stage in own.states:
            continue  # its state is that of the day before
        needed = 1 if stage in own.sinks else _partitions(own, stage)
        if counts[row.id] >= max(needed, 1):
            return row
    return begun[-1]


def _partitions(topology: Topology, stage: str) -> int:
    layouts = topology.layouts_of(stage) if stage in written_stages(topology) else ()
    return sum(len(topology.partitions_of(stage, layout.id)) for layout in layouts)


# Which stage


def _stage(topology: Topology, stage: str | None) -> str:
    if stage is not None:
        return stage
    if len(topology.sinks) == 1:
        return next(iter(topology.sinks))
    raise Misconfigured.of(
        "reading.stage_not_named",
        dataflow=topology.dataflow.name,
        sinks=", ".join(topology.sinks) or "nothing",
        written=written_stages(topology),
    )


def written_stages(topology: Topology) -> list[str]:
    """Return the stages of a dataflow that are written, sinks and states too, producers first."""
    written = (each.stage for region in topology.region_ids() for each in topology.outputs(region))
    return list(dict.fromkeys(written))


def require_written(row: RunRow, topology: Topology, stage: str) -> None:
    """Raise Misconfigured for a stage that a run does not have, or never writes."""
    written = written_stages(topology)
    if stage in written:
        return
    if stage in (each.name for each in topology.dataflow.stages):
        raise Misconfigured.of("reading.stage_never_written", stage=stage, written=written)
    raise Misconfigured.of("reading.stage_unknown", row_id=row.id, stage=stage, written=written)
