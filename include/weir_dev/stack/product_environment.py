"""Writes the file by which the product's commands and notebooks find a stack (`weir.local_stack`).

Invariant: nothing is started, and no secret is created; only the stack's user can read the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from weir.environment import API_VARIABLE
from weir.local_stack import FILE_NAME, LocalStack
from weir.settings import SPARK_VARIABLE
from weir_dev.files import write_atomically
from weir_dev.ports import LOOPBACK
from weir_dev.stack.airflow_environment import API, SPARK, ledger_url, needs_postgres, store_url
from weir_dev.stack.credentials import SERVICE, load_or_create
from weir_dev.stack.spark_server import connect_url
from weir_dev.stack.state import Phase

if TYPE_CHECKING:
    from weir_dev.stack.state import StackRequest, StackState


def write_product_environment(request: StackRequest, state: StackState) -> None:
    """Write down how a stack is reached, unless that is what the file says."""
    path = request.folder / FILE_NAME
    text = product_environment(request, state).to_json()
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text)


def product_environment(request: StackRequest, state: StackState) -> LocalStack:
    """Return where a stack keeps ledger and store and, while it is up, how Airflow and Spark are reached."""
    own = {
        "WEIR_STORE": store_url(request.folder),
        "WEIR_LEDGER": ledger_url(request.folder, request.database, state.ports),
    }
    environment = {name: request.environment.get(name, url) for name, url in own.items()}
    if state.phase is not Phase.UP:
        return LocalStack(environment, _why_down(request))
    credentials = load_or_create(request.folder)
    if API in state.ports:
        password = quote(credentials.service_password, safe="")
        environment[API_VARIABLE] = f"http://{SERVICE}:{password}@{LOOPBACK}:{state.ports[API]}"
    if SPARK in state.ports:
        environment[SPARK_VARIABLE] = connect_url(state.ports[SPARK], credentials.spark_token)
    return LocalStack(environment)


def _why_down(request: StackRequest) -> str:
    if not needs_postgres(request):
        return ""
    return (
        f"the ledger of the local stack in {request.folder} is in its PostgreSQL server, which runs while the stack is "
        "up: type ./weir up, or set WEIR_LEDGER and WEIR_STORE to those of your workers"
    )
