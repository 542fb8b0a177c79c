"""Airflow as its tasks reach it: over HTTP, or by its database in process.

Invariant: neither clears a task instance that is running or has another try than the expected one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from weir.attempts.ports import Airflow
from weir.coordination.airflow_client import AirflowClient
from weir.coordination.clearing import EndpointClearer
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from airflow.sdk import Connection

    from weir.coordination.airflow import EarlierRun, UserRights
    from weir.coordination.values import TaskKey
    from weir.execution.cadence import Cadence


class AirflowApi(Airflow, Protocol):
    """Airflow as a task of it reaches it."""

    def can_defer(self, pool: str) -> bool:
        """Report whether a triggerer runs, and deferred tasks hold no slot of a pool.

        Raises Retryable or Misconfigured.
        """
        ...

    def rights(self, dag_id: str, user: str) -> UserRights:
        """Return what a user, by name, may do with the task instances of a DAG. Raises Retryable or Misconfigured."""
        ...

    def announce(self, key: TaskKey, dataflow: str, events: Mapping[str, Mapping[str, Any]]) -> None:
        """Emit an event of each sink's asset with this `extra` and without a partition, as from a task.

        Raises Retryable or Misconfigured.
        """
        ...

    def run_before(self, dag_id: str, start: datetime, key: str, cadence: Cadence) -> EarlierRun | None:
        """Return the newest DagRun of an epoch before `start`, in any state, of runs that have partition keys.

        `key` is that of `start`. Raises Retryable or Misconfigured.
        """
        ...

    def enter_assets(self, dag_id: str, dataflow: str, sinks: Sequence[str]) -> None:
        """Enter the assets of sinks that Airflow does not have. Raises Retryable or Misconfigured."""
        ...


def clearer_for(connection: Connection) -> AirflowApi:
    """Choose by the connection: with type `weir-db` or host `db`, Airflow's database in process (`dag.test()`)."""
    if connection.conn_type in {"weir-db", "weir_db"} or connection.host == "db":
        from weir_airflow.api.compare_and_clear import DbClearer  # noqa: PLC0415  no database in a worker's task process

        return DbClearer()
    if connection.conn_type not in {"http", "https", "generic", None, ""}:
        raise Misconfigured.of("api.connection_not_http", conn_id=connection.conn_id, conn_type=connection.conn_type)
    return EndpointClearer(client_of(connection))


def client_of(connection: Connection) -> AirflowClient:
    """Return a client with the account of an `http` or `https` connection; a password without a login is the token."""
    first, *others = base_urls_of(connection)
    return AirflowClient(first, connection.login or None, connection.password or None, others=others)


def base_urls_of(connection: Connection) -> list[str]:
    """Return `http://host:port` of each api-server: the connection may have several hosts, separated by commas.

    The scheme may be in the host, the connection's schema or its type.
    """
    hosts = [host.strip() for host in (connection.host or "").split(",")]
    if not all(hosts):
        raise Misconfigured.of("api.connection_without_host")
    return [_base_url(connection, host) for host in hosts]


def _base_url(connection: Connection, host: str) -> str:
    if "://" not in host:
        scheme = next((word for word in (connection.schema, connection.conn_type) if word in {"http", "https"}), "http")
        host = f"{scheme}://{host}"
    parts = urlsplit(host)
    has_port = parts.port is not None or connection.port is None
    authority = parts.netloc if has_port else f"{parts.netloc}:{connection.port}"
    return f"{parts.scheme}://{authority}{parts.path}".rstrip("/")
