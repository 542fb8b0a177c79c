"""Says what would restart in a job graph that a file describes (weir.flink.job_graph_file has the format).

Invariant: the engine that decides in production answers, about the job graph declared as a dataflow of which everything
has committed. Only for a job graph that Weir cannot run does the reference of Flink's algorithm answer, and the answer
says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from weir.cli.job_graph_dataflow import DeclaredJobGraph
from weir.dataflow.failover import Consumers, FailoverStrategy
from weir.errors import Misconfigured
from weir.flink.job_graph import JobGraph, Regions, pipelined_regions
from weir.flink.job_graph_file import JobTopology, TaskFailure, partition
from weir.flink.restart_set import JobPartition, RestartSet, restart_set

VERSION = 1


@dataclass(frozen=True, slots=True)
class JobGraphPlan:
    """The answer as JSON values; `not_runnable` says why Weir cannot run the job graph, empty if it can."""

    answer: dict[str, Any]
    not_runnable: str

    def note(self) -> str:
        """Say that Flink's algorithm has answered instead of Weir's engine, and why; empty if it has not."""
        if not self.not_runnable:
            return ""
        return f"Weir cannot run this job graph, so the answer is that of Flink's algorithm: {self.not_runnable}"


class _Decider(Protocol):
    regions: Regions

    def restart_set(self, failed: int, missing: Set[JobPartition], lost: JobPartition | None) -> RestartSet: ...


class _Reference:
    """Flink's algorithm for any job graph."""

    def __init__(self, graph: JobGraph, consumers: Consumers, strategy: FailoverStrategy) -> None:
        self._graph, self._consumers, self._strategy = graph, consumers, strategy
        self.regions = pipelined_regions(graph)

    def restart_set(self, failed: int, missing: Set[JobPartition], lost: JobPartition | None) -> RestartSet:
        return restart_set(
            self._graph,
            self.regions,
            failed,
            consumers=self._consumers,
            strategy=self._strategy,
            missing=missing,
            lost=lost,
        )


def plan_of_job_graph(
    topology: JobTopology,
    failures: Sequence[TaskFailure],
    consumers: Consumers,
    strategy: FailoverStrategy = FailoverStrategy.REGION,
) -> JobGraphPlan:
    """Answer what each failure would restart.

    `restarts` has one object a failure: `task`, `lost`; `tasks`, their `count` and `regions` that will re-run; under
    `if_changed` those that will if what they read changes; under `by_hand` those that a person has to clear first
    (strategy `individual`); `spared`, how many tasks are not touched. `regions` counts all regions, `region_members`
    names their tasks. Raises Misconfigured for a task that does not exist.
    """
    decider, not_runnable = _decider(topology.graph, consumers, strategy)
    vertices = {name: vertex for vertex, name in enumerate(topology.graph.names)}
    answer = {
        "version": VERSION,
        "strategy": strategy.value,
        "consumers": consumers.value,
        "restarts": [_restart(topology, decider, vertices, failure) for failure in failures],
        "regions": len(decider.regions.members),
        "region_members": [_named(topology, members) for members in decider.regions.members],
    }
    return JobGraphPlan(answer, not_runnable)


def _decider(graph: JobGraph, consumers: Consumers, strategy: FailoverStrategy) -> tuple[_Decider, str]:
    """Return who answers, and why Weir's engine does not, if it does not."""
    try:
        return DeclaredJobGraph(graph, consumers, strategy), ""
    except Misconfigured as error:
        return _Reference(graph, consumers, strategy), str(error)


def _restart(
    topology: JobTopology, decider: _Decider, vertices: Mapping[str, int], failure: TaskFailure
) -> dict[str, Any]:
    if failure.task not in vertices:
        raise Misconfigured(
            f"there is no task {failure.task!r}: write it like join#1; there are {_shown(topology.graph.names)}"
        )
    lost = None if failure.lost is None else partition(topology.graph, failure.lost)
    decided = decider.restart_set(vertices[failure.task], topology.missing, lost)
    return {
        "task": failure.task,
        "lost": failure.lost,
        "count": len(decided.restarted),
        **_tasks_and_regions(topology, decider.regions, decided.restarted),
        "if_changed": _tasks_and_regions(topology, decider.regions, decided.if_changed),
        "by_hand": _tasks_and_regions(topology, decider.regions, decided.by_hand),
        "spared": topology.graph.size - sum(map(len, (decided.restarted, decided.if_changed, decided.by_hand))),
    }


def _tasks_and_regions(topology: JobTopology, regions: Regions, vertices: Sequence[int]) -> dict[str, Any]:
    chosen = sorted({regions.of[vertex] for vertex in vertices})
    return {
        "tasks": _named(topology, vertices),
        "regions": [_named(topology, regions.members[region]) for region in chosen],
    }


def _named(topology: JobTopology, vertices: Iterable[int]) -> list[str]:
    return [topology.graph.names[vertex] for vertex in vertices]


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
