"""`weir state serve`: rows of keyed states for those who have a token.

Invariant: a request without a token of the file learns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hmac import compare_digest
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from weir.coordination.services import Services
from weir.errors import Message, Misconfigured
from weir.reading.state_opening import keyed_states, unknown_state
from weir.serving.state_service import PATHS, StateService, refused
from weir.views.states import require_queryable


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


def served_states(services: Services, named: Sequence[str]) -> Callable[[str, str], None]:
    """Return what refuses states that are not served: those not named, `DATAFLOW` or `DATAFLOW.STATE`.

    Where none is named, those that are queryable are served. Raises Misconfigured for a name that is not known.
    """
    if not named:
        return partial(require_queryable, services)
    for each in named:
        dataflow, _, state = each.partition(".")
        with services.ledger.transaction() as session:
            known = keyed_states(session, dataflow)
        if state not in ("", *known):
            raise unknown_state(dataflow, state, known)

    def require_served(dataflow: str, state: str) -> None:
        if not {dataflow, f"{dataflow}.{state}"} & {*named}:
            raise Misconfigured.of("serving.state_not_served", dataflow=dataflow, state=state)

    return require_served


def guarded(service: StateService, tokens: Sequence[bytes]) -> Starlette:
    """Return the app that answers those who have one of the tokens."""

    async def answer(request: Request) -> Response:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        is_known = [compare_digest(given.encode(), token) for token in tokens]
        if kind.lower() != "bearer" or not any(is_known):
            return refused(401, Message("cli.token_wrong"), {"WWW-Authenticate": "Bearer"})
        return await service.answer(request)

    return Starlette(routes=[Route(path, answer, methods=[method]) for method, path in PATHS.items()])
