"""The subject that the doctor examines: the local stack, or the environment of this command; and the stack's processes.

Invariant: without an environment that says otherwise, it is the local stack; a stack that is down is one finding.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psutil

from weir.doctor.deployment import Subject
from weir.doctor.examination import Finding, Item
from weir_dev.stack.airflow_components import SCHEDULER
from weir_dev.stack.airflow_environment import component_environment, needs_postgres, stack_ports
from weir_dev.stack.credentials import FILE_NAME as CREDENTIALS_FILE
from weir_dev.stack.keeper import NAME as KEEPER
from weir_dev.stack.state import Phase, StackState

if TYPE_CHECKING:
    from weir_dev.stack.stack import Stack


_SUBMITTING = "spark_default"
"""The connection of every local stack by which regions are submitted."""


def local_stack(stack: Stack) -> Subject:
    """A local stack, with the environment that its scheduler has if it runs, and that it would have if not."""
    state = stack.state
    is_kept = stack.is_running()
    failure = state.message if state.phase is Phase.FAILED else ""
    finding = judge_stack(_components(state), is_kept=is_kept, failure=failure, logs=str(stack.logs))
    environment = (_environment_of(state) if is_kept else None) or _environment_to_be(stack)
    has_submission = environment is not None and f"AIRFLOW_CONN_{_SUBMITTING.upper()}" in environment
    return Subject(
        about=f"the local stack in {stack.folder}",
        environment=environment,
        is_served=is_kept,
        has_databases=is_kept or not needs_postgres(stack.request),
        connections=(_SUBMITTING,) if has_submission else (),
        findings=(finding,),
    )


def _components(state: StackState) -> Components:
    others = [one for one in state.processes if one.name != KEEPER]
    alive = [one.name for one in others if one.is_alive()]
    return Components(
        working=[name for name in alive if name in state.ready],
        starting=[name for name in alive if name not in state.ready],
        dead=[one.name for one in others if not one.is_alive()],
    )


def _environment_of(state: StackState) -> dict[str, str] | None:
    """Use the settings that the stack was started with, which may differ from those of this command."""
    scheduler = state.process(SCHEDULER)
    if scheduler is None or not scheduler.is_alive():
        return None
    try:
        return dict(psutil.Process(scheduler.pid).environ())
    except psutil.Error:
        return None


def _environment_to_be(stack: Stack) -> dict[str, str] | None:
    if not (stack.folder / CREDENTIALS_FILE).exists():
        return None  # it was never started: nothing of it is there, and looking makes nothing
    ports = dict.fromkeys(stack_ports(stack.request), 0) | stack.state.ports
    return component_environment(stack.request, ports, stack.credentials, os.environ)


_RUNNING = Item(
    "stack",
    "components",
    "all components running",
    "wait a moment, the keeper starts again what dies; else read {logs}",
)
_DOWN = replace(_RUNNING, expected="a stack that runs", mend="./weir up")
_NOT_STARTED = replace(_RUNNING, expected="a stack that starts", mend="./weir up")
_LEFT_BEHIND = replace(_RUNNING, expected="a stack that runs, or nothing", mend="./weir down ends them; then ./weir up")


@dataclass(frozen=True, slots=True)
class Components:
    """The names of a stack's processes: ready, not answering yet, and dead."""

    working: Sequence[str] = ()
    starting: Sequence[str] = ()
    dead: Sequence[str] = ()

    @property
    def alive(self) -> tuple[str, ...]:
        """All that run."""
        return (*self.working, *self.starting)


def judge_stack(components: Components, *, is_kept: bool, failure: str = "", logs: str = "") -> Finding:
    """Examine a stack; `is_kept` says whether its keeper runs, `failure` why its last start failed."""
    if not is_kept:
        return _judge_down(components, failure)
    if components.dead or components.starting:
        states = [f"{name} is dead" for name in components.dead] + [f"{name} starts" for name in components.starting]
        return _RUNNING.problem(", ".join(states), logs=logs)
    return _RUNNING.ok(f"{', '.join(components.working)} run")


def _judge_down(components: Components, failure: str) -> Finding:
    if components.alive:
        return _LEFT_BEHIND.problem(f"left behind by a keeper that was killed: {', '.join(components.alive)}")
    if failure:
        return _NOT_STARTED.problem(f"the last start failed: {failure}")
    return _DOWN.warning("the stack is not running, so Airflow, Spark and a PostgreSQL server are not asked")
