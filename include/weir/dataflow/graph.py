"""Topological order, pipelined groups and data sets of declared stages, and the settings that a group's stages share.

Invariant: order and groups depend on names and exchanges only, never on parallelism.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from weir.dataflow.stage import Exchange, Stage, TaskSettings, dataset_of
from weir.errors import Misconfigured

_SINGLE: Final = ("pool", "queue", "priority_weight", "execution_timeout", "spark_conn_id")


def topological_order(reads: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Order names so that each comes after those it reads; the order of declaration decides where that leaves a choice.

    Names on a cycle or after one are left out: the caller compares lengths.
    """
    position = {name: i for i, name in enumerate(reads)}
    names, ready, ordered = list(reads), list[int](), list[str]()
    left = TopologicalSorter(reads)
    with suppress(CycleError):
        left.prepare()
    while left.is_active():
        for name in left.get_ready():
            heapq.heappush(ready, position[name])
        ordered.append(names[heapq.heappop(ready)])
        left.done(ordered[-1])
    return tuple(ordered)


def reachable(start: Iterable[str], leads_to: Callable[[str], Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """Return the names of `start` and all that they lead to, directly or over others; with those that each leads to."""
    found, waiting = dict[str, tuple[str, ...]](), list(start)
    for name in waiting:
        if name not in found:
            found[name] = tuple(leads_to(name))
            waiting += found[name]
    return found


def find_cycle(reads: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return one cycle in the direction of the data, its first name repeated at the end; empty where there is none."""
    unordered = set(reads) - set(topological_order(reads))
    if not unordered:
        return ()
    # Each name that was left out reads another such name, so a walk upstream ends in a cycle.
    name = next(candidate for candidate in reads if candidate in unordered)
    walked: dict[str, int] = {}
    path: list[str] = []
    while name not in walked:
        walked[name] = len(path)
        path.append(name)
        name = next(producer for producer in reads[name] if producer in unordered)
    cycle = path[walked[name] :]
    return (name, *reversed(cycle[1:]), name)


def datasets_read(stages: Iterable[Stage]) -> list[tuple[Stage, str, Exchange]]:
    """Return the inputs of stages that read data sets of other dataflows: the stage, the argument, and the exchange."""
    inputs = ((stage, *each) for stage in stages for each in stage.exchanges.items())
    return [each for each in inputs if each[2].is_dataset]


def dataflows_read(stages: Iterable[Stage]) -> list[str]:
    """Return the other dataflows whose data sets stages read."""
    return sorted({dataset_of(exchange.stage).dataflow for *_, exchange in datasets_read(stages)})


def pipelined_groups(stages: Sequence[Stage]) -> tuple[tuple[Stage, ...], ...]:
    """Group stages that are weakly connected over exchanges that join a plan; all keep the given order."""
    leader = {stage.name: stage.name for stage in stages}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for stage in stages:
        for exchange in stage.exchanges.values():
            if exchange.joins_plan:
                leader[find(stage.name)] = find(exchange.stage)
    groups: dict[str, list[Stage]] = {}
    for stage in stages:
        groups.setdefault(find(stage.name), []).append(stage)
    return tuple(tuple(group) for group in groups.values())


def group_reads(groups: Sequence[Sequence[Stage]]) -> dict[str, list[str]]:
    """Return the groups that each group reads over blocking exchanges; a group is named by its first stage."""
    group_of = {stage.name: group[0].name for group in groups for stage in group}
    return {
        group[0].name: [
            group_of[exchange.stage] for stage in group for exchange in stage.exchanges.values() if exchange.is_boundary
        ]
        for group in groups
    }


def task_settings(region: Sequence[Stage]) -> TaskSettings:
    """Merge the task settings of a region's stages; an unset value conflicts with none. Raises Misconfigured."""
    single = _merged(
        (stage, key, getattr(stage.task, key))
        for stage in region
        for key in _SINGLE
        if getattr(stage.task, key) is not None
    )
    executor = _merged((stage, key, value) for stage in region for key, value in stage.task.executor_config.items())
    return TaskSettings(**single, executor_config=executor)


def spark_conf(region: Sequence[Stage]) -> dict[str, str]:
    """Merge the Spark settings of a region's stages, sorted by key. Raises Misconfigured where two conflict."""
    return dict(sorted(_merged((stage, key, value) for stage in region for key, value in stage.spark.items()).items()))


def _merged(settings: Iterable[tuple[Stage, str, Any]]) -> dict[str, Any]:
    merged: dict[str, tuple[Stage, Any]] = {}
    for stage, key, value in settings:
        first, other = merged.setdefault(key, (stage, value))
        if other != value:
            raise Misconfigured.of(
                "dataflow.settings_differ", first=first.name, stage=stage.name, key=key, other=other, value=value
            )
    return {key: value for key, (_, value) in merged.items()}
