"""The recomputation of a region's results from the contents of its inputs, without reading files.

Invariant: no state file is read; the state of an epoch is that of the one before with its updates applied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.simulator.engine import Nature, content_of
from tests.simulator.event_time.windows import Place, changes_of_windows
from tests.simulator.history.epochs import Epochs, RunRegion
from tests.simulator.history.history import History
from tests.simulator.history.ledger_view import Partition
from tests.simulator.listings import LISTED, SINCE
from tests.simulator.rows import (
    Changes,
    applied,
    changes_of,
    content_of_rows,
    packed,
    start_of,
    unpacked,
    visible,
    within,
)

from weir.dataflow.stage import Stage
from weir.dataflow.state import State, StateKind
from weir.topology.partitions import InputPartitions
from weir.units import time_from_text

Content = Callable[[Partition], str | None]
"""The content of a partition; None where it is not deterministic."""

Splits = Mapping[tuple[str, str], Sequence[Sequence[str]]]
"""By run and source, the files that each subtask is to read."""

UNKNOWN: Final = object()


def recomputed(
    history: History, partition: Partition, own: Mapping[str, object], edits: Mapping[str, int]
) -> Mapping[str, str | None]:
    """Recompute the region of `partition` from the current inputs and recorded splits, by these edits, by stage."""

    def content(read: Partition) -> str:
        current = history.ledger.current[read]
        return history.engine.made[current.attempt].contents[current.stage]

    natures = history.engine.natures
    where = history.epochs.producer(partition)
    splits = history.ledger.splits
    # An attempt that was killed has not come to the last stages.
    return contents_of(history.epochs, where, natures, lambda stage: own.get(stage, UNKNOWN), content, edits, splits)


def contents_of(
    epochs: Epochs,
    where: RunRegion,
    natures: Mapping[str, Nature],
    own: Callable[[str], object],
    content: Content,
    edits: Mapping[str, int],
    splits: Splits,
) -> dict[str, str | None]:
    """Compute the contents of a region's stages; `own` is what a stage's content follows from besides its inputs.

    `edits` are the numbers of edits of the functions, by stage, and `splits` what sources are to read.
    """
    found: dict[str, str | None] = {}
    kept: dict[str, _StateBefore] = {}
    for stage in epochs.topology_of(where[0]).stages_of(where[1].name):
        if stage.name in kept:
            found[stage.name] = kept[stage.name].after(found[next(iter(stage.exchanges.values())).stage])
            continue
        nature, made_of = natures.get(stage.name, Nature.FINE), own(stage.name) if stage.function else None
        place = Place(day_of(where[0]), where[1].subtask, stage.parallelism)
        is_open = nature is Nature.WINDOWS
        read = [*_files(splits, where, stage), *_read(epochs, where, stage, found, kept, content, is_open=is_open)]
        known = [each for each in read if each is not None]
        if made_of is UNKNOWN or len(known) < len(read):
            found[stage.name] = None
        elif stage.function:
            edit = edits.get(stage.name, 0)
            if is_open:
                (name,) = kept
                place = place._replace(groups=kept[name].groups)
                kept[name] = replace(kept[name], changes=changes_of_windows(known, place))
            found[stage.name] = content_of(stage.name, place, nature, made_of, known, edit)
        else:
            (found[stage.name],) = known
    return found


def _files(splits: Splits, where: RunRegion, stage: Stage) -> Sequence[str | None]:
    """Return the files that a subtask of a source reads; None where they are not known."""
    if stage.resolve not in (LISTED, SINCE):
        return ()
    recorded = splits.get((where[0], stage.name), ())
    return recorded[where[1].subtask] if where[1].subtask < len(recorded) else (None,)


def _read(
    epochs: Epochs,
    where: RunRegion,
    stage: Stage,
    found: Mapping[str, str | None],
    kept: dict[str, _StateBefore],
    content: Content,
    *,
    is_open: bool,
) -> Iterable[str | None]:
    run, region = where
    topology = epochs.topology_of(run)
    yield from (found[each.stage] for each in stage.exchanges.values() if each.joins_plan)
    for each in topology.inputs(region):
        if each.stage == stage.name:
            yield from (content(Partition(run, one)) for one in each.partitions)
    states = {each.name: each for of in topology.dataflow.stages for each in of.states if each.kind is StateKind.KEYED}
    before = epochs.previous_of(run)
    for one in topology.previous_inputs(region):
        if one.stage != stage.name:
            continue
        partitions = [] if before is None else epochs.partitions_read(before, one)
        contents = [content(each) for each in partitions]
        if one.producer in states:
            state = _kept(states[one.producer], one, contents, day_of(run))
            if states[one.producer] in stage.states:
                kept[one.producer] = state
            yield None if state.rows is None else content_of_rows(state.rows, is_open=is_open)
        else:
            yield from contents


@dataclass(frozen=True, slots=True)
class _StateBefore:
    """A keyed state before the epoch's updates, of one region; no rows where they are not deterministic."""

    rows: dict[int, str] | None
    groups: tuple[int, int]
    day: int
    changes: Changes | None = None
    """Given for windows; else they follow from the content."""

    def after(self, content: str | None) -> str | None:
        """Return all rows as text, after the stage that updates them has given `content`."""
        if content is None or self.rows is None:
            return None
        changes = self.changes
        if changes is None:
            changes = changes_of(content, self.rows, self.groups, self.day)
        return packed(applied(self.rows, changes))


def _kept(state: State, read: InputPartitions, contents: list[str | None], day: int) -> _StateBefore:
    groups = read.key_groups or (0, 0)
    rows: dict[int, str] = {}
    for text in contents:
        if text is None:
            return _StateBefore(None, groups, day)
        rows |= within(unpacked(text), groups)
    time = None if state.ttl is None else time_from_text("ttl", state.ttl)
    until = None if time is None else start_of(day) - int(time.total_seconds())
    return _StateBefore(visible(rows, until), groups, day)


def day_of(run: str) -> int:
    """Return the day of January 2013 of a run's epoch."""
    return int(run.rpartition("@")[2][6:8])
