"""The coordinator, store, settings and connections of a task, opened where they are used.

Invariant: opening it touches neither Airflow's API nor Spark.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from airflow.sdk.log import redact

from weir.assembly import coordinator_of
from weir.coordination.services import Services
from weir.ledger.ledger import Ledger
from weir.secrecy import hiding_with
from weir_airflow.api.clearing import clearer_for
from weir_airflow.connections.connections import (
    api_connection,
    settings,
    spark_connection,
    user_connection,
    user_variable,
)
from weir_airflow.metrics import export

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import Connection

    from weir.settings import Settings
    from weir_airflow.api.clearing import AirflowApi


class TaskContext:
    """Coordinator, store and settings, and the connections to Airflow and Spark, which are looked up at first use."""

    def __init__(self, found: Settings, ledger: Ledger) -> None:
        self._settings = found
        self.store_options = found.store_options
        self.recovery = found.recovery
        self.operators = found.operators
        self.services = Services.of(found, ledger, user_connection, user_variable)
        self.store = self.services.store
        self.coordinator = coordinator_of(self.services)

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[TaskContext]:
        """Open the ledger, and close it at the end. Raises Misconfigured or Retryable.

        Meanwhile nothing is recorded or told that Airflow hides in its logs, and what is counted is exported.
        """
        found = settings()
        ledger = Ledger.open(found.ledger)
        ledger.counted = export
        try:
            with hiding_with(lambda text: str(redact(text))):
                yield cls(found, ledger)
        finally:
            ledger.close()

    @cached_property
    def airflow(self) -> AirflowApi:
        """Airflow's API, by the connection that the settings name. Raises Misconfigured or Retryable."""
        return clearer_for(api_connection(self._settings))

    def spark(self, conn_id: str | None = None) -> Connection:
        """Look up the connection of this id to Spark; None is that of the settings."""
        return spark_connection(self._settings, conn_id)


def airflow_api() -> AirflowApi:
    """Return Airflow's API without a ledger, which may be the one that does not answer.

    Raises Misconfigured or Retryable.
    """
    return clearer_for(api_connection(settings()))
