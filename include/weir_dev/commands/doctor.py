"""`./weir doctor`: examines the local stack, unless the environment describes a deployment of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.cli.commands.doctor import Connections, report
from weir.cli.documents import AsJson
from weir.doctor.deployment import Subject
from weir_dev.commands.stack import stack_of_project
from weir_dev.stack.doctor_subject import local_stack

if TYPE_CHECKING:
    from collections.abc import Mapping

ENVIRONMENT: Final = (
    "WEIR_STORE",
    "WEIR_LEDGER",
    "AIRFLOW_CONN_WEIR_STORE",
    "AIRFLOW_CONN_WEIR_LEDGER",
    "AIRFLOW_CONN_WEIR_API",
    "AIRFLOW__WEIR__STORE",
    "AIRFLOW__WEIR__LEDGER",
)
"""An environment with one of these variables describes a deployment of its own."""


def doctor(
    as_json: AsJson = False,
    here: Annotated[bool, typer.Option("--here", help="Examine this environment, not the local stack.")] = False,
    connection: Connections = None,
) -> None:
    """Check the deployment that this environment describes, else the local stack, and say how to correct it."""
    report(lambda: subject_of(here=here), connection or (), as_json=as_json)


def subject_of(*, here: bool) -> Subject:
    """Return this environment, if it describes a deployment or with `here`, else the local stack of the project."""
    if here or is_a_deployment(os.environ):
        return Subject.of_this_environment()
    return local_stack(stack_of_project())


def is_a_deployment(environ: Mapping[str, str]) -> bool:
    """Report whether an environment describes a deployment of its own."""
    return any(environ.get(name) for name in ENVIRONMENT)
