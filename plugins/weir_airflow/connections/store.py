"""The store's URL and options, from an Airflow connection.

Invariant: every part of the connection is either used or refused by name, never ignored; no message has its secrets.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import mask_secret

from weir import secrecy
from weir.errors import Message, Misconfigured
from weir.secret_forms import literal_forms
from weir.settings import StoreConnection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow.sdk import Connection


_COMMON = ("url", "storage_options")

_AWS = {
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "endpoint_url": "endpoint_url",
    "profile_name": "profile",
    "config_kwargs": "config_kwargs",
}
"""Extras of Airflow's AWS connection and what s3fs calls them; `region_name` and `verify` go to botocore's client."""

_AWS_CLIENT = ("region_name", "verify")

_OPEN = frozenset(
    {"account_name", "anon", "endpoint_url", "profile", "project", "region_name", "requester_pays", "use_ssl", "verify"}
)
"""Options that are no secret: with a region's name hidden, logs would be unreadable."""


def store_connection(connection: Connection) -> StoreConnection:
    """Read a connection of type `aws`, or of any type with fsspec's options in its extra `storage_options`.

    The extra `url` is the store's. Raises Misconfigured for anything that Weir would have to ignore.
    """
    extra = _extra_of(connection)
    given = extra.get("storage_options") or {}
    if not isinstance(given, dict):
        raise _refused(connection, "`storage_options` in its extra is not a JSON object of fsspec options")
    if connection.conn_type == "aws":
        options = _aws_options(connection, extra) | given
    else:
        options = _other_options(connection, extra, given)
    url = extra.get("url")
    if url is not None and not isinstance(url, str):
        raise _refused(connection, f"`url` in its extra is a {type(url).__name__}, expected text")
    return StoreConnection(url, options)


def hide(options: Mapping[str, Any]) -> None:
    """Hide the secrets among a store's options, as `hide_everywhere` does."""
    for key, value in options.items():
        if isinstance(value, dict):
            hide(value)
        elif isinstance(value, str) and value and key not in _OPEN:
            hide_everywhere([value])


def hide_everywhere(secrets: Iterable[str]) -> None:
    """Hide secrets in what Weir records and tells, and in the logs of this task and of its supervisor.

    Airflow's masker knows nothing but texts: it is told those in which programs write a secret.
    """
    found = set(secrets)
    for secret in found:
        secrecy.hide(secret)
    forms = sorted({form for secret in found for form in literal_forms(secret)})
    if forms:
        mask_secret(forms)


def _aws_options(connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(extra.keys() - {*_COMMON, *_AWS, *_AWS_CLIENT, "service_config"})
    if unknown:
        known = ", ".join((*_COMMON, *_AWS, *_AWS_CLIENT))
        raise _refused(
            connection,
            f"its extra has {', '.join(unknown)}, which Weir does not use; known are {known}. To assume a role, give "
            "it to the workers, or name a profile of their AWS configuration that does",
        )
    if connection.host:
        raise _refused(connection, "it has a host: set `endpoint_url` in its extra for a store that is not Amazon's")
    if bool(connection.login) is not bool(connection.password):
        raise _refused(connection, "it has only one of login (the key's id) and password (the secret key)")
    found = {name: extra[key] for key, name in _AWS.items() if extra.get(key)}
    if connection.login:
        found |= {"key": connection.login, "secret": connection.password}
    endpoint = (extra.get("service_config") or {}).get("s3", {}).get("endpoint_url")
    if endpoint:
        found["endpoint_url"] = endpoint
    client = {key: extra[key] for key in _AWS_CLIENT if extra.get(key) is not None}
    return found | ({"client_kwargs": client} if client else {})


def _other_options(connection: Connection, extra: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    if "storage_options" not in extra and connection.conn_type not in {"generic", "", None}:
        raise _refused(
            connection,
            f"it has the type {connection.conn_type!r}, which Weir does not know: use the type aws, or any type with "
            "the options of the store's fsspec file system as `storage_options` in the extra",
        )
    used = connection.login or connection.password or connection.host
    unknown = sorted(extra.keys() - set(_COMMON))
    if used or unknown:
        raise _refused(
            connection,
            f"it has {', '.join(unknown) or 'a login, password or host'}, which Weir does not use with the type "
            f"{connection.conn_type!r}: set it in `storage_options` in the extra",
        )
    return given


def _extra_of(connection: Connection) -> dict[str, Any]:
    try:
        extra = json.loads(connection.extra or "{}")
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise _refused(connection, "its extra is not a JSON object")
    return extra


def _refused(connection: Connection, why: str) -> Misconfigured:
    return Misconfigured(
        Message(
            "connections.store_connection_unusable",
            conn_id=connection.conn_id,
            why=why,
            type=connection.conn_id.upper(),
        )
    )
