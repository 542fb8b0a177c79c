"""The environment of a command or a notebook: its ledger, its store, and the addresses of Airflow and Spark.

Invariants: reading the environment never creates a ledger. The local stack of a checkout is used only if the
environment names neither a store nor a ledger; a variable that is set is never replaced.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from weir.errors import Misconfigured
from weir.local_stack import local_stack
from weir.settings import Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weir.coordination.services import Services


OWN: Final = frozenset({"WEIR_STORE", "WEIR_LEDGER"})
"""An environment with one of these variables has a ledger and a store of its own."""

API_VARIABLE: Final = "WEIR_API"
"""The api-server's URL, with a login and a password in it."""


def command_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of `environ` or this process, and those of the local stack where it is used."""
    found = dict(os.environ if environ is None else environ)
    stack = None if OWN & found.keys() else local_stack()
    return found if stack is None else stack.environment | found


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the places of ledger and store, and the settings of recovery and retention. Raises Misconfigured."""
    return read_settings(command_environment(environ))


@contextmanager
def opened_services(*, may_be_new: bool = False) -> Iterator[Services]:
    """Open the ledger and the store; `may_be_new` lets a missing ledger be created, else Misconfigured is raised."""
    from weir.coordination.services import Services  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.ledger.ledger import Ledger  # noqa: PLC0415

    if not OWN & os.environ.keys():
        stack = local_stack()
        if stack is None:
            raise _no_ledger("")
        if stack.ledger_problem:
            raise Misconfigured(stack.ledger_problem)
    found = settings()
    path = found.ledger.removeprefix("sqlite:///")
    if not may_be_new and path != found.ledger and not Path(path).exists():
        raise _no_ledger(f" {path}")
    ledger = Ledger.open(found.ledger)
    try:
        yield Services.of(found, ledger)
    finally:
        ledger.close()


def _no_ledger(name: str) -> Misconfigured:
    return Misconfigured.of("environment.no_ledger", name=name)
