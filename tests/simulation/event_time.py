"""Epochs of rows that come late, and what the simulator's twin of windows gives of them without faults."""

from tests.simulator.event_time.outcome import Epoch
from tests.simulator.event_time.windows import (
    EVERY_ROW,
    NO_QUERY,
    Place,
    changes_of_windows,
    content_with,
    events,
    fired_in,
    late,
    line_in,
    marks,
    queries,
    rows_in,
    standing,
    windowed,
)
from tests.simulator.rows import applied, packed, within

from weir.topology.key_groups import key_group_range

DAYS = 5


def epochs_of(source, parallelism=1, asks=None):
    """The epochs of a source whose rows and windows are divided among so many subtasks; `asks` changes the query."""
    state, before, found, query = {}, [], [], NO_QUERY
    for day in range(1, DAYS + 1):
        places = [
            Place(day, subtask, parallelism, key_group_range(128, parallelism, subtask))
            for subtask in range(parallelism)
        ]
        parts = [content_of(events, source, [], place) for place in places]
        mark = content_of(marks, "marks", [*parts, *before], places[0])
        asked = []
        if asks:
            line = content_of(queries, asks, [], places[0])
            asked = [content_of(standing, "standing", [line, *before], places[0])]
            query = query.after(line_in([line]), day)
        fired, changes = {}, {}
        for place in places:
            read = [*parts, mark, *asked, packed(within(state, place.groups))]
            fired |= fired_in(content_of(windowed, "windows", read, place))
            changes |= changes_of_windows(read, place)
        side = content_of(late, "late", [*parts, mark], places[0])
        found.append(Epoch(f"day {day}", rows_in(parts), fired, rows_in([side]), query if asks else EVERY_ROW))
        state, before = applied(state, changes), [mark, *asked]
    return found


def content_of(stage, name, read, place):
    return content_with(stage(name, 0, read, place), 0, read, 0)
