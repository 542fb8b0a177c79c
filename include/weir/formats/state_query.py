"""The request to a Spark program that queries keyed states. Invariant: it is JSON; an unknown version is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from weir.dataflow.state import State, StateKind
from weir.errors import Misconfigured
from weir.formats.region_job import StateFileToRead, StateToRead

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
    states = {name: state_to_plain(read) for name, read in query.states.items()}
    return json.dumps({"version": VERSION, "query": query.query, "limit": query.limit, "states": states})


def query_from_json(text: str) -> StateQuery:
    """Decode the request. Raises Misconfigured on an unknown version."""
    found = json.loads(text)
    if found.get("version") != VERSION:
        raise Misconfigured(
            f"the query has version {found.get('version')!r}, expected {VERSION}: use the program of the same Weir "
            "version"
        )
    states = {name: state_from_plain(read) for name, read in found["states"].items()}
    return StateQuery(found["query"], states, found["limit"])


def state_to_plain(read: StateToRead) -> dict[str, Any]:
    """Encode a state as JSON values, for a program that only reads it."""
    state = read.state
    return {
        "name": state.name,
        "keys": list(state.keys),
        "schema": state.schema,
        "expired_until": read.expired_until,
        "files": [asdict(file) for file in read.files],
    }


def state_from_plain(found: Mapping[str, Any]) -> StateToRead:
    """Decode the JSON values that `state_to_plain` returned."""
    state = State(name=found["name"], kind=StateKind.KEYED, keys=tuple(found["keys"]), schema=found["schema"])
    files = tuple(
        StateFileToRead(
            each["path"], each["epoch"], (each["key_groups"][0], each["key_groups"][1]), each["rows"], each["bytes"]
        )
        for each in found["files"]
    )
    return StateToRead(
        state=state, files=files, tallies=None, updated=0, expired_until=found["expired_until"], is_full=False
    )
