"""The request to a Spark program that queries keyed states. Invariant: it is JSON; an unknown version is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weir.formats.region_job import StateToRead
from weir.typed_json import message_from_json, message_to_json

VERSION = 1

PROBLEM = "query_state: "
"""The prefix of the program's own error among the output of Spark."""


@dataclass(frozen=True, slots=True)
class StateQuery:
    """A query in Spark SQL, the states that it reads as views of their names, and the maximal number of rows."""

    query: str
    states: Mapping[str, StateToRead]
    limit: int | None


def query_to_json(query: StateQuery) -> str:
    """Encode the request to the program."""
    return message_to_json(VERSION, query)


def query_from_json(text: str) -> StateQuery:
    """Decode the request. Raises Misconfigured on an unknown version."""
    return message_from_json(VERSION, StateQuery, text)
