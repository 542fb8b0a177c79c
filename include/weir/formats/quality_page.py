"""What the program that makes pages about checks is asked, and what it answers.

Invariant: JSON in, JSON out; equal values give equal bytes, and an unknown version is refused. All that a page says is
in the question: the program needs neither ledger nor store, nor data.
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
    """A check by its number in the ledger; `facts` say of what it is, in the order in which they are shown."""

    check: int
    suite: str
    outcome: str
    rows: int
    checked_at: str
    facts: tuple[tuple[str, str], ...]
    results: tuple[ExpectationResult, ...]


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """The file with the page about a check, in the folder that was named, or why there is none."""

    check: int
    file: str = ""
    error: str = ""

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self), sort_keys=True)


def answer_from_json(line: str) -> PageAnswer | None:
    """Read a line that the program has written; None for one that says something else."""
    try:
        return PageAnswer(**json.loads(line))
    except (ValueError, TypeError):
        return None


def request_to_json(checks: Iterable[CheckToDocument]) -> str:
    """All that the program is asked."""
    return json.dumps({"version": VERSION, "checks": [_to_json(each) for each in checks]}, sort_keys=True)


def request_from_json(text: str) -> tuple[CheckToDocument, ...]:
    """Read what the program is asked. Raises Misconfigured."""
    document = json.loads(text)
    if document.get("version") != VERSION:
        raise Misconfigured(f"the request has version {document.get('version')}, this program reads {VERSION}")
    return tuple(_from_json(each) for each in document["checks"])


def _to_json(each: CheckToDocument) -> dict[str, Any]:
    plain = {name: getattr(each, name) for name in ("check", "suite", "outcome", "rows", "checked_at", "facts")}
    return {**plain, "results": expectation_results_to_plain(each.results)}


def _from_json(document: dict[str, Any]) -> CheckToDocument:
    facts = tuple((str(name), str(value)) for name, value in document["facts"])
    results = expectation_results_from_plain(document["results"])
    return CheckToDocument(**{**document, "facts": facts, "results": results})
