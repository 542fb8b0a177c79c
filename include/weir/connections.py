"""Airflow connections as functions, sinks and sources use them.

Invariant: no error shows a password. The command line and Spark's own processes know only the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from weir.errors import Misconfigured

VARIABLE = "AIRFLOW_CONN_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An Airflow connection; `kind` is its type, `database` is what Airflow calls its schema, `extra` is decoded."""

    id: str
    kind: str
    host: str = ""
    port: int | None = None
    database: str = ""
    login: str = ""
    password: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


Connections = Callable[[str], Connection]
"""Looks up a connection by its id. Raises Misconfigured, or Retryable where Airflow does not answer."""


def from_environment(conn_id: str, environ: Mapping[str, str] | None = None) -> Connection:
    """Return the connection that AIRFLOW_CONN_<ID> describes, as JSON or as a URI. Raises Misconfigured."""
    name = f"{VARIABLE}{conn_id.upper()}"
    text = (os.environ if environ is None else environ).get(name)
    if not text:
        raise Misconfigured(
            f"there is no connection {conn_id!r}: outside of Airflow's tasks set {name}, as JSON or as a URI, to what "
            f"the connection is in Airflow (`airflow connections get {conn_id} --output json` shows it)"
        )
    try:
        return _from_json(conn_id, text) if text.lstrip().startswith("{") else _from_uri(conn_id, text)
    except (ValueError, TypeError, AttributeError):
        # Not chained: the cause would show the text, and with it the password.
        raise Misconfigured(f"{name} is neither JSON nor a URI of an Airflow connection: see Airflow's guide") from None


def _from_json(conn_id: str, text: str) -> Connection:
    found = json.loads(text)
    extra = found.get("extra") or {}
    return Connection(
        id=conn_id,
        kind=found.get("conn_type") or "",
        host=found.get("host") or "",
        port=None if found.get("port") in (None, "") else int(found["port"]),
        database=found.get("schema") or "",
        login=found.get("login") or "",
        password=found.get("password") or "",
        extra=json.loads(extra) if isinstance(extra, str) else dict(extra),
    )


def _from_uri(conn_id: str, text: str) -> Connection:
    found = urlsplit(text)
    if not found.scheme:
        raise ValueError(text)
    query = dict(parse_qsl(found.query, keep_blank_values=True))
    extra = json.loads(query["__extra__"]) if "__extra__" in query else query
    kind = found.scheme.replace("-", "_")
    return Connection(
        id=conn_id,
        kind="postgres" if kind == "postgresql" else kind,
        host=unquote(found.hostname or ""),
        port=found.port,
        database=unquote(found.path.lstrip("/")),
        login=unquote(found.username or ""),
        password=unquote(found.password or ""),
        extra=extra,
    )
