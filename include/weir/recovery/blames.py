"""Which inputs an expectation blames: by the name of an argument, or of the stage that it reads.

Invariant: what is blamed is what was read from the store. An input in the same Spark plan stands for all that it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from weir.dataflow import Dataflow
from weir.dataflow.stage import Stage, StageKind


def blamable(dataflow: Dataflow, stage: str) -> tuple[str, ...]:
    """The names that an expectation of a stage may blame; those of a state blame what its keeper reads."""
    exchanges = _reader(dataflow, stage).exchanges
    return tuple(dict.fromkeys((*exchanges, *(each.stage for each in exchanges.values()))))


def blamed_arguments(dataflow: Dataflow, stage: str, names: Collection[str]) -> frozenset[str]:
    """The arguments, each as STAGE.ARGUMENT, over which blamed inputs of `stage` are read from the store."""
    return frozenset(_read(dataflow, _reader(dataflow, stage), names))


def _reader(dataflow: Dataflow, stage: str) -> Stage:
    found = dataflow.stage(stage)
    if found.kind is not StageKind.STATE:
        return found
    (keeper,) = found.exchanges.values()
    return dataflow.stage(keeper.stage)


def _read(dataflow: Dataflow, reader: Stage, names: Collection[str] | None) -> Iterator[str]:
    for argument, exchange in reader.exchanges.items():
        if names is not None and not {argument, exchange.stage} & {*names}:
            continue
        if exchange.joins_plan:
            yield from _read(dataflow, dataflow.stage(exchange.stage), None)
        else:
            yield f"{reader.name}.{argument}"
