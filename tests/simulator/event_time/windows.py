"""Rows with a time, a watermark and windows of a day: a small twin of `weir_spark.windows`, and of a standing query.

Invariant: what a stage gives follows from what it has read and from the day; the rows that it gives can be read from
its content, after the digits of the digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Final, NamedTuple

from tests.simulator.rows import DELETED, KEYS, Changes, content_from, is_bad, unpacked

HOURS_OF_A_WINDOW: Final = 24
"""A day; window 0 is the one before the first epoch."""

WINDOWS: Final = 7
DELAY: Final = 6
LATENESS: Final = 8

MOST_ROWS: Final = 12
"""As many as a content can hold."""

_DIGEST, _BODY = 15, 49
_OF_ROWS, _OF_MARKS, _OF_LINE, _OF_QUERY, _NONE = "e", "d", "c", "b", 0xFF
_TIMED_KEYS: Final = KEYS[::2]
_MODULUS: Final = 7

Cell = tuple[int, int]
"""A key, and a window."""


class Row(NamedTuple):
    """A row: a key, the hour at which it happened, and a number below 7, of which a window has the sum."""

    key: int
    hour: int
    number: int

    @property
    def cell(self) -> Cell:
        """Return the window that it belongs to."""
        return self.key, self.hour // HOURS_OF_A_WINDOW


class Place(NamedTuple):
    """Where a stage is computed: the day of the epoch, the subtask, and its key groups if it keeps state."""

    day: int
    subtask: int
    parallelism: int
    groups: tuple[int, int] = (0, 127)


class Marks(NamedTuple):
    """The watermarks with which the epoch before and this one have ended, None before any row has come."""

    before: int | None
    now: int | None


class Query(NamedTuple):
    """The rows that windows aggregate: those whose number modulo 3 is not this; since which day; none of it if None."""

    left_out: int | None
    since: int

    def takes(self, row: Row) -> bool:
        """Report whether a row is aggregated."""
        return self.left_out is not None and row.number % 3 != self.left_out

    def after(self, line: int, day: int) -> Query:
        """Return the query after a line of a day, which gives it, changes or removes it, or says what is known."""
        wanted = {NO_LINE: self.left_out, REMOVES: None}.get(line, line)
        return self if wanted == self.left_out else Query(wanted, day)


NO_QUERY: Final = Query(None, 0)
EVERY_ROW: Final = Query(3, 0)
"""What dataflows without queries aggregate."""

NO_LINE, REMOVES = 4, 5
"""What a line says besides the rows to leave out."""


class Fired(NamedTuple):
    """What fires of a window in an epoch: the sum modulo 7, and whether it is late."""

    sum: int
    is_late: bool


def end_of(cell: Cell) -> int:
    """Return the hour at which a window ends."""
    return (cell[1] + 1) * HOURS_OF_A_WINDOW


def is_given_up(cell: Cell, watermark: int | None) -> bool:
    """Report whether a window is no longer kept since the watermark is there."""
    return watermark is not None and end_of(cell) + LATENESS <= watermark


# What stages give


def content_with(body: str, own: object, read: Iterable[str], meaning: int) -> str:
    """Return the content with these rows; one of other code has other first digits, which nobody reads as rows."""
    has_bad = (isinstance(own, int) and own < 0) or any(is_bad(each) for each in read)
    padded = body.ljust(_BODY, "0")
    return content_from(json.dumps([padded, meaning]), is_bad=has_bad)[:_DIGEST] + padded


def events(stage: str, own: object, read: Sequence[str], place: Place) -> str:
    """Give a subtask's part of the rows of a day, of which a source that is corrected changes some."""
    del read
    return _written(_rows_of_day(stage, own, place.day)[place.subtask :: place.parallelism])


@cache
def _rows_of_day(source: str, own: object, day: int) -> list[Row]:
    found, hours = [], Random(f"{source} {day}").choice([6, 14, HOURS_OF_A_WINDOW])
    for number in range(MOST_ROWS):
        is_other = own and Random(f"{own} {number}").random() < 0.3
        draw = Random(f"{source} {day} {number} {own if is_other else 0}")
        days_late = draw.choice([0, 0, 0, 1, 1, 2, 3])
        hour = max(day - days_late, 0) * HOURS_OF_A_WINDOW + draw.randrange(
            hours if not days_late else HOURS_OF_A_WINDOW
        )
        found.append(Row(draw.choice(_TIMED_KEYS), hour, draw.randrange(_MODULUS)))
    return found


def marks(stage: str, own: object, read: Sequence[str], place: Place) -> str:
    """Give the watermark: the newest time that has come less the delay, never less than before."""
    del stage, own, place
    rows, known = rows_in(read), _marks_in(read)
    reached = [max(row.hour for row in rows) - DELAY] if rows else []
    reached += [known.now] if known.now is not None else []
    shown = (_NONE if each is None else max(each, 0) for each in (known.now, max(reached, default=None)))
    return _OF_MARKS + "".join(f"{each:02x}" for each in shown)


def late(stage: str, own: object, read: Sequence[str], place: Place) -> str:
    """Give the rows of windows that had been given up: the side output."""
    del stage, own, place
    before = _marks_in(read).before
    return _written([row for row in rows_in(read) if is_given_up(row.cell, before)])


def queries(stage: str, own: object, read: Sequence[str], place: Place) -> str:
    """Give the line of a day about the query; a correction may change it."""
    del read
    return f"{_OF_LINE}{Random(f'{stage} {place.day} {own}').choice([0, 1, 2, 0, 1, NO_LINE, NO_LINE, REMOVES])}"


def standing(stage: str, own: object, read: Sequence[str], place: Place) -> str:
    """Give the query as it stands."""
    del stage, own
    known = next((_query(each) for each in read if each[_DIGEST] == _OF_QUERY), NO_QUERY)
    left_out, since = known.after(line_in(read), place.day)
    return f"{_OF_QUERY}{_NONE if left_out is None else left_out:02x}{since:x}"


def windowed(stage: str, own: object, read: Sequence[str], place: Place) -> str:
    """Give what fires."""
    del stage, own
    before, now = _marks_in(read)
    old, new = _open_in(read, place.day), _accepted(read, place.groups)
    fired = {}
    for cell, total in _merged(old, new).items():
        is_over, was_over = (mark is not None and end_of(cell) <= mark for mark in (now, before))
        if is_over and (cell in new or not was_over):
            fired[cell] = Fired(total, is_late=was_over)
    digits = (fired.get((key, window)) for key in KEYS for window in range(WINDOWS))
    return "".join("0" if each is None else f"{each.sum + 1 + each.is_late * _MODULUS:x}" for each in digits)


def changes_of_windows(read: Sequence[str], place: Place) -> Changes:
    """Return the changes of the open windows of a stage that reads these contents."""
    rows, now = _state_in(read), _marks_in(read).now
    left = {
        cell: total
        for cell, total in _merged(_open_in(read, place.day), _accepted(read, place.groups)).items()
        if not is_given_up(cell, now)
    }
    after = open_rows(left)
    gone = dict.fromkeys(rows.keys() - after.keys(), DELETED)
    return {**gone, **{key: row for key, row in after.items() if rows.get(key) != row}}


def open_rows(cells: Mapping[Cell, int]) -> dict[int, str]:
    """Return the rows of state of open windows: a digit for each window of a key, 0 where it is not open."""
    keys = sorted({key for key, _ in cells})
    return {key: "0" + "".join(str(cells.get((key, window), -1) + 1) for window in range(WINDOWS)) for key in keys}


def _accepted(read: Sequence[str], groups: tuple[int, int]) -> dict[Cell, int]:
    before, query = _marks_in(read).before, _query_in(read)
    mine = [row for row in rows_in(read) if groups[0] <= row.key <= groups[1] and query.takes(row)]
    return summed(row for row in mine if not is_given_up(row.cell, before))


def summed(rows: Iterable[Row]) -> dict[Cell, int]:
    """Return the sums modulo 7 of the windows of some rows."""
    found: dict[Cell, int] = {}
    for row in rows:
        found[row.cell] = (found.get(row.cell, 0) + row.number) % _MODULUS
    return found


def _merged(old: Mapping[Cell, int], new: Mapping[Cell, int]) -> dict[Cell, int]:
    return {cell: (old.get(cell, 0) + new.get(cell, 0)) % _MODULUS for cell in sorted({**old, **new})}


# Contents


def _written(rows: Sequence[Row]) -> str:
    if len(rows) > MOST_ROWS:
        raise ValueError(f"{len(rows)} rows do not fit into a file of the simulation")
    return _OF_ROWS + "".join(f"{KEYS.index(key):x}{hour:02x}{number + 1:x}" for key, hour, number in sorted(rows))


def rows_in(contents: Iterable[str]) -> list[Row]:
    """Return the rows of those contents that have rows."""
    bodies = [each[_DIGEST + 1 :] for each in contents if each[_DIGEST : _DIGEST + 1] == _OF_ROWS]
    texts = [body[at : at + 4] for body in bodies for at in range(0, len(body), 4)]
    return sorted(_row(each) for each in texts if each[3] != "0")


def _row(text: str) -> Row:
    return Row(KEYS[int(text[0], 16)], int(text[1:3], 16), int(text[3], 16) - 1)


def fired_in(content: str) -> dict[Cell, Fired]:
    """Return what has fired by the content of a stage with windows."""
    digits = [int(each, 16) for each in content[_DIGEST:]]
    cells = [(key, window) for key in KEYS for window in range(WINDOWS)]
    return {
        cell: Fired((digit - 1) % _MODULUS, is_late=digit > _MODULUS)
        for cell, digit in zip(cells, digits, strict=True)
        if digit
    }


def _marks_in(contents: Iterable[str]) -> Marks:
    for each in contents:
        if each[_DIGEST] == _OF_MARKS:
            before, now = (int(each[at : at + 2], 16) for at in (_DIGEST + 1, _DIGEST + 3))
            return Marks(None if before == _NONE else before, None if now == _NONE else now)
    return Marks(None, None)


def line_in(contents: Iterable[str]) -> int:
    """Return what the line of a day says."""
    return next((int(each[_DIGEST + 1]) for each in contents if each[_DIGEST] == _OF_LINE), NO_LINE)


def _query_in(contents: Iterable[str]) -> Query:
    return next((_query(each) for each in contents if each[_DIGEST] == _OF_QUERY), EVERY_ROW)


def _query(content: str) -> Query:
    left_out = int(content[_DIGEST + 1 : _DIGEST + 3], 16)
    return Query(None if left_out == _NONE else left_out, int(content[_DIGEST + 3], 16))


def _state_in(contents: Iterable[str]) -> dict[int, str]:
    """Return the rows of state: their digits are none of those that other contents have there."""
    tags = (_OF_ROWS, _OF_MARKS, _OF_LINE, _OF_QUERY)
    return next((unpacked(each) for each in contents if each[_DIGEST] not in tags), {})


def _open_in(contents: Sequence[str], day: int) -> dict[Cell, int]:
    """Return the open windows of the query as it stands: those of one that has changed are gone."""
    if _query_in(contents).since == day:
        return {}
    return {
        (key, window): int(digit) - 1
        for key, row in _state_in(contents).items()
        for window, digit in enumerate(row[1:])
        if digit != "0"
    }
