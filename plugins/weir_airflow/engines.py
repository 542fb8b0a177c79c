"""Where regions are computed, by the type of the Airflow connection.

Invariant: this is the one seam for other engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Connection

    from weir.doctor.examination import Check
    from weir.results.region_job import RegionJob
    from weir.store.store import Store

SPARK_CONNECT: Final = "spark_connect"


class Engine(Protocol):
    """Runs region jobs. The job's report is in the store when `run` returns."""

    def run(self, job: RegionJob, session_id: str, on_progress: Callable[[str], None]) -> None:
        """Compute the job in the session of that id. Raises Retryable, Misconfigured, Fenced, or the user's error."""
        ...

    def interrupt(self, session_id: str) -> None:
        """Stop whatever runs in a session, from any process; one that is not there is fine."""
        ...

    def stop(self) -> None:
        """Stop what `run` is doing, from another thread."""
        ...


def engine_for(connection: Connection, address: str | None = None) -> Engine:
    """The engine of a connection, or the one at an address that the ledger recorded, with the connection's account."""
    from weir_spark.connect import ConnectEngine  # noqa: PLC0415  imports pyspark: not in DAG files

    engine: Engine = ConnectEngine(_url(connection, address or engine_address(connection)))
    return engine


def connect_checks(area: str, connection: Connection, store: Store | None) -> list[Check]:
    """What `weir doctor` asks of the connection's Spark Connect server. Raises Misconfigured."""
    from weir_spark.doctor import ConnectExam  # noqa: PLC0415  imports pyspark: not in DAG files

    found: list[Check] = ConnectExam(area, _url(connection, engine_address(connection)), store).checks()
    return found


def prepare_imports() -> None:
    """Before a user's module is imported, by a source's resolver say: its UDFs are to be those of Spark Connect."""
    from weir_spark.functions import prepare_for_connect  # noqa: PLC0415  not in DAG files

    prepare_for_connect()


def engine_address(connection: Connection) -> str:
    """Where the connection leads, without its account: this goes into the ledger. Raises Misconfigured."""
    if connection.conn_type != SPARK_CONNECT:
        raise Misconfigured(
            f"The Airflow connection {connection.conn_id!r} has the type {connection.conn_type!r}; Weir computes with "
            f"{SPARK_CONNECT!r} only. Start a Connect server and give its host and port in a connection of that type"
        )
    if not connection.host:
        raise Misconfigured(
            f"The Airflow connection {connection.conn_id!r} has no host: set it to the Connect server's"
        )
    host = connection.host.removeprefix("sc://").rstrip("/")
    return f"sc://{host}:{connection.port}" if connection.port else f"sc://{host}"


def _url(connection: Connection, address: str) -> str:
    """The address with the parameters that the Spark provider's own hook reads: login, password, extra `use_ssl`."""
    use_ssl = connection.extra_dejson.get("use_ssl")
    parameters = {
        # A session belongs to a user: without a name in common, one worker could not interrupt another one's session.
        "user_id": connection.login or "weir",
        "token": connection.password,
        "use_ssl": None if use_ssl is None else str(use_ssl).lower(),
    }
    return f"{address}/" + "".join(f";{name}={quote(value, safe='')}" for name, value in parameters.items() if value)
