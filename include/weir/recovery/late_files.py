"""Looks for files that came or changed after a source had read its interval; reports them, or corrects the epoch.

Invariants: what is compared is what a finished source has read, as it is recorded, with what matches now. A correction
is one transaction: the new splits take the place of those that were compared, and all tasks of the source are cleared.
Whatever would not end well is found out before, and told instead: then nothing is cleared. What has vanished is only
told, and an epoch of which files have vanished is not corrected: it would lose their rows.

A process that is killed before that transaction has done nothing; what follows from it is in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy.orm import Session

from weir.code.functions import load
from weir.coordination.run_records import write_record
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage
from weir.dataflow.resolving import Resolved
from weir.errors import Conflict, LedgerBehind, Misconfigured, Retryable
from weir.execution.late_files import LateFiles, late_files
from weir.formats.notification import Event, Subject, person_event
from weir.ledger.database.tables import RunRow
from weir.ledger.outbox import tell
from weir.ledger.publications import first_published
from weir.ledger.runs import Run, newest_pinned, run_by_id, topology_of
from weir.ledger.snapshot import run_state
from weir.ledger.sources import ReadSource, correct_splits, newest_read, note_late
from weir.recovery.applying import apply_plan
from weir.recovery.failovers import FailoverKind
from weir.recovery.planning import decide_now, plan_by_looking
from weir.recovery.resolving import resolve, resolve_context
from weir.recovery.rules.backtrack import Occasion
from weir.recovery.rules.decision import Failure
from weir.recovery.rules.plan import Plan, Step, StepKind
from weir.recovery.rules.staleness import clears_consumers
from weir.store.worker_threads import in_time
from weir.topology.regions import RegionId

R = TypeVar("R")

LISTING_SECONDS: Final = 300.0
"""How long one listing of an interval may take: others have to have their turn."""

_RESOLVER: Final = "weir_spark.sources.files:resolve"
_LISTED_AGAIN: Final = "weir_spark.sources.files:listed_again"


@dataclass(frozen=True, slots=True)
class _Read:
    """What a source has read in a run, and the tasks that have read it."""

    known: ReadSource
    run: Run
    stage: Stage
    tasks: frozenset[RegionId]

    @property
    def where(self) -> str:
        return f"{self.known.stage} of {self.run.id}"


def look_for_late_files(services: Services, dataflow: str) -> str:
    """List what the sources of a dataflow that ask for it have read last, and return what was found and done.

    A listing that fails is told, and keeps no other source from its turn. Raises LedgerBehind, or Retryable if the
    ledger does not answer.
    """
    said, count = [], 0
    for declared in _declared(services, dataflow):
        with services.ledger.transaction() as session:
            known = newest_read(session, dataflow, declared.name, int(declared.options["late_epochs"]))
            reads = [read for each in known if (read := _finished(session, each)) is not None]
        for read in reads:
            count += 1
            try:
                said += _look(services, read, corrects=declared.options["late"] == "correct")
            except LedgerBehind:
                raise
            except Conflict as error:
                said.append(f"{read.where}: {error}; the next upkeep looks again")
            except Misconfigured as error:
                said.append(f"{read.where} could not be listed: {error}")
                _tell(services, _not_listed(read, error))
            except Retryable as error:
                said.append(f"{read.where} could not be listed, nor are later epochs: {error}")
                break
    return "; ".join([f"{count} interval(s) listed again", *said])


def _declared(services: Services, dataflow: str) -> list[Stage]:
    """Return the sources that ask for late files, as the newest run has them: what it says holds for earlier ones."""
    with services.ledger.transaction() as session:
        pinned = newest_pinned(session, dataflow)
    flow = None if pinned is None else topology_of(pinned).dataflow
    stages = () if flow is None or flow.shadow_of else flow.stages  # a shadow reads what the other dataflow has read
    return [each for each in stages if each.resolve == _RESOLVER and each.options.get("late")]


def _finished(session: Session, known: ReadSource) -> _Read | None:
    """Return what was read if all tasks of the source have, and none of them is reading it again."""
    run = run_by_id(session, known.run)
    stage = next((each for each in run.topology.dataflow.stages if each.name == known.stage), None)
    if stage is None or stage.resolve != _RESOLVER or stage.goes_on:
        return None
    region = run.topology.logical_region_of(stage.name)
    tasks = frozenset(RegionId(region.name, subtask) for subtask in range(region.parallelism))
    state = run_state(session, run)
    has_read = all(output in state.results for task in tasks for output in state.outputs(task))
    is_reading = any(state.region(task).is_running for task in tasks)
    return _Read(known, run, stage, tasks) if has_read and not is_reading else None


def _look(services: Services, read: _Read, *, corrects: bool) -> list[str]:
    context = replace(resolve_context(read.run, read.stage, services), recorded=Resolved(read.known.splits, None))
    listed_again = load(_LISTED_AGAIN, f"source {read.stage.name}")
    found = _in_time(read, partial(listed_again, context))
    late = late_files(read.known.splits, found, services.now().isoformat())
    if late is None or not corrects or not late.is_to_be_read:
        return _noted(services, read, late)
    try:
        return _corrected(services, read, late)
    except Misconfigured as error:
        return _noted(services, read, replace(late, held_back=str(error)))


def _in_time(read: _Read, call: Callable[[], R]) -> R:
    try:
        return in_time(call, LISTING_SECONDS)
    except TimeoutError as error:
        raise Retryable.of("recovery.listing_hangs", stage=read.stage.name, error=error) from error


def _noted(services: Services, read: _Read, late: LateFiles | None) -> list[str]:
    """Record what is late, and have a person told of it, unless that is known."""
    known = read.known.late
    if known is late or (known is not None and late is not None and known.is_like(late)):
        return []
    with services.ledger.transaction(read.run.dataflow.name) as session:
        if note_late(session, read.known, late) and late is not None:
            tell(session, _event(read, late), services.now())
    return [f"{read.where}: {late or 'all files are again as they were read'}"]


def _event(read: _Read, late: LateFiles) -> Event:
    text = f"Since source {read.stage.name} has read the interval of {read.run.id}, its files have changed. {late}"
    kinds = {"added": late.added.count, "rewritten": late.rewritten.count, "vanished": late.vanished.count}
    subject = (read.run.id, read.stage.name, late.fingerprint)
    return person_event(
        "late_files", _subject(read), subject, text, source=read.stage.name, held_back=late.held_back, **kinds
    )


def _not_listed(read: _Read, error: Misconfigured) -> Event:
    text = f"Whether files of source {read.stage.name} have come late for {read.run.id} is not known: {error}"
    subject = (read.run.id, read.stage.name, "not listed")
    return person_event("late_files", _subject(read), subject, text, source=read.stage.name, error=str(error))


def _subject(read: _Read) -> Subject:
    return Subject(read.run.dataflow.name, read.run.epoch, read.run.id)


def _tell(services: Services, event: Event) -> None:
    with services.ledger.transaction(event.dataflow) as session:
        tell(session, event, services.now())


# Corrections


def _corrected(services: Services, read: _Read, late: LateFiles) -> list[str]:
    """Have a source read what is there now. Raises Misconfigured where that would not end well, and Conflict."""
    _require_possible(services, read, late)
    splits = _in_time(read, partial(resolve, read.stage, resolve_context(read.run, read.stage, services)))
    present = late_files(read.known.splits, _marks(splits), late.found_at)
    if present is None or present.vanished.count:
        raise Conflict.of("recovery.files_changed_meanwhile", stage=read.stage.name)
    cause = f"files have come late for source {read.stage.name}: {late}"
    asked = Failure(
        failed=None,
        losses={},
        occasion=Occasion.REPAIR,
        cause=cause,
        largest=services.recovery.largest_plan,
        cleared=read.tasks,
        why_cleared=cause,
    )
    plan, failure = plan_by_looking(services, read.run, asked)
    _require_plan(services, read.run, plan, failure)
    with services.ledger.transaction(read.run.dataflow.name) as session:
        correct_splits(session, read.known, splits, services.now())
        _require_no_append(session, read, plan)
        answer = decide_now(session, read.run, failure).answer
        if not isinstance(answer, Plan) or not answer.does_the_same(plan):
            raise Conflict.of("recovery.run_changed", run_id=read.run.id)
        apply_plan(session, services, read.run, answer, FailoverKind.LATE_FILES)
    write_record(services, read.run.id)
    return [f"{read.where} is corrected: {late}; {plan.summary()}"]


def _marks(splits: Iterable[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [each for split in splits for each in split["files"]]


def _require_possible(services: Services, read: _Read, late: LateFiles) -> None:
    if late.vanished.count:
        raise Misconfigured.of("recovery.late_files_beside_lost_ones", run=read.run.id, lost=late.vanished)
    with services.ledger.transaction() as session:
        row = session.get_one(RunRow, read.run.id)
        if row.deleted_at is not None or not row.has_dag_run:
            raise Misconfigured.of("recovery.late_files_without_dag_run", run=read.run.id)
    if not clears_consumers(read.run.topology):
        raise Misconfigured.of("recovery.late_files_with_individual_failover", run=read.run.id)


def _require_plan(services: Services, run: Run, plan: Plan, failure: Failure) -> None:
    """Require that all that may run again after the source can, also if everything changes."""
    behind = (step.region for step in _affected(plan) if step.region.is_of_own_run and run.topology.knows(step.region))
    worst, _ = plan_by_looking(services, run, replace(failure, cleared=failure.cleared | {*behind}), looks=False)
    for each in (plan, worst):
        if why := each.impossible or each.held_back:
            raise Misconfigured.of("recovery.correction_impossible", run=run.id, why=why)


def _require_no_append(session: Session, read: _Read, plan: Plan) -> None:
    """Require that no target would refuse the other content of an epoch that it has.

    Of later epochs those sinks count, too, that the source reaches, if Weir recomputes later epochs.
    """
    dataflow, run = read.run.dataflow, read.run
    reached = _reached(dataflow, read.stage.name)
    sinks = {
        each.name for each in dataflow.stages if each.name in reached and any(to.only_appends for to in each.targets)
    }
    of_later = any(not step.region.is_of_own_run and step.region.run > run.id for step in _affected(plan))
    found = first_published(session, dataflow.name, sinks, run.epoch, None if of_later else run.epoch)
    if found is not None:
        raise Misconfigured.of("recovery.correction_of_append", run=run.id, sink=found.sink, published=found.run)


def _reached(dataflow: Dataflow, source: str) -> set[str]:
    """Return the source and all stages that read it, through others, too, and in whichever epoch."""
    found = {source}
    while more := {
        stage.name
        for stage in dataflow.stages
        if stage.name not in found and any(exchange.stage in found for exchange in stage.exchanges.values())
    }:
        found |= more
    return found


def _affected(plan: Plan) -> list[Step]:
    return [step for step in plan.steps if step.kind is not StepKind.SPARED]
