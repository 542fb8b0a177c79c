"""How a receiver is told of one event: a call of a function, a POST, a call of an Airflow notifier.

Invariants: what a call returns from without an error has been received. What is called is imported only here, in the
process of a task. No error shows a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from weir.code.functions import load
from weir.connections import Connection, Connections
from weir.dataflow.notifications import Channel, Receiver
from weir.errors import Misconfigured, Retryable

AirflowContext = Callable[[], Mapping[str, Any]]
"""Returns Airflow's context of the present task."""

EVENT: Final = "weir_event"
"""The key of a notification in the context that a notifier gets."""

HTTP_SECONDS: Final = 10.0

_OPTIONS_OF_HTTP_HOOK: Final = frozenset(
    {
        *("timeout", "allow_redirects", "proxies", "proxy", "verify", "cert", "max_redirects", "trust_env"),
        *("check_response", "stream", "headers"),
    }
)
"""Extra fields of a connection of type http that are no headers to Airflow's own HttpHook either."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def send(receiver: Receiver, document: dict[str, Any], connections: Connections, context: AirflowContext) -> None:
    """Tell a receiver of an event. Raises Misconfigured, Retryable, or what the receiver's own code raises."""
    match receiver.channel:
        case Channel.CALLBACK:
            imported(receiver)(document, **receiver.options)
        case Channel.WEBHOOK:
            _post(connections(receiver.address), str(receiver.options.get("path", "")), document)
        case Channel.NOTIFIER:
            make = partial(imported(receiver), **receiver.options)
            _notify(make, {**context(), EVENT: document})


def imported(receiver: Receiver) -> Callable[..., Any]:
    """Import what a callback or a notifier names. Raises Misconfigured."""
    return load(receiver.address, receiver.name)


def _notify(make: Callable[[], Any], context: Mapping[str, Any]) -> None:
    """Call a notifier, which renders its templates with the context, and changes both: each call has its own."""
    made = make()
    if not callable(made):
        raise Misconfigured(f"a {type(made).__name__} is no notifier: name a class that extends Airflow's BaseNotifier")
    try:
        made(dict(context))
    except NotImplementedError:  # it has only `async_notify`
        made = make()
        made.context = dict(context)
        asyncio.run(_awaited(made))


async def _awaited(notifier: Any) -> None:
    await notifier


def _post(connection: Connection, path: str, document: Mapping[str, Any]) -> None:
    import httpx  # noqa: PLC0415  slow to import

    url = _url_of(connection) + path
    host = urlsplit(url).hostname
    shown = f"the webhook of connection {connection.id!r} at {host}"  # its path may be a secret
    headers = {"Idempotency-Key": str(document["id"]), "User-Agent": "weir", **_headers_of(connection)}
    auth = (connection.login, connection.password) if connection.login else None
    trust_env = host not in _LOOPBACK  # no proxy reaches this machine's loopback
    try:
        with httpx.Client(timeout=HTTP_SECONDS, trust_env=trust_env, auth=auth) as client:
            answer = client.post(url, json=dict(document), headers=headers)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError):
        # Without the error, which may show a header.
        raise Misconfigured(f"{shown} cannot be called: correct host, port and extra fields there") from None
    except httpx.HTTPError as error:
        raise Retryable(f"{shown} did not answer: {type(error).__name__}: {error}") from error
    if not answer.is_success:
        raise Retryable(f"{shown} answered {answer.status_code}: {answer.text[:300]}")


def _url_of(connection: Connection) -> str:
    """Return the URL of a connection as Airflow's HttpHook does: the host may be a whole URL, the schema is http's."""
    if connection.kind not in ("http", "https") or not connection.host:
        raise Misconfigured(
            f"connection {connection.id!r} of type {connection.kind!r} cannot be used for a webhook: expected type "
            'http with a host, such as {"conn_type": "http", "host": "https://hooks.example.org"}'
        )
    host = connection.host
    scheme = connection.database or connection.kind
    base = host if "://" in host else f"{scheme}://{host}"
    return (f"{base}:{connection.port}" if connection.port else base).rstrip("/")


def _headers_of(connection: Connection) -> dict[str, str]:
    """Return the extra fields of a connection, and the bearer token, as headers."""
    nested = connection.extra.get("headers")
    fields = {**connection.extra, **(nested if isinstance(nested, Mapping) else {})}
    headers = {name: str(value) for name, value in fields.items() if name not in _OPTIONS_OF_HTTP_HOOK}
    if connection.password and not connection.login:
        headers = {"Authorization": f"Bearer {connection.password}", **headers}
    return headers
