"""The local stack for the commands of the product. Invariant: nothing is started, and no secret is created."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from weir.environment import API_VARIABLE
from weir.settings import SPARK_VARIABLE
from weir_dev.ports import LOOPBACK
from weir_dev.project import state_folder
from weir_dev.stack.airflow_environment import API, SPARK, ledger_url, store_url
from weir_dev.stack.credentials import SERVICE, load_or_create
from weir_dev.stack.spark_server import connect_url
from weir_dev.stack.state import Phase, read_state

if TYPE_CHECKING:
    from weir.cli.commands.doctor import Subject


def local_environment() -> dict[str, str]:
    """Return where the local stack keeps ledger and store and, while it is up, how Airflow and Spark are reached."""
    folder = state_folder()
    found = {"WEIR_STORE": store_url(folder), "WEIR_LEDGER": ledger_url(folder)}
    state = read_state(folder)
    if state.phase is not Phase.UP:
        return found
    credentials = load_or_create(folder)
    if API in state.ports:
        password = quote(credentials.service_password, safe="")
        found[API_VARIABLE] = f"http://{SERVICE}:{password}@{LOOPBACK}:{state.ports[API]}"
    if SPARK in state.ports:
        found[SPARK_VARIABLE] = connect_url(state.ports[SPARK], credentials.spark_token)
    return found


def subject_of_doctor() -> Subject:
    """Return the local stack as `weir doctor` examines it. Raises Misconfigured without a checkout."""
    from weir_dev.commands.stack import stack_of_this_checkout  # noqa: PLC0415  a notebook needs no command line
    from weir_dev.stack import doctor_subject  # noqa: PLC0415

    return doctor_subject.local_stack(stack_of_this_checkout())
