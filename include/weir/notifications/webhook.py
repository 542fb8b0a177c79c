"""POSTs an event to a webhook: an Airflow connection of type http, with the extra fields of Airflow's own HttpHook.

Invariants: an answer of 2xx is a receipt, and nothing else is. No error shows a password, a header or the path. An
extra field of HttpHook's is obeyed or refused by its name, and any other is a header.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from weir.connections import LOOPBACK, Connection
from weir.errors import Misconfigured, Retryable
from weir.wording import shortened

HTTP_SECONDS: Final = 10.0
"""How long a webhook may be silent, unless its connection says otherwise."""

_OBEYED: Final = frozenset({"headers", "verify", "cert", "proxy", "proxies", "timeout", "trust_env"})

_REFUSED: Final = frozenset({"allow_redirects", "max_redirects", "check_response", "stream"})


def post(connection: Connection, path: str, document: Mapping[str, Any]) -> None:
    """POST an event as JSON. Raises Misconfigured and Retryable."""
    import httpx  # noqa: PLC0415  slow to import

    url = _url_of(connection) + path
    shown = f"the webhook of connection {connection.id!r} at {urlsplit(url).hostname}"  # its path may be a secret
    headers = {"Idempotency-Key": str(document["id"]), "User-Agent": "weir", **_headers_of(connection)}
    auth = (connection.login, connection.password) if connection.login else None
    options = _options_of(connection, url)
    try:
        with httpx.Client(auth=auth, **options) as client:
            answer = client.post(url, json=dict(document), headers=headers)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError):
        # Without the error, which may show a header.
        raise Misconfigured.of("notifications.not_possible", shown=shown) from None
    except httpx.HTTPError as error:
        raise Retryable.of("notifications.silent", shown=shown, name=type(error).__name__, error=error) from error
    if not answer.is_success:
        raise Retryable.of(
            "notifications.answered_otherwise",
            shown=shown,
            status_code=answer.status_code,
            text=shortened(answer.text, 300),
        )


def _url_of(connection: Connection) -> str:
    """Return the URL of a connection as Airflow's HttpHook does: the host may be a whole URL, the schema is http's."""
    if connection.kind not in ("http", "https") or not connection.host:
        raise Misconfigured.of("notifications.not_http", connection_id=connection.id, kind=connection.kind)
    host = connection.host
    scheme = connection.database or connection.kind
    base = host if "://" in host else f"{scheme}://{host}"
    return (f"{base}:{connection.port}" if connection.port else base).rstrip("/")


def _headers_of(connection: Connection) -> dict[str, str]:
    """Return the extra fields of a connection, and the bearer token, as headers."""
    nested = connection.extra.get("headers")
    fields = {**connection.extra, **(nested if isinstance(nested, Mapping) else {})}
    headers = {name: str(value) for name, value in fields.items() if name not in _OBEYED}
    if connection.password and not connection.login:
        headers = {"Authorization": f"Bearer {connection.password}", **headers}
    return headers


def _options_of(connection: Connection, url: str) -> dict[str, Any]:
    """Return the options of the HTTP client that the extra fields of a connection ask for."""
    extra = connection.extra
    refused = sorted(_REFUSED & extra.keys())
    if refused:
        raise Misconfigured.of("notifications.extra_refused", connection_id=connection.id, refused=refused)
    timeout = extra.get("timeout", HTTP_SECONDS)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
        raise Misconfigured.of("notifications.timeout_malformed", connection_id=connection.id, timeout=timeout)
    return {
        "timeout": timeout,
        "verify": _certificates_of(connection),
        "proxy": _proxy_of(extra, url),
        # No proxy of the environment reaches this machine's loopback.
        "trust_env": extra.get("trust_env", True) and urlsplit(url).hostname not in LOOPBACK,
    }


def _certificates_of(connection: Connection) -> ssl.SSLContext | bool:
    """Return how the server's certificate is verified, with the client's own: fields `verify` and `cert`."""
    import httpx  # noqa: PLC0415  slow to import

    verify, cert = connection.extra.get("verify", True), connection.extra.get("cert")
    if cert is None and isinstance(verify, bool):
        return verify
    try:
        context = _trusting(verify) if isinstance(verify, str) else httpx.create_ssl_context(verify=bool(verify))
        if cert is not None:
            context.load_cert_chain(*([cert] if isinstance(cert, str) else cert))
    except (OSError, TypeError) as error:
        raise Misconfigured.of(
            "notifications.certificates_unusable",
            connection_id=connection.id,
            verify=verify,
            cert=cert,
            error=error,
        ) from error
    return context


def _trusting(path: str) -> ssl.SSLContext:
    if Path(path).is_dir():
        return ssl.create_default_context(capath=path)
    return ssl.create_default_context(cafile=path)


def _proxy_of(extra: Mapping[str, Any], url: str) -> str | None:
    """Return the proxy for a URL: of `proxies`, by the scheme of what is called, as requests does, or of `proxy`."""
    proxies = extra.get("proxies", extra.get("proxy"))
    if not isinstance(proxies, Mapping):
        return None if proxies is None else str(proxies)
    scheme, host = urlsplit(url).scheme, urlsplit(url).hostname
    names = (f"{scheme}://{host}", scheme, f"all://{host}", "all")
    return next((str(proxies[name]) for name in names if name in proxies), None)
