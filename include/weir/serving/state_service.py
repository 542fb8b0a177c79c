"""Requests for rows of keyed states over HTTP, read only: what they ask for, and what is answered.

Invariants: what a request asks for is bounded in keys, rows, bytes and time. An error is a JSON object with the message
of Weir. Who may ask is the matter of whoever serves this.
"""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from weir.errors import Fault, Message, Misconfigured, Retryable, WeirError
from weir.reading.availability import Unreadable
from weir.reading.lookups import Look, Lookups, Row, RowGroupCache
from weir.reading.state_opening import StateReader, WantedState
from weir.serving.served import ServedState
from weir.views.documents import plain
from weir.views.states import where_of

PATHS: Final = {
    "GET": "/v1/dataflows/{dataflow}/states/{state}/rows",
    "POST": "/v1/dataflows/{dataflow}/states/{state}/rows:get",
}
"""The paths that are answered, by method."""

MOST_KEYS: Final = 1_000
MOST_BYTES: Final = 1 << 20
"""The most keys of a request, and the most bytes of its body."""
MOST_SECONDS: Final = 10
"""The longest time of a request, after which no other file is read."""
SHOWN: Final = 100
"""The number of rows of a page, unless `limit` is given."""
ARROW: Final = "application/vnd.apache.arrow.stream"
COMMITTED: Final = "committed"
PROVISIONAL: Final = "provisional"
"""How rows are isolated: only what stood when a run was closed, or also what its tasks have committed since."""

log = logging.getLogger(__name__)

_SAID: Final = 2_000
"""The most characters of an error, which repeats what was asked for."""

_AGAIN: Final = {"Retry-After": "1"}
_VARY: Final = {"Vary": "Accept"}
_NOT_THERE: Final = {
    "reading.state_unknown",
    "ledger.dataflow_unknown",
    "serving.state_not_served",
    "views.state_not_queryable",
}
_NO_EPOCH: Final = {"ledger.run_unknown", "ledger.run_not_begun", "reading.run_not_begun", "reading.no_run"}


class StateService:
    """Answers requests for rows of keyed states; close it to end its leases.

    `require_served` raises Misconfigured for a state of a dataflow that is not served. Without leases, for a service
    that leaves the ledger as it is, files may go while they are read: the newest epoch is then looked for again.
    """

    def __init__(
        self,
        by: StateReader,
        require_served: Callable[[str, str], None],
        cache: RowGroupCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._by, self._require_served = by, require_served
        self._cache, self._clock = cache, clock
        self._states: dict[WantedState, ServedState] = {}

    def close(self) -> None:
        """End all leases."""
        for state in self._states.values():
            state.close()

    async def answer(self, request: Request) -> Response:
        """Answer a request whose path names `dataflow` and `state`, whoever asks; POST names keys in its body."""
        try:
            return await (self._rows_of_keys(request) if request.method == "POST" else self._rows(request))
        except WeirError as error:
            if not isinstance(error, Unreadable) and not _is_of_request(error):
                return unavailable(error)
            status = _status(error, is_epoch_named="epoch" in request.query_params)
            return refused(status, str(error), _AGAIN if status == HTTPStatus.SERVICE_UNAVAILABLE else {})

    async def _rows(self, request: Request) -> Response:
        asked = request.query_params
        keys, prefix = asked.getlist("key"), asked.getlist("prefix")
        if bool(keys) == bool(prefix):
            raise Misconfigured.of("serving.key_or_prefix")
        if keys:
            return await self._answered(request, lambda at, look: Rows([row for row in [at.get(keys, look)] if row]))
        try:
            limit = int(asked.get("limit", SHOWN))
        except ValueError:
            raise Misconfigured.of("serving.page_limit_no_number", limit=asked["limit"]) from None

        after = _json_of(asked["after"]) if "after" in asked else None
        if "after" in asked and not isinstance(after, list):
            raise Misconfigured.of("serving.after_malformed")

        def page(at: Lookups, look: Look) -> Rows:
            found = at.scan(prefix, limit, after, look)
            return Rows(found.rows, {"next_after": found.next_after})

        return await self._answered(request, page)

    async def _rows_of_keys(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                return refused(413, Message("serving.keys_too_many", most=MOST_KEYS, bytes=MOST_BYTES))
        given = _json_of(bytes(body))
        keys = given.get("keys") if isinstance(given, dict) else None
        if not isinstance(keys, list) or not all(isinstance(key, list) for key in keys):
            raise Misconfigured.of("serving.keys_malformed")
        if len(keys) > MOST_KEYS:
            return refused(413, Message("serving.keys_too_many", most=MOST_KEYS, bytes=MOST_BYTES))
        return await self._answered(request, lambda at, look: Rows(at.get_many(keys, look)))

    async def _answered(self, request: Request, answer: Answer) -> Response:
        asked = request.query_params
        state = self._state(request.path_params["dataflow"], request.path_params["state"], asked.get("isolation"))
        epoch, is_fresh = asked.get("epoch"), asked.get("fresh") == "true"
        known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
        as_arrow = ARROW in request.headers.get("accept", "")

        def answered() -> Response:
            with state.at(epoch, fresh=is_fresh) as at:
                tag = f'"{at.version}{"-arrow" if as_arrow else ""}"'
                if {tag, "*"} & {*known} and request.method != "POST":
                    return Response(status_code=304, headers={"ETag": tag, **_VARY})
                rows = answer(at, self._time_limit())
                return _as_arrow(at, rows, tag) if as_arrow else _as_json(at, rows, tag)

        def answered_again() -> Response:
            try:
                return answered()
            except Misconfigured as error:
                if _kind(error) in _NOT_THERE:
                    self._states.pop(state.wanted, None)  # names that somebody makes up are not kept
                raise
            except Unreadable:
                if self._by.is_leasing or epoch is not None:
                    raise
                state.close()
                return answered()

        return await run_in_threadpool(answered_again)

    def _time_limit(self) -> Look:
        end = self._clock() + MOST_SECONDS

        def look() -> None:
            if self._clock() > end:
                raise Retryable.of("reading.scan_too_long", seconds=MOST_SECONDS)

        return look

    def _state(self, dataflow: str, name: str, isolation: str | None) -> ServedState:
        if isolation not in (None, COMMITTED, PROVISIONAL):
            raise Misconfigured.of("serving.isolation_unknown", isolation=isolation)
        self._require_served(dataflow, name)
        wanted = WantedState(dataflow=dataflow, name=name, of_closed=isolation != PROVISIONAL)
        return self._states.setdefault(wanted, ServedState(self._by, wanted, self._cache, self._clock))


@dataclass(frozen=True, slots=True)
class Rows:
    """What is answered: rows, and what else the document has; None where a key has none."""

    found: Sequence[Row | None]
    more: Mapping[str, Any] = field(default_factory=dict)


Answer = Callable[[Lookups, Look], Rows]


def _as_json(at: Lookups, rows: Rows, tag: str) -> Response:
    told = plain({**where_of(at.opened), "rows": rows.found, **rows.more})
    return JSONResponse(told, headers={"ETag": tag, **_VARY})


def _as_arrow(at: Lookups, rows: Rows, tag: str) -> Response:
    """Answer with a stream of the rows that there are; the metadata `weir` of its schema has the rest of a document."""
    told = json.dumps(plain({**where_of(at.opened), **rows.more}))
    schema = at.opened.shape.columns.with_metadata({"weir": told})
    table = pa.Table.from_pylist([row for row in rows.found if row is not None], schema=schema)
    body = io.BytesIO()
    with pa.ipc.new_stream(body, schema) as stream:
        stream.write_table(table)
    return Response(body.getvalue(), media_type=ARROW, headers={"ETag": tag, **_VARY})


def _status(error: WeirError, *, is_epoch_named: bool) -> int:
    if isinstance(error, Unreadable):
        is_gone = all(loss.fault is Fault.MISSING for loss in error.losses)
        return 410 if is_epoch_named and is_gone else 503
    if isinstance(error, Retryable):
        return 503
    if _kind(error) in _NOT_THERE:
        return 404
    if _kind(error) in _NO_EPOCH:
        return 404 if is_epoch_named else 503
    return 400


def _is_of_request(error: WeirError) -> bool:
    """Report whether an error is about what was asked for, and not about ledger or store."""
    kind = _kind(error)
    return kind.partition(".")[0] in {"reading", "serving"} or kind in _NOT_THERE | _NO_EPOCH


def _kind(error: WeirError) -> str:
    return str(getattr(error.args[0] if error.args else None, "kind", ""))


def _json_of(text: str | bytes) -> Any:
    """Return a value of JSON; None for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def unavailable(error: WeirError) -> Response:
    """Answer that ledger or store cannot be read; where they are is in the log only."""
    log.warning("Rows cannot be looked up: %s", error)
    return refused(HTTPStatus.SERVICE_UNAVAILABLE, Message("serving.not_now"), _AGAIN)


def refused(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Answer that a request is refused, and why."""
    shown = str(message)[:_SAID].encode(errors="backslashreplace").decode()
    return JSONResponse({"error": shown}, status, headers)
