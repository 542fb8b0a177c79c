"""How long a redundant stack needs after a fault until it works again.

Invariant: it works when both databases have taken a write, and a task instance has begun or ended after that.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from http import HTTPStatus
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from sqlalchemy import create_engine, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from weir.coordination.airflow_client import path_of
from weir.errors import WeirError
from weir.ledger.database.tables import AttemptRow
from weir_dev.airflow_api import AirflowApi
from weir_dev.stack.credentials import PERSON

if TYPE_CHECKING:
    from tests.chaos.field import Field


POLL_SECONDS: Final = 0.25
_PROBE: Final = "weir_chaos_probe"
"""The table in the ledger's database, and the variable of Airflow, that are written."""


class Healing:
    """Looks until the stack works, from when this is made."""

    def __init__(self, field: Field) -> None:
        self.seconds: float | None = None
        self._field = field
        self._began = time.monotonic()
        self._is_given_up = Event()
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        """Report whether the stack works."""
        return self.seconds is not None

    def give_up(self) -> None:
        """Stop looking."""
        self._is_given_up.set()
        self._thread.join()

    def _look(self) -> None:
        written_at: datetime | None = None
        while self.seconds is None and not self._is_given_up.wait(POLL_SECONDS):
            try:
                if written_at is None:
                    self._write_to_ledger()
                    self._write_to_airflow()
                    written_at = datetime.now(UTC)
                elif self._has_worked_since(written_at):
                    self.seconds = time.monotonic() - self._began
            except (WeirError, DBAPIError):
                continue

    def _write_to_ledger(self) -> None:
        with create_engine(self._field.stack.ledger_url, poolclass=NullPool).begin() as connection:
            connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {_PROBE} (n int)")
            connection.exec_driver_sql(f"INSERT INTO {_PROBE} VALUES (1)")  # noqa: S608  a name of ours

    def _write_to_airflow(self) -> None:
        api = AirflowApi(self._field.stack.url, PERSON, self._field.stack.credentials.person_password)
        body = {"key": _PROBE, "value": str(datetime.now(UTC))}
        variables = path_of("api", "v2", "variables")
        try:
            if api.call("PATCH", variables + path_of(_PROBE), body).status_code == HTTPStatus.NOT_FOUND:
                api.call("POST", variables, body)
        finally:
            api.close()

    def _has_worked_since(self, written_at: datetime) -> bool:
        query = select(AttemptRow.id).where(or_(AttemptRow.began_at > written_at, AttemptRow.ended_at > written_at))
        with self._field.ledger.transaction() as session:
            return session.scalar(query.limit(1)) is not None
