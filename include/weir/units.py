"""Durations and sizes as text: "14 days", "500 MB"."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from weir.errors import Misconfigured

FOREVER = "forever"
_UNITS = {"minute": "minutes", "hour": "hours", "day": "days", "week": "weeks"}
AMOUNT = re.compile(r"(\d{1,6}) ?([a-z]+?)s?")
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE_UNITS = ("kB", "MB", "GB", "TB", "PB")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?i?)b?")
TIME_EXPECTED = 'a time such as "12 hours" or "14 days", or "forever"'


def time_from_text(what: str, text: str) -> timedelta | None:
    """Read a duration such as "14 days"; None for "forever". Raises Misconfigured, which names the option `what`."""
    plain = str(text).strip().lower()
    if plain == FOREVER:
        return None
    time = plain_time(plain)
    if time is None:
        raise Misconfigured.of("units.time_malformed", what=what, text=text, time_expected=TIME_EXPECTED)
    return time


def size_from_text(what: str, text: str) -> int:
    """Read a size in bytes such as "500 MB", "2GiB" or "1000000". Raises Misconfigured, naming `what`."""
    found = _SIZE.fullmatch(str(text).strip().lower())
    if found is None or found[2] not in _SIZES:
        raise Misconfigured.of("units.size_malformed", what=what, text=text)
    return int(float(found[1]) * _SIZES[found[2]])


def format_duration(time: timedelta) -> str:
    """Format a duration in the largest unit that divides it: "36 hours", "14 days"."""
    seconds = int(time.total_seconds())
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds % size == 0 and seconds:
            count = seconds // size
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return f"{seconds} seconds"


def seconds_since(since: datetime, now: datetime) -> float:
    """Return the seconds since then, 0 where that is ahead of this machine's clock."""
    return max((now - since).total_seconds(), 0.0)


def format_size(size: int) -> str:
    """Format a size in decimal units: "812 bytes", "8.1 GB"."""
    value, unit = float(size), ""
    for larger in _SIZE_UNITS:
        if value < 999.95:  # what would be rounded to 1000
            break
        value, unit = value / 1000, larger
    return f"{value:,.1f} {unit}" if unit else f"{size} byte{'' if size == 1 else 's'}"


def plain_time(plain: str) -> timedelta | None:
    """Read a duration such as "14 days" in lower case; None for any other text."""
    found = AMOUNT.fullmatch(plain)
    if found is None or found[2] not in _UNITS or not int(found[1]):
        return None
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
