"""Airflow connections to object stores, as the libraries that list files and tables want them.

Invariant: nothing of a connection is in a split, a message or a plan: Spark has an account of its own.
"""

from __future__ import annotations

from typing import Any

from weir.connections import Connection
from weir.errors import Misconfigured

_REGION = "region_name"


def fsspec_options(connection: Connection) -> dict[str, Any]:
    """Return options of fsspec: the extra `storage_options`, or the keys of a connection of type aws."""
    extra = connection.extra
    if "storage_options" in extra:
        return dict(extra["storage_options"])
    _require_aws(connection)
    found: dict[str, Any] = {}
    if connection.login:
        found |= {"key": connection.login, "secret": connection.password}
    if extra.get("endpoint_url"):
        found["endpoint_url"] = extra["endpoint_url"]
    if extra.get(_REGION):
        found["client_kwargs"] = {_REGION: extra[_REGION]}
    return found


def delta_options(connection: Connection) -> dict[str, str]:
    """Return options of delta-rs: the extra `storage_options`, or the keys of a connection of type aws."""
    extra = connection.extra
    if "storage_options" in extra:
        return {key: str(value) for key, value in extra["storage_options"].items()}
    _require_aws(connection)
    endpoint = str(extra.get("endpoint_url") or "")
    found = {
        "AWS_ACCESS_KEY_ID": connection.login,
        "AWS_SECRET_ACCESS_KEY": connection.password,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": str(extra.get(_REGION) or ("us-east-1" if endpoint else "")),
        "AWS_ALLOW_HTTP": "true" if endpoint.startswith("http://") else "",
    }
    return {key: value for key, value in found.items() if value}


def catalog_properties(connection: Connection) -> dict[str, str]:
    """Return properties of PyIceberg's catalog: the extra, the host as `uri`, login and password as `credential`."""
    found = {key: str(value) for key, value in connection.extra.items() if not isinstance(value, (dict, list))}
    if connection.host:
        found.setdefault("uri", connection.host)
    if connection.login:
        found.setdefault("credential", f"{connection.login}:{connection.password}")
    return found


def _require_aws(connection: Connection) -> None:
    if connection.kind != "aws":
        raise Misconfigured(
            f"the connection {connection.id} has the type {connection.kind!r}: expected 'aws', or an extra "
            "`storage_options` with the options of the object store's library"
        )
