"""Loads the state of a run. Invariant: a decision sees one instant, read in one transaction.

Attempts of deleted DagRuns (tries below 1) are history: decisions ignore them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from weir.dataflow.stage import dataset_of
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import AttemptState, CurrentResult, EarlierRun, ReadSet, RegionState, Results, RunState
from weir.formats.run_record import RecordedDataset
from weir.ledger.attempts import Origin
from weir.ledger.database.tables import AttemptRow, ConsumptionRow, PendingClearRow, ResultRow, RunRow
from weir.ledger.publications import published_results
from weir.ledger.reads import read_sets, reads_of_current, resolved_inputs
from weir.ledger.runs import Run, dataflow_of, run_key, topology_of
from weir.topology.ids import RunId, RunRef, run_ref
from weir.topology.regions import PartitionId, RegionId, Topology

# Columns of tables rather than objects: a state is read several times an attempt, and costs a fifth.
_RESULT, _ATTEMPT, _CLEAR = ResultRow.__table__.c, AttemptRow.__table__.c, PendingClearRow.__table__.c
_CURRENT_RESULTS = (
    select(
        _RESULT.id,
        _RESULT.stage,
        _RESULT.subtask,
        _RESULT.layout,
        _RESULT.attempt,
        _ATTEMPT.try_number,
        _RESULT.state,
        _RESULT.folder,
        _RESULT.manifest_sha256,
        _RESULT.digest,
        _RESULT.rows,
        _RESULT.bytes,
        _RESULT.made_from,
        _RESULT.differs_from,
        _RESULT.fault,
        _RESULT.versions,
        _ATTEMPT.generation,
        _ATTEMPT.code,
    )
    .join(AttemptRow.__table__, _ATTEMPT.id == _RESULT.attempt)
    .where(_RESULT.run == bindparam("run"), _RESULT.is_current)
)

_ATTEMPTS = (
    select(
        _ATTEMPT.region,
        _ATTEMPT.subtask,
        _ATTEMPT.try_number,
        _ATTEMPT.state,
        _ATTEMPT.generation,
        _ATTEMPT.newest_result,
    )
    .where(_ATTEMPT.run == bindparam("run"), AttemptRow.is_of_dag_run)
    .order_by(_ATTEMPT.try_number)
)

_CLEARS = select(
    _CLEAR.region,
    _CLEAR.subtask,
    _CLEAR.expected_try,
    _CLEAR.found_try,
    _CLEAR.is_void,
    _CLEAR.settled_at,
    _CLEAR.newest_result,
).where(_CLEAR.run == bindparam("run"))

_COMMITTED = (
    select(AttemptRow)
    .where(
        AttemptRow.run == bindparam("run"),
        AttemptRow.region == bindparam("region"),
        AttemptRow.subtask == bindparam("subtask"),
        AttemptRow.state == AttemptState.COMMITTED.value,
        AttemptRow.is_of_dag_run,
    )
    .order_by(AttemptRow.try_number.desc())
    .limit(1)
)

_NEWEST_TRY = select(func.max(AttemptRow.try_number)).where(
    AttemptRow.run == bindparam("run"),
    AttemptRow.region == bindparam("region"),
    AttemptRow.subtask == bindparam("subtask"),
    AttemptRow.is_of_dag_run,
)

_OLDEST_OPEN = (
    select(RunRow.id)
    .where(
        RunRow.dataflow == bindparam("dataflow"),
        RunRow.epoch < bindparam("epoch"),
        RunRow.closed_at.is_(None),
        ~RunRow.is_passed_over,
    )
    .order_by(RunRow.epoch)
    .limit(1)
)

_IS_READER = (
    (ConsumptionRow.run == bindparam("run"))
    & (ConsumptionRow.stage == bindparam("stage"))
    & (ConsumptionRow.layout == bindparam("layout"))
)
# Also a committed try that Airflow has lost, which is numbered below 1: its results stay until others replace them.
HAS_CURRENT_RESULTS = select(_RESULT.id).where(_RESULT.attempt == _ATTEMPT.id, _RESULT.is_current).exists()
"""Whether an attempt, of a query about attempts, has results that are current."""
_LAYOUTS_READ = (
    select(ConsumptionRow.layout)
    .where(ConsumptionRow.run == bindparam("run"), ConsumptionRow.stage == bindparam("stage"))
    .distinct()
)
_SETS_READ = select(ConsumptionRow.read_set).where(_IS_READER).distinct()
_LATER_READERS = (
    select(_ATTEMPT.run, _ATTEMPT.region, _ATTEMPT.subtask, ConsumptionRow.read_set)
    .join(ConsumptionRow, ConsumptionRow.attempt == _ATTEMPT.id)
    .join(RunRow, RunRow.id == _ATTEMPT.run)
    .where(_IS_READER, _ATTEMPT.run != bindparam("run"), RunRow.dataflow == bindparam("dataflow"))
    .where(HAS_CURRENT_RESULTS, RunRow.sealed_at.is_(None))
    .order_by(_ATTEMPT.run, _ATTEMPT.try_number, ConsumptionRow.argument)
)
_NEXT_RUN = select(RunRow.id, RunRow.pinned).where(
    RunRow.dataflow == bindparam("dataflow"),
    RunRow.predecessor == bindparam("epoch"),
    RunRow.is_pinned,
    RunRow.sealed_at.is_(None),
)
_WITHOUT_READING = select(_ATTEMPT.subtask).where(
    _ATTEMPT.run == bindparam("reader"),
    _ATTEMPT.region == bindparam("region"),
    _ATTEMPT.origin != Origin.RESTORED.value,
    HAS_CURRENT_RESULTS,
    ~select(ConsumptionRow.attempt).where(ConsumptionRow.attempt == _ATTEMPT.id, _IS_READER).exists(),
)

ENDED = (AttemptState.COMMITTED.value, AttemptState.ADOPTED.value, AttemptState.FAILED.value)


def run_state(
    session: Session,
    run: Run,
    topology: Topology | None = None,
    include: Collection[str] = (),
    known: dict[str, LoadedRun] | None = None,
) -> RunState:
    """Return the present state of `run`, and of earlier runs that its `previous` exchanges reach.

    The earlier runs are the predecessor, all back to the run before the oldest that is not closed, and all back to the
    earliest of `include`. Runs are taken from `known`, and added to it: a decision that reaches further back, step by
    step, in one transaction, loads each once.
    """
    own = topology or run.topology
    session.flush()
    known = {} if known is None else known
    own_run = _loaded(session, run.id, run.id, known)
    results, regions = dict(own_run.results), dict(own_run.regions)
    before = _epoch_before(session, run) if own.reads_previous else None
    earlier: dict[RunRef, EarlierRun] = {}
    reaching, oldest_open = before, _oldest_open(session, run) if before is not None else ()
    while reaching is not None:
        of_run = _loaded(session, reaching, run.id, known)
        found = of_run.earlier or _earlier(session, reaching, own)
        known[reaching] = replace(of_run, earlier=found)
        earlier[reaching] = found
        results |= of_run.results
        regions |= of_run.regions
        # The inputs of an open run may have changed since: the run before it is loaded, too.
        is_wanted = any(each <= reaching for each in oldest_open) or any(each < reaching for each in include)
        reaching = found.predecessor if is_wanted and found.topology.reads_previous else None
    datasets = resolved_inputs(session, run.id) if own.reads_datasets else []
    return RunState(
        run=RunId(run.id),
        topology=own,
        results=results,
        regions=regions,
        predecessor=before,
        earlier=earlier,
        published=_published(session, run.id, (own, *(each.topology for each in earlier.values())), results, datasets),
        datasets={(each.stage, each.argument): each.runs for each in datasets},
    )


def _published(
    session: Session, run: str, topologies: Iterable[Topology], results: Results, datasets: Iterable[RecordedDataset]
) -> dict[PartitionId, CurrentResult]:
    """Return what other dataflows have published of all that the run is to read, or that any result was made of."""
    if not any(each.reads_datasets for each in topologies):
        return {}
    wanted = {(of, dataset_of(each.dataset).sink) for each in datasets for of in each.runs}
    for result in results.values():
        for reads in result.reads:
            first = reads.members[0].partition if reads.members else None
            if first is not None and first.is_of_other_dataflow(run):
                wanted.add((first.run, first.stage))
    return published_results(session, wanted)


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """What the ledger has of one run, seen from another; `earlier` is None for the run that a state is of."""

    results: Mapping[PartitionId, CurrentResult]
    regions: Mapping[RegionId, RegionState]
    earlier: EarlierRun | None = None


def _loaded(session: Session, run: str, current: str, known: dict[str, LoadedRun]) -> LoadedRun:
    if run not in known:
        known[run] = LoadedRun(_results(session, run, current), _regions(session, run, current))
    return known[run]


def _earlier(session: Session, run: RunRef, like: Topology) -> EarlierRun:
    row = session.get_one(RunRow, run)
    topology = like if row.pinned is None else topology_of(row.pinned)
    predecessor = None if row.predecessor is None else RunRef(run_key(row.dataflow, row.predecessor))
    return EarlierRun(run, topology, predecessor, row.has_dag_run)


def _epoch_before(session: Session, run: Run) -> RunRef | None:
    """Return the run before as the ledger has it now: that may be another one since `run` was read, by a seal."""
    row = session.get_one(RunRow, run.id)
    return None if row.predecessor is None else RunRef(run_key(row.dataflow, row.predecessor))


def _oldest_open(session: Session, run: Run) -> tuple[str, ...]:
    """Return the oldest run before `run` that is not closed nor passed over: all runs before it are valid."""
    oldest = session.scalar(_OLDEST_OPEN, {"dataflow": run.dataflow.name, "epoch": run.epoch})
    return () if oldest is None else (oldest,)


def _results(session: Session, run: str, current: str) -> dict[PartitionId, CurrentResult]:
    reads = reads_of_current(session, run, current)
    shown = run_ref(run, current)
    results = {}
    for row in session.connection().execute(_CURRENT_RESULTS, {"run": run}):
        partition = PartitionId(row.stage, row.subtask, row.layout, shown)
        results[partition] = _current(row, partition, tuple(reads.get(row.attempt, ())))
    return results


def _current(row: Any, partition: PartitionId, reads: tuple[ReadSet, ...]) -> CurrentResult:
    return CurrentResult(
        partition=partition,
        result=row.id,
        attempt=row.attempt,
        try_number=row.try_number,
        state=PartitionState(row.state),
        folder=row.folder,
        manifest_sha256=row.manifest_sha256,
        digest=row.digest,
        rows=row.rows,
        bytes=row.bytes,
        reads=reads,
        made_from=row.made_from,
        differs_from=row.differs_from,
        fault=row.fault,
        versions=frozenset(row.versions),
        code=row.code,
        generation=row.generation or 0,
    )


def regions_of(session: Session, run: str) -> dict[RegionId, RegionState]:
    """Return the states of the regions of a run that have begun, or are to be cleared."""
    session.flush()
    return _regions(session, run, run)


def _regions(session: Session, run: str, current: str) -> dict[RegionId, RegionState]:
    shown = run_ref(run, current)
    connection = session.connection()
    repairs: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for clear in connection.execute(_CLEARS, {"run": run}):
        repairs[clear.region, clear.subtask].append(clear)
    attempts: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for attempt in connection.execute(_ATTEMPTS, {"run": run}):
        attempts[attempt.region, attempt.subtask].append(attempt)
    regions = (RegionId(*each, shown) for each in attempts.keys() | repairs.keys())
    return {
        each: _region(each, attempts[each.name, each.subtask], repairs[each.name, each.subtask]) for each in regions
    }


def _region(region: RegionId, attempts: list[Any], repairs: list[Any]) -> RegionState:
    """`attempts` and `repairs` are rows as selected, the attempts oldest first."""
    newest = attempts[-1] if attempts else None
    committed = (each.generation or 0 for each in attempts if each.state == AttemptState.COMMITTED.value)
    return RegionState(
        region=region,
        newest_try=max(
            [newest.try_number if newest else 0, *(each.found_try or 0 for each in repairs if each.is_void)]
        ),
        newest_state=AttemptState(newest.state) if newest else None,
        ended_try=max((each.try_number for each in attempts if each.state in ENDED), default=0),
        repair_after_try=max((each.expected_try for each in repairs if not each.is_void), default=None),
        is_to_be_cleared=any(each.settled_at is None for each in repairs),
        committed_generation=max(committed, default=0),
        newest_result=max(each.newest_result for each in (*attempts[-1:], *repairs)),
    )


def committed_attempt(session: Session, run: str, region: RegionId) -> AttemptRow | None:
    """Return the newest committed attempt of `region`, whose results are current."""
    return session.scalar(_COMMITTED, {"run": run, "region": region.name, "subtask": region.subtask})


@dataclass(frozen=True, slots=True)
class LaterReader:
    """A region of another run whose current results were made of a run, and the name of the set that it has read."""

    run: RunId
    region: RegionId
    read_set: str


def read_sets_of(session: Session, run: str, stage: str, layout: str) -> dict[str, ReadSet]:
    """Return what any attempt has read of a stage of `run` in one layout, by the name of the read set."""
    sets = session.connection().scalars(_SETS_READ, {"run": run, "stage": stage, "layout": layout})
    return read_sets(session, sets, (run, stage, layout), run)


def layouts_read_of(session: Session, run: str, stage: str) -> set[str]:
    """Return the layouts in which any attempt has read a stage of `run`."""
    return set(session.connection().scalars(_LAYOUTS_READ, {"run": run, "stage": stage}))


def readers_in_other_runs(session: Session, run: str, stage: str, layout: str) -> list[LaterReader]:
    """Return the regions of other runs of its dataflow whose current results were made of `run`; oldest epoch first.

    Those of sealed runs are left out: nothing of them runs. Those of other dataflows have read what is published of it,
    which is another question.
    """
    session.flush()
    place = {"run": run, "stage": stage, "layout": layout, "dataflow": dataflow_of(run)}
    rows = session.connection().execute(_LATER_READERS, place)
    return [LaterReader(of, RegionId(name, subtask), read_set) for of, name, subtask, read_set in rows]


def began_without(session: Session, run: Run, state: str, layout: str) -> Iterator[tuple[RunId, Topology, RegionId]]:
    """Yield the regions of the next run that have committed without this state of `run`, which had none then.

    Each comes with the next run's id and topology.
    """
    session.flush()
    connection, place = session.connection(), {"run": run.id, "stage": state, "layout": layout}
    for reader, pinned in connection.execute(_NEXT_RUN, {"dataflow": run.dataflow.name, "epoch": run.epoch}).all():
        topology = topology_of(pinned)
        if state in topology.states:
            region = topology.logical_region_of(state).name
            for subtask in connection.scalars(_WITHOUT_READING, {"reader": reader, "region": region, **place}):
                yield RunId(reader), topology, RegionId(region, subtask)


def newest_try(session: Session, run: str, region: RegionId) -> int:
    """Return the number of the newest registered try of `region`; 0 where there is none."""
    return session.scalar(_NEWEST_TRY, {"run": run, "region": region.name, "subtask": region.subtask}) or 0
