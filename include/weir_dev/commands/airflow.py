"""`./weir airflow`: the command line of the local stack's Airflow, unless the environment describes a deployment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from weir.cli.airflow_program import become_airflow
from weir.errors import Misconfigured
from weir_dev.commands.doctor import is_a_deployment
from weir_dev.commands.stack import stack_of_project
from weir_dev.stack.airflow_environment import component_environment

if TYPE_CHECKING:
    from collections.abc import Mapping


def airflow(context: typer.Context) -> None:
    """Run Airflow's command line, with the Airflow of the local stack."""
    become_airflow(context.args, environment_of_airflow(os.environ))


def environment_of_airflow(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which Airflow is found. Raises Misconfigured where the local stack is down."""
    if is_a_deployment(environ):
        return dict(environ)
    stack = stack_of_project()
    if not stack.is_running():
        raise Misconfigured.of("dev.stack_not_running")
    return component_environment(stack.request, stack.state.ports, stack.credentials, environ)
