"""Read-only HTTP over the rows of keyed states.

Invariants: a request without a token of the file learns nothing. What a request asks for is bounded in keys, rows and
bytes. An error is a JSON object with the message of Weir.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from weir.coordination.services import Services
from weir.errors import Fault, Message, Misconfigured, Retryable, WeirError
from weir.reading.availability import Unreadable
from weir.reading.lookups import Lookups, RowGroupCache
from weir.reading.served import ServedState
from weir.views.documents import plain
from weir.views.states import where_of

MOST_KEYS: Final = 1_000
MOST_BYTES: Final = 1 << 20
"""The most keys of a request, and the most bytes of its body."""
SHOWN: Final = 100
"""The number of rows of a page, unless `limit` is given."""

_NOT_THERE: Final = {"reading.state_unknown", "ledger.dataflow_unknown", "cli.state_not_served"}
_NO_EPOCH: Final = {"ledger.run_unknown", "ledger.run_not_begun", "reading.run_not_begun", "reading.no_run"}

Answer = Callable[[Lookups], dict[str, Any]]


def read_tokens(path: Path) -> tuple[bytes, ...]:
    """Return the tokens of a file, one a line, that only its owner can read. Raises Misconfigured."""
    try:
        if path.stat().st_mode & 0o077:
            raise Misconfigured.of("cli.tokens_readable_by_others", path=path)
        tokens = tuple(line.strip() for line in path.read_bytes().splitlines() if line.strip())
    except OSError as error:
        raise Misconfigured.of("cli.tokens_unreadable", path=path, error=error) from error
    if not tokens:
        raise Misconfigured.of("cli.tokens_missing", path=path)
    return tokens


class StateService:
    """Answers for the states that are named, `DATAFLOW` or `DATAFLOW.STATE`; close it to end its leases."""

    def __init__(
        self,
        services: Services,
        served: Sequence[str],
        tokens: Sequence[bytes],
        cache: RowGroupCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services, self._named, self._tokens = services, frozenset(served), tuple(tokens)
        self._cache, self._clock = cache, clock
        self._states: dict[tuple[str, str], ServedState] = {}
        rows = "/v1/dataflows/{dataflow}/states/{state}/rows"
        self.app = Starlette(
            routes=[
                Route(rows, self._guarded(self._rows), methods=["GET"]),
                Route(f"{rows}:get", self._guarded(self._rows_of_keys), methods=["POST"]),
            ]
        )

    def close(self) -> None:
        """End all leases."""
        for state in self._states.values():
            state.close()

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            kind, _, given = request.headers.get("authorization", "").partition(" ")
            is_known = [compare_digest(given.encode(), token) for token in self._tokens]
            if kind.lower() != "bearer" or not any(is_known):
                return _error(401, Message("cli.token_wrong"), {"WWW-Authenticate": "Bearer"})
            try:
                return await answer(request)
            except WeirError as error:
                status = _status(error, is_epoch_named="epoch" in request.query_params)
                return _error(status, str(error), {"Retry-After": "1"} if status == 503 else {})

        return guarded

    async def _rows(self, request: Request) -> Response:
        asked = request.query_params
        keys, prefix = asked.getlist("key"), asked.getlist("prefix")
        if bool(keys) == bool(prefix):
            raise Misconfigured.of("cli.key_or_prefix")
        if keys:
            return await self._answer(request, lambda at: {"rows": [row for row in at.get_many([keys]) if row]})
        try:
            limit = int(asked.get("limit", SHOWN))
        except ValueError:
            raise Misconfigured.of("cli.page_limit_no_number", limit=asked["limit"]) from None

        def page(at: Lookups) -> dict[str, Any]:
            found = at.scan(prefix, limit, asked.getlist("after") or None)
            return {"rows": found.rows, "next_after": found.next_after}

        return await self._answer(request, page)

    async def _rows_of_keys(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                return _error(413, Message("cli.keys_too_many", most=MOST_KEYS, bytes=MOST_BYTES))
        try:
            given = json.loads(bytes(body))
        except ValueError:
            given = None
        keys = given.get("keys") if isinstance(given, dict) else None
        if not isinstance(keys, list) or not all(isinstance(key, list) for key in keys):
            raise Misconfigured.of("cli.keys_malformed")
        if len(keys) > MOST_KEYS:
            return _error(413, Message("cli.keys_too_many", most=MOST_KEYS, bytes=MOST_BYTES))
        return await self._answer(request, lambda at: {"rows": at.get_many(keys)})

    async def _answer(self, request: Request, answer: Answer) -> Response:
        state = self._state(request.path_params["dataflow"], request.path_params["state"])
        is_fresh = request.query_params.get("fresh") == "true"
        known = [each.strip() for each in request.headers.get("if-none-match", "").split(",")]

        def answered() -> Response:
            with state.at(request.query_params.get("epoch"), fresh=is_fresh) as at:
                tag = f'"{at.version}"'
                if tag in known and request.method == "GET":
                    return Response(status_code=304, headers={"ETag": tag})
                return JSONResponse(plain({**where_of(at.opened), **answer(at)}), headers={"ETag": tag})

        return await run_in_threadpool(answered)

    def _state(self, dataflow: str, name: str) -> ServedState:
        if not {dataflow, f"{dataflow}.{name}"} & self._named:
            raise Misconfigured.of("cli.state_not_served", dataflow=dataflow, state=name)
        new = ServedState(self._services, dataflow, name, self._cache, self._clock)
        return self._states.setdefault((dataflow, name), new)


def _status(error: WeirError, *, is_epoch_named: bool) -> int:
    if isinstance(error, Unreadable):
        is_gone = all(loss.fault is Fault.MISSING for loss in error.losses)
        return 410 if is_epoch_named and is_gone else 503
    if isinstance(error, Retryable):
        return 503
    kind = getattr(error.args[0] if error.args else None, "kind", "")
    if kind in _NOT_THERE:
        return 404
    if kind in _NO_EPOCH:
        return 404 if is_epoch_named else 503
    return 400 if isinstance(error, Misconfigured) else 500


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": str(message)}, status, headers)
