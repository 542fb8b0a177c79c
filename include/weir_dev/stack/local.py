"""The local stack for the commands of the product. Invariant: nothing is started, and no secret is created."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from weir.environment import API_VARIABLE
from weir.settings import SPARK_VARIABLE
from weir_dev.ports import LOOPBACK
from weir_dev.project import state_folder
from weir_dev.stack.airflow_environment import API, SPARK, database_of, ledger_url, store_url
from weir_dev.stack.credentials import SERVICE, load_or_create
from weir_dev.stack.spark_server import connect_url
from weir_dev.stack.state import Database, Phase, read_state

if TYPE_CHECKING:
    from weir.cli.commands.doctor import Subject


def local_environment() -> dict[str, str]:
    """Return where the local stack keeps ledger and store and, while it is up, how Airflow and Spark are reached."""
    folder = state_folder()
    state = read_state(folder)
    database = database_of(folder) or Database.SQLITE  # a file that is not there is a ledger that is not there
    found = {"WEIR_STORE": store_url(folder), "WEIR_LEDGER": ledger_url(folder, database, state.ports)}
    if state.phase is not Phase.UP:
        return found
    credentials = load_or_create(folder)
    if API in state.ports:
        password = quote(credentials.service_password, safe="")
        found[API_VARIABLE] = f"http://{SERVICE}:{password}@{LOOPBACK}:{state.ports[API]}"
    if SPARK in state.ports:
        found[SPARK_VARIABLE] = connect_url(state.ports[SPARK], credentials.spark_token)
    return found


def problem_of_ledger() -> str | None:
    """Return the reason why the ledger cannot be reached, if it is known, and the command to type."""
    folder = state_folder()
    if database_of(folder) is not Database.POSTGRES or read_state(folder).phase is Phase.UP:
        return None
    return (
        f"the ledger of the local stack in {folder} is in its PostgreSQL server, which runs while the stack is up: "
        "type ./weir up, or set WEIR_LEDGER and WEIR_STORE to those of your workers"
    )


def subject_of_doctor() -> Subject:
    """Return the local stack as `weir doctor` examines it. Raises Misconfigured without a checkout."""
    from weir_dev.commands.stack import stack_of_project  # noqa: PLC0415  a notebook needs no command line
    from weir_dev.stack import doctor_subject  # noqa: PLC0415

    return doctor_subject.local_stack(stack_of_project())
