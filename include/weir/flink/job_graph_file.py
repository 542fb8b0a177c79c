"""Reads a job graph from a file. Invariant: an error names the place in the file.

The file is JSON: `stages` of `{"name", "parallelism"}`; `exchanges` of `{"from", "to", "pattern", "type"}` with the
pattern `pointwise` or `all_to_all` and the type `pipelined`, `blocking` or `hybrid_full`; and optionally `missing`, the
partitions that are gone, and `failures` of `{"task", "lost"}`. A task is `stage#subtask`, a partition `from->to:k#i`:
that of the producer's subtask i in the k-th exchange, counted from 0 over all of them. All this may stand under
`request`, as in the cases of tests/conformance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from weir.errors import Misconfigured
from weir.flink.job_graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern
from weir.flink.restart_set import JobPartition

_PARTITION = re.compile(r"(?P<from>.+)->(?P<to>.+):(?P<place>\d+)#(?P<subtask>\d+)")

Kind = TypeVar("Kind", bound=Enum)


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A task that failed, and the partition that it did not find, if that was why."""

    task: str
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class JobTopology:
    """A job graph, the partitions that are gone, and the tasks that fail."""

    graph: JobGraph
    missing: frozenset[JobPartition]
    failures: tuple[TaskFailure, ...]


def read_topology(text: str) -> JobTopology:
    """Read a topology file. Raises Misconfigured, with the place of what is wrong."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise Misconfigured(f"the topology is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise Misconfigured(f"the topology is a JSON {type(content).__name__}, expected an object with `stages`")
    if "stages" not in content and isinstance(content.get("request"), dict):
        content = content["request"]
    graph = JobGraph([_stage(each) for each in _list(content, "stages")], list(_edges(_list(content, "exchanges"))))
    missing = frozenset(partition(graph, str(name)) for name in _list(content, "missing"))
    failures = tuple(
        TaskFailure(str(_of(each, "task", f"failure {place}")), each.get("lost") or None)
        for place, each in enumerate(_list(content, "failures"))
    )
    return JobTopology(graph, missing, failures)


def partition(graph: JobGraph, name: str) -> JobPartition:
    """Parse the name of a partition, like `a->b:0#2`. Raises Misconfigured, with the valid names."""
    found = _PARTITION.fullmatch(name)
    if found is None:
        raise Misconfigured(
            f"{name!r} names no partition: write it like a->b:0#2 (producer->consumer:exchange#subtask)"
        )
    place, subtask = int(found["place"]), int(found["subtask"])
    if place >= len(graph.exchanges):
        raise Misconfigured(f"{name!r} is of exchange {place}, but there are {len(graph.exchanges)}, counted from 0")
    wiring = graph.exchanges[place]
    if (found["from"], found["to"]) != (wiring.edge.producer, wiring.edge.consumer):
        raise Misconfigured(f"{name!r}: exchange {place} is {wiring.edge.producer}->{wiring.edge.consumer}")
    if subtask >= len(wiring.producers):
        raise Misconfigured(f"{name!r}: {wiring.edge.producer} has the subtasks 0 to {len(wiring.producers) - 1}")
    return JobPartition(place, subtask)


def _stage(given: Any) -> JobVertex:
    name, parallelism = _of(given, "name", "a stage"), _of(given, "parallelism", "a stage")
    if not isinstance(parallelism, int):
        raise Misconfigured(f"stage {name!r} has the parallelism {parallelism!r}, expected a whole number")
    return JobVertex(str(name), parallelism)


def _edges(given: Iterable[Any]) -> Iterable[JobEdge]:
    for place, each in enumerate(given):
        where = f"exchange {place}"
        yield JobEdge(
            str(_of(each, "from", where)),
            str(_of(each, "to", where)),
            _one_of(Pattern, _of(each, "pattern", where), where),
            _one_of(PartitionType, _of(each, "type", where), where),
        )


def _list(content: Mapping[str, Any], key: str) -> list[Any]:
    found = content.get(key, [])
    if not isinstance(found, list):
        raise Misconfigured(f"`{key}` of the topology is {found!r}, expected a list")
    return found


def _of(given: Any, key: str, where: str) -> Any:
    if not isinstance(given, dict) or key not in given:
        raise Misconfigured(f"{where} of the topology has no `{key}`: found {given!r}")
    return given[key]


def _one_of(kind: type[Kind], value: Any, where: str) -> Kind:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise Misconfigured(f"{where} of the topology says {value!r}, expected one of {known}") from None
