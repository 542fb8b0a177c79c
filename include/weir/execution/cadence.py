"""The cadence of a dataflow: how its epochs follow each other, and which of them are to exist.

Invariant: time is divided as Airflow's CronDataIntervalTimetable and DeltaDataIntervalTimetable divide it, also where
clocks change. What is known wins: an epoch that was never seen is expected only where it overlaps no known one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final

from weir.intervals import time_zone

if TYPE_CHECKING:
    from croniter import croniter

Interval = tuple[datetime, datetime]

_SECONDS: Final = ("PT", "S")
_EVERY_HOUR: Final = ["*"]


@dataclass(frozen=True, slots=True)
class Cadence:
    """How epochs follow each other: each begins where the one before ends.

    `every` is a cron expression, which is read in `zone`, or a length of time in seconds such as "PT3600S"; `zone` is a
    name as `weir.intervals.time_zone` reads it. A length has no grid of its own. All times are in UTC.
    """

    every: str
    zone: str

    @staticmethod
    def of(every: str | None, zone: str | None) -> Cadence | None:
        """Return the cadence of a schedule, as it is declared or recorded; None where it has none."""
        return Cadence(every, zone or "UTC") if every else None

    @staticmethod
    def of_length(length: timedelta, zone: str = "UTC") -> Cadence:
        """Return the cadence of epochs of one length."""
        return Cadence(f"{length.total_seconds():f}".rstrip("0").rstrip(".").join(_SECONDS), zone)

    @property
    def length(self) -> timedelta | None:
        """The length of each epoch; None where a cron expression divides time."""
        before, after = _SECONDS
        if not (self.every.startswith(before) and self.every.endswith(after)):
            return None
        return timedelta(seconds=float(self.every.removeprefix(before).removesuffix(after)))

    def interval_at(self, start: datetime) -> Interval | None:
        """Return the interval that begins at `start`, None if none does: any time begins one of a cadence by length."""
        found = next(self.after(start), None)
        return found if found is not None and found[0] == start else None

    def after(self, at: datetime) -> Iterator[Interval]:
        """Yield the intervals that begin at `at` or after it, endlessly; those of a cadence by length begin at `at`."""
        utc = at.astimezone(UTC)
        start = datetime.combine(utc.date(), utc.time(), UTC)  # Airflow's times are of a class of their own
        length = self.length
        return _by_cron(self.every, time_zone(self.zone), start) if length is None else _by_length(length, start)


@dataclass(frozen=True, slots=True)
class KnownEpoch:
    """An epoch that the ledger knows, and the cadence by which it was made; None where its schedule has none."""

    start: datetime
    end: datetime
    cadence: Cadence | None
    is_given_up: bool = False

    @property
    def interval(self) -> Interval:
        """Its interval, the end exclusive."""
        return self.start, self.end

    @property
    def is_regular(self) -> bool:
        """Report whether its cadence has this interval; one that a person chose may be any."""
        return self.cadence is not None and self.cadence.interval_at(self.start) == self.interval


def expected(known: Sequence[KnownEpoch], until: datetime) -> list[Interval]:
    """Return the intervals that are to exist and end at `until` or before it, in order.

    They are those of known epochs, without epochs that were given up; those that are missing between two known epochs
    of one cadence; and those after the newest one by its cadence. Nothing is expected before the first known epoch, nor
    between two of different cadences: a schedule that was changed leaves no gap.
    """
    ordered = sorted(known, key=lambda each: each.interval)
    found = [each.interval for each in ordered if not each.is_given_up and each.end <= until]
    last, between = None, list[KnownEpoch]()  # the last regular epoch, and those after it that are none
    for each in ordered:
        if each.is_given_up:
            between.append(each)
        elif last is None or each.cadence != last.cadence:
            last, between = (each, []) if each.is_regular else (None, [])
        elif each.start < last.end or not each.is_regular:
            between.append(each)
        else:
            found += _missing(last, between, min(each.start, until))
            last, between = each, []
    if last is not None:
        found += _missing(last, between, until)
    return sorted(found)


def _missing(last: KnownEpoch, between: Sequence[KnownEpoch], until: datetime) -> Iterator[Interval]:
    """Yield the intervals after an epoch by its cadence, to `until`, without those that overlap others."""
    if last.cadence is None:
        return
    for start, end in last.cadence.after(last.end):
        if end > until:
            return
        if not any(each.start == start or (each.start < end and start < each.end) for each in between):
            yield start, end


def _by_length(length: timedelta, start: datetime) -> Iterator[Interval]:
    while True:
        yield start, start + length
        start += length


def _by_cron(expression: str, zone: tzinfo, at: datetime) -> Iterator[Interval]:
    """Yield the intervals of a cron expression; it ends only where the expression names no later time."""
    from croniter import CroniterBadDateError, croniter  # noqa: PLC0415  spares those who ask for no cadence its import

    grid = _Grid(croniter(expression), zone)
    try:
        start = grid.aligned(at)
        while True:
            end = grid.next(start)
            yield start, end
            start = end
    except CroniterBadDateError:
        return


@dataclass(frozen=True, slots=True)
class _Grid:
    """The times of a cron expression in a zone, as Airflow's CronMixin finds them.

    An expression for certain hours names times of the clock: one that is left out is an hour later, one that comes
    twice is the second. An expression for all hours goes on by the time that passes.
    """

    cron: croniter
    zone: tzinfo

    def next(self, at: datetime) -> datetime:
        """Return the first time after `at`."""
        clock = self._clock(at)
        return self._found(at, clock, self.cron.get_next(datetime, clock))

    def aligned(self, at: datetime) -> datetime:
        """Return `at`, if it is one of the times, else the next one.

        Around a time that the clock leaves out, one of the two ways there and back leads to another time.
        """
        after = self.next(at)
        return at if at in (self.next(self._before(at)), self._before(after)) else after

    def _before(self, at: datetime) -> datetime:
        clock = self._clock(at)
        return self._found(at, clock, self.cron.get_prev(datetime, clock))

    def _clock(self, at: datetime) -> datetime:
        return at.astimezone(self.zone).replace(tzinfo=None, fold=0)

    def _found(self, at: datetime, clock: datetime, found: datetime) -> datetime:
        if self.cron.expanded[1] == _EVERY_HOUR:
            return at + (found - clock)
        offsets = (found.replace(tzinfo=self.zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1))
        return (found - min(offsets)).replace(tzinfo=UTC)
