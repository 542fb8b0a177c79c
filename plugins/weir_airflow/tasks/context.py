"""Everything a task of Weir works with, opened where it is used.

Invariant: opening it touches neither Airflow nor Spark.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from weir.attempts.coordinator import Coordinator
from weir.coordination.services import Services
from weir.ledger.ledger import Ledger
from weir.store.store import Store
from weir_airflow.connections.connections import api_connection, settings, spark_connection
from weir_airflow.recovery.clearing import clearer_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import Connection

    from weir.attempts.ports import Airflow
    from weir.settings import Settings


class Office:
    """Coordinator, store, settings, and the connections to Airflow and Spark, each asked for when it is needed."""

    def __init__(self, found: Settings, ledger: Ledger) -> None:
        self._settings = found
        self.store_options = found.store_options
        self.store = Store.open(found.store, found.store_options)
        self.recovery = found.recovery
        self.services = Services(
            ledger=ledger,
            store=self.store,
            recovery=found.recovery,
            retention=found.retention,
            expectations=found.expectations,
        )
        self.coordinator = Coordinator(self.services)

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Office]:
        """Open the ledger and give it back at the end. Raises Misconfigured or Retryable."""
        found = settings()
        ledger = Ledger.open(found.ledger)
        try:
            yield cls(found, ledger)
        finally:
            ledger.close()

    @cached_property
    def clearer(self) -> Airflow:
        """Weir's hand in Airflow."""
        return clearer_for(api_connection(self._settings))

    def spark(self, conn_id: str | None = None) -> Connection:
        """The connection of this id to the engine; None is the one of the settings."""
        return spark_connection(self._settings, conn_id)
