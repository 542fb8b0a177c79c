"""Reads job graphs and partitions as the cases of `golden` write them: a task is `join#1`, a partition `a->b:0#2`.

A partition is that of the producer's subtask in the exchange at a place, counted from 0 over all exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.conformance.flink.job_graph import JobEdge, JobGraph, JobVertex, PartitionType, Pattern
from tests.conformance.flink.restart_set import JobPartition


def job_graph(request: Mapping[str, Any]) -> JobGraph:
    """Return the job graph of a request."""
    return JobGraph(
        [JobVertex(stage["name"], stage["parallelism"]) for stage in request["stages"]],
        [
            JobEdge(edge["from"], edge["to"], Pattern(edge["pattern"]), PartitionType(edge["type"]))
            for edge in request["exchanges"]
        ],
    )


def partition(name: str) -> JobPartition:
    """Return the partition with a name."""
    place, subtask = name.rsplit(":", 1)[1].split("#")
    return JobPartition(int(place), int(subtask))


def partition_name(graph: JobGraph, freed: JobPartition) -> str:
    """Return the name of a partition."""
    edge = graph.exchanges[freed.exchange].edge
    return f"{edge.producer}->{edge.consumer}:{freed.exchange}#{freed.subtask}"
