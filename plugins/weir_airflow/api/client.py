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
    return AirflowClient(base_url_of(connection), connection.login or None, connection.password or None)


def base_url_of(connection: Connection) -> str:
    """Return `http://host:port`; the connection may have the scheme in its host, its schema or its type."""
    host = connection.host or ""
    if not host:
        raise Misconfigured("The Airflow connection weir_api has no host: set it to the api-server's URL")
    if "://" not in host:
        scheme = next((word for word in (connection.schema, connection.conn_type) if word in {"http", "https"}), "http")
        host = f"{scheme}://{host}"
    parts = urlsplit(host)
    has_port = parts.port is not None or connection.port is None
    authority = parts.netloc if has_port else f"{parts.netloc}:{connection.port}"
    return f"{parts.scheme}://{authority}{parts.path}".rstrip("/")
