"""Sizes of results at rest, and size estimates for results that are being written.

Invariant: nothing is changed. Counted are committed results whose bytes are stored by the ledger, files that
compactions have written, archives of code, and copies of what sources have read. A file of keyed state counts once,
with the attempt that wrote it, until all files of that attempt are deleted. Partial files, cached stage output,
records, manifests, files of dead attempts, and compactions from before a rebuild of the ledger have no rows, and are
not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Select, bindparam, case, func, or_, select
from sqlalchemy.orm import Session

from weir.errors import Fault, Misconfigured
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, AttemptState
from weir.ledger.database.code_tables import ArchiveRow
from weir.ledger.database.tables import AttemptRow, CompactionRow, DataflowRow, ResultRow, RunRow
from weir.ledger.runs import topology_of
from weir.ledger.sources import copied_bytes
from weir.topology.regions import PartitionId, RegionId, Topology

LATEST = 3
"""How many of the latest results of a partition give the smallest and the largest estimate for the next one."""

_RUNS = 20
"""How many of the newest runs are searched for them: more than usually run at once."""

_IS_RELEASED = ResultRow.state == PartitionState.RELEASED.value

_OF_RESULTS = (
    select(RunRow.dataflow, func.sum(ResultRow.bytes))
    .join(RunRow, RunRow.id == ResultRow.run)
    .group_by(RunRow.dataflow)
)

# Built once: building a statement costs more than executing it.
_AT_REST = or_(
    ResultRow.state.in_((PartitionState.FINISHED.value, PartitionState.QUARANTINED.value)),
    _IS_RELEASED & ResultRow.deleted_at.is_(None),
    (ResultRow.state == PartitionState.LOST.value) & (ResultRow.fault == Fault.DAMAGED.value),
)

_NEWEST = (
    select(RunRow.id).where(RunRow.dataflow == bindparam("dataflow")).order_by(RunRow.created_at.desc()).limit(_RUNS)
)

_SIZES = (
    select(ResultRow.stage, ResultRow.subtask, ResultRow.layout, ResultRow.bytes)
    .where(
        ResultRow.run.in_(bindparam("runs", expanding=True)),
        ResultRow.is_current,
        ResultRow.stage.in_(bindparam("stages", expanding=True)),
        ResultRow.subtask.in_(bindparam("subtasks", expanding=True)),
    )
    .order_by(ResultRow.id.desc())
)

_RUNNING = (
    select(AttemptRow.id, AttemptRow.began_at, AttemptRow.region, AttemptRow.subtask, RunRow.dataflow, RunRow.id)
    .join(RunRow, RunRow.id == AttemptRow.run)
    .where(
        RunRow.closed_at.is_(None),
        RunRow.deleted_at.is_(None),
        RunRow.is_pinned,
        AttemptRow.is_of_dag_run,
        AttemptRow.region != CLOSE.name,
        AttemptRow.state == AttemptState.RUNNING.value,
        AttemptRow.id != bindparam("asking"),
    )
)


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """The estimated bytes that an attempt will write, from the sizes of recent results; 0 if there are none."""

    least: int = 0
    most: int = 0

    def __add__(self, other: SizeEstimate) -> SizeEstimate:
        return SizeEstimate(self.least + other.least, self.most + other.most)


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """A running attempt, the estimate of what it writes, and whether it began before the requesting attempt."""

    dataflow: str
    attempt: str
    estimate: SizeEstimate
    is_earlier: bool


def dataflows(session: Session) -> list[str]:
    """Return the names of all dataflows."""
    return list(session.scalars(select(DataflowRow.name).order_by(DataflowRow.name)))


def bytes_at_rest(session: Session, dataflow: str | None = None) -> int:
    """Return the bytes of stored results, compactions, archives and copies of sources, of a dataflow or of all."""
    results = select(func.sum(ResultRow.bytes)).where(_AT_REST)
    compacted = select(func.sum(CompactionRow.written_bytes))
    archives = select(func.sum(ArchiveRow.bytes))
    if dataflow is not None:
        results = results.join(RunRow, RunRow.id == ResultRow.run).where(RunRow.dataflow == dataflow)
        compacted = compacted.where(CompactionRow.dataflow == dataflow)
        archives = archives.where(ArchiveRow.dataflow == dataflow)
    stored = sum(int(session.scalar(query) or 0) for query in (results, compacted, archives))
    return stored + sum(copied_bytes(session, None if dataflow is None else [dataflow]).values())


def published_bytes(session: Session, names: Collection[str], without: Collection[str] = ()) -> dict[str, int]:
    """Return, by dataflow, the bytes of runs with nothing left to release: their stored results are published.

    Runs of `without` are left out.
    """
    is_lasting = RunRow.released_at.is_not(None) & RunRow.id.not_in(without)
    return _sums(session, _OF_RESULTS.where(RunRow.dataflow.in_(names), is_lasting, _AT_REST, ~_IS_RELEASED))


def suspected_bytes(session: Session, dataflow: str) -> int:
    """Return the bytes of current results in quarantine, and of damaged ones: their release is not decided about."""
    is_suspected = ResultRow.state.in_((PartitionState.QUARANTINED.value, PartitionState.LOST.value))
    query = _OF_RESULTS.where(RunRow.dataflow == dataflow, RunRow.released_at.is_(None), _AT_REST, is_suspected)
    return _sums(session, query.where(ResultRow.is_current)).get(dataflow, 0)


def shared_state(session: Session, names: Collection[str]) -> dict[str, int]:
    """Return, by dataflow, the bytes of compactions, and of state that is in use although released."""
    released = _OF_RESULTS.where(RunRow.dataflow.in_(names), _IS_RELEASED, ResultRow.deleted_at.is_(None))
    compacted = select(CompactionRow.dataflow, func.sum(CompactionRow.written_bytes))
    found = Counter(_sums(session, released))
    found.update(_sums(session, compacted.where(CompactionRow.dataflow.in_(names)).group_by(CompactionRow.dataflow)))
    return dict(found)


def archive_bytes(session: Session, names: Collection[str]) -> dict[str, int]:
    """Return, by dataflow, the bytes of archives of code."""
    query = select(ArchiveRow.dataflow, func.sum(ArchiveRow.bytes)).where(ArchiveRow.dataflow.in_(names))
    return _sums(session, query.group_by(ArchiveRow.dataflow))


def _sums(session: Session, query: Select[str, int]) -> dict[str, int]:
    return {name: int(found) for name, found in session.execute(query)}


def runs_by_age(session: Session, names: Collection[str]) -> list[tuple[str, str]]:
    """Return the runs with results to release, and their dataflows: closed runs first, oldest first.

    Of each dataflow the oldest epoch comes first, whenever it was closed: a backfill has closed it again, perhaps.
    """
    is_open = case((RunRow.closed_at.is_(None), 1), else_=0)
    query = select(RunRow.dataflow, RunRow.id).where(
        RunRow.dataflow.in_(names), RunRow.is_pinned, RunRow.released_at.is_(None)
    )
    by_epoch: dict[str, list[str]] = defaultdict(list)
    for name, run in session.execute(query.order_by(is_open, RunRow.epoch)):
        by_epoch[name].append(run)
    in_turn = {name: iter(runs) for name, runs in by_epoch.items()}
    since = func.coalesce(RunRow.closed_at, RunRow.created_at)
    turns = session.execute(query.order_by(is_open, since, RunRow.id))
    return [(name, next(in_turn[name])) for name, _ in turns]


def size_estimates(
    session: Session, dataflow: str, partitions: Iterable[PartitionId]
) -> dict[PartitionId, SizeEstimate]:
    """Estimate the sizes of partitions by their latest results in any run of the dataflow."""
    wanted = set(partitions)
    if not wanted:
        return {}
    connection = session.connection()
    rows = connection.execute(
        _SIZES,
        {
            "runs": list(connection.execute(_NEWEST, {"dataflow": dataflow}).scalars()),
            "stages": sorted({each.stage for each in wanted}),
            "subtasks": sorted({each.subtask for each in wanted}),
        },
    )
    found: dict[PartitionId, list[int]] = defaultdict(list)
    for stage, subtask, layout, size in rows:
        found[PartitionId(stage, subtask, layout)].append(size)
    latest = {each: found[each][:LATEST] for each in wanted if each in found}
    return {each: SizeEstimate(min(sizes), max(sizes)) for each, sizes in latest.items()}


def running_attempts(session: Session, asking: str) -> list[RunningAttempt]:
    """Return the running attempts in open runs of all dataflows, except `asking` (an attempt's id)."""
    own = session.get(AttemptRow, asking)
    rows = session.connection().execute(_RUNNING, {"asking": asking}).tuples().all()
    outputs = _outputs(session, {(row[5], RegionId(row[2], row[3])) for row in rows})
    wanted: dict[str, set[PartitionId]] = defaultdict(set)
    for _, _, region, subtask, dataflow, run in rows:
        wanted[dataflow].update(outputs[run, RegionId(region, subtask)])
    sizes = {dataflow: size_estimates(session, dataflow, partitions) for dataflow, partitions in wanted.items()}
    return [
        RunningAttempt(
            dataflow,
            attempt,
            total_of(sizes[dataflow], outputs[run, RegionId(region, subtask)]),
            own is None or (began_at, attempt) < (own.began_at, own.id),
        )
        for attempt, began_at, region, subtask, dataflow, run in rows
    ]


def total_of(sizes: Mapping[PartitionId, SizeEstimate], partitions: Iterable[PartitionId]) -> SizeEstimate:
    """Return the sum of the known estimates of partitions."""
    return sum((sizes[each] for each in partitions if each in sizes), SizeEstimate())


def _outputs(
    session: Session, regions: Collection[tuple[str, RegionId]]
) -> dict[tuple[str, RegionId], tuple[PartitionId, ...]]:
    topologies = {run: _topology(session, run) for run in {run for run, _ in regions}}
    found: dict[tuple[str, RegionId], tuple[PartitionId, ...]] = {}
    for run, region in regions:
        topology = topologies[run]
        is_known = topology is not None and topology.knows(region)
        found[run, region] = topology.outputs(region) if topology is not None and is_known else ()
    return found


def _topology(session: Session, run: str) -> Topology | None:
    """Return None for a run whose record cannot be read: what its attempts write is not known."""
    pinned = session.get_one(RunRow, run).pinned
    try:
        return None if pinned is None else topology_of(pinned)
    except Misconfigured:
        return None
