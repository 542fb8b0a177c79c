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
    EVERY_ROW,
    NO_QUERY,
    Cell,
    Fired,
    Query,
    Row,
    end_of,
    fired_in,
    is_given_up,
    line_in,
    rows_in,
    summed,
)
from tests.simulator.healing import expected_contents
from tests.simulator.history.ledger_view import Partition
from tests.simulator.invariants.recomputation import day_of
from tests.simulator.observer import require
from tests.simulator.world import World

from weir.ledger.runs import dataflow_of, epoch_of_run
from weir.store.catalogue import published


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch: the rows that its source has, what was published of it, and the query as it stood, if there is one."""

    run: str
    rows: Sequence[Row]
    fired: Mapping[Cell, Fired]
    late: Sequence[Row]
    query: Query = EVERY_ROW


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
    """Each row is in a window that has fired, or of one that is not over, or in the side output of its own epoch.

    Where the query leaves it out, or changes before the window is over, it has to be in none.
    """
    watermarks = _watermarks(chain)
    for number, epoch in enumerate(chain):
        same = [each for each in chain[number:] if each.query == epoch.query]
        fired, now = {cell for each in same for cell in each.fired}, watermarks[number + len(same) - 1]
        late = Counter(epoch.late)
        for row in epoch.rows:
            if late[row]:
                late[row] -= 1
            elif epoch.query.takes(row) and row.cell not in fired and end_of(row.cell) <= now:
                yield f"{row} of {epoch.run} is in no window that has fired by {now}"


def what_is_in_the_side_output_was_late(chain: Sequence[Epoch]) -> Iterator[str]:
    """Its window had been given up at the watermark with which the epoch before has ended."""
    for before, epoch in zip([None, *_watermarks(chain)], chain, strict=False):
        yield from (
            f"{row} of {epoch.run} was late at {before}" for row in epoch.late if not is_given_up(row.cell, before)
        )


def windows_are_those_of_all_rows(chain: Sequence[Epoch]) -> Iterator[str]:
    """What an epoch fires is the sum of all rows, since the query is what it is, that were not late."""
    counted: list[Row] = []
    query = EVERY_ROW
    for epoch, before, now in zip(chain, [None, *_watermarks(chain)], _watermarks(chain), strict=False):
        late = [row for row in epoch.rows if is_given_up(row.cell, before)]
        new = [row for row in epoch.rows if not is_given_up(row.cell, before) and epoch.query.takes(row)]
        counted, query = [*(counted if epoch.query == query else []), *new], epoch.query
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
    """Yield the epochs of a dataflow that are not sealed, up to one that was not computed, but restored or deleted."""
    ledger, expected = world.history.ledger, expected_contents(world)
    restored = {each.run for each, result in ledger.current.items() if ledger.attempts[result.attempt].is_restored}
    runs = [row for run, row in sorted(ledger.runs().items()) if dataflow_of(run) == world.scene.flow.name]
    query = NO_QUERY
    for run in (each for each in runs if each.sealed_at is None):
        if run.id in restored or run.run_id in world.history.deleted or run.closed_at is None:
            return
        rows, lines = (_given(world, expected, run.id, each) for each in (Nature.EVENTS, Nature.QUERIES))
        query = query.after(line_in(lines), day_of(run.id)) if lines else EVERY_ROW
        fired = {
            cell: each for part in _published(world, run.id, Nature.WINDOWS) for cell, each in fired_in(part).items()
        }
        yield Epoch(run.id, rows_in(rows), fired, rows_in(_published(world, run.id, Nature.LATE)), query)


def _given(world: World, expected: Mapping[Partition, str | None], run: str, nature: Nature) -> list[str]:
    """Return the contents of all subtasks of a source in a run, as it is now."""
    parts = {
        each: content or ""
        for each, content in expected.items()
        if each.run == run and world.scene.natures.get(each.id.stage) is nature
    }
    layout = min((each.id.layout for each in parts), default="")
    return [content for each, content in parts.items() if each.id.layout == layout]


def _published(world: World, run: str, nature: Nature) -> Iterator[str]:
    (stage,) = (name for name, each in world.scene.natures.items() if each is nature)
    pointer = published(world.store, dataflow_of(run), f"set_{stage}", epoch_of_run(run))
    for part in () if pointer is None else pointer.partitions:
        yield world.files.data[f"{part.folder}/part-0.bin"][:64].decode()
