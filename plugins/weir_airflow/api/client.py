"""Airflow's api-server as the connection `weir_api` describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from weir.coordination.airflow_client import AirflowClient
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from airflow.sdk import Connection


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
