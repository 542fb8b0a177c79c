"""Reads from the ledger what the runs of a dataflow have cost, for advice.

Invariant: it changes nothing. Only closed runs count, and of these only such that have the stages of the newest run:
what another declaration has cost says little about this one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean, median
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.advice.replay_rules import LateClear, Measured, Strike
from weir.errors import Misconfigured
from weir.execution.failure_class import FailureClass
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.attempts import Origin, taken_from
from weir.ledger.database.tables import AttemptRow, FailoverRow, ResultRow, RunRow
from weir.ledger.names import require_dataflow
from weir.ledger.runs import newest_pinned, topology_of
from weir.recovery.failovers import FailoverKind, seconds_of
from weir.recovery.rules.plan import Plan, StepKind
from weir.topology.ids import RunId
from weir.topology.regions import RegionId, Topology

LEAST_RUNS: Final = 5
MOST_RUNS: Final = 200
"""The newest runs that count: older ones had other data."""

_WRITING: Final = "write "
_OF_ROWS: Final = ("write ", "compute ", "copy ", "check ", "seal ")
"""How the seconds of an attempt's report begin that depend on its rows."""


@dataclass(frozen=True, slots=True)
class _Closed:
    """A run, and when it was closed for the first time."""

    row: RunRow
    at: datetime


def measured(session: Session, dataflow: str) -> Measured:
    """Return what the closed runs of a dataflow have cost.

    Raises Misconfigured for an unknown dataflow, and where fewer than `LEAST_RUNS` runs can be compared.
    """
    require_dataflow(session, dataflow)
    newest = newest_pinned(session, dataflow)
    topology = None if newest is None else topology_of(newest)
    query = select(RunRow).where(RunRow.dataflow == dataflow, RunRow.is_pinned).order_by(RunRow.epoch.desc())
    rows = list(session.scalars(query.limit(MOST_RUNS)))
    alike = [row for row in rows if topology is not None and _stages(row.pinned) == _stages(newest)]
    attempts = _attempts(session, [row.id for row in alike])
    closed = list(_closed(alike, attempts))
    if topology is None or len(closed) < LEAST_RUNS:
        raise Misconfigured.of(
            "advice.too_few_runs",
            dataflow=dataflow,
            closed=len(closed),
            others=f", and {len(rows) - len(alike)} with others" if len(rows) > len(alike) else "",
            least_runs=LEAST_RUNS,
        )
    ids = {each.row.id for each in closed}
    known = [each for run in ids for each in attempts[run] if _is_of(topology, each)]
    computed = [each for each in known if each.state == AttemptState.COMMITTED.value and not taken_from(each)]
    written, at_rest = _bytes(session, ids, topology)
    return Measured(
        dataflow=topology.dataflow,
        runs=len(closed),
        seconds=_seconds(computed, topology),
        fixed=median(found) if (found := list(_fixed(computed))) else 0.0,
        bytes=written,
        rate=_rate(session, computed),
        strikes=tuple(_strikes(session, ids, topology, known)),
        late_clears=tuple(_late_clears(closed, attempts, topology)),
        at_rest=at_rest,
        hours=_hours(closed),
    )


def _stages(pinned: Mapping[str, Any] | None) -> Any:
    return None if pinned is None else pinned["stages"]


def _attempts(session: Session, runs: Collection[RunId]) -> dict[RunId, list[AttemptRow]]:
    found: dict[RunId, list[AttemptRow]] = defaultdict(list)
    query = select(AttemptRow).where(AttemptRow.run.in_(runs)).order_by(AttemptRow.began_at, AttemptRow.try_number)
    for row in session.scalars(query):
        if row.is_of_dag_run:
            found[row.run].append(row)
    return found


def _closed(rows: Iterable[RunRow], attempts: Mapping[RunId, list[AttemptRow]]) -> Iterator[_Closed]:
    """Yield the runs whose closing task has committed, oldest first."""
    for row in sorted(rows, key=lambda each: each.epoch):
        ends = [
            each.ended_at
            for each in attempts.get(row.id, ())
            if each.region == CLOSE.name and each.state == AttemptState.COMMITTED.value and each.ended_at is not None
        ]
        if ends:
            yield _Closed(row, min(ends))


def _is_of(topology: Topology, row: AttemptRow) -> bool:
    return topology.knows(RegionId(row.region, row.subtask))


def _seconds(computed: Iterable[AttemptRow], topology: Topology) -> dict[str, float]:
    """Return the seconds of all subtasks of a region: of each, the median of its attempts that have committed.

    The first attempts on a new Spark server take several times as long as all others.
    """
    of: dict[RegionId, list[float]] = defaultdict(list)
    for row in computed:
        of[RegionId(row.region, row.subtask)].append(seconds_of(row))
    return {region.name: sum(median(of[each]) for each in region.ids() if each in of) for region in topology.regions}


def _fixed(computed: Iterable[AttemptRow]) -> Iterator[float]:
    """Yield what attempts have taken besides computing, writing and checking rows; not of those that have waited."""
    for row in computed:
        if row.metrics and not row.waits:
            of_rows = sum(value for name, value in _numbers(row) if name.startswith(_OF_ROWS))
            yield max(0.0, seconds_of(row) - of_rows)


def _numbers(row: AttemptRow) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in (row.metrics or {}).items() if isinstance(value, int | float))


def _rate(session: Session, computed: Sequence[AttemptRow]) -> float:
    """Return the bytes that attempts have written in a second of writing, which includes computing; 0 if none has."""
    seconds = {row.id: sum(value for name, value in _numbers(row) if name.startswith(_WRITING)) for row in computed}
    query = (
        select(ResultRow.attempt, func.sum(ResultRow.bytes))
        .where(ResultRow.run.in_({row.run for row in computed}))
        .group_by(ResultRow.attempt)
    )
    total = sum(int(size) for attempt, size in session.execute(query) if seconds.get(attempt))
    taken = sum(seconds.values())
    return total / taken if taken else 0.0


def _bytes(session: Session, runs: Collection[RunId], topology: Topology) -> tuple[dict[str, float], float]:
    """Return the bytes of each stage in one layout, and those of all intermediate results, on average of the runs."""
    query = (
        select(ResultRow.run, ResultRow.stage, ResultRow.layout, func.sum(ResultRow.bytes))
        .where(ResultRow.run.in_(runs), ResultRow.is_current)
        .group_by(ResultRow.run, ResultRow.stage, ResultRow.layout)
    )
    of: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for run, stage, _, size in session.execute(query):
        of[stage][run].append(int(size))
    published = {*topology.sinks, *topology.states}
    one = {stage: fmean(max(layouts) for layouts in found.values()) for stage, found in of.items()}
    rest = sum(sum(map(sum, found.values())) for stage, found in of.items() if stage not in published)
    return one, rest / len(runs)


def _strikes(
    session: Session, runs: Collection[RunId], topology: Topology, known: Iterable[AttemptRow]
) -> Iterator[Strike]:
    """Yield the failures of attempts, with what was lost; then losses that were found before an attempt failed."""
    lost: dict[str, frozenset[RegionId]] = {}
    query = select(FailoverRow).where(FailoverRow.run.in_(runs)).order_by(FailoverRow.id)
    for failover in session.scalars(query):
        kind = FailoverKind(failover.kind)
        if kind in (FailoverKind.FAILURE, FailoverKind.HELD_BACK):
            continue  # no result was lost; or nothing was restarted
        steps = Plan.from_json(failover.plan).of(StepKind.RERUN)
        gone = frozenset(each.region for each in steps if each.region.is_of_own_run and topology.knows(each.region))
        if failover.attempt:
            lost[failover.attempt] = gone
        elif gone:
            yield Strike(None, lost=gone)
    for row in known:
        if row.failure is not None and row.failure != FailureClass.FENCED.value:
            # A loss is found when an attempt begins, however long it had waited before.
            seconds = 0.0 if row.waits and row.failure == FailureClass.BACKTRACK.value else seconds_of(row)
            yield Strike(RegionId(row.region, row.subtask), seconds, lost.get(row.id, frozenset()))


def _late_clears(
    closed: Sequence[_Closed], attempts: Mapping[RunId, list[AttemptRow]], topology: Topology
) -> Iterator[LateClear]:
    for each in closed:
        later = [other.at for other in closed if other.row.epoch > each.row.epoch]
        for row in attempts[each.row.id]:
            is_clear = row.origin == Origin.CLEARED_BY_PERSON.value and row.began_at >= each.at
            if is_clear and _is_of(topology, row):
                hours = (row.began_at - each.at).total_seconds() / 3600
                yield LateClear(RegionId(row.region, row.subtask), sum(at <= row.began_at for at in later), hours)


def _hours(closed: Sequence[_Closed]) -> float:
    """Return the hours between the first closes of two runs, on average."""
    times = sorted(each.at for each in closed)
    return (times[-1] - times[0]).total_seconds() / 3600 / (len(times) - 1)
