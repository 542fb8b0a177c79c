"""Airflow's API as a task may call it: over HTTP, with the account of the connection `weir_api`.

Invariant: every answer is either what was asked for or an error that says whether to try again or what to change.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import httpx

from weir.errors import Misconfigured, Retryable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection


TIMEOUT_SECONDS: Final = 30.0
_REFUSED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_TRANSIENT: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})


class AirflowApi:
    """A session with Airflow's api-server; the token is asked for once and again when it is refused."""

    def __init__(self, base_url: str, login: str | None = None, password: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        self._login = login
        self._password = password
        self._token: str | None = None

    @classmethod
    def of(cls, connection: Connection) -> AirflowApi:
        """Read an `http` or `https` connection; a password without a login is used as the token itself."""
        return cls(base_url_of(connection), connection.login or None, connection.password or None)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> httpx.Response:
        """Send one request; answers below 400, 404, 405 and 409 are the caller's to read.

        Raises Misconfigured if the account is refused or lacks a permission, Retryable if the server does not answer.
        """
        response = self._send(method, path, body, query)
        if response.status_code in _REFUSED and self._login is not None:
            # The token has expired (401), or the server was restarted with another secret (403).
            self._token = None
            response = self._send(method, path, body, query)
        self._refuse_errors(method, path, response)
        return response

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, str]) -> httpx.Response:
        if self._token is None:
            self._token = self._new_token()
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return self._request(method, path, headers=headers, json=body, params=dict(query) or None)

    def _new_token(self) -> str:
        if self._login is None and self._password is not None:
            return self._password
        if self._login is None:
            # Only Airflow's simple auth manager gives tokens without credentials, in its "all admins" mode.
            response = self._request("GET", "/auth/token")
        else:
            account = {"username": self._login, "password": self._password or ""}
            response = self._request("POST", "/auth/token", json=account)
        if response.is_server_error or response.status_code in _TRANSIENT:
            raise Retryable(
                f"Airflow at {self.base_url} answered {_said(response)} when asked for a token; try again later"
            )
        if not response.is_success:
            raise Misconfigured(
                f"Airflow at {self.base_url} gave no token to {self._login or 'an anonymous caller'}: it answered "
                f"{_said(response)}. Check login and password of the Airflow connection weir_api"
            )
        return str(response.json()["access_token"])

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            return httpx.request(method, self.base_url + path, timeout=TIMEOUT_SECONDS, **arguments)
        except httpx.HTTPError as error:
            raise Retryable(f"Airflow's API at {self.base_url} did not answer {method} {path}: {error!r}") from error

    def _refuse_errors(self, method: str, path: str, response: httpx.Response) -> None:
        code = response.status_code
        if code in _REFUSED:
            raise Misconfigured(
                f"Airflow at {self.base_url} refused {method} {path} with {_said(response)}: the account "
                f"{self._login or '(token)'} of the Airflow connection weir_api needs the permission to edit task "
                "instances of this DAG (PUT on TASK_INSTANCE; role `user` of the simple auth manager)"
            )
        if response.is_server_error or code in _TRANSIENT:
            raise Retryable(f"Airflow's API at {self.base_url} answered {method} {path} with {_said(response)}")
        if response.is_error and code not in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.CONFLICT}:
            raise Misconfigured(
                f"Airflow at {self.base_url} did not understand {method} {path}: {_said(response)}. "
                "Do its version and that of Weir's plugin fit together?"
            )


def base_url_of(connection: Connection) -> str:
    """`http://host:port`, however the connection spells it: with a scheme in the host, the schema or the type."""
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


def path_of(*segments: str) -> str:
    """A URL path of these segments, each quoted: run ids hold `:` and `+`."""
    return "/" + "/".join(quote(segment, safe="~") for segment in segments)


def _said(response: httpx.Response) -> str:
    return f"{response.status_code} {response.text[:300]}".strip()
