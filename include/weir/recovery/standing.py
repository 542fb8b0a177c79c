"""Answers how a run stands: it loads the facts of the run and of the open ones before it, and asks Airflow about them.

Invariant: only `clear_stopped` changes anything, in the ledger or in Airflow. Airflow is asked before the ledger is
read: a task commits before Airflow knows that it has succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.coordination.airflow import AirflowStates, ClearItem, OpenRun
from weir.coordination.services import Services
from weir.coordination.values import DeliveredClear
from weir.errors import WeirError
from weir.execution.airflow_words import CLEARABLE
from weir.execution.run_state import CLOSE, FINISHED, AttemptState, MissingContext, RegionState, RunState
from weir.ledger.attempts import awaited_by, newest_attempts
from weir.ledger.clears import add_pending_clears, clears_of_run, task_of
from weir.ledger.database.tables import AttemptRow, DataflowRow, FailedBeginRow, RunRow
from weir.ledger.deliveries import pending_deliveries
from weir.ledger.failed_begins import failed_begins, failed_begins_of, region_of_begin
from weir.ledger.publications import published_versions
from weir.ledger.runs import ZONE, Run, dataflow_of, epoch_of, newest_pinned, run_by_id, run_key, topology_of
from weir.ledger.snapshot import committed_attempt, run_state
from weir.recovery.expansion import Wanted, as_airflow_makes_them
from weir.recovery.inputs import expired_producers, sort_inputs
from weir.recovery.pending_clears import deliver
from weir.recovery.rules.standing import (
    EpochFacts,
    SeenDagRun,
    SeenTask,
    Stand,
    Standing,
    TaskFacts,
    is_undecided,
    standings,
)
from weir.topology.ids import OWN_RUN, RunId, RunRef
from weir.topology.regions import RegionId, Topology

AGAIN = "weir: {} has this run go on"
"""The reason of the clears of what has stopped, with who has it."""

NOT_ASKED = "Airflow was not asked"

Seen = Mapping[RegionId, SeenTask]
"""What Airflow has of the tasks of a run, by region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Airflow, if it can be asked, else why not; and the largest number of tasks to ask about."""

    airflow: AirflowStates | None
    why_not: str = NOT_ASKED
    most: int = 20_000


@dataclass(frozen=True, slots=True)
class NeverBegun:
    """A DagRun of a dataflow of which no run has begun: only the tasks are known that failed to."""

    id: RunId
    dag_id: str
    run_id: str


def open_runs(services: Services, runs: Iterable[str]) -> list[RunId]:
    """Return those of the runs that are not closed, or whose version is not in all its targets yet, oldest first."""
    with services.ledger.transaction() as session:
        rows = session.scalars(select(RunRow).where(RunRow.id.in_([*runs])).order_by(RunRow.dataflow, RunRow.epoch))
        there = [each for each in rows if _is_of_airflow(each)]
        waiting = {row.run for of in {each.dataflow for each in there} for row in pending_deliveries(session, of)}
        return [each.id for each in there if each.closed_at is None or each.id in waiting]


def unsuccessful_runs(services: Services, runs: Iterable[str], asked: Asked) -> list[RunId]:
    """Return those of the runs that are closed, and whose DagRun runs again, or has failed, oldest first."""
    with services.ledger.transaction() as session:
        rows = session.scalars(select(RunRow).where(RunRow.id.in_([*runs])).order_by(RunRow.dataflow, RunRow.epoch))
        closed = {(each.dag_id, each.run_id): each.id for each in rows if _is_of_airflow(each) and each.closed_at}
    there = [
        (dag_id, each.run_id)
        for dag_id in dict.fromkeys(dag_id for dag_id, _ in closed)
        for each in _open_in_airflow(dag_id, asked)
    ]
    return sorted(closed[each] for each in there if each in closed)


def standing_to_tell(services: Services, run: RunId, asked: Asked) -> Standing | None:
    """Return how a run of the ledger stands; None where it is published, and Airflow calls nothing of it failed."""
    with services.ledger.transaction() as session:
        if not _is_of_airflow(session.get_one(RunRow, run)):
            return None
    found = standing_of(services, run, asked)
    return None if found is None or found.stand is Stand.PUBLISHED else found


def _is_of_airflow(row: RunRow) -> bool:
    """Report whether Airflow may compute a run, or what of it is missing."""
    return row.has_dag_run and row.expired_at is None and not row.is_given_up


def all_standings(services: Services, runs: Sequence[RunId], asked: Asked) -> dict[RunId, Standing]:
    """Return how runs stand; those of a dataflow whose epochs read each other are looked at together."""
    found: dict[RunId, Standing] = {}
    for run in reversed(runs):
        if run not in found:
            found |= {each: standing for each, standing in _standings(services, run, asked).items() if each in runs}
    return found


def standing_of(services: Services, run: str, asked: Asked, only: RegionId | None = None) -> Standing | None:
    """Return how a run stands; None where no task of its dataflow has ever begun, so that its tasks are not known.

    `only`: the task of the run that is asked for. Raises Retryable where the ledger does not answer.
    """
    return _standings(services, run, asked, only).get(RunId(run))


def _standings(services: Services, run: str, asked: Asked, only: RegionId | None = None) -> dict[RunId, Standing]:
    """Return how a run stands, and the open ones before it. Of a closed run, Airflow is asked what it runs again."""
    with services.ledger.transaction() as session:
        chain = _chain(session, run)
        # The run that asks for one task only runs, since that task does.
        skipped = {run} if only is not None else set()
        items = {each: {} if each in skipped else _items(session, of) for each, of in chain.items()}
    seen, why_not = _seen(chain, items, asked)
    with services.ledger.transaction() as session:
        epochs = list(_facts(session, chain, seen, run, why_not, only))
    found = standings(epochs)
    if RunId(run) not in found or why_not or asked.airflow is None:
        return found
    last = next(each for each in epochs if each.run == found[RunId(run)].root.run)
    if not is_undecided(last) or (only is not None and last.run == run):
        return found
    epochs[epochs.index(last)] = _with_dag_run(last, asked.airflow)
    return standings(epochs)


def unknown_standings(
    services: Services, asked: Asked, dataflow: str | None = None
) -> list[tuple[Run | NeverBegun, Standing]]:
    """Return how open DagRuns stand that the ledger does not know, since no task of theirs has begun, oldest first.

    Their tasks are taken to be those of the newest run of their dataflow; where that has none, either, only those are
    known that failed before they were registered. Nothing where Airflow cannot be asked.
    """
    with services.ledger.transaction() as session:
        query = select(RunRow).where(RunRow.has_dag_run).order_by(RunRow.dataflow, RunRow.epoch)
        rows = session.scalars(query if dataflow is None else query.where(RunRow.dataflow == dataflow)).all()
        newest = {row.dataflow: row for row in rows}
        known = {row.id for row in rows}
        pinned = {name: newest_pinned(session, name) for name in newest}
        unknown = {key: rows for key, rows in failed_begins(session, dataflow).items() if not pinned.get(key[0])}
        failed = {key: begins for key, rows in unknown.items() if (begins := [each for each in rows if each.epoch])}
    found: list[tuple[Run | NeverBegun, Standing]] = []
    for name, row in newest.items():
        runs = [] if (record := pinned[name]) is None else _unknown_runs(row, record, asked)
        found += [(run, _unknown(services, run, asked)) for run in runs if run.id not in known]
    of_dag = {dag_id: _open_in_airflow(dag_id, asked) for _, dag_id, _ in failed}
    for (_, dag_id, run_id), begins in failed.items():
        there = next((each for each in of_dag[dag_id] if each.run_id == run_id), None)
        found += [] if there is None else [_never_begun(begins, there, asked)]
    return sorted(found, key=lambda each: each[0].id)


def _open_in_airflow(dag_id: str, asked: Asked, zone: str = "UTC") -> list[OpenRun]:
    try:
        return [] if asked.airflow is None else asked.airflow.open_runs(dag_id, zone)
    except WeirError:
        return []


def _never_begun(begins: Sequence[FailedBeginRow], there: OpenRun, asked: Asked) -> tuple[NeverBegun, Standing]:
    """Return how a DagRun stands of a dataflow of which no run has ever begun."""
    first = begins[0]
    run = NeverBegun(run_key(first.dataflow, first.epoch or epoch_of(there.interval[0])), first.dag_id, first.run_id)
    items = {
        region_of_begin(each): Wanted(
            ClearItem(each.dag_id, each.run_id, each.task_id, each.map_index, None), 1, is_running=True
        )
        for each in begins
    }
    seen, why_not = _seen([run.id], {run.id: items}, asked)
    tasks = [
        TaskFacts(
            region=region_of_begin(each), begin_error=each.error, seen=seen.get(run.id, {}).get(region_of_begin(each))
        )
        for each in begins
    ]
    facts = EpochFacts(
        run=run.id,
        dag_id=run.dag_id,
        run_id=run.run_id,
        start=there.interval[0],
        asked=why_not,
        has_unknown_tasks=True,
        tasks=tuple(tasks),
    )
    if is_undecided(facts) and asked.airflow is not None:
        facts = _with_dag_run(facts, asked.airflow)
    return run, standings([facts])[run.id]


def _unknown_runs(like: RunRow, pinned: Mapping[str, Any], asked: Asked) -> list[Run]:
    topology = topology_of(pinned)
    return [
        Run(
            id=run_key(like.dataflow, epoch_of(each.interval[0])),
            topology=topology,
            epoch=epoch_of(each.interval[0]),
            interval=each.interval,
            dag_id=like.dag_id,
            run_id=each.run_id,
            task_prefix=like.task_prefix,
            parameters={},
            predecessor=None,
            lineage=0,
        )
        for each in _open_in_airflow(like.dag_id, asked, pinned.get(ZONE, "UTC"))
    ]


def _unknown(services: Services, run: Run, asked: Asked) -> Standing:
    with services.ledger.transaction() as session:
        items = {run.id: _items(session, run)}
        begins = {
            region_of_begin(each): each.error
            for each in failed_begins_of(session, dataflow_of(run.id), run.dag_id, run.run_id)
        }
    seen, why_not = _seen({run.id: run}, items, asked)
    tasks = [
        TaskFacts(
            region=region,
            upstream=_upstream(run.topology, region),
            begin_error=begins.get(region, ""),
            seen=seen.get(run.id, {}).get(region),
        )
        for region in (*run.topology.region_ids(), CLOSE)
    ]
    facts = EpochFacts(
        run=run.id, dag_id=run.dag_id, run_id=run.run_id, start=run.interval[0], asked=why_not, tasks=tuple(tasks)
    )
    if is_undecided(facts) and asked.airflow is not None:
        facts = _with_dag_run(facts, asked.airflow)
    return standings([facts])[run.id]


def _chain(session: Session, run: str) -> dict[RunId, Run]:
    """Return the run and the open ones before it that it may wait for, oldest first; empty where none is known."""
    row = session.get_one(RunRow, run)
    pinned = row.pinned or newest_pinned(session, row.dataflow)
    if pinned is None:
        return {}
    own = run_by_id(session, row.id, topology_of(pinned))
    # One query, whose rows are held while the chain is walked.
    is_open = (RunRow.dataflow == row.dataflow) & (RunRow.epoch <= row.epoch) & RunRow.closed_at.is_(None)
    held = (session.scalars(select(RunRow).where(is_open)).all(), session.get_one(DataflowRow, row.dataflow))
    before: dict[RunId, Run] = {}
    earlier = own if row.closed_at is None and own.topology.reads_previous else None
    while earlier is not None and earlier.predecessor_run is not None:
        found = session.get(RunRow, earlier.predecessor_run)
        if found is None or found.closed_at is not None or not found.has_dag_run or found.is_passed_over:
            break
        earlier = before[found.id] = run_by_id(session, found.id, own.topology)
    del held
    return {**dict(reversed(before.items())), own.id: own}


def _rows(session: Session, runs: Iterable[RunId]) -> list[RunRow]:
    return list(session.scalars(select(RunRow).where(RunRow.id.in_([*runs]))))


def _items(session: Session, run: Run) -> dict[RegionId, Wanted]:
    """Return the task instances of a run."""
    found = {}
    for region in (*run.topology.region_ids(), CLOSE):
        task_id, index = task_of(session, run, region)
        count = 1 if region == CLOSE else run.topology.region(region.name).parallelism
        # As if a task of the run asked: nothing is started only to answer.
        found[region] = Wanted(ClearItem(run.dag_id, run.run_id, task_id, index, None), count, is_running=True)
    return found


def _seen(
    chain: Iterable[RunId], items: Mapping[RunId, Mapping[RegionId, Wanted]], asked: Asked
) -> tuple[dict[RunId, dict[RegionId, SeenTask]], str]:
    """Ask Airflow about tasks, those of the oldest run first; return why not, or empty, besides."""
    wanted = [(run, region, each) for run in chain for region, each in items[run].items()][: asked.most]
    if not wanted:
        return {}, ""
    if asked.airflow is None:
        return {}, asked.why_not
    try:
        answers = asked.airflow.inspect([each.item for *_, each in wanted])
        answers = as_airflow_makes_them(asked.airflow, [each for *_, each in wanted], answers)
    except WeirError as error:
        return {}, f"Airflow: {error}"
    found: dict[RunId, dict[RegionId, SeenTask]] = {}
    for (run, region, _), answer in zip(wanted, answers, strict=True):
        found.setdefault(run, {})[region] = SeenTask(answer.state, answer.try_number)
    return found, ""


def _with_dag_run(facts: EpochFacts, airflow: AirflowStates) -> EpochFacts:
    try:
        run, dag = airflow.seen_run(facts.dag_id, facts.run_id), airflow.seen_dag(facts.dag_id)
    except WeirError as error:
        return replace(facts, asked=f"Airflow: {error}")
    state = None if run is None else run.state
    known = () if dag is None else (dag.is_paused, dag.has_scheduler, dag.has_import_errors)
    found = SeenDagRun(state, *known)
    return replace(facts, dag_run=found)


# Facts


def _facts(
    session: Session,
    chain: Mapping[RunId, Run],
    seen: Mapping[RunId, Seen],
    run: str,
    why_not: str,
    only: RegionId | None,
) -> Iterable[EpochFacts]:
    """Yield the facts of each run of a chain, as the state of the last one has them."""
    if not chain:
        return
    own = chain[RunId(run)]
    # Held, so that the session need not load each of them again.
    held = (_rows(session, chain), session.get_one(DataflowRow, own.dataflow.name))
    state = run_state(session, own)
    for each, of in chain.items():
        ref = OWN_RUN if each == run else RunRef(each)
        if ref != OWN_RUN and ref not in state.earlier:
            continue  # it was closed meanwhile
        yield _facts_of(session, state, of, ref, seen.get(each, {}), why_not, only if each == run else None)
    del held


def _facts_of(
    session: Session, state: RunState, run: Run, ref: RunRef, seen: Seen, why_not: str, only: RegionId | None
) -> EpochFacts:
    row = session.get_one(RunRow, run.id)
    facts = EpochFacts(
        run=run.id,
        dag_id=row.dag_id,
        run_id=row.run_id,
        start=row.interval_start,
        is_closed=row.closed_at is not None or not row.has_dag_run or row.expired_at is not None,
        was_published=bool(published_versions(session, run.id)),
        sealed=row.sealed_why or "",
        sealed_at=row.sealed_at,
        undelivered=_undelivered(session, run),
        asked=why_not,
    )
    if facts.is_closed and not seen:
        return facts
    tries = {region: rows[-1] for region, rows in newest_attempts(session, run.id).items()}
    begins = {
        region_of_begin(each): each for each in failed_begins_of(session, dataflow_of(run.id), run.dag_id, run.run_id)
    }
    tasks = []
    for region in (*run.topology.region_ids(), CLOSE) if only is None else (only,):
        attempt, begin = tries.get(region), begins.get(region)
        is_newer = begin is not None and (attempt is None or begin.try_number > attempt.try_number)
        found = _task(session, state, run, region, ref, attempt, seen.get(region))
        tasks.append(replace(found, begin_error=begin.error) if begin is not None and is_newer else found)
    return replace(facts, tasks=tuple(tasks), close_awaits=None if facts.is_closed else _close_awaits(session, run))


def _task(
    session: Session,
    state: RunState,
    run: Run,
    region: RegionId,
    ref: RunRef,
    attempt: AttemptRow | None,
    seen: SeenTask | None,
) -> TaskFacts:
    located = region if ref == OWN_RUN else region.in_run(ref)
    known = state.region(located)
    facts = TaskFacts(
        region=region,
        state=_state(known),
        try_number=known.newest_try,
        is_to_be_cleared=known.is_to_be_cleared,
        upstream=_upstream(run.topology, region),
        seen=seen,
    )
    if attempt is not None:
        since, error = attempt.ended_at or attempt.began_at, attempt.error or ""
        facts = replace(facts, since=since, error=error, awaited=awaited_by(attempt))
    if region == CLOSE:
        closing = committed_attempt(session, run.id, CLOSE)
        return replace(facts, has_result=closing is not None and closing.try_number >= _try_of(seen))
    outputs = state.outputs(located)
    is_done = all(state.is_done(each) for each in outputs) if outputs else known.newest_state in FINISHED
    has_result = all(each in state.results for each in outputs) if outputs else is_done
    awaits = _awaits(state, located) if facts.state is AttemptState.WAITING else ()
    return replace(facts, is_done=is_done, has_result=has_result, awaits=awaits)


def _try_of(seen: SeenTask | None) -> int:
    return 0 if seen is None else seen.try_number


def _state(known: RegionState) -> AttemptState | None:
    """Return the state of the newest attempt; None for one that has ended and was cleared since."""
    return known.newest_state if known.is_unended or not known.under_repair else None


def _upstream(topology: Topology, region: RegionId) -> frozenset[str]:
    before = topology.leaves if region == CLOSE else topology.upstream(region.name)
    return frozenset(each.name for each in before)


def _awaits(state: RunState, region: RegionId) -> tuple[RegionId, ...]:
    """Return what an attempt waits for; what is of its own run has no run."""
    try:
        inputs = sort_inputs(state, region)
    except (WeirError, MissingContext):
        return ()
    found = expired_producers(state, inputs).union(*inputs.awaited.values())
    return tuple(sorted(each.in_run(OWN_RUN) if each.run == region.run else each for each in found))


def _close_awaits(session: Session, run: Run) -> RunId | None:
    before = run.predecessor_run
    row = None if before is None or not run.dataflow.keeps_state else session.get(RunRow, before)
    return None if row is None or row.closed_at is not None else before


def _undelivered(session: Session, run: Run) -> str:
    rows = [row for row in pending_deliveries(session, run.dataflow.name) if row.run == run.id]
    said = (f": {row.problem}" if row.problem else "" for row in rows[:1])
    return "".join(f"version {rows[0].version} of {rows[0].sink} is not yet in its target{each}" for each in said)


# What goes on


@dataclass(frozen=True, slots=True)
class ClearedRun:
    """What had a run go on: the number of pending clears, their deliveries, and how many others were cleared."""

    pending: int
    delivered: list[DeliveredClear]
    others: int = 0


def clear_stopped(
    services: Services, run: str, standing: Standing | None, airflow: AirflowStates, by: str = ""
) -> ClearedRun:
    """Clear what has stopped of a run with what is pending, then what was skipped, and start its DagRun.

    `by` is who has it go on, where that is known.

    Tasks that were skipped only a person has cleared, since they may be skipped again; they and those of a DagRun that
    the ledger does not know have no pending clears. They come last: cleared before what has failed, Airflow's scheduler
    would give them up again. Raises Retryable or Misconfigured.
    """
    again = AGAIN.format(by or "a person")
    stopped = {} if standing is None else {each.region: each.seen for each in standing.stopped if each.seen is not None}
    with services.ledger.transaction() as session:
        is_known = session.get(RunRow, run) is not None
        own = _chain(session, run).get(RunId(run)) if is_known else None
    if not is_known:
        asked = Asked(airflow=airflow)
        found = (each for each, _ in unknown_standings(services, asked, dataflow_of(run)))
        own = next((each for each in found if each.id == run and isinstance(each, Run)), None)
    if own is None:
        return ClearedRun(pending_of(services, run), deliver(services, airflow, dataflow_of(run)))
    wanted = {region: seen for region, seen in stopped.items() if is_known and seen.state in CLEARABLE}
    with services.ledger.transaction(own.dataflow.name) as session:
        add_pending_clears(
            session, own, {region: (seen.try_number, again) for region, seen in wanted.items()}, services.now()
        )
        tasks = {region: task_of(session, own, region) for region in stopped.keys() - wanted.keys()}
    items = [
        ClearItem(own.dag_id, own.run_id, task_id, index, stopped[region].try_number, is_skipped=True, note=again)
        for region, (task_id, index) in sorted(tasks.items())
    ]
    pending = pending_of(services, run)
    delivered = deliver(services, airflow, own.dataflow.name)
    others = airflow.clear(items) if items else []
    airflow.start(own.dag_id, own.run_id)
    return ClearedRun(pending, delivered, sum(each.cleared for each in others))


def pending_of(services: Services, run: str) -> int:
    """Return how many clears of a run are pending."""
    with services.ledger.transaction() as session:
        return sum(row.settled_at is None for row in clears_of_run(session, run))
