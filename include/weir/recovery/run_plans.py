"""What would run again of a run, and how it stands: what `weir plan` prints and applies, and the page of a run shows.

And what a person's clear of tasks restarts, in one run or in those of several epochs, as `weir clear` prints it; or
of what other code has made, as `weir code plan` does.

Invariants: command, page and request compare a plan by one hash, that of what it would do. Nothing is cleared of any
run where one of them cannot compute what a person asks for.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.code.generation_rules import RepairCode, agreed
from weir.code.version import code_version, lacking_functions
from weir.coordination.airflow import AirflowStates, ClearAnswer, ClearItem
from weir.coordination.services import Services
from weir.errors import Misconfigured
from weir.execution.run_state import CLOSE
from weir.ledger.clears import task_of
from weir.ledger.code import KeptCode, enter_kept, functions_of, kept_code
from weir.ledger.database.tables import DataflowRow, ResultRow, RunRow
from weir.ledger.names import as_digits, as_epoch, require_dataflow
from weir.ledger.runs import Run, dataflow_of, named_run, run_by_id, run_if_known, runs_of
from weir.recovery.pending_clears import what_was_cleared
from weir.recovery.questions import Answer, Question, apply_answer, ask, regions_named
from weir.recovery.rules.plan import WITH_CODE, Plan, StepKind
from weir.recovery.rules.standing import Stand, Standing, TaskFacts
from weir.recovery.standing import Asked, clear_stopped, standing_to_tell, unknown_standings
from weir.topology.ids import OWN_RUN, Epoch, RunId
from weir.topology.regions import PartitionId, RegionId

_EPOCH_OR_DAY = re.compile(r"\d{8}(T\d*Z?)?")

Reach = Callable[[], AbstractContextManager[Asked]]
"""Gives Airflow, or why it cannot be asked."""


def reaching(airflow: AirflowStates) -> Reach:
    """Return what gives Airflow where it can be asked in this process."""
    return lambda: nullcontext(Asked(airflow=airflow))


@dataclass(frozen=True, slots=True)
class Acts:
    """What is done if a plan is applied: the number of task instances that are cleared, and the DAGs, sorted.

    The DAGs are those of all that is cleared, at once or once an input has changed.

    `hash` is that of these task instances with their tries and their code, and of nothing that changes by itself.
    """

    hash: str
    clears: int
    dags: tuple[str, ...]


def acts_of(session: Session, run: str, plan: Plan | None, stopped: Iterable[TaskFacts] = ()) -> Acts:
    """Return what is done if a plan is applied, and the tasks go on that have stopped; nothing if it cannot be."""
    is_possible = plan is None or not plan.impossible
    steps = plan.steps if plan is not None and is_possible else ()
    with_own_code = plan is not None and plan.code == RepairCode.AS_IT_WAS.value
    cleared = {
        (run, task.region.in_run(OWN_RUN)): (task.seen.try_number, "")
        for task in (stopped if is_possible else ())
        if task.seen is not None
    }
    for step in (each for each in steps if each.kind is StepKind.RERUN):
        version = step.code.code.version if with_own_code and step.code is not None else ""
        cleared[step.region.run_id(run), step.region.in_run(OWN_RUN)] = (step.after_try, version)
    runs = {of for of, _ in cleared} | {step.region.run_id(run) for step in steps if step.kind in WITH_CODE}
    text = json.dumps([with_own_code, sorted([of, str(region), *what] for (of, region), what in cleared.items())])
    dags = session.scalars(select(RunRow.dag_id).where(RunRow.id.in_(runs)).distinct())
    return Acts(hashlib.sha256(text.encode()).hexdigest()[:16], len(cleared), tuple(sorted(dags)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What would run again of a run, how it stands, and what is done if that is applied.

    `plan` is None of a run of which no task has begun; else `answer` gives it again, and is what is applied: they
    differ where Airflow computes again what is missing nowhere. `standing` is None where there is nothing to say of it,
    or something else was asked.
    """

    run: str
    answer: Answer | None
    plan: Plan | None
    standing: Standing | None
    acts: Acts

    def fields(self) -> dict[str, Any]:
        """Return the fields of its document (docs/plan.md)."""
        told = {"run": self.run} if self.plan is None else self.plan.to_json()
        return {**told, "standing": self.standing, "acts": self.acts}


def plan_of(services: Services, question: Question, reach: Reach) -> RunPlan:
    """Plan, and say how the run stands unless a failure or a loss is assumed. It changes nothing.

    Raises as `weir.recovery.questions.ask`.
    """
    is_now = question.fail is None and not question.lost
    standing = _of_not_begun(services, question.run, reach) if is_now else None
    if standing is not None:
        return _with_acts(services, standing.run, None, None, standing)
    answer = _asked(services, question, reach)
    standing = standing_named(services, answer.run.id, answer.run.id, reach) if is_now else None
    shown, standing = _of_cleared(services, question, answer, standing, reach)
    if shown.plan.impossible and standing is not None and standing.waits_for is None:
        standing = replace(standing, command="")  # the plan says what helps
    return _with_acts(services, answer.run.id, answer, shown.plan, standing)


def _with_acts(
    services: Services, run: str, answer: Answer | None, plan: Plan | None, standing: Standing | None
) -> RunPlan:
    with services.ledger.transaction() as session:
        applied = None if answer is None else answer.plan
        acts = acts_of(session, run, applied, () if standing is None else standing.stopped)
    return RunPlan(run=run, answer=answer, plan=plan, standing=standing, acts=acts)


def have_go_on(services: Services, planned: RunPlan, airflow: AirflowStates, by: str = "") -> str:
    """Clear what has stopped of a run, deliver the pending clears, and return what was done. `by` names the person.

    Raises Retryable or Misconfigured.
    """
    run, standing = planned.run, planned.standing
    cleared = clear_stopped(services, run, standing, airflow, by)
    pending, skipped = cleared.pending, cleared.others
    done = what_was_cleared(services, airflow, cleared.delivered, pending)
    if not pending and not skipped:
        command = "" if standing is None else standing.root.command
        why = "" if standing is not None and standing.stopped else " has stopped, so nothing"
        return f"Nothing of {run}{why} is cleared" + (f". Next: {command}" if command else "")
    again = f"; {skipped} that were skipped are cleared, too" if skipped else ""
    return f"{done}{again}; is its DAG unpaused?"


def _asked(services: Services, question: Question, reach: Reach) -> Answer:
    """Plan; a state that Weir does not recompute may be that of a task which a person has cleared, as Airflow knows."""
    answer = ask(services, question)
    if not answer.plan.impossible:
        return answer
    with reach() as asked:
        airflow = asked.airflow
        return answer if airflow is None else ask(services, question, lambda: airflow)


def _of_not_begun(services: Services, name: str, reach: Reach) -> Standing | None:
    """Return how a run stands of which no task has begun, so that there is no plan; None of any other one."""
    with services.ledger.transaction() as session:
        row = run_if_known(session, name)
        begun = row is not None and row.pinned is not None
        run = "" if row is None else row.id
    return None if begun else standing_named(services, run, name, reach)


def _of_cleared(
    services: Services, question: Question, answer: Answer, standing: Standing | None, reach: Reach
) -> tuple[Answer, Standing | None]:
    """Where nothing is missing of a published run, answer what Airflow computes again of it, or does by its command.

    It does not go on by itself where something is missing, too, or where what was cleared cannot be computed.
    """
    if standing is None or not standing.restarted:
        return answer, standing
    stopped = standing if standing.stand is Stand.RED else replace(standing, stand=Stand.STOPPED)
    if answer.plan.of(StepKind.RERUN):
        return answer, replace(stopped, command=standing.command or f"`weir plan {answer.run.id} --apply`")
    cleared = tuple(each.region for each in standing.restarted)
    again = _asked(services, replace(question, code=RepairCode.NEWEST, cleared=cleared), reach)
    return again, stopped if again.plan.impossible else standing


def standing_named(services: Services, run: str, name: str, reach: Reach) -> Standing | None:
    """Return how a run stands that is open, runs again or is red; None of another one.

    `run` is its id; empty for one that the ledger does not know.
    """
    with reach() as asked:
        return standing_to_tell(services, RunId(run), asked) if run else _unknown_named(services, name, asked)


def _unknown_named(services: Services, name: str, asked: Asked) -> Standing | None:
    """Return how a run stands that the ledger does not know: DATAFLOW@EPOCH, DATAFLOW@DAY, or Airflow's run id."""
    of_day = as_epoch(name)
    is_of = "@" in name
    found = unknown_standings(services, asked, name.partition("@")[0] if is_of else None)
    named = [each for run, each in found if name == run.run_id or (is_of and run.id.startswith(of_day))]
    return named[0] if len(named) == 1 else None


# Clears by a person


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearPlan:
    """What a clear of some regions of a run restarts, and what is done if it is carried out."""

    answer: Answer
    regions: tuple[RegionId, ...]
    acts: Acts

    @property
    def plan(self) -> Plan:
        """The plan, by what the ledger knows."""
        return self.answer.plan

    def fields(self) -> dict[str, Any]:
        """Return the fields of its document (docs/plan.md)."""
        return {**self.plan.to_json(), "acts": self.acts}


def plan_of_clear(
    services: Services,
    run: str,
    regions: Iterable[RegionId],
    code: RepairCode = RepairCode.NEWEST,
    *,
    by_weir: bool = False,
) -> ClearPlan:
    """Plan what a clear of some tasks of a run restarts, by what the ledger knows. Raises as `weir plan`.

    With `by_weir` it is no clear of a person: the plan tells which tasks take what is there, if nothing differs.
    """
    named = tuple(regions)
    answer = ask(services, Question(run, code=code, cleared=named, looks=False, by_weir=by_weir))
    with services.ledger.transaction() as session:
        return ClearPlan(answer=answer, regions=named, acts=acts_of(session, answer.run.id, answer.plan))


def plans_of_clear(
    services: Services,
    name: str,
    tasks: Sequence[str] = (),
    first: str | None = None,
    last: str | None = None,
    code: RepairCode | None = None,
) -> tuple[ClearPlan, ...]:
    """Plan a clear of tasks of a run, or of all runs of a dataflow from an epoch to another one, oldest first.

    A task is a region or a stage of it, with its subtask or without: all of them. Without any, it is the whole run.
    `code` is what the dataflow runs after a clear in Airflow, unless it is given. Runs without a declaration have no
    plan (`freed_runs`). Raises Misconfigured for names that there are not, and as `weir plan`.
    """
    with services.ledger.transaction() as session:
        runs = _pinned(session, runs_in_span(session, name, first, last))
        wanted = {run.id: tuple(dict.fromkeys(_regions(run, tasks))) for run in runs}
    return _plans(services, runs, wanted, code, by_weir=code is not None)


def _pinned(session: Session, rows: Iterable[RunRow]) -> list[Run]:
    return [run_by_id(session, each.id) for each in rows if each.pinned is not None]


def _plans(
    services: Services,
    runs: Iterable[Run],
    wanted: Mapping[RunId, tuple[RegionId, ...]],
    code: RepairCode | None,
    *,
    by_weir: bool = False,
) -> tuple[ClearPlan, ...]:
    return tuple(
        plan_of_clear(services, run.id, wanted[run.id], code or run.dataflow.repair_code, by_weir=by_weir)
        for run in runs
        if wanted[run.id]
    )


@dataclass(frozen=True, slots=True)
class FreedRun:
    """A run without a declaration, since `weir run adopt` or because it has never had one: it is cleared whole."""

    id: RunId
    dag_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class LeftTask:
    """A task of whose results other code has made some, which is in no plan, and why."""

    run: RunId
    task: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePlans:
    """What a clear restarts of all that other code has made than a given one, in the `runs` that were looked at.

    `other` are all tasks of whose results other code has made some, by run. `code` is what the clears ask for: None,
    what a clear in Airflow runs. `freed` are runs without a declaration, `kept` what a person lets stay of these runs.
    """

    runs: tuple[Run, ...] = ()
    other: Mapping[RunId, tuple[RegionId, ...]] = field(default_factory=dict)
    plans: tuple[ClearPlan, ...] = ()
    code: RepairCode | None = None
    left: tuple[LeftTask, ...] = ()
    freed: tuple[FreedRun, ...] = ()
    kept: tuple[KeptCode, ...] = ()


def plans_of_code(
    services: Services,
    dataflow: str,
    files: Mapping[str, bytes],
    first: str | None = None,
    last: str | None = None,
    *,
    by_weir: bool = False,
) -> CodePlans:
    """Plan a clear of the tasks of whose results other code has made any than these files of an archive.

    All runs count whose epochs lie between the first and the last, where these are given; not what a person lets stay.
    The clears run the newest code, whatever the dataflow runs after a clear in Airflow; `by_weir`: they are no clears
    of a person. Raises Misconfigured for what is no epoch, and as `weir plan`.
    """
    version = cache(partial(code_version, files))
    used: dict[KeptCode, None] = {}
    with services.ledger.transaction() as session:
        if session.get(DataflowRow, dataflow) is None:
            return CodePlans()
        rows = _runs_between(session, dataflow, first, last)
        runs = _pinned(session, rows)
        kept = kept_code(session, dataflow)
        other = {run.id: tuple(_of_other_code(session, run, version, kept, used)) for run in runs}
        gone = {RunId(each.id) for each in rows if each.deleted_at is not None}
    left = tuple(each for run in runs for each in _left(run, other[run.id], files, is_gone=run.id in gone))
    tasks = {(each.run, each.task) for each in left}
    wanted = {run: tuple(each for each in found if (run, each.name) not in tasks) for run, found in other.items()}
    is_persons = not by_weir and all(run.dataflow.repair_code is RepairCode.NEWEST for run in runs)
    code = None if is_persons else RepairCode.NEWEST
    return CodePlans(
        runs=tuple(runs),
        other=other,
        plans=_plans(services, runs, wanted, code),
        code=code,
        left=left,
        freed=_freed(rows),
        kept=tuple(used),
    )


def keep_results(services: Services, found: CodePlans, files: Mapping[str, bytes], who: str) -> list[KeptCode]:
    """Let the results stay that other code has made, until the code changes again, and return what was recorded."""
    if not any(found.other.values()):
        return []
    version = cache(partial(code_version, files))
    spans: dict[tuple[str, str, str], list[Epoch]] = {}
    dataflow = found.runs[0].dataflow.name
    with services.ledger.transaction(dataflow) as session:
        for run in found.runs:
            made = _made(session, run)
            for region in found.other[run.id]:
                current = version(functions_of(run.topology, region.name))
                for each in sorted(frozenset().union(*made.get(region, ())) - {current}):
                    spans.setdefault((region.name, each, current), []).append(run.epoch)
        kept = [
            KeptCode(
                dataflow=dataflow,
                task=task,
                version=each,
                current=current,
                first=min(epochs),
                last=max(epochs),
                kept_at=services.now(),
                kept_by=who,
            )
            for (task, each, current), epochs in spans.items()
        ]
        enter_kept(session, kept)
    return kept


def _left(run: Run, regions: Iterable[RegionId], files: Mapping[str, bytes], *, is_gone: bool) -> Iterator[LeftTask]:
    for name in sorted({each.name for each in regions}):
        lacking = lacking_functions(files, functions_of(run.topology, name))
        if is_gone:
            yield LeftTask(run.id, name, "its DagRun was deleted in Airflow")
        elif lacking:
            why = f"the code lacks {', '.join(lacking)}: `weir run adopt {run.id}` lets the run follow the DAG file"
            yield LeftTask(run.id, name, why)


def _of_other_code(
    session: Session,
    run: Run,
    version: Callable[[tuple[str, ...]], str],
    kept: Sequence[KeptCode],
    used: dict[KeptCode, None],
) -> Iterator[RegionId]:
    """Yield the regions of whose current results code of another version than that of their functions has made any.

    Not those whose results a person lets stay: `used` gets what says so.
    """
    made = _made(session, run)
    for region in run.topology.region_ids():
        newest = version(functions_of(run.topology, region.name)) if region in made else ""
        if region not in made or newest in agreed(made[region]):
            continue
        said = [
            each
            for each in kept
            if (each.task, each.current) == (region.name, newest) and each.first <= run.epoch <= each.last
        ]
        stay = {newest, *(each.version for each in said)}
        if all(versions & stay for versions in made[region]):
            used.update(dict.fromkeys(said))
        else:
            yield region


def _made(session: Session, run: Run) -> dict[RegionId, list[frozenset[str]]]:
    """Return the versions that are known to make each current result of a run, by the region that has made it."""
    made: dict[RegionId, list[frozenset[str]]] = defaultdict(list)
    query = select(ResultRow).where(ResultRow.run == run.id, ResultRow.is_current)
    for row in session.scalars(query):
        partition = PartitionId(row.stage, row.subtask, row.layout)
        if run.topology.writes(row.stage, row.layout):
            made[run.topology.producer(partition)].append(frozenset(row.versions))
    return made


def runs_in_span(session: Session, name: str, first: str | None, last: str | None) -> list[RunRow]:
    """Return a run by its name, or those of a dataflow between two epochs or days, oldest first, that have DagRuns.

    Raises Misconfigured for what is not known, and for a span without runs.
    """
    if first is None and last is None:
        if session.get(DataflowRow, name) is not None:
            raise Misconfigured.of("recovery.clear_of_which_epochs", dataflow=name)
        return [named_run(session, name)]
    if "@" in name:
        raise Misconfigured.of("recovery.clear_of_run_and_epochs", run=name, dataflow=dataflow_of(name))
    require_dataflow(session, name)
    found = _runs_between(session, name, first, last)
    if not found:
        there = _runs_between(session, name, None, None)
        known = f"{there[0].epoch} to {there[-1].epoch}" if there else "none"
        span = " ".join(f"{word} {each}" for word, each in (("from", first), ("to", last)) if each is not None)
        raise Misconfigured.of("recovery.no_run_between", dataflow=name, span=span, known=known)
    return found


def _runs_between(session: Session, name: str, first: str | None, last: str | None) -> list[RunRow]:
    """Return the runs of a dataflow that have DagRuns, oldest first. Raises Misconfigured for what is no span."""
    since, until = (None if each is None else _epoch_named(each) for each in (first, last))
    if since and until and since > until and not since.startswith(until):
        raise Misconfigured.of("recovery.span_backwards", first=first, last=last)
    found = [row for row in runs_of(session, name) if row.has_dag_run and (since is None or row.epoch >= since)]
    return [row for row in found if until is None or row.epoch <= until or row.epoch.startswith(until)]


def freed_runs(
    services: Services, name: str, first: str | None = None, last: str | None = None
) -> tuple[FreedRun, ...]:
    """Return those of the runs that `plans_of_clear` finds that have no plan. Raises Misconfigured as that does."""
    with services.ledger.transaction() as session:
        return _freed(runs_in_span(session, name, first, last))


def _freed(rows: Iterable[RunRow]) -> tuple[FreedRun, ...]:
    return tuple(FreedRun(RunId(each.id), each.dag_id, each.run_id) for each in rows if each.pinned is None)


def _epoch_named(text: str) -> str:
    """Return an epoch, or a day of some, as epochs begin. Raises Misconfigured for what is neither."""
    found = as_digits(text)
    if not _EPOCH_OR_DAY.fullmatch(found):
        raise Misconfigured.of("recovery.no_epoch_or_day", text=text)
    return found


def _regions(run: Run, tasks: Sequence[str]) -> Iterator[RegionId]:
    if not tasks:
        yield from (*run.topology.region_ids(), CLOSE)
    for task in tasks:
        yield from regions_named(run, task)


def clear_by_hand(
    services: Services, plans: Sequence[ClearPlan], airflow: AirflowStates, note: str
) -> list[tuple[Run, RegionId, ClearAnswer]]:
    """Clear the tasks in Airflow as a person does there, each with `note`, and return its answers.

    One that runs, or has no state yet, is not cleared. Raises Misconfigured where a run cannot compute what is asked,
    or the account may not clear its tasks, and Retryable.
    """
    _require_possible(plans)
    asked = [(each.answer.run, region) for each in plans for region in each.regions]
    with services.ledger.transaction() as session:
        items = [_item(session, run, region, note) for run, region in asked]
    wanted = [
        replace(seen.item, expected_try=seen.try_number, is_skipped=seen.state == "skipped")
        for seen in airflow.inspect(items)
    ]
    return [(*of, answer) for of, answer in zip(asked, airflow.clear(wanted), strict=True)]


def _item(session: Session, run: Run, region: RegionId, note: str) -> ClearItem:
    task_id, index = task_of(session, run, region)
    return ClearItem(run.dag_id, run.run_id, task_id, index, None, note=note)


def record_clears(services: Services, plans: Sequence[ClearPlan], by: str = "") -> int:
    """Record clears with the code of their plans, which are delivered later, and return their number.

    `by` is the person who asks for them, where that is known.

    Raises Misconfigured as above, and Conflict if a run has changed meanwhile: those before it are recorded.
    """
    _require_possible(plans)
    # Each run is planned anew: that tasks of the run before are to be cleared has changed what it waits for.
    return sum(apply_answer(services, _asked_to_clear(services, each), by=by) for each in plans)


def _asked_to_clear(services: Services, planned: ClearPlan) -> Answer:
    code = RepairCode(planned.plan.code)
    return plan_of_clear(services, planned.answer.run.id, planned.regions, code).answer


def _require_possible(plans: Sequence[ClearPlan]) -> None:
    for each in plans:
        if each.plan.impossible:
            run = each.answer.run
            raise Misconfigured.of("recovery.input_is_lost_for_good", run_id=run.id, impossible=each.plan.impossible)
