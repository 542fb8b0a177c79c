"""What a program with Spark is asked about stored results: what their rows are, whatever their manifests say.

Invariant: JSON in, JSON out; equal values give equal bytes, and an unknown version is refused.
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

VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultToCheck:
    """A result by a number: its files as Spark spells them, its columns, and the rule of its digest.

    `is_keyed` says that the files have Weir's key-group column behind those of `spark_schema`. `expected` is the digest
    that it should have. Of a partition of keyed state it is that of all its visible rows, whoever wrote them: `state`
    has the files, and `files` is empty.
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
    """The digest of the rows of a result, or why there is none."""

    number: int
    digest: str | None = None
    error: str = ""

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self), sort_keys=True)


def answer_from_json(line: str) -> ContentAnswer | None:
    """Read a line that the program has written; None for one that says something else."""
    try:
        found = json.loads(line)
        return ContentAnswer(**found)
    except (ValueError, TypeError):
        return None


def request_to_json(results: Iterable[ResultToCheck]) -> str:
    """All that the program is asked."""
    return json.dumps({"version": VERSION, "results": [_to_json(each) for each in results]}, sort_keys=True)


def request_from_json(text: str) -> tuple[ResultToCheck, ...]:
    """Read what the program is asked. Raises Misconfigured for a version that is not known."""
    found = json.loads(text)
    if found.get("version") != VERSION:
        raise Misconfigured(
            f"the request has version {found.get('version')!r}, expected {VERSION}: use the program of the Weir that "
            "wrote it"
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
