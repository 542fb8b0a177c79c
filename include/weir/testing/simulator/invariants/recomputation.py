"""What a region gives, worked out anew from what its inputs are: not from files, but from what was put into them.

Invariant: nothing here knows of state files; the state of an epoch is that of the one before with what was done to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from weir.dataflow.stage import Stage
from weir.dataflow.state import State, StateKind
from weir.testing.simulator.engine import Nature, content_of
from weir.testing.simulator.history.epochs import Epochs, RunRegion
from weir.testing.simulator.history.history import History
from weir.testing.simulator.history.ledger_view import Partition
from weir.testing.simulator.rows import (
    applied,
    changes_of,
    content_of_rows,
    packed,
    start_of,
    unpacked,
    visible,
    within,
)
from weir.topology.partitions import PreviousInput
from weir.units import time_from_text

Content = Callable[[Partition], str | None]
"""The content of a partition; None where nobody can know it, since it follows from a mood."""

UNKNOWN: Final = object()


def recomputed(history: History, partition: Partition, own: Mapping[str, object]) -> Mapping[str, str | None]:
    """What the region that makes `partition` gives by stage, from what is current now."""

    def content(read: Partition) -> str:
        current = history.ledger.current[read]
        return history.engine.made[current.attempt].contents[current.stage]

    natures = history.engine.natures
    return contents_of(history.epochs, history.epochs.producer(partition), natures, lambda stage: own[stage], content)


def contents_of(
    epochs: Epochs, where: RunRegion, natures: Mapping[str, Nature], own: Callable[[str], object], content: Content
) -> dict[str, str | None]:
    """What the stages of a region give; `own` is what a stage is made of besides what it reads."""
    found: dict[str, str | None] = {}
    kept: dict[str, _Kept] = {}
    for stage in epochs.topology_of(where[0]).stages_of(where[1].name):
        if stage.name in kept:
            found[stage.name] = kept[stage.name].after(found[next(iter(stage.exchanges.values())).stage])
            continue
        read = list(_read(epochs, where, stage, found, kept, content))
        nature, made_of = natures.get(stage.name, Nature.FINE), own(stage.name) if stage.function else None
        known = [each for each in read if each is not None]
        if made_of is UNKNOWN or len(known) < len(read):
            found[stage.name] = None
        elif stage.function:
            found[stage.name] = content_of(stage.name, where[1].subtask, nature, made_of, known)
        else:
            (found[stage.name],) = known
    return found


def _read(
    epochs: Epochs,
    where: RunRegion,
    stage: Stage,
    found: Mapping[str, str | None],
    kept: dict[str, _Kept],
    content: Content,
) -> Iterable[str | None]:
    run, region = where
    topology = epochs.topology_of(run)
    yield from (found[each.stage] for each in stage.exchanges.values() if each.joins_plan)
    for each in topology.inputs(region):
        if each.stage == stage.name:
            yield from (content(Partition(run, one)) for one in each.partitions)
    states = {state.name: state for state in stage.states if state.kind is StateKind.KEYED}
    before = epochs.previous_of(run)
    for one in topology.previous_inputs(region):
        if one.stage != stage.name:
            continue
        partitions = [] if before is None else epochs.partitions_of(before, one.producer, one.layout.id)
        contents = [content(each) for each in partitions]
        if one.argument in states:
            kept[one.argument] = state = _kept(states[one.argument], one, contents, day_of(run))
            yield None if state.rows is None else content_of_rows(state.rows)
        else:
            yield from contents


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a region goes on from of one keyed state; no rows where nobody can know them."""

    rows: dict[int, str] | None
    groups: tuple[int, int]
    day: int

    def after(self, content: str | None) -> str | None:
        """All rows, as text, when the stage that keeps them has given `content`."""
        if content is None or self.rows is None:
            return None
        return packed(applied(self.rows, changes_of(content, self.rows, self.groups, self.day)))


def _kept(state: State, read: PreviousInput, contents: list[str | None], day: int) -> _Kept:
    groups = read.key_groups or (0, 0)
    rows: dict[int, str] = {}
    for text in contents:
        if text is None:
            return _Kept(None, groups, day)
        rows |= within(unpacked(text), groups)
    time = None if state.ttl is None else time_from_text("ttl", state.ttl)
    until = None if time is None else start_of(day) - int(time.total_seconds())
    return _Kept(visible(rows, until), groups, day)


def day_of(run: str) -> int:
    """The day of January 2013 that is a run's epoch."""
    return int(run.rpartition("@")[2][6:8])
