"""The request to the program that renders pages about checks, and its answers.

Invariant: both are JSON; equal values give equal bytes, and an unknown version is refused. The request contains
everything that a page shows: the program needs neither ledger nor store nor data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from weir.errors import Misconfigured
from weir.formats.checks import ExpectationResult
from weir.formats.codec import expectation_results_from_plain, expectation_results_to_plain

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckToDocument:
    """A check by its number in the ledger; `facts` describe it, in the order in which the page shows them."""

    check: int
    suite: str
    outcome: str
    rows: int
    checked_at: str
    facts: tuple[tuple[str, str], ...]
    results: tuple[ExpectationResult, ...]


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """The file with the page about a check, in the named folder, or the error."""

    check: int
    file: str = ""
    error: str = ""

    def to_json(self) -> str:
        """Encode the answer as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)


def answer_from_json(line: str) -> PageAnswer | None:
    """Parse a line of the program's output; None for a line that is not an answer."""
    try:
        return PageAnswer(**json.loads(line))
    except (ValueError, TypeError):
        return None


def request_to_json(checks: Iterable[CheckToDocument]) -> str:
    """Encode the request to the program."""
    return json.dumps({"version": VERSION, "checks": [_to_json(each) for each in checks]}, sort_keys=True)


def request_from_json(text: str) -> tuple[CheckToDocument, ...]:
    """Decode the request. Raises Misconfigured on an unknown version."""
    document = json.loads(text)
    if document.get("version") != VERSION:
        raise Misconfigured(
            f"the request has version {document.get('version')}, expected {VERSION}: use the program of the same Weir "
            "version"
        )
    return tuple(_from_json(each) for each in document["checks"])


def _to_json(each: CheckToDocument) -> dict[str, Any]:
    plain = {name: getattr(each, name) for name in ("check", "suite", "outcome", "rows", "checked_at", "facts")}
    return {**plain, "results": expectation_results_to_plain(each.results)}


def _from_json(document: dict[str, Any]) -> CheckToDocument:
    facts = tuple((str(name), str(value)) for name, value in document["facts"])
    results = expectation_results_from_plain(document["results"])
    return CheckToDocument(**{**document, "facts": facts, "results": results})
