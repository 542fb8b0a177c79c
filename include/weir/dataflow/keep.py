"""How long results stay once nobody needs them. Invariant: each choice has one text, and only keeps longer.

What somebody needs (a consumer that has not read it, a reader at work, a published version) always stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from weir.errors import Misconfigured

FOREVER = "forever"

_UNITS = {"minute": "minutes", "hour": "hours", "day": "days", "week": "weeks"}
_AMOUNT = re.compile(r"(\d{1,6}) ?([a-z]+?)s?")
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_TOLD_SIZES = ("kB", "MB", "GB", "TB", "PB")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?i?)b?")

KEEP_EXPECTED = '"on_consumed", "end_of_run", "2 runs" or a time such as "12 hours" or "7 days"'
TIME_EXPECTED = 'a time such as "12 hours" or "14 days", or "forever"'


class KeepUntil(Enum):
    """The earliest that an intermediate result may go."""

    CONSUMED = "on_consumed"
    """As soon as every consumer has committed a result made from it (Flink's rule)."""
    END_OF_RUN = "end_of_run"
    """When its run is over."""
    RUNS = "runs"
    """When so many runs have been closed after its own."""
    TIME = "time"
    """So long after its run was closed."""


@dataclass(frozen=True, slots=True)
class Keep:
    """A policy for intermediate results; `runs` and `time` are those of KeepUntil.RUNS and KeepUntil.TIME."""

    until: KeepUntil
    runs: int = 0
    time: timedelta = timedelta()

    @staticmethod
    def from_text(text: str) -> Keep:
        """Read "on_consumed", "end_of_run", "2 runs" or "7 days". Raises Misconfigured."""
        plain = str(text).strip().lower()
        for until in (KeepUntil.CONSUMED, KeepUntil.END_OF_RUN):
            if plain == until.value:
                return Keep(until)
        found = _AMOUNT.fullmatch(plain)
        if found and found[2] == "run" and int(found[1]) > 0:
            return Keep(KeepUntil.RUNS, runs=int(found[1]))
        time = _time(plain)
        if time is None:
            raise Misconfigured(f"keep is {text!r}, expected {KEEP_EXPECTED}")
        return Keep(KeepUntil.TIME, time=time)

    def __str__(self) -> str:
        if self.until is KeepUntil.RUNS:
            return f"{self.runs} run{'s' if self.runs > 1 else ''}"
        return told_time(self.time) if self.until is KeepUntil.TIME else self.until.value


def time_from_text(what: str, text: str) -> timedelta | None:
    """Read a time such as "14 days"; None for "forever". Raises Misconfigured, which names `what`."""
    plain = str(text).strip().lower()
    if plain == FOREVER:
        return None
    time = _time(plain)
    if time is None:
        raise Misconfigured(f"{what} is {text!r}, expected {TIME_EXPECTED}")
    return time


def size_from_text(what: str, text: str) -> int:
    """Read a size in bytes such as "500 MB", "2GiB" or "1000000". Raises Misconfigured, which names `what`."""
    found = _SIZE.fullmatch(str(text).strip().lower())
    if found is None or found[2] not in _SIZES:
        raise Misconfigured(f'{what} is {text!r}, expected a size such as "500 MB", "20 GiB" or a number of bytes')
    return int(float(found[1]) * _SIZES[found[2]])


def told_time(time: timedelta) -> str:
    """Spell a time in the largest unit in which it is whole."""
    seconds = int(time.total_seconds())
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0 and seconds:
            count = seconds // size
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{seconds} seconds"


def told_size(size: int) -> str:
    """Spell a size as a person would: "812 bytes", "8.1 GB"."""
    value, unit = float(size), ""
    for larger in _TOLD_SIZES:
        if value < 999.95:  # what would be rounded to 1000
            break
        value, unit = value / 1000, larger
    return f"{value:,.1f} {unit}" if unit else f"{size} byte{'' if size == 1 else 's'}"


def _time(plain: str) -> timedelta | None:
    found = _AMOUNT.fullmatch(plain)
    if found is None or found[2] not in _UNITS or not int(found[1]):
        return None
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
