"""Lineage of data sets over dataflows: what each is made of, and what is made of it, to any depth.

Invariant: it follows from what the newest run of each dataflow is pinned to, stage by stage: a data set is made of
those that the stages before its sink read, and of no others of its dataflow. So it is with the assets of Airflow that
sources name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from weir.dataflow.dataflow import Dataflow
from weir.dataflow.graph import reachable, topological_order
from weir.dataflow.stage import dataset_of
from weir.ledger.runs import newest_dataflows
from weir.topology.regions import Topology
from weir.views.datasets import dataflows_of, unknown_dataset

ASSET: Final = "asset:"
"""The beginning of the name of an asset of Airflow, so that none is taken for a data set or dataflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageNode:
    """A data set, or a dataflow of which nothing is published that is made of the data sets that it reads.

    Or an asset of Airflow, "asset:NAME", of no `dataflow`. `distance` counts the dataflows between it and what was
    asked for: upstream below 0, downstream above. Without a name it counts those before it. `made_of` are the data sets
    and assets that the dataflow reads for it.
    """

    name: str
    dataflow: str
    distance: int
    made_of: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a data set, or all data sets of a dataflow, are made of, and what is made of them; of all without a name.

    The nodes are in the order of the data.
    """

    name: str | None
    nodes: tuple[LineageNode, ...]


def lineage_of(session: Session, name: str | None = None, dag_ids: Collection[str] | None = None) -> Lineage:
    """Return the lineage of a data set or a dataflow, or of all. Raises Misconfigured for one that there is not.

    With `dag_ids` it is that of the dataflows of these DAGs, which may read data sets of others.
    """
    declared = newest_dataflows(session)
    seen = declared.keys() if dag_ids is None else dataflows_of(session, dag_ids)
    made_of = datasets_made_of({each: topology for each, topology in declared.items() if each in seen})
    if name is None:
        distances = _depths(made_of)
    else:
        start = [each for each in made_of if name in (each, _dataflow_of(each))]
        if not start:
            raise unknown_dataset(name, made_of)
        readers = _reversed(made_of)
        downstream = _distances(start, readers)
        distances = {each: -steps for each, steps in _distances(start, made_of).items()} | downstream
    nodes = [
        LineageNode(
            name=each,
            dataflow=_dataflow_of(each),
            distance=distance,
            made_of=tuple(of for of in made_of[each] if of in distances),
        )
        for each, distance in sorted(distances.items(), key=lambda item: (item[1], item[0]))
    ]
    return Lineage(name=name, nodes=tuple(nodes))


def datasets_made_of(dataflows: Mapping[str, Topology]) -> dict[str, tuple[str, ...]]:
    """Return of each data set of dataflows, by name, what it is made of; those that are only read are made of nothing.

    A dataflow that reads data sets of which it publishes nothing stands for itself. So it is with assets of Airflow.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, topology in dataflows.items():
        reads = {sink: _read_for(topology.dataflow, [sink]) for sink in topology.sinks}
        found |= {f"{name}.{sink}": read for sink, read in reads.items()}
        every = _read_for(topology.dataflow, [each.name for each in topology.dataflow.stages])
        left = tuple(each for each in every if not any(each in read for read in reads.values()))
        found |= {name: left} if left else {}
    read = {each for names in found.values() for each in names}
    return {**dict.fromkeys(sorted(read - found.keys()), ()), **found}


def _dataflow_of(name: str) -> str:
    return "" if name.startswith(ASSET) else dataset_of(name).dataflow


def _read_for(dataflow: Dataflow, stages: Iterable[str]) -> tuple[str, ...]:
    """Return the data sets and assets that stages, and those before them, read."""
    exchanges = {stage.name: stage.exchanges.values() for stage in dataflow.stages}
    upstream = reachable(stages, lambda name: (each.stage for each in exchanges[name] if not each.is_dataset))
    assets = {ASSET + stage.asset for stage in dataflow.stages if stage.name in upstream and stage.asset}
    return tuple(sorted(assets | {each.stage for name in upstream for each in exchanges[name] if each.is_dataset}))


def _reversed(made_of: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {each: [] for each in made_of}
    for each, names in made_of.items():
        for name in names:
            found[name].append(each)
    return found


def _distances(start: Iterable[str], edges: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return the smallest number of edges to all that can be reached."""
    found = dict.fromkeys(start, 0)
    waiting = list(found)
    for each in waiting:
        for other in edges[each]:
            if other not in found:
                found[other] = found[each] + 1
                waiting.append(other)
    return found


def _depths(made_of: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return how many dataflows are before each, at most; 0 for what is made of itself over others."""
    found = dict.fromkeys(made_of, 0)
    for name in topological_order(made_of):
        found[name] = max((found[other] + 1 for other in made_of[name]), default=0)
    return found
