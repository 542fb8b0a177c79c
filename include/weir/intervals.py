"""The data interval of a run in UTC and in the time zone of its schedule, its partition, and the names of time zones.

Invariant: an interval without length has a start; who asks for its end is refused, since no row lies in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from weir.errors import Misconfigured

_OFFSET: Final = re.compile(r"([+-])(\d\d):(\d\d)(?::(\d\d))?")


class Moment(tuple[datetime, datetime]):
    """The interval of a run without length, which a DAG without a schedule may have."""

    __slots__ = ()

    def __getitem__(self, place: Any) -> Any:
        """Return the start. Raises Misconfigured for anything else."""
        if place != 0:
            raise Misconfigured(_no_length(tuple.__getitem__(self, 0)))
        return tuple.__getitem__(self, place)

    def __iter__(self) -> Iterator[datetime]:
        """Raise Misconfigured: start and end are one."""
        raise Misconfigured(_no_length(self[0]))


def interval_of(start: datetime, end: datetime) -> tuple[datetime, datetime]:
    """Return an interval as functions are given it."""
    return Moment((start, end)) if start == end else (start, end)


def in_zone(interval: tuple[datetime, datetime], zone: str) -> tuple[datetime, datetime]:
    """Return an interval in a time zone. Raises Misconfigured for one that is not known here."""
    found = time_zone(zone)
    start = interval[0].astimezone(found)
    return interval_of(start, start if isinstance(interval, Moment) else interval[1].astimezone(found))


def shown(interval: tuple[datetime, datetime]) -> str:
    """Return the bounds of an interval for people."""
    start = interval[0].isoformat()
    return start if isinstance(interval, Moment) else f"{start} to {interval[1].isoformat()} (exclusive)"


def time_zone(name: str) -> tzinfo:
    """Return the time zone of a name of the IANA's database, or of an offset such as "+05:30". Raises Misconfigured."""
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        hours, minutes, seconds = (int(each or 0) for each in offset.groups()[1:])
        length = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return timezone(-length if offset[1] == "-" else length)
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Misconfigured.of("intervals.zone_unknown", name=name, error=error) from error


def start_of_partition(key: str | None, date: datetime | None, zone: str) -> datetime | None:
    """Return the start, in UTC, of a partition of Airflow's, by its key and date; None where neither tells one.

    A key with an offset, as an epoch has it, names an instant. For any other the date counts, which a mapper of
    partitions has found; else the key is a date or a time in the zone. Raises Misconfigured for an unknown zone.
    """
    try:
        named = None if key is None else datetime.fromisoformat(key)
    except ValueError:
        named = None
    if named is None or named.tzinfo is None:
        named = date or (named and named.replace(tzinfo=time_zone(zone)))
    try:
        return None if named is None else named.astimezone(UTC)
    except OverflowError:
        return None


def offset_name(offset: timedelta | None) -> str:
    """Return the name of a zone of this offset, as `time_zone` reads it."""
    seconds = int((offset or timedelta()).total_seconds())
    sign, (minutes, rest) = "-" if seconds < 0 else "+", divmod(abs(seconds), 60)
    return f"{sign}{minutes // 60:02d}:{minutes % 60:02d}{f':{rest:02d}' if rest else ''}" if seconds else "UTC"


def _no_length(at: datetime) -> str:
    return (
        f"the data interval of this run has no length ({at.isoformat()} to itself), so that nothing lies in it: give "
        'the DAG a schedule with intervals, such as "@daily", or trigger the run over Airflow\'s REST API with '
        "data_interval_start and data_interval_end. Its start alone is {start:...} in paths and ctx.interval[0] in code"
    )
