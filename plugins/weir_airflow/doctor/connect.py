"""The checks of a connection to a Spark Connect server. Invariant: no task imports them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.extras import needed_for
from weir_airflow.engines.engines import connect_url, engine_address

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from weir.doctor.examination import Check
    from weir.store.store import Store


def connect_checks(area: str, connection: Connection, store: Store) -> list[Check]:
    """Return the checks of a connection: its server, and what that reads and writes. Raises Misconfigured."""
    with needed_for("Spark Connect"):
        from weir_spark.transport.doctor import ConnectExam  # noqa: PLC0415  imports pyspark
    found: list[Check] = ConnectExam(area, connect_url(connection, engine_address(connection)), store).checks()
    return found
