"""Airflow connections to object stores, as the libraries that list files and tables want them.

Invariant: nothing of a connection is in a split, a message or a plan: Spark has an account of its own.
"""

from __future__ import annotations

from typing import Any, Final

from weir.connections import Connections, S3Account

_OPTIONS: Final = "storage_options"
_OF_S3: Final = ("s3://", "s3a://")


def fsspec_options(url: str, conn_id: str | None, connections: Connections) -> dict[str, Any]:
    """Return options of fsspec for a URL: of a connection, else for S3 of the environment. Raises Misconfigured."""
    if conn_id is None:
        return S3Account.of_environment().for_s3fs() if url.startswith(_OF_S3) else {}
    connection = connections(conn_id)
    if _OPTIONS in connection.extra:
        return dict(connection.extra[_OPTIONS])
    return S3Account.of_connection(connection).for_s3fs()


def delta_options(url: str, conn_id: str | None, connections: Connections) -> dict[str, str]:
    """Return options of delta-rs for a URL, as above."""
    if conn_id is None:
        return S3Account.of_environment().for_object_store() if url.startswith(_OF_S3) else {}
    connection = connections(conn_id)
    if _OPTIONS in connection.extra:
        return {key: str(value) for key, value in connection.extra[_OPTIONS].items()}
    return S3Account.of_connection(connection).for_object_store()
