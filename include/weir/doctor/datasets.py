"""What is wrong between dataflows: data sets that nobody declares, that are read in a cycle, or of other intervals.

Invariant: only dataflows that are declared together are compared; what another one publishes is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weir.dataflow.graph import find_cycle
from weir.dataflow.stage import SAME, dataset_of
from weir.doctor.problems import Problem
from weir.errors import Message
from weir.wording import did_you_mean


def dataset_problems(dataflows: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield the problems of what dataflows read of each other, by the documents that describe them."""
    known = {each["dataflow"]: each for each in dataflows}
    for each in dataflows:
        for read in each["reads"]:
            producer = known.get(dataset_of(read["dataset"]).dataflow)
            text = None if producer is None else _problem_of(each, read, producer)
            if text is not None:
                yield Problem(file=each["file"], dataflow=each["dataflow"], stage=read["stage"], text=text)
        for name in each["started_by"]:
            producer = known.get(dataset_of(name).dataflow)
            text = None if producer is None else _problem_of_start(each, name, producer)
            if text is not None:
                yield Problem(file=each["file"], dataflow=each["dataflow"], text=text)
    reads = {name: [dataset_of(read["dataset"]).dataflow for read in each["reads"]] for name, each in known.items()}
    cycle = find_cycle({name: [one for one in of if one in known] for name, of in reads.items()})
    if cycle:
        first = known[cycle[0]]
        text = Message("recovery.dataset_cycle", cycle=" -> ".join(cycle))
        yield Problem(file=first["file"], dataflow=cycle[0], text=text)


def unknown_publishers(dataflows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a note for each data set that dataflows read, or that starts them, and whose dataflow no file declares."""
    known = {each["dataflow"] for each in dataflows}
    published = [f"{each['dataflow']}.{sink}" for each in dataflows for sink in each["sinks"]]
    read: dict[str, dict[str, None]] = {}
    for each in dataflows:
        for name in (*(one["dataset"] for one in each["reads"]), *each["started_by"]):
            if dataset_of(name).dataflow not in known:
                read.setdefault(name, {})[f"{each['dataflow']} ({each['file']})"] = None
    for name, readers in read.items():
        hint = did_you_mean(name, published, lead="; ", form="{}")
        yield (
            f"{name} is read by {', '.join(readers)}, and none of these files declares dataflow "
            f"{dataset_of(name).dataflow}: whether it is published is not checked{hint}"
        )


def _problem_of_start(started: Mapping[str, Any], name: str, producer: Mapping[str, Any]) -> str | None:
    if producer is started:
        return Message("doctor.dataflow_starts_itself", name=name)
    if dataset_of(name).sink not in producer["sinks"]:
        return Message("doctor.start_not_declared", name=name, file=producer["file"], sinks=producer["sinks"])
    return None


def _problem_of(reader: Mapping[str, Any], read: Mapping[str, str], producer: Mapping[str, Any]) -> str | None:
    name, sink, cadence = read["dataset"], dataset_of(read["dataset"]).sink, producer["cadence"]
    if sink not in producer["sinks"]:
        return Message("doctor.dataset_not_declared", name=name, file=producer["file"], sinks=producer["sinks"])
    if read["epoch"] != SAME and cadence is None:
        return Message("recovery.dataset_without_cadence", name=name, epoch=read["epoch"])
    if read["epoch"] == SAME and None not in (cadence, reader["cadence"]) and cadence != reader["cadence"]:
        return Message("doctor.dataset_of_other_cadence", name=name, own=reader["cadence"], other=cadence)
    return None
