"""The request to a Spark program that digests the rows of stored results again, and its answers.

Invariant: both are JSON; equal values give equal bytes, and an unknown version is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.formats.region_job import StateToRead
from weir.typed_json import message_from_json, message_to_json, typed

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
        return typed("answer", ContentAnswer, json.loads(line))
    except ValueError:
        return None


def request_to_json(results: Iterable[ResultToCheck]) -> str:
    """Encode the request to the program."""
    return message_to_json(VERSION, list(results))


def request_from_json(text: str) -> tuple[ResultToCheck, ...]:
    """Decode the request. Raises Misconfigured on an unknown version."""
    return message_from_json(VERSION, tuple[ResultToCheck, ...], text)
