"""The ledger and the store that commands are about.

Invariant: without an environment that says otherwise, they are the local stack's; looking never makes a ledger.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from weir.cli.airflow_environment import ledger_url, store_url
from weir.cli.project import state_folder
from weir.errors import Misconfigured
from weir.settings import Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weir.coordinator.services import Services


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Where ledger and store are, and what the environment says of recovery."""
    found = dict(os.environ if environ is None else environ)
    if not {"WEIR_STORE", "WEIR_LEDGER"} & found.keys():
        folder = state_folder()
        found |= {"WEIR_STORE": store_url(folder), "WEIR_LEDGER": ledger_url(folder)}
    return read_settings(found)


@contextmanager
def opened_services(*, may_be_new: bool = False) -> Iterator[Services]:
    """The ledger and the store; `may_be_new` says that a ledger may begin empty."""
    from weir.coordinator.services import Services  # noqa: PLC0415  SQLAlchemy is slow to import
    from weir.ledger.ledger import Ledger  # noqa: PLC0415
    from weir.store.store import Store  # noqa: PLC0415

    found = settings()
    path = found.ledger.removeprefix("sqlite:///")
    if not may_be_new and path != found.ledger and not Path(path).exists():
        raise Misconfigured(
            f"there is no ledger {path} yet: start the local stack (./weir up, ./weir demo), or set WEIR_LEDGER and "
            "WEIR_STORE to those of your workers; `weir ledger rebuild --all` builds a lost one again"
        )
    ledger = Ledger.open(found.ledger)
    try:
        yield Services(
            ledger,
            Store.open(found.store, found.store_options),
            recovery=found.recovery,
            life=found.life,
            expectations=found.expectations,
        )
    finally:
        ledger.close()
