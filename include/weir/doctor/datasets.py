"""What is wrong between dataflows: data sets that nobody declares, that are read in a cycle, or of other intervals.

Invariant: only dataflows that are declared together are compared; what another one publishes is not known here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from weir.dataflow.graph import find_cycle
from weir.dataflow.stage import SAME, WITHIN, dataset_of
from weir.doctor.problems import Problem
from weir.errors import Message
from weir.execution.cadence import Cadence, Interval
from weir.wording import did_you_mean

_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
_NONE: Final = timedelta()
_COMPARED: Final = 100
"""How many intervals of two cadences are compared, and from when on."""


def dataset_problems(dataflows: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield the problems of what dataflows read of each other, by the documents that describe them."""
    known = {each["dataflow"]: each for each in dataflows}
    for each in dataflows:
        for read in each["reads"]:
            producer = known.get(dataset_of(read["dataset"]).dataflow)
            text = None if producer is None else _problem_of(each, read, producer)
            if text is not None:
                yield Problem(file=each["file"], dataflow=each["dataflow"], stage=read["stage"], text=text)
        for name, is_same_key in each["started_by"].items():
            producer = known.get(dataset_of(name).dataflow)
            text = None if producer is None else _problem_of_start(each, name, producer, is_same_key=is_same_key)
            if text is not None:
                yield Problem(file=each["file"], dataflow=each["dataflow"], text=text)
    reads = {name: [dataset_of(read["dataset"]).dataflow for read in each["reads"]] for name, each in known.items()}
    cycle = find_cycle({name: [one for one in of if one in known] for name, of in reads.items()})
    if cycle:
        first = known[cycle[0]]
        text = Message("recovery.dataset_cycle", cycle=" -> ".join(cycle))
        yield Problem(file=first["file"], dataflow=cycle[0], text=text)


def undeclared_publishers(dataflows: Sequence[Mapping[str, Any]], external: Collection[str] = ()) -> Iterator[Problem]:
    """Yield a problem for each dataflow and data set that it reads, or that starts it, which no dataflow publishes.

    `external` are the dataflows that other projects declare.
    """
    known = {*external, *(each["dataflow"] for each in dataflows)}
    published = [f"{each['dataflow']}.{sink}" for each in dataflows for sink in each["sinks"]]
    for each in dataflows:
        for name in dict.fromkeys((*(one["dataset"] for one in each["reads"]), *each["started_by"])):
            dataflow = dataset_of(name).dataflow
            if dataflow not in known:
                hint = did_you_mean(name, published, lead=": ", form="{}")
                text = Message("doctor.publisher_undeclared", name=name, publisher=dataflow, hint=hint)
                yield Problem(file=each["file"], dataflow=each["dataflow"], text=text)


def _problem_of_start(
    started: Mapping[str, Any], name: str, producer: Mapping[str, Any], *, is_same_key: bool
) -> str | None:
    if producer is started:
        return Message("doctor.dataflow_starts_itself", name=name)
    if dataset_of(name).sink not in producer["sinks"]:
        return Message("doctor.start_not_declared", name=name, file=producer["file"], sinks=producer["sinks"])
    own, other = _cadence(started), _cadence(producer)
    # A length of time has no grid: any time begins an epoch of it.
    if is_same_key and own is not None and other is not None and other.length is None:
        start = next((start for start, _ in _some(other) if own.interval_at(start) is None), None)
        if start is not None:
            at = f"{start:%Y-%m-%d %H:%M} UTC"
            return Message("doctor.start_of_other_cadence", name=name, own=_said(own), start=at)
    return None


def _problem_of(reader: Mapping[str, Any], read: Mapping[str, str], producer: Mapping[str, Any]) -> str | None:
    name, sink = read["dataset"], dataset_of(read["dataset"]).sink
    own, cadence = _cadence(reader), _cadence(producer)
    if sink not in producer["sinks"]:
        return Message("doctor.dataset_not_declared", name=name, file=producer["file"], sinks=producer["sinks"])
    if read["epoch"] != SAME and cadence is None:
        return Message("recovery.dataset_without_cadence", name=name, epoch=read["epoch"])
    if own is None or cadence is None:
        return None
    if read["epoch"] == SAME and _differ(own, cadence):
        return Message("doctor.dataset_of_other_cadence", name=name, own=_said(own), other=_said(cadence))
    if read["epoch"] == WITHIN and min(_lengths(cadence), default=_NONE) > max(_lengths(own), default=_NONE):
        return Message("doctor.dataset_longer", name=name, own=_said(own), other=_said(cadence))
    return None


# Cadences


def _cadence(dataflow: Mapping[str, Any]) -> Cadence | None:
    return Cadence.of(dataflow["cadence"], dataflow["zone"])


def _said(cadence: Cadence) -> str:
    return f"{cadence.every} in {cadence.zone}"


def _some(cadence: Cadence) -> list[Interval]:
    return list(islice(cadence.after(_AT), _COMPARED))


def _lengths(cadence: Cadence) -> set[timedelta]:
    return {end - start for start, end in _some(cadence)}


def _differ(one: Cadence, other: Cadence) -> bool:
    """Report whether two cadences have other intervals, as far as that is known: a length of time has no grid."""
    known = _some if one.length is None and other.length is None else _lengths
    return known(one) != known(other)
