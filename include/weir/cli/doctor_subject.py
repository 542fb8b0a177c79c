"""Whom the doctor examines: the local stack, or the environment of this command.

Invariant: without an environment that says otherwise, it is the local stack.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from weir.cli.airflow_components import SCHEDULER
from weir.cli.airflow_environment import component_environment, stack_ports
from weir.cli.credentials import FILE_NAME as CREDENTIALS_FILE
from weir.cli.keeper import NAME as KEEPER
from weir.cli.stack_state import Phase, StackState
from weir.doctor.stack import Components, judge_stack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weir.cli.stack import Stack
    from weir.doctor.finding import Finding

ENVIRONMENT = (
    "WEIR_STORE",
    "WEIR_LEDGER",
    "AIRFLOW_CONN_WEIR_STORE",
    "AIRFLOW_CONN_WEIR_LEDGER",
    "AIRFLOW_CONN_WEIR_API",
    "AIRFLOW__WEIR__STORE",
    "AIRFLOW__WEIR__LEDGER",
)
"""An environment with one of these speaks of a set-up of its own."""

_SUBMITTING = "spark_default"
"""The connection of every local stack by which regions are submitted."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined. `environment` is the whole one of a worker, None if there is nothing to ask yet.

    `is_served` says whether Airflow and Spark are meant to run; `connections` are more ids of connections to Spark.
    """

    about: str
    environment: Mapping[str, str] | None
    is_served: bool
    is_local: bool
    connections: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


def this_environment(environ: Mapping[str, str]) -> Subject:
    """The set-up that this command's own environment describes."""
    return Subject("this environment", dict(environ), is_served=True, is_local=False)


def local_stack(stack: Stack) -> Subject:
    """A local stack, with the environment that its scheduler has if it runs, and that it would have if not."""
    state = stack.state
    is_kept = stack.is_running()
    failure = state.message if state.phase is Phase.FAILED else ""
    finding = judge_stack(_components(state), is_kept=is_kept, failure=failure, logs=str(stack.logs))
    environment = (_environment_of(state) if is_kept else None) or _environment_to_be(stack)
    has_submission = environment is not None and f"AIRFLOW_CONN_{_SUBMITTING.upper()}" in environment
    return Subject(
        f"the local stack in {stack.folder}",
        environment,
        is_served=is_kept,
        is_local=True,
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
    """What a stack was started with may differ from what this command would start it with."""
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
