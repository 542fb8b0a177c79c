"""The local stack, judged by what is known of its processes. Invariant: a stack that is down is one finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weir.doctor.finding import Finding, ok, problem, warning

AREA = "stack"


@dataclass(frozen=True, slots=True)
class Components:
    """The names of a stack's processes: those that work, that have not answered yet, and that are dead."""

    working: Sequence[str] = ()
    starting: Sequence[str] = ()
    dead: Sequence[str] = ()

    @property
    def alive(self) -> tuple[str, ...]:
        """All that run."""
        return (*self.working, *self.starting)


def judge_stack(components: Components, *, is_kept: bool, failure: str = "", logs: str = "") -> Finding:
    """Judge a stack; `is_kept` says whether its keeper runs, `failure` why its last start failed."""
    if not is_kept:
        return _judge_down(components, failure)
    if components.dead or components.starting:
        states = [f"{name} is dead" for name in components.dead] + [f"{name} starts" for name in components.starting]
        return problem(
            AREA,
            "components",
            ", ".join(states),
            expected="all components at work",
            mend=f"wait a moment, the keeper starts again what dies; else read {logs}",
        )
    return ok(AREA, "components", f"{', '.join(components.working)} run")


def _judge_down(components: Components, failure: str) -> Finding:
    if components.alive:
        return problem(
            AREA,
            "components",
            f"left behind by a keeper that was killed: {', '.join(components.alive)}",
            expected="a stack that runs, or nothing",
            mend="./weir down ends them; then ./weir up",
        )
    if failure:
        return problem(
            AREA, "components", f"the last start failed: {failure}", expected="a stack that starts", mend="./weir up"
        )
    return warning(
        AREA,
        "components",
        "the stack is not running, so Airflow and Spark are not asked",
        expected="a stack that runs",
        mend="./weir up",
    )
