"""What windows have published over all epochs, compared with what all rows give at once: no state, no epoch of it.

Invariants of windows: a window fires on time at most once, none is left out, and what is in the side output was late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.simulator.engine import Nature
from tests.simulator.event_time.windows import (
    DELAY,
    Cell,
    Fired,
    Row,
    end_of,
    fired_in,
    is_given_up,
    rows_in,
    summed,
)
from tests.simulator.healing import expected_contents
from tests.simulator.observer import require
from tests.simulator.world import World

from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.store.catalogue import published


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch: the rows that its source has, and what was published of it."""

    run: str
    rows: Sequence[Row]
    fired: Mapping[Cell, Fired]
    late: Sequence[Row]


def require_windows(world: World) -> None:
    """Check what is published of a scene over event time. Raises Broken."""
    if not world.scene.is_windowed:
        return
    chain = list(_epochs(world))
    for invariant in OF_WINDOWS:
        require(invariant.__name__, invariant(chain))


def a_window_fires_on_time_once(chain: Sequence[Epoch]) -> Iterator[str]:
    """No epoch fires again what another one has fired at the watermark."""
    times = Counter(cell for each in chain for cell, fired in each.fired.items() if not fired.is_late)
    yield from (
        f"{cell} has fired on time {count} times by {chain[-1].run}" for cell, count in times.items() if count > 1
    )


def no_window_is_left_out(chain: Sequence[Epoch]) -> Iterator[str]:
    """Each row is in a window that has fired, or of one that is not over, or in the side output of its own epoch."""
    watermarks = _watermarks(chain)
    for number, epoch in enumerate(chain):
        fired = {cell for each in chain[number:] for cell in each.fired}
        late = Counter(epoch.late)
        for row in epoch.rows:
            if late[row]:
                late[row] -= 1
            elif row.cell not in fired and end_of(row.cell) <= watermarks[-1]:
                yield f"{row} of {epoch.run} is in no window that has fired by {watermarks[-1]}"


def what_is_in_the_side_output_was_late(chain: Sequence[Epoch]) -> Iterator[str]:
    """Its window had been given up at the watermark with which the epoch before has ended."""
    for before, epoch in zip([None, *_watermarks(chain)], chain, strict=False):
        yield from (
            f"{row} of {epoch.run} was late at {before}" for row in epoch.late if not is_given_up(row.cell, before)
        )


def windows_are_those_of_all_rows(chain: Sequence[Epoch]) -> Iterator[str]:
    """What an epoch fires is the sum of all rows so far that were not late."""
    counted: list[Row] = []
    for epoch, before, now in zip(chain, [None, *_watermarks(chain)], _watermarks(chain), strict=False):
        late = [row for row in epoch.rows if is_given_up(row.cell, before)]
        new = [row for row in epoch.rows if not is_given_up(row.cell, before)]
        counted += new
        cells = {row.cell for row in new} | {cell for cell in summed(counted) if end_of(cell) > (before or 0)}
        wanted = {
            cell: Fired(summed(counted)[cell], is_late=before is not None and end_of(cell) <= before)
            for cell in cells
            if end_of(cell) <= now
        }
        if (wanted, late) != (epoch.fired, epoch.late):
            yield f"{epoch.run} has published {epoch.fired} and {epoch.late}; all rows give {wanted} and {late}"


OF_WINDOWS: Final = (
    a_window_fires_on_time_once,
    no_window_is_left_out,
    what_is_in_the_side_output_was_late,
    windows_are_those_of_all_rows,
)
"""The invariants of what the epochs of a dataflow have published, in their order."""


def _watermarks(chain: Sequence[Epoch]) -> list[int]:
    found: list[int] = []
    for each in chain:
        found.append(max([0, *(row.hour - DELAY for row in each.rows), *found]))
    return found


# What there is


def _epochs(world: World) -> Iterator[Epoch]:
    """Yield the epochs of a dataflow in their order, up to one that was not computed, but restored or deleted."""
    ledger, expected = world.history.ledger, expected_contents(world)
    restored = {each.run for each, result in ledger.current.items() if ledger.attempts[result.attempt].is_restored}
    runs = [row for run, row in sorted(ledger.runs().items()) if dataflow_of(run) == world.scene.flow.name]
    for run in runs:
        if run.id in restored or run.run_id in world.history.deleted or run.closed_at is None:
            return
        (source,) = world.scene.sources
        parts = {each: content for each, content in expected.items() if (each.run, each.id.stage) == (run.id, source)}
        layout = min(each.id.layout for each in parts)
        rows = rows_in(content or "" for each, content in parts.items() if each.id.layout == layout)
        fired = {
            cell: each for part in _published(world, run.id, Nature.WINDOWS) for cell, each in fired_in(part).items()
        }
        yield Epoch(run.id, rows, fired, rows_in(_published(world, run.id, Nature.LATE)))


def _published(world: World, run: str, nature: Nature) -> Iterator[str]:
    (stage,) = (name for name, each in world.scene.natures.items() if each is nature)
    pointer = published(world.store, dataflow_of(run), f"set_{stage}", epoch_of_run(run))
    for part in () if pointer is None else pointer.partitions:
        yield world.files.data[f"{part.folder}/part-0.bin"][:64].decode()
