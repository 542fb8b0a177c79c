"""What a change of code comes to: the stages that differ, the results that other code has made, and the cost.

Invariant: the clears of a plan are those of `weir.recovery.run_plans.plans_of_code`, which are carried out. A plan of
two source trees reads neither ledger nor store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from weir.code.application_rules import name_in_archive
from weir.code.archive import Archive, archived
from weir.code.differences import FileDifference, differences, unified
from weir.code.version import code_version
from weir.coordination.services import Services
from weir.coordination.values import DeclaredCode
from weir.dataflow.dataflow import Dataflow, stage_to_json
from weir.dataflow.stage import Stage
from weir.errors import Misconfigured
from weir.execution.run_state import CLOSE
from weir.ledger.code import KeptCode, functions_of
from weir.ledger.database.tables import AttemptRow, ResultRow
from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.recovery.dataset_plans import plans_downstream
from weir.recovery.rules.plan import Cost, Plan, StepKind, Total, total_of
from weir.recovery.run_plans import ClearPlan, CodePlans, LeftTask, plans_of_code
from weir.topology.ids import OWN_RUN, RunId
from weir.topology.regions import RegionId, Topology
from weir.views.code import RESTORED, archive_named

_AGAIN: Final = (StepKind.RERUN,)
_PERHAPS: Final = (StepKind.IF_CHANGED, StepKind.SUSPENDED)
_NOT_ROWS: Final = frozenset({"name", "task", "asset", "delivery"})
"""What is declared of a stage and changes none of its rows: retries, pools, lineage."""
_GROUPS: Final = "max_parallelism"
_UNKNOWN: Final = "its code was not recorded"
_NOTHING: Final = Total(0, 0, 0, 0.0, 0)


class Change(Enum):
    """The reason why a stage is in a plan."""

    DIRECT = "direct"
    """Its function, or what that reaches, differs."""
    IN_TASK = "in_task"
    """It is the same, and computed in one task with one that differs."""
    NEEDED = "needed"
    """It is the same, and its result is gone, which others need."""
    INDIRECT = "indirect"
    """It is the same, and runs again if its inputs change."""
    DECLARED = "declared"
    """It is declared otherwise: for new runs."""
    ADDED = "added"
    REMOVED = "removed"


class Part(Enum):
    """The part of a stage's code that differs, the closest one."""

    FUNCTION = "function"
    FILE = "file"
    """Its SQL file, or its application."""
    MODULE = "module"
    """Not its function, but what that uses of its module, or what this does when it is imported."""
    REACHED = "reached"
    """Not its module, but what that imports, or files that it reads."""


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field of a declaration that differs, as JSON values; None where it is not there."""

    field: str
    was: Any
    now: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDifference:
    """A stage that a change of code concerns; `part` and `files` say what differs where it is modified directly.

    `note` says why nothing is known of what differs.
    """

    stage: str
    change: Change
    part: Part | None = None
    files: tuple[FileDifference, ...] = ()
    declared: tuple[FieldDifference, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherResults:
    """The results of a task that other code has made: in how many runs, from which to which, by which versions.

    `versions` has the number of these runs by version; `again` is what computing them again costs.
    """

    task: str
    runs: int
    first: str
    last: str
    versions: Mapping[str, int]
    again: Total


@dataclass(frozen=True, slots=True)
class ReadingDataflow:
    """Another dataflow, of which runs would run again if what they read changes."""

    dataflow: str
    runs: int
    if_changed: Total


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePlan:
    """What a dataflow's code comes to, compared with that of `against`; empty: with what has made its results.

    `runs` is the number of runs that were looked at, and `newest` the one with whose declaration that of the file is
    compared. `settings` are those of the dataflow that differ. `diff` has the lines of a unified diff. `again` and
    `if_changed` are tasks of this dataflow, and of what it reads, each counted once. `datasets` are those that may
    change and that the `readers` have read. `can_reuse`: the runs have reuse="equal".
    """

    dataflow: str
    file: str
    archive: str
    against: str = ""
    runs: int = 0
    newest: str = ""
    stages: tuple[StageDifference, ...] = ()
    settings: tuple[FieldDifference, ...] = ()
    diff: tuple[str, ...] = ()
    results: tuple[OtherResults, ...] = ()
    left: tuple[LeftTask, ...] = ()
    freed: tuple[RunId, ...] = ()
    kept: tuple[KeptCode, ...] = ()
    again: Total = _NOTHING
    if_changed: Total = _NOTHING
    datasets: tuple[str, ...] = ()
    readers: tuple[ReadingDataflow, ...] = ()
    can_reuse: bool = False
    clears: CodePlans = field(default_factory=CodePlans)

    @property
    def would_rerun(self) -> bool:
        """Report whether anything would run again; of two source trees, whether any stage differs."""
        return bool(self.stages or self.settings) if self.against else bool(self.clears.plans)

    @property
    def impossible(self) -> tuple[ClearPlan, ...]:
        """The clears that cannot be carried out, so that none is."""
        return tuple(each for each in self.clears.plans if each.plan.impossible)

    def fields(self) -> dict[str, Any]:
        """Return the fields of its document (docs/plan.md)."""
        told = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "clears"}
        return {**told, "would_rerun": self.would_rerun, "plans": [each.fields() for each in self.clears.plans]}


# Compared with what has made the results


def code_plan(
    services: Services, of: DeclaredCode, first: str | None = None, last: str | None = None, *, by_weir: bool = False
) -> CodePlan:
    """Plan what running again comes to of all that other code has made. Raises as `plans_of_code`."""
    files, flow = of.archive.files, of.flow
    found = plans_of_code(services, flow.name, files, first, last, by_weir=by_weir)
    plans = [each.plan for each in found.plans]
    steps = _steps(plans)
    downstream = plans_downstream(services, plans)
    with services.ledger.transaction() as session:
        made = _made(session, found.plans, files)
    stages, diff = _stages(services, found, made, of.archive)
    newest = found.runs[-1] if found.runs else None
    before = flow if newest is None else newest.dataflow
    again = {place: cost for place, (kind, cost) in steps.items() if kind in _AGAIN}
    return CodePlan(
        dataflow=flow.name,
        file=str(of.file),
        archive=of.archive.fingerprint,
        runs=len(found.runs),
        newest="" if newest is None else newest.id,
        stages=_declared(before.stages, flow.stages, stages),
        settings=_settings(before, flow),
        diff=diff,
        results=_results(found.plans, made),
        left=found.left,
        freed=tuple(each.id for each in found.freed),
        kept=found.kept,
        again=total_of(again.values()),
        if_changed=total_of(cost for kind, cost in steps.values() if kind in _PERHAPS),
        datasets=downstream.datasets,
        readers=_readers(downstream.plans),
        can_reuse=bool(plans) and all(each.answer.run.dataflow.reuses_any for each in found.plans),
        clears=found,
    )


@dataclass(frozen=True, slots=True)
class _Made:
    """A version that has made results of a task in a run, and its archive, where these are known."""

    run: RunId
    task: str
    version: str
    archive: str | None


def _made(session: Session, plans: Iterable[ClearPlan], files: Mapping[str, bytes]) -> list[_Made]:
    """Return the other versions that have made current results of what is cleared, oldest epoch first."""
    version = cache(lambda functions: code_version(files, functions))
    found: dict[_Made, None] = {}
    for planned in plans:
        run = planned.answer.run
        newest = {name: version(functions_of(run.topology, name)) for name in {each.name for each in planned.regions}}
        query = (
            select(AttemptRow.region, AttemptRow.code, AttemptRow.archive)
            .join(ResultRow, ResultRow.attempt == AttemptRow.id)
            .where(ResultRow.run == run.id, ResultRow.is_current, AttemptRow.region.in_(newest))
            .order_by(AttemptRow.began_at)
        )
        for task, code, archive in session.execute(query):
            if code != newest[task]:
                found[_Made(run.id, task, code or RESTORED, archive)] = None
    return list(found)


def _results(plans: Sequence[ClearPlan], made: Iterable[_Made]) -> tuple[OtherResults, ...]:
    """Return what other code has made by task, in the order of the newest run."""
    runs: dict[str, dict[RunId, list[Cost | None]]] = {}
    for planned in reversed(plans):
        for step in planned.plan.of(StepKind.RERUN):
            if step.region in planned.regions:
                runs.setdefault(step.region.name, {}).setdefault(planned.answer.run.id, []).append(step.cost)
    versions: dict[str, dict[str, set[RunId]]] = {}
    for each in made:
        versions.setdefault(each.task, {}).setdefault(each.version, set()).add(each.run)
    return tuple(
        OtherResults(
            task=task,
            runs=len(found),
            first=min(map(epoch_of_run, found)),
            last=max(map(epoch_of_run, found)),
            versions={version: len(of) for version, of in versions.get(task, {}).items()},
            again=total_of(cost for costs in found.values() for cost in costs),
        )
        for task, found in runs.items()
    )


_Places = dict[tuple[str, RegionId], tuple[StepKind, Cost | None]]
"""What happens to a region of a run, once, though the plans of several runs have it."""


def _steps(plans: Iterable[Plan]) -> _Places:
    found: _Places = {}
    for plan in plans:
        for step in plan.steps:
            place = step.region.run_id(plan.run), step.region.in_run(OWN_RUN)
            if step.kind in _AGAIN or (step.kind in _PERHAPS and place not in found):
                found[place] = step.kind, step.cost
    return found


def _readers(plans: Iterable[Plan]) -> tuple[ReadingDataflow, ...]:
    found: dict[str, list[Plan]] = {}
    for plan in plans:
        found.setdefault(dataflow_of(plan.run), []).append(plan)
    return tuple(
        ReadingDataflow(name, len(some), total_of(cost for _, cost in _steps(some).values()))
        for name, some in found.items()
    )


# Stages


def _stages(
    services: Services, found: CodePlans, made: Sequence[_Made], archive: Archive
) -> tuple[list[StageDifference], tuple[str, ...]]:
    """Return the stages that run again, or may, as the newest run has them that has them; and a unified diff."""
    read = cache(lambda name: _archive(services, name))
    newest = {each.task: each for each in made}
    stages: dict[str, StageDifference] = {}
    changed: dict[tuple[str, bytes | None], Mapping[str, bytes]] = {}
    done: set[str] = set()
    for planned in reversed(found.plans):
        topology = planned.answer.run.topology
        for task in dict.fromkeys(each.name for each in planned.regions if each.name not in done):
            old = read(newest[task].archive) if task in newest else _UNKNOWN
            for each in _of_task(topology.stages_of(task), old, archive):
                stages[each.stage] = each
                if isinstance(old, Archive):
                    changed |= {(file.file, old.files.get(file.file)): old.files for file in each.files}
            done.add(task)
    for planned in reversed(found.plans):
        for name, change in _others(planned.plan, planned.answer.run.topology):
            stages.setdefault(name, StageDifference(stage=name, change=change))
    lines = [line for (file, _), before in changed.items() for line in unified(file, before, archive.files)]
    return list(stages.values()), tuple(lines)


def _archive(services: Services, name: str | None) -> Archive | str:
    """Return an archive, or why it is not known."""
    try:
        return _UNKNOWN if name is None else archive_named(services, name)
    except Misconfigured as error:
        return str(error)


def _of_task(stages: Iterable[Stage], old: Archive | str, new: Archive) -> Iterator[StageDifference]:
    """Yield the stages of a task whose code differs."""
    for stage in stages:
        if isinstance(old, str):
            is_own = bool(archived([stage.function]))
            change = Change.DIRECT if is_own else Change.IN_TASK
            yield StageDifference(stage=stage.name, change=change, note=old if is_own else "")
        else:
            yield _of_stage(stage, old.files, new.files) or StageDifference(stage=stage.name, change=Change.IN_TASK)


def _of_stage(stage: Stage, old: Mapping[str, bytes], new: Mapping[str, bytes]) -> StageDifference | None:
    files = differences(old, new, archived([stage.function]))
    if not files:
        return None
    return StageDifference(stage=stage.name, change=Change.DIRECT, part=_part(stage, files), files=files)


def _part(stage: Stage, files: Iterable[FileDifference]) -> Part:
    differing = {each.file: each.names for each in files}
    if name_in_archive(stage.function) in differing:
        return Part.FILE
    module, _, name = stage.function.partition(":")
    own = [each for end in (".py", "/__init__.py") if (each := module.replace(".", "/") + end) in differing]
    if not own:
        return Part.REACHED
    return Part.FUNCTION if any(name in (differing[each] or [name]) for each in own) else Part.MODULE


def _others(plan: Plan, topology: Topology) -> Iterator[tuple[str, Change]]:
    """Yield the stages of the plan's run that run again, or may, with the code that has made them."""
    for step in plan.steps:
        change = Change.NEEDED if step.kind in _AGAIN else Change.INDIRECT
        if step.kind in (*_AGAIN, *_PERHAPS) and step.region.is_of_own_run and step.region != CLOSE:
            yield from ((name, change) for name in topology.region(step.region.name).stages)


def _declared(
    before: Sequence[Stage], now: Sequence[Stage], known: Sequence[StageDifference]
) -> tuple[StageDifference, ...]:
    """Return the known stages and those that are added, removed or declared otherwise, with what differs of these."""
    old, new = ({stage.name: _rows_of(stage) for stage in some} for some in (before, now))
    found = {each.stage: each for each in known}
    for name in (*new, *(each for each in old if each not in new)):
        if name not in old or name not in new:
            change = Change.ADDED if name in new else Change.REMOVED
            found[name] = replace(found.get(name, StageDifference(stage=name, change=change)), change=change)
        elif other := _differing(old[name], new[name]):
            stage = found.get(name, StageDifference(stage=name, change=Change.DECLARED))
            found[name] = replace(stage, declared=other)
    order = list(Change)
    return tuple(sorted(found.values(), key=lambda each: order.index(each.change)))


def _rows_of(stage: Stage) -> dict[str, Any]:
    return {name: each for name, each in stage_to_json(stage).items() if name not in _NOT_ROWS}


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> tuple[FieldDifference, ...]:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return tuple(FieldDifference(f"{prefix}{name}", old.get(name), new.get(name)) for name in names)


def _settings(before: Dataflow, now: Dataflow) -> tuple[FieldDifference, ...]:
    """Return what differs of the settings on which rows depend."""
    numbers = _differing({_GROUPS: before.max_parallelism}, {_GROUPS: now.max_parallelism})
    return (*numbers, *_differing(before.parameters, now.parameters, "parameters."))


# Two source trees


def compared(of: DeclaredCode, against: str, old: DeclaredCode | Archive | None) -> CodePlan:
    """Compare a dataflow with its code elsewhere: with its declaration, or an archive; None: there is no such dataflow.

    What runs have computed is not looked at.
    """
    before = old.flow if isinstance(old, DeclaredCode) else of.flow
    archive = old.archive if isinstance(old, DeclaredCode) else old or Archive({})
    there = set() if old is None else {stage.name for stage in before.stages}
    topology = Topology(of.flow)
    stages: dict[str, StageDifference] = {}
    reached: set[str] = set()
    for region in topology.regions:
        known = [stage for stage in topology.stages_of(region.name) if stage.name in there]
        found = [_of_stage(stage, archive.files, of.archive.files) for stage in known]
        is_direct = any(found)
        if is_direct or any(each.name in reached for each in topology.upstream(region.name)):
            reached.add(region.name)
            change = Change.IN_TASK if is_direct else Change.INDIRECT
            for stage, each in zip(known, found, strict=True):
                stages[stage.name] = each or StageDifference(stage=stage.name, change=change)
    changed = {file.file: None for each in stages.values() for file in each.files}
    return CodePlan(
        dataflow=of.flow.name,
        file=str(of.file),
        archive=of.archive.fingerprint,
        against=against,
        stages=_declared([] if old is None else before.stages, of.flow.stages, tuple(stages.values())),
        settings=_settings(before, of.flow),
        diff=tuple(line for name in changed for line in unified(name, archive.files, of.archive.files)),
    )
