"""The request to the program that renders pages about checks, and its answers.

Invariant: both are JSON; equal values give equal bytes, and an unknown version is refused. The request contains
everything that a page shows: the program needs neither ledger nor store nor data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from weir.formats.checks import ExpectationResult
from weir.typed_json import message_from_json, message_to_json, typed

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
        return typed("answer", PageAnswer, json.loads(line))
    except ValueError:
        return None


def request_to_json(checks: Iterable[CheckToDocument]) -> str:
    """Encode the request to the program."""
    return message_to_json(VERSION, list(checks))


def request_from_json(text: str) -> tuple[CheckToDocument, ...]:
    """Decode the request. Raises Misconfigured on an unknown version."""
    return message_from_json(VERSION, tuple[CheckToDocument, ...], text)
