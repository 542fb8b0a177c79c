"""A recovery plan: one list of steps, which is printed, recorded and applied.

Invariant 5: every region that must run again is a step; any other is in the plan only as "if X changes" or "spared".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from weir.code.generation_rules import Code, Generation, RepairCode
from weir.errors import Misconfigured
from weir.topology.ids import OWN_RUN, RunRef, run_ref
from weir.topology.regions import RegionId

VERSION = 1
"""The version of a plan's JSON."""

SHOWN = 10
"""The number of regions that a step names in `depends_on`, and that a summary names as re-run."""


class StepKind(Enum):
    """The kind of a step: what the plan does with a region."""

    RERUN = "rerun"
    """The region is cleared with the decision."""
    JOINED = "joined"
    """It is running, or a clear of it is pending: the plan waits for it, and its commit is compared anyway.

    The plan also waits for a region of an earlier run that has not begun, or that has failed for good.
    """
    IF_CHANGED = "if_changed"
    """It is valid, and is cleared if the recomputed content of an input differs."""
    SUSPENDED = "suspended"
    """A producer further upstream is recomputed: the region becomes valid again with its inputs, or is cleared."""
    SPARED = "spared"

    def __str__(self) -> str:
        return _SAID[self]

    def unapplied(self) -> str:
        """Return what a plan that is not applied would do."""
        return _SAID[self].replace("will", "would")


_SAID = {
    StepKind.RERUN: "will re-run",
    StepKind.JOINED: "is awaited",
    StepKind.IF_CHANGED: "will re-run if its input changes",
    StepKind.SUSPENDED: "is suspended, and will re-run if its input changes",
    StepKind.SPARED: "spared",
}

WITH_CODE = (StepKind.RERUN, StepKind.IF_CHANGED, StepKind.SUSPENDED)
"""The kinds of steps whose regions run again, or may; a region that is running has chosen its code."""

_TOTALS = {
    "rerun": (StepKind.RERUN,),
    "joined": (StepKind.JOINED,),
    "if_changed": (StepKind.IF_CHANGED, StepKind.SUSPENDED),
    "spared": (StepKind.SPARED,),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """The rows and bytes that the last committed attempt of a region wrote, and how long it ran."""

    rows: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Total:
    """The total cost of some regions; `unknown` of the `regions` have no history."""

    regions: int
    rows: int
    bytes: int
    seconds: float
    unknown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One region and what the plan does with it; a clear applies only while `after_try` is its newest try.

    `depends_on` are the first of the regions that it reads and whose change would make it run again. `cost` is None
    where it has no history. `code` is the current generation of its code in its run, None where that is not known.
    `takes` is the attempt of whose results it takes a copy if they are made of the same (empty: it computes).
    """

    kind: StepKind
    region: RegionId
    after_try: int
    reason: str
    depends_on: tuple[RegionId, ...] = ()
    cost: Cost | None = None
    code: Generation | None = None
    takes: str = ""

    @property
    def has_begun(self) -> bool:
        """Whether there is anything to restart, or to spare."""
        return self.after_try > 0


@dataclass(frozen=True, slots=True)
class ExpiredState:
    """A state that a plan would need and that is expired: the run that it is of, and the run that reads it.

    `is_suspected` if a person has restored it, and it has failed a check; `is_gone` if it would be computed again, and
    Airflow does not have its task any more. `producers` are those of all such states.
    """

    run: str
    reader: str
    is_suspected: bool
    is_gone: bool
    producers: frozenset[RegionId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision about one failure. `failed` is retried by Airflow itself and needs no clear; None if nothing failed.

    `held_back` is the reason why Weir does not apply it by itself; empty if it does. `impossible` is the reason why
    it cannot be applied at all: it would need an expired state, which `expired` has until the plan is recorded.
    Regions in `not_deterministic` have given unequal results from equal inputs before. `code` is the value of the
    RepairCode of what it clears: "as_it_was" is the code of each step.
    """

    failed: RegionId | None
    cause: str
    steps: tuple[Step, ...]
    run: str = ""
    strategy: str = "region"
    consumers: str = "if_changed"
    held_back: str = ""
    failed_cost: Cost | None = None
    not_deterministic: tuple[RegionId, ...] = ()
    impossible: str = ""
    expired: ExpiredState | None = None
    code: str = RepairCode.AS_IT_WAS.value

    def of(self, kind: StepKind) -> tuple[Step, ...]:
        """Return the steps of one kind, in topological order."""
        return tuple(step for step in self.steps if step.kind is kind)

    def with_costs(self, history: Mapping[RegionId, Cost]) -> Plan:
        """Return the same plan with the cost of each region."""
        steps = tuple(replace(step, cost=history.get(step.region)) for step in self.steps)
        return replace(self, steps=steps, failed_cost=history.get(self.failed) if self.failed else None)

    def with_findings(self, not_deterministic: Iterable[RegionId]) -> Plan:
        """Return the same plan with the recomputed regions that may give other results from equal inputs."""
        anew = {step.region for step in self.steps if step.kind in (StepKind.RERUN, StepKind.JOINED)} | {self.failed}
        return replace(self, not_deterministic=tuple(sorted(each for each in not_deterministic if each in anew)))

    def with_code(self, generations: Mapping[RegionId, Generation]) -> Plan:
        """Return the same plan with the code of each region."""
        return replace(self, steps=tuple(replace(step, code=generations.get(step.region)) for step in self.steps))

    def with_takes(self, attempts: Mapping[RegionId, str]) -> Plan:
        """Return the same plan with the attempts whose results its regions take where nothing differs."""
        return replace(self, steps=tuple(_taking(each, attempts.get(each.region, "")) for each in self.steps))

    def total(self, *kinds: StepKind) -> Total:
        """Return the total cost of the steps of some kinds; `failed` is not among them."""
        wanted = (step for step in self.steps if step.kind in kinds)
        return total_of(step.cost for step in wanted if step.has_begun or step.kind is not StepKind.SPARED)

    def full_restart(self) -> Total:
        """Return the cost of a restart of all regions that have begun, including the failed one."""
        begun = [step.cost for step in self.steps if step.has_begun and step.region.is_of_own_run]
        return total_of([*begun, self.failed_cost] if self.failed else begun)

    def does_the_same(self, other: Plan) -> bool:
        """Report whether both plans clear the same tries, for whatever reasons."""
        return _clears(self) == _clears(other)

    def summary(self) -> str:
        """Return one sentence for a log or a note."""
        if self.impossible:
            return f"nothing can be re-run: {self.impossible}"
        spared = self.spared()
        joined = len(self.of(StepKind.JOINED))
        rerun = [str(step.region) for step in self.of(StepKind.RERUN)]
        more = f" and {len(rerun) - SHOWN} more" if len(rerun) > SHOWN else ""
        named = ", ".join(rerun[:SHOWN]) or "nothing"
        running = f", {joined} awaited" if joined else ""
        maybe = sum(step.kind is not StepKind.SPARED for step in spared)
        unless = f", {maybe} of them unless an input changes" if maybe else ""
        return f"re-running {named}{more}{running}; {len(spared)} region(s) spared{unless}"

    def spared(self) -> tuple[Step, ...]:
        """Return the steps of all regions of the run that have begun and do not run again, but if an input changes."""
        runs = (StepKind.RERUN, StepKind.JOINED)
        own = (step for step in self.steps if step.has_begun and step.region.is_of_own_run)
        return tuple(step for step in own if step.kind not in runs)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as the ledger records it and `weir plan --json` prints it (docs/plan.md)."""
        return {
            "version": VERSION,
            "run": self.run,
            "strategy": self.strategy,
            "consumers": self.consumers,
            "failed": None if self.failed is None else str(self.failed),
            "failed_cost": _cost_to_json(self.failed_cost),
            "cause": self.cause,
            "held_back": self.held_back,
            "impossible": self.impossible,
            "code": self.code,
            "not_deterministic": [str(each) for each in self.not_deterministic],
            "steps": [_step_to_json(step, self.run) for step in self.steps],
            "totals": {name: asdict(self.total(*kinds)) for name, kinds in _TOTALS.items()}
            | {"full_restart": asdict(self.full_restart())},
        }

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Plan:
        """Read what `to_json` wrote. Raises Misconfigured for another version."""
        if found.get("version") != VERSION:
            raise Misconfigured.of("recovery.plan_of_other_version", found=found.get("version"), version=VERSION)
        failed, run = found["failed"], found["run"]
        return Plan(
            failed=None if failed is None else _region(failed, OWN_RUN),
            cause=found["cause"],
            steps=tuple(_step_from_json(step, run) for step in found["steps"]),
            run=run,
            strategy=found["strategy"],
            consumers=found["consumers"],
            held_back=found["held_back"],
            failed_cost=_cost_from_json(found["failed_cost"]),
            not_deterministic=tuple(_full_region(each) for each in found["not_deterministic"]),
            impossible=found["impossible"],
            code=found["code"],
        )


def _clears(plan: Plan) -> dict[RegionId, int]:
    return {step.region: step.after_try for step in plan.of(StepKind.RERUN)}


def total_of(costs: Iterable[Cost | None]) -> Total:
    """Return the total cost of some regions; None stands for a region without history."""
    listed = list(costs)
    known = [each for each in listed if each is not None]
    return Total(
        len(listed),
        sum(each.rows for each in known),
        sum(each.bytes for each in known),
        round(sum((each.seconds for each in known), 0.0), 3),
        len(listed) - len(known),
    )


def together(totals: Iterable[Total]) -> Total:
    """Return the sum of some totals."""
    listed = list(totals)
    return Total(
        sum(each.regions for each in listed),
        sum(each.rows for each in listed),
        sum(each.bytes for each in listed),
        round(sum((each.seconds for each in listed), 0.0), 3),
        sum(each.unknown for each in listed),
    )


def _step_to_json(step: Step, run: str) -> dict[str, Any]:
    return {
        "kind": step.kind.value,
        "region": _name(step.region),
        "run": step.region.run_id(run),
        "after_try": step.after_try,
        "reason": step.reason,
        "depends_on": [str(each) for each in step.depends_on],
        "cost": _cost_to_json(step.cost),
        "code": _code_to_json(step.code),
        "takes": step.takes,
    }


def _step_from_json(found: Mapping[str, Any], run: str) -> Step:
    return Step(
        kind=StepKind(found["kind"]),
        region=_region(found["region"], run_ref(found["run"], run)),
        after_try=found["after_try"],
        reason=found["reason"],
        depends_on=tuple(_full_region(each) for each in found["depends_on"]),
        cost=_cost_from_json(found["cost"]),
        code=_code_from_json(found["code"]),
        takes=found["takes"],
    )


def _taking(step: Step, attempt: str) -> Step:
    if not attempt or step.kind is not StepKind.RERUN:
        return step
    told = f"{step.reason}; takes what attempt {attempt} has made, if its code and all that it reads are the same"
    return replace(step, takes=attempt, reason=told)


def _name(region: RegionId) -> str:
    return f"{region.name}[{region.subtask}]"


def _full_region(text: str) -> RegionId:
    name, _, run = text.partition(" of ")
    return _region(name, RunRef(run))


def _region(text: str, run: RunRef) -> RegionId:
    name, _, rest = text.rpartition("[")
    return RegionId(name, int(rest.rstrip("]")), run)


def _code_to_json(code: Generation | None) -> dict[str, Any] | None:
    if code is None:
        return None
    return {"version": code.code.version, "archive": code.code.archive, "generation": code.number}


def _code_from_json(found: Mapping[str, Any] | None) -> Generation | None:
    return None if found is None else Generation(found["generation"], Code(found["version"], found["archive"]))


def _cost_to_json(cost: Cost | None) -> dict[str, Any] | None:
    return None if cost is None else asdict(cost)


def _cost_from_json(found: Mapping[str, Any] | None) -> Cost | None:
    return None if found is None else Cost(found["rows"], found["bytes"], found["seconds"])
