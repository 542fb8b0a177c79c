"""An HTTP client of Airflow's api-server, for tasks, the command line and development tools.

Invariant: a call returns an answer of Airflow or raises an error that says whether to try again or what to change.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from weir.connections import LOOPBACK
from weir.errors import Misconfigured, Retryable
from weir.wording import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx


CONNECTION: Final = "the Airflow connection weir_api"
TIMEOUT_SECONDS: Final = 30.0
_LOG_IN: Final = "/auth/token"
_REFUSED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_TRANSIENT: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
_RETURNED: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.CONFLICT})


class AirflowClient:
    """Sends requests with the token of one account; requests a new token when Airflow refuses the old one.

    A password without a login is used as the token. `source` names the setting that has the account, for messages.
    When an api-server does not answer, the next of `others` is asked from then on.
    """

    def __init__(
        self,
        base_url: str,
        login: str | None = None,
        password: str | None = None,
        *,
        source: str = CONNECTION,
        others: Sequence[str] = (),
    ) -> None:
        self._urls = deque(url.rstrip("/") for url in (base_url, *others))
        self._login = login
        self._password = password
        self._source = source
        self._token: str | None = None

    @cached_property
    def _http(self) -> httpx.Client:
        # Made for the first request: it reads all certificates of the machine, and most tasks and commands send none.
        import httpx  # noqa: PLC0415  slow to import

        return httpx.Client(
            timeout=TIMEOUT_SECONDS,
            limits=httpx.Limits(max_keepalive_connections=0),  # the server may close an idle connection at any moment
            trust_env=urlsplit(self.base_url).hostname not in LOOPBACK,  # no proxy reaches this machine's loopback
        )

    @property
    def base_url(self) -> str:
        """The URL of the api-server that is asked."""
        return self._urls[0]

    def close(self) -> None:
        """Release the resources of the HTTP client."""
        if "_http" in self.__dict__:
            self._http.close()

    def log_in(self) -> None:
        """Request a token. Raises Misconfigured if Airflow refuses the account, Retryable if it does not answer."""
        self._token = self._new_token()

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str | int) -> httpx.Response:
        """Send one request; return answers below 400, and 404, 405 and 409, for the caller to interpret.

        Raises Misconfigured if the account is refused or lacks a permission, Retryable if the server does not answer.
        """
        response = self._send(method, path, body, query)
        if response.status_code in _REFUSED and self._login is not None:
            # The token has expired (401), or the server was restarted with another secret (403).
            self._token = None
            response = self._send(method, path, body, query)
        self._raise_for_error(method, path, response)
        return response

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, **query: str | int) -> dict[str, Any]:
        """Send one request and return the JSON object of the answer. Raises as `call`, Misconfigured for 404 too."""
        response = self.call(method, path, body, **query)
        if response.is_error:
            raise Misconfigured.of(
                "coordination.airflow_failed",
                base_url=self.base_url,
                method=method,
                path=path,
                answer=_text_of(response),
            )
        found: dict[str, Any] = response.json()
        return found

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, query: Mapping[str, Any]) -> httpx.Response:
        if self._token is None:
            self.log_in()
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return self._request(method, path, headers=headers, json=body, params=dict(query) or None)

    def _new_token(self) -> str:
        if self._login is None and self._password is not None:
            return self._password
        if self._login is None:
            # Only Airflow's simple auth manager gives tokens without credentials, in its "all admins" mode.
            response = self._request("GET", _LOG_IN)
        else:
            account = {"username": self._login, "password": self._password or ""}
            response = self._request("POST", _LOG_IN, json=account)
        if response.is_server_error or response.status_code in _TRANSIENT:
            raise Retryable.of("coordination.token_refused_for_now", base_url=self.base_url, answer=_text_of(response))
        if not response.is_success:
            raise Misconfigured.of(
                "coordination.token_refused",
                base_url=self.base_url,
                login=self._login or "an anonymous caller",
                answer=_text_of(response),
                source=self._source,
            )
        return str(response.json()["access_token"])

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        import httpx  # noqa: PLC0415  as above

        left = len(self._urls)
        while True:
            url, left = self.base_url, left - 1
            try:
                return self._http.request(method, url + path, **arguments)
            except httpx.HTTPError as error:
                self._urls.rotate(-1)
                # What changes something may have been carried out already, unless no connection was made.
                is_unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                is_harmless = method == "GET" or path == _LOG_IN or is_unsent
                if not (left and is_harmless):
                    raise Retryable.of(
                        "coordination.airflow_silent", url=url, method=method, path=path, error=error
                    ) from error

    def _raise_for_error(self, method: str, path: str, response: httpx.Response) -> None:
        code = response.status_code
        if code in _REFUSED:
            raise Misconfigured.of(
                "coordination.permission_missing",
                base_url=self.base_url,
                method=method,
                path=path,
                answer=_text_of(response),
                login=self._login or "(token)",
                source=self._source,
            )
        if response.is_server_error or code in _TRANSIENT:
            raise Retryable.of(
                "coordination.airflow_busy",
                base_url=self.base_url,
                method=method,
                path=path,
                answer=_text_of(response),
            )
        if response.is_error and code not in _RETURNED:
            raise Misconfigured.of(
                "coordination.request_not_understood",
                base_url=self.base_url,
                method=method,
                path=path,
                answer=_text_of(response),
            )


def path_of(*segments: str) -> str:
    """Return a URL path of these segments, each quoted: run ids contain `:` and `+`."""
    return "/" + "/".join(quote(segment, safe="~") for segment in segments)


def _text_of(response: httpx.Response) -> str:
    return f"{response.status_code} {shortened(response.text, 300)}".strip()
