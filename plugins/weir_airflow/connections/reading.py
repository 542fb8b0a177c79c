"""Opens ledger and store for a page of the API server.

Invariant: a ledger that is not there, or of another build, stays as it is; nothing is created or migrated.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from weir.coordination.services import Services
from weir.ledger.ledger import Ledger
from weir_airflow.connections.connections import settings

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def services_to_read() -> Iterator[Services]:
    """Yield the services of this deployment. Raises NotMigrated, OtherBuild, Misconfigured or Retryable."""
    found = settings()
    ledger = Ledger.open_as_it_is(found.ledger)
    try:
        yield Services.of(found, ledger)
    finally:
        ledger.close()
