"""The layouts in which the results of a run are written: as exchanges declare them, or chosen by their costs.

Invariants: the rows that a subtask reads never depend on the layouts. Every stage that is read is written at least
once. What was chosen is recorded with the run, in the record that it is pinned to; without that record each exchange
has its own layout. States and sinks are always written as they are declared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from weir.dataflow.dataflow import Dataflow
from weir.dataflow.stage import Exchange, Stage, StageKind
from weir.topology.partitions import PLAIN, Layout
from weir.typed_json import plain, typed
from weir.units import format_size

SMALL_RESULT: Final = 16 * 2**20
"""The bytes up to which a result is small, where the deployment does not say."""

REDISTRIBUTION: Final = 10
"""How often a result can be read for the price of redistributing and writing it once: see docs/measurements.md."""

_FIELD: Final = "layouts"


@dataclass(frozen=True, slots=True)
class WrittenLayouts:
    """The layouts in which a run writes a stage, and the reason why these were chosen."""

    written: tuple[Layout, ...]
    reason: str

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the layouts."""
        return tuple(layout.id for layout in self.written)


@dataclass(frozen=True, slots=True, order=True)
class ResultSize:
    """The bytes of a stage's result, in one layout, in an earlier run."""

    bytes: int
    run: str


def declared_layout(dataflow: Dataflow, reader: str, exchange: Exchange) -> Layout:
    """Return the layout that an exchange of the stage `reader` declares; that of a sink is the one that it writes."""
    return Layout(exchange.keys, dataflow.max_parallelism_of(reader)) if exchange.keys else PLAIN


def declared_layouts(dataflow: Dataflow) -> dict[str, tuple[Layout, ...]]:
    """Return the layouts that the exchanges declare, by stage; a stage that is only read in its plan has none."""
    found: dict[str, dict[Layout, None]] = {stage.name: {} for stage in dataflow.stages}
    for stage in dataflow.stages:
        for exchange in stage.exchanges.values():
            if stage.kind is StageKind.SINK:
                found[stage.name][declared_layout(dataflow, stage.name, exchange)] = None
            elif exchange.is_of_results:
                found[exchange.stage][declared_layout(dataflow, stage.name, exchange)] = None
    return {stage: tuple(layouts) for stage, layouts in found.items()}


def taken(written: Collection[Layout], declared: Layout) -> Layout:
    """Return the layout, of those in which a stage is written, that is read where an exchange declares one."""
    if declared in written:
        return declared
    return PLAIN if PLAIN in written else next(iter(written))


def chosen_layouts(
    dataflow: Dataflow, sizes: Mapping[str, ResultSize], small: int, before: Mapping[str, Collection[str]]
) -> dict[str, WrittenLayouts]:
    """Choose the layouts of each stage that costs less than as it is declared; `sizes` are of an earlier run, by stage.

    A stage is written once, plain, if its result has at most `small` bytes or no reader divides it among subtasks.
    Otherwise it is written by the keys that save its readers most, and by others where these would read more without
    it, together, than `REDISTRIBUTION` times the result; other readers take what is written. `before` are the ids of
    layouts in which the run has written stages before it is pinned again: these stay, since later runs have read them.
    """
    declared = declared_layouts(dataflow)
    chosen: dict[str, WrittenLayouts] = {}
    for stage in dataflow.stages:
        known = declared[stage.name]
        if stage.kind in (StageKind.STATE, StageKind.SINK) or not known:
            continue
        again = tuple(layout for layout in dict.fromkeys((PLAIN, *known)) if layout.id in before.get(stage.name, ()))
        found = _chosen(known, _rereads(dataflow, stage), sizes.get(stage.name), small)
        if again:
            found = WrittenLayouts(again, "the run has been pinned again, and had written it so before")
        if set(found.written) != set(known):
            chosen[stage.name] = found
    return chosen


def _rereads(dataflow: Dataflow, stage: Stage) -> Mapping[Layout, int]:
    """Return, by layout, how many times more its readers would read the result if it were not written in it."""
    found: dict[Layout, int] = defaultdict(int)
    for reader in dataflow.stages:
        for exchange in reader.exchanges.values():
            if exchange.stage == stage.name and exchange.is_of_results and exchange.keys:
                found[declared_layout(dataflow, reader.name, exchange)] += reader.parallelism - 1
    return found


def _chosen(
    declared: Sequence[Layout], rereads: Mapping[Layout, int], size: ResultSize | None, small: int
) -> WrittenLayouts:
    divided = [layout for layout in declared if rereads.get(layout)]
    if not divided:
        return WrittenLayouts((PLAIN,), "no reader divides it among subtasks")
    if size is not None and size.bytes <= small:
        had = f"it had {format_size(size.bytes)} in {size.run}"
        return WrittenLayouts((PLAIN,), f"{had}, and up to {format_size(small)} are filtered when they are read")
    if size is None:
        return WrittenLayouts(tuple(divided), "its size is not known yet; readers of all rows take what is written")
    first = max(divided, key=lambda layout: rereads[layout])
    kept = tuple(layout for layout in divided if layout == first or rereads[layout] > REDISTRIBUTION)
    reason = (
        f"it had {format_size(size.bytes)} in {size.run}: a further layout is written if its readers would read more "
        f"than {REDISTRIBUTION} times that without it"
    )
    return WrittenLayouts(kept, reason)


def pinned_json(dataflow: Dataflow, chosen: Mapping[str, WrittenLayouts] | None) -> dict[str, Any]:
    """Return the record that a run is pinned to as plain JSON values; None: no layout was chosen."""
    layouts = {} if chosen is None else {_FIELD: plain(dict(sorted(chosen.items())))}
    return {**dataflow.to_json(), **layouts}


def chosen_of_json(document: Mapping[str, Any]) -> dict[str, WrittenLayouts] | None:
    """Read the layouts in the record that `pinned_json` returned."""
    layouts = document.get(_FIELD)
    return None if layouts is None else typed("layouts", dict[str, WrittenLayouts], layouts)
