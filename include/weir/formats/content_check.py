"""The request to a Spark program that digests the rows of stored results again, and its answers.

Invariant: both are JSON; equal values give equal bytes, and an unknown version is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.errors import Misconfigured
from weir.formats.region_job import StateToRead
from weir.formats.state_query import state_from_plain, state_to_plain

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultToCheck:
    """A result, identified by `number`: its files as Spark URLs, its columns, and its digest rule.

    `is_keyed` means that the files have Weir's key-group column after those of `spark_schema`. `expected` is the
    recorded digest. Of a partition of keyed state it is that of all visible rows, of all attempts: `state` has the
    files, and `files` is empty.
    """

    number: int
    name: str
    files: tuple[str, ...]
    spark_schema: str
    is_keyed: bool
    expected: str
    rule: DigestRule = PLAIN_RULE
    state: StateToRead | None = None


@dataclass(frozen=True, slots=True)
class ContentAnswer:
    """The digest of the rows of a result, or the error."""

    number: int
    digest: str | None = None
    error: str = ""

    def to_json(self) -> str:
        """Encode the answer as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)


def answer_from_json(line: str) -> ContentAnswer | None:
    """Parse a line of the program's output; None for a line that is not an answer."""
    try:
        found = json.loads(line)
        return ContentAnswer(**found)
    except (ValueError, TypeError):
        return None


def request_to_json(results: Iterable[ResultToCheck]) -> str:
    """Encode the request to the program."""
    return json.dumps({"version": VERSION, "results": [_to_json(each) for each in results]}, sort_keys=True)


def request_from_json(text: str) -> tuple[ResultToCheck, ...]:
    """Decode the request. Raises Misconfigured on an unknown version."""
    found = json.loads(text)
    if found.get("version") != VERSION:
        raise Misconfigured(
            f"the request has version {found.get('version')!r}, expected {VERSION}: use the program of the same Weir "
            "version"
        )
    return tuple(_from_json(each) for each in found["results"])


def _to_json(result: ResultToCheck) -> dict[str, Any]:
    rule = {"round": dict(result.rule.round), "ignore": list(result.rule.ignore)}
    plain = {name: getattr(result, name) for name in ("number", "name", "spark_schema", "is_keyed", "expected")}
    state = None if result.state is None else state_to_plain(result.state)
    return plain | {"files": list(result.files), "rule": rule, "state": state}


def _from_json(found: dict[str, Any]) -> ResultToCheck:
    rule = DigestRule(found["rule"]["round"], tuple(found["rule"]["ignore"]))
    state = None if found["state"] is None else state_from_plain(found["state"])
    return ResultToCheck(**{**found, "files": tuple(found["files"]), "rule": rule, "state": state})
