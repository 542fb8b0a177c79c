"""What a run reads of other dataflows: which epochs, under which leases, and what happens where one is gone.

A shadow reads nothing of the dataflow that it runs beside, and waits for each of its epochs.

Invariants:
- The epochs that an input reads are decided once in a run, by intervals and never by the clock.
- No transaction locks two dataflows. What is published is leased under the lock of its own dataflow, and compared in
  that of its reader; what one has to do for the other is recorded under the other's lock, in a transaction of its own,
  and follows from what the ledger has: a process that is killed in between leaves it to the next begin or upkeep.
- A published file that is gone is computed again by the run that has published it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import groupby

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from weir.coordination.airflow import Clearer
from weir.coordination.evidence import require_own_ledger
from weir.coordination.registered import Gathered, Registered
from weir.coordination.run_records import write_record
from weir.coordination.services import Services
from weir.coordination.values import Awaiting
from weir.dataflow.graph import dataflows_read, datasets_read, find_cycle, reachable
from weir.dataflow.stage import SAME, SKIP, WITHIN, Exchange, dataset_of, last_of
from weir.dataflow.state_schema import ddl_of, fields_of_ddl, fields_of_json
from weir.errors import Conflict, Fault, Loss, Message, Misconfigured, ResultUnavailable
from weir.execution.cadence import Interval, expected
from weir.execution.partition_state import PartitionState
from weir.execution.run_state import CLOSE, UNNUMBERED, AttemptState, CurrentResult, RunState
from weir.formats.manifest import Manifest
from weir.formats.run_record import RecordedDataset
from weir.ledger.attempts import newest_attempts
from weir.ledger.database.tables import DataflowRow, ResultRow, RunRow
from weir.ledger.leases import drop_leases, take_leases
from weir.ledger.publications import (
    DataSet,
    last_publication,
    note_told,
    published_results,
    readable_versions,
    untold_versions,
)
from weir.ledger.reads import enter_input, readers_of, resolved_inputs
from weir.ledger.results import record_found, record_losses
from weir.ledger.runs import (
    Run,
    dataflow_of,
    epoch_of,
    epoch_of_run,
    known_epochs,
    newest_pinned,
    run_by_id,
    run_key,
    topology_of,
)
from weir.ledger.snapshot import run_state
from weir.recovery.awaiting import require_running, wait_for
from weir.recovery.inputs import reference
from weir.recovery.pending_clears import deliver
from weir.recovery.reconcile import reconcile
from weir.recovery.repair import RepairOutcome, repair
from weir.recovery.rules.staleness import of_older_versions
from weir.store.probe import probe
from weir.topology.ids import OWN_RUN, RunId, RunRef
from weir.topology.regions import InputPartitions, PartitionId, RegionId
from weir.wording import first_few

Place = tuple[str, str]
"""Stage and argument of an input."""

_SHOWN = 3
"""How many of the missing epochs a reason names."""


# Which epochs are read


def resolve_datasets(services: Services, registered: Registered) -> Awaiting | None:
    """Decide and record which epochs of other dataflows a task reads; return what is to be awaited before that.

    Raises Misconfigured for a data set that does not exist, cannot come, or depends on this dataflow itself.
    """
    run, wanted = registered.run, _declared(registered.run, registered.attempt.region)
    if not wanted:
        return None
    with services.ledger.transaction() as session:
        unresolved = _unresolved(session, run, wanted)
        if not unresolved:
            return None
        _require_no_cycle(session, run)
        chosen = [(exchange.stage, _chosen(session, run, place, exchange)) for place, exchange in unresolved.items()]
    reasons = [(name, found) for name, found in chosen if isinstance(found, str)]
    for dataflow in {dataset_of(each.stage).dataflow for each in unresolved.values()}:
        require_own_ledger(services, dataflow)
    if reasons:
        return _wait(services, registered, reasons)
    with services.ledger.transaction(run.dataflow.name) as session:
        require_running(session, registered.attempt.id, "what it reads")
        for _, found in chosen:
            if not isinstance(found, str):
                enter_input(session, run.id, found, services.now())
        session.get_one(RunRow, run.id).is_record_due = True
    write_record(services, run.id)
    return None


def _declared(run: Run, region: RegionId) -> dict[Place, Exchange]:
    stages = () if region == CLOSE else run.topology.stages_of(region.name)
    return {(stage.name, argument): exchange for stage, argument, exchange in datasets_read(stages)}


def _unresolved(session: Session, run: Run, wanted: Mapping[Place, Exchange]) -> dict[Place, Exchange]:
    found = resolved_inputs(session, run.id)
    known = {(each.stage, each.argument): (each.dataset, each.selection) for each in found}
    return {
        place: exchange
        for place, exchange in wanted.items()
        if known.get(place) != (exchange.stage, _selection(exchange))
    }


def _selection(exchange: Exchange) -> str:
    return f"{exchange.epoch}, {exchange.missing}"


def _chosen(session: Session, run: Run, place: Place, exchange: Exchange) -> RecordedDataset | str:
    """Return the epochs that an input reads, or why they cannot be known yet. Raises Misconfigured."""
    dataflow, sink = dataset_of(exchange.stage)
    pinned = newest_pinned(session, dataflow)
    if session.get(DataflowRow, dataflow) is None or pinned is None:
        return Message("recovery.dataset_not_begun", name=exchange.stage, dataflow=dataflow)
    intervals = _intervals(session, run, exchange, dataflow)
    if isinstance(intervals, str):
        return intervals
    runs = {run_key(dataflow, epoch_of(start)): epoch_of(start) for start, _ in intervals}
    there = {of for of, _ in readable_versions(session, [(each, sink) for each in runs])}
    sinks = topology_of(pinned).sinks
    if sink not in sinks and not there:
        raise Misconfigured.of("recovery.dataset_unknown", name=exchange.stage, dataflow=dataflow, sinks=[*sinks])
    missing = [each for each in runs if each not in there and not _is_closed_without(session, each, sink)]
    if missing and exchange.missing != SKIP:
        _require_to_come(session, missing, sink)
        return Message("recovery.dataset_awaited", name=exchange.stage, epochs=_named(session, missing))
    return RecordedDataset(
        stage=place[0],
        argument=place[1],
        dataset=exchange.stage,
        selection=_selection(exchange),
        runs=tuple(RunRef(each) for each in runs if each in there),
        left_out=tuple(runs[each] for each in missing),
    )


def _named(session: Session, missing: Sequence[RunId]) -> str:
    """Name the runs whose epochs are awaited, and say of the first few what keeps them."""
    said = [f"{run}{_kept_by(session, run)}" for run in missing[:_SHOWN]]
    return first_few([*said, *missing[_SHOWN:]], _SHOWN)


def _kept_by(session: Session, run: RunId) -> str:
    row = session.get(RunRow, run)
    if row is None:
        is_later = (RunRow.dataflow == dataflow_of(run)) & (RunRow.epoch > epoch_of_run(run))
        later = session.scalar(select(func.min(RunRow.epoch)).where(is_later))
        return f" (no task of it has begun{'' if later is None else f', though some have of {later}'})"
    if row.deleted_at is not None:
        return " (its DagRun was deleted)"
    tries = newest_attempts(session, run)
    failed = sorted(each for each, rows in tries.items() if rows[-1].state == AttemptState.FAILED.value)
    return f" ({failed[0]} of it has failed for good: `weir plan {run}`)" if failed else ""


def _is_closed_without(session: Session, run: RunId, sink: str) -> bool:
    """Report whether a run was closed that has no such sink: the data set begins with a later epoch."""
    row = session.get(RunRow, run)
    pinned = None if row is None or row.closed_at is None else row.pinned
    return pinned is not None and sink not in topology_of(pinned).sinks


def _intervals(session: Session, run: Run, exchange: Exchange, dataflow: str) -> list[Interval] | str:
    """Return the intervals of the epochs that an input reads, whether or not these are there. Raises Misconfigured."""
    start, end = run.interval
    if exchange.epoch == SAME:
        _require_same(session, run, exchange, dataflow)
        return [(start, end)]
    number = last_of(exchange.epoch)
    before = end if number is not None else start
    known = known_epochs(session, dataflow, until=before, most=number or 1, since=None)
    if exchange.epoch == WITHIN:
        known += known_epochs(session, dataflow, until=end, most=None, since=start)
    if exchange.epoch == WITHIN and known and known[-1].end - known[-1].start > end - start:
        raise Misconfigured.of("recovery.dataset_longer", name=exchange.stage)
    if known and known[-1].cadence is None:
        raise Misconfigured.of("recovery.dataset_without_cadence", name=exchange.stage, epoch=exchange.epoch)
    found = [each for each in expected(known, end) if number is not None or each[0] >= start]
    if not found and exchange.missing != SKIP:
        which = "that ends by" if number is not None else "within the interval until"
        return Message("recovery.dataset_has_none", name=exchange.stage, which=which, end=end.isoformat())
    return found if number is None else found[-number:]


def _require_same(session: Session, run: Run, exchange: Exchange, dataflow: str) -> None:
    """Refuse to read an epoch of another interval as the same one. Raises Misconfigured."""
    start, end = run.interval
    row = session.get(RunRow, run_key(dataflow, epoch_of(start)))
    newest = known_epochs(session, dataflow, until=datetime.max.replace(tzinfo=end.tzinfo), most=1, since=None)
    of = (row.interval_start, row.interval_end) if row is not None else None
    if of is None and newest and newest[-1].cadence is not None:
        of = newest[-1].cadence.interval_at(start) if newest[-1].start <= start else (start, end)
        of = of or (newest[-1].start, newest[-1].end)
    if of is not None and of != (start, end):
        raise Misconfigured.of(
            "recovery.dataset_of_other_interval",
            name=exchange.stage,
            own=f"{start.isoformat()} to {end.isoformat()}",
            other=f"{of[0].isoformat()} to {of[1].isoformat()}",
        )


def _require_to_come(session: Session, runs: Iterable[RunId], sink: str) -> None:
    """Refuse to wait for an epoch that was published, and whose versions were all deleted. Raises Misconfigured."""
    for each in runs:
        last = last_publication(session, each, sink)
        if last is not None and last.published_at is not None and last.expiring_at is not None:
            raise Misconfigured.of("recovery.dataset_expired", name=f"{dataflow_of(each)}.{sink}", run=each)


def _require_no_cycle(session: Session, run: Run) -> None:
    """Refuse dataflows that read each other in a cycle, by what their newest runs declare. Raises Misconfigured."""

    def read_by(name: str) -> list[str]:
        if name == run.dataflow.name:
            return dataflows_read(run.dataflow.stages)
        pinned = newest_pinned(session, name)
        return [] if pinned is None else dataflows_read(topology_of(pinned).dataflow.stages)

    cycle = find_cycle(reachable([run.dataflow.name], read_by))
    if cycle:
        raise Misconfigured.of("recovery.dataset_cycle", cycle=" -> ".join(cycle))


def awaits_dataset(session: Session, run: Run, state: RunState, region: RegionId) -> bool:
    """Report whether a task waits for what another dataflow has to publish or close, as far as the ledger tells.

    Raises Misconfigured as a begin does.
    """
    if _awaits_shadowed(session, run):
        return True
    wanted = _declared(run, region)
    if not wanted:
        return False
    unresolved = _unresolved(session, run, wanted)
    if any(isinstance(_chosen(session, run, *each), str) for each in unresolved.items()):
        return True
    parts = (each for read in state.dataset_inputs(region) for each in read.partitions)
    return any(state.published[each].state is not PartitionState.FINISHED for each in parts)


# Shadows


def await_shadowed(services: Services, registered: Registered) -> Awaiting | None:
    """Wait until the epoch is closed that a shadow runs beside; None where it is, or the dataflow is no shadow.

    Raises Misconfigured where that is of another interval.
    """
    shadowed = shadowed_run(registered.run)
    if shadowed is None:
        return None
    with services.ledger.transaction() as session:
        if not _awaits_shadowed(session, registered.run):
            return None
        reason = Message("recovery.shadowed_awaited", run=f"{shadowed}{_kept_by(session, shadowed)}")
    return _wait(services, registered, [(registered.run.dataflow.shadow_of, reason)])


def shadowed_run(run: Run) -> RunId | None:
    """Return the run that the run of a shadow is beside; None for the run of any other dataflow."""
    return run_key(run.dataflow.shadow_of, run.epoch) if run.dataflow.shadow_of else None


def _awaits_shadowed(session: Session, run: Run) -> bool:
    shadowed = shadowed_run(run)
    if shadowed is None:
        return False
    row = session.get(RunRow, shadowed)
    if row is None:
        return True
    if (row.interval_start, row.interval_end) != run.interval:
        raise Misconfigured.of("recovery.shadowed_of_other_interval", run=run.id, shadowed=shadowed)
    return row.closed_at is None and row.expired_at is None


# Leases on what is published


def with_datasets(
    services: Services, registered: Registered, gathered: Gathered, clearer: Clearer
) -> Gathered | Awaiting:
    """Add to the inputs of an attempt what it reads of other dataflows, under leases; wait for what is gone.

    Raises Misconfigured where it will not come back without a person, and Retryable.
    """
    region = registered.attempt.region
    inputs = () if region == CLOSE else gathered.state.dataset_inputs(region)
    wanted = {
        (of, dataset_of(read.producer).sink)
        for read in inputs
        for of in gathered.state.datasets.get((read.stage, read.argument), ())
    }
    if not wanted:
        return gathered
    published: dict[PartitionId, CurrentResult] = {}
    for dataflow, sets in _by_dataflow(wanted):
        published |= _leased(services, registered, dataflow, sets)
    references = {reference(result, registered.run.id): each for each, result in published.items()}
    answers = probe(services.store, services.store_id(), list(references))
    manifests = {references[of]: found for of, found in answers.items() if isinstance(found, Manifest)}
    losses = {references[of]: found for of, found in answers.items() if isinstance(found, Loss)}
    for each, result in published.items():
        if result.state is not PartitionState.FINISHED and not _is_back(result, each in manifests):
            losses.setdefault(each, _loss(result))
    if losses:
        return _await_anew(services, registered, published, losses, clearer)
    _note_found(services, (result for each, result in published.items() if each in manifests))
    others = {each: known for each, known in gathered.state.published.items() if (each.run, each.stage) not in wanted}
    state = replace(gathered.state, published={**others, **published})
    for read in state.dataset_inputs(region):
        _require_columns(read, manifests)
    return Gathered(state, {**gathered.manifests, **manifests})


def _require_columns(read: InputPartitions, manifests: Mapping[PartitionId, Manifest]) -> None:
    """Require that all epochs have the columns of an input: the declared ones, else those of the newest.

    Raises Misconfigured.
    """
    columns = {part: fields_of_json(manifests[part].spark_schema) for part in read.partitions}
    newest = max(columns, key=lambda part: part.run, default=None)
    wanted = fields_of_ddl(read.schema) if read.schema else {} if newest is None else columns[newest]
    for part, found in columns.items():
        have = {each.name: each.kind for each in found.values()}
        differ = [each for each in wanted.values() if have.get(each.name) != each.kind]
        if differ or (not read.schema and have.keys() != wanted.keys()):
            raise Misconfigured.of(
                "recovery.dataset_columns",
                name=read.producer,
                run=part.run,
                found=ddl_of(found),
                wanted=ddl_of(wanted),
                other="as declared" if read.schema else "of another epoch",
            )


def _by_dataflow(wanted: Iterable[DataSet]) -> Iterator[tuple[str, list[DataSet]]]:
    for dataflow, group in groupby(sorted(wanted), key=lambda each: dataflow_of(each[0])):
        yield dataflow, list(group)


def _leased(
    services: Services, registered: Registered, dataflow: str, sets: Sequence[DataSet]
) -> dict[PartitionId, CurrentResult]:
    """Lease to an attempt what is published of these data sets. Raises Misconfigured for one that is deleted."""
    with services.ledger.transaction(dataflow) as session:
        found = published_results(session, sets)
        there = {(each.run, each.stage) for each in found}
        for run, sink in sets:
            if (run, sink) not in there:
                raise Misconfigured.of("recovery.dataset_expired", name=f"{dataflow}.{sink}", run=run)
        finished = [each.result for each in found.values() if each.state is PartitionState.FINISHED]
        take_leases(session, finished, registered.attempt.id, services.now())
    return found


def _is_back(result: CurrentResult, is_there: bool) -> bool:  # noqa: FBT001
    is_known = result.result != UNNUMBERED  # else a rebuilt ledger has not found it, and it is computed again
    return is_known and is_there and result.state is PartitionState.LOST and result.fault != Fault.DAMAGED.value


def _loss(result: CurrentResult) -> Loss:
    part = result.partition
    fault = next((each for each in Fault if each.value == result.fault), Fault.MISSING)
    return Loss(part.run, part.stage, part.subtask, part.layout, result.attempt, fault, result.state.value)


def _note_found(services: Services, results: Iterable[CurrentResult]) -> None:
    lost = [each for each in results if each.state is PartitionState.LOST]
    for dataflow, group in groupby(lost, key=lambda each: dataflow_of(each.partition.run)):
        with services.ledger.transaction(dataflow) as session:
            record_found(session, group, services.now())


# What is gone


def _await_anew(
    services: Services,
    registered: Registered,
    published: Mapping[PartitionId, CurrentResult],
    losses: Mapping[PartitionId, Loss],
    clearer: Clearer,
) -> Awaiting:
    """Have the runs that have published it compute what is gone, unless they do, and wait. Raises Misconfigured."""
    reasons: list[tuple[str, str]] = []
    by_run: dict[RunId, list[PartitionId]] = defaultdict(list)
    for each in sorted(losses):
        by_run[RunId(each.run)].append(each)
    for run, parts in by_run.items():
        dataflow = dataflow_of(run)
        _require_in_airflow(services, run, losses[parts[0]], clearer)
        with services.ledger.transaction(dataflow) as session:
            record_losses(session, (losses[each] for each in parts), services.now())
            replaced = _replaced(session, run, [published[each] for each in parts])
            is_coming = _is_coming(session, run, parts, replaced)
        if not is_coming:
            unpublished = "; ".join(str(losses[each]) for each in replaced)
            done = repair(services, run, [losses[each] for each in parts if each not in replaced], unpublished)
            if done.answer is RepairOutcome.LEFT:
                raise Misconfigured.of("recovery.dataset_gone", run=run, lost=losses[parts[0]], said=done.said)
        named = ", ".join(str(each.in_run(OWN_RUN)) for each in parts)
        reason = Message("recovery.dataset_gone_for_now", run=run, lost=named)
        try:
            deliver(services, clearer, dataflow)
        except Misconfigured as error:
            reason = Message("recovery.dataset_not_cleared", run=run, lost=named, dataflow=dataflow, error=error)
        reasons += [(f"{dataflow}.{sink}", reason) for sink in sorted({each.stage for each in parts})]
    return _wait(services, registered, reasons)


def _require_in_airflow(services: Services, run: RunId, lost: Loss, clearer: Clearer) -> None:
    """Refuse to wait for a run whose DagRun was deleted: nothing computes it again. Raises Misconfigured."""
    with services.ledger.transaction() as session:
        row = session.get_one(RunRow, run)
    is_there: bool | None = None
    with suppress(Misconfigured):  # an account that may not look waits, and is told which right is missing
        is_there = clearer.exists(row.dag_id, row.run_id)
    if is_there is False:
        said = f"its DagRun {row.run_id} was deleted. Have that interval run again, and clear this task"
        raise Misconfigured.of("recovery.dataset_gone", run=run, lost=lost, said=said)


def _replaced(session: Session, run: RunId, lost: Iterable[CurrentResult]) -> list[PartitionId]:
    """Return those of published results that are not current in their run any more."""
    current = set(session.scalars(select(ResultRow.id).where(ResultRow.run == run, ResultRow.is_current)))
    return [each.partition for each in lost if each.result not in current]


def _is_coming(session: Session, run: RunId, lost: Iterable[PartitionId], replaced: Collection[PartitionId]) -> bool:
    """Report whether a run is about to compute again what is lost of it, or to publish what has `replaced` that.

    One that is closed publishes nothing: what it has computed since is equal to what it had published.
    """
    row = session.get_one(RunRow, run)
    if not row.is_pinned:
        return False
    state = run_state(session, run_by_id(session, run))
    if replaced and (row.closed_at is None or state.is_coming(CLOSE)):
        return True
    with suppress(Misconfigured):
        return any(state.is_coming(state.producer(each.in_run(OWN_RUN))) for each in lost if each not in replaced)
    return False


def _wait(services: Services, registered: Registered, reasons: Sequence[tuple[str, str]]) -> Awaiting:
    """Wait for data sets; a reason comes with the name of the data set that it is about."""
    told = list(dict.fromkeys(reason for _, reason in reasons))
    reason = told[0] if len(told) == 1 else "; ".join(told)
    with services.ledger.transaction(registered.run.dataflow.name) as session:
        row = require_running(session, registered.attempt.id, "what it reads")
        drop_leases(session, row.id)
        found = wait_for(row, reason, registered, services.now())
        row.awaited = {of: "; ".join(dict.fromkeys(why for name, why in reasons if name == of)) for of in dict(reasons)}
        return found


def unavailable(services: Services, run: Run, losses: Sequence[Loss]) -> ResultUnavailable | Conflict:
    """Return the error about inputs that were lost or damaged while an attempt has read them.

    Those of other dataflows are recorded there: the next begin has them computed again.
    """
    others = defaultdict(list)
    for loss in losses:
        if dataflow_of(loss.run) != run.dataflow.name:
            others[dataflow_of(loss.run)].append(loss)
    for dataflow, found in others.items():
        with services.ledger.transaction(dataflow) as session:
            record_losses(session, found, services.now())
    own = tuple(loss for loss in losses if dataflow_of(loss.run) == run.dataflow.name)
    return ResultUnavailable(own) if own else Conflict.of("recovery.dataset_lost", lost=losses[0])


# What is new


def tell_readers(services: Services, dataflow: str) -> list[str]:
    """Have what has read older versions of a dataflow's data sets run again, as its readers declare; return these."""
    with services.ledger.transaction() as session:
        untold = untold_versions(session, dataflow)
        runs = {of for each in untold for of in readers_of(session, each.run, f"{dataflow}.{each.sink}")}
    readers = {reader: list(group) for reader, group in groupby(sorted(runs), key=dataflow_of)}
    for reader, group in readers.items():
        with services.ledger.transaction(reader) as session:
            for run in group:
                compare(session, services, run)
    if untold:
        with services.ledger.transaction(dataflow) as session:
            note_told(session, untold)
    return list(readers)


def compare(session: Session, services: Services, run: RunId, *, is_rebuilt: bool = False) -> None:
    """Have what has read older versions of data sets run again; in a rebuilt ledger only where something has."""
    found = computed(session, run)
    if found is None:
        return
    state = run_state(session, found)
    if not is_rebuilt or of_older_versions(state):
        reconcile(session, services, found, state)


def computed(session: Session, run: RunId) -> Run | None:
    """Return a run that has begun, and is neither deleted nor expired; None for any other."""
    row = session.get_one(RunRow, run)
    is_there = row.pinned is not None and row.deleted_at is None and row.expired_at is None
    return run_by_id(session, run) if is_there else None
