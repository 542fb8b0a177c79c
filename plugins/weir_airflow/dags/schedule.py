"""The timetable of a dataflow. Invariant: every scheduled run has a data interval, which is the dataflow's epoch."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import Any, Final

from airflow.sdk import CronDataIntervalTimetable, DeltaDataIntervalTimetable

from weir.errors import Misconfigured

_WITHOUT_INTERVAL: Final = frozenset({"@once", "@continuous"})


def timetable_of(schedule: Any, start_date: datetime | None = None) -> Any:
    """Give a cron string or preset data intervals; pass None and timetables through.

    Airflow's own reading of "@daily" has intervals of no length. The expression is read in the start date's time zone.
    Raises Misconfigured for a schedule that has no intervals: assets, "@once", "@continuous".
    """
    if isinstance(schedule, str):
        if schedule in _WITHOUT_INTERVAL:
            raise Misconfigured(_refusal(schedule))
        return CronDataIntervalTimetable(schedule, timezone=_timezone(start_date))
    if isinstance(schedule, timedelta):
        return DeltaDataIntervalTimetable(schedule)
    if schedule is None or hasattr(schedule, "validate"):
        return schedule
    raise Misconfigured(_refusal(schedule))


def _timezone(start_date: datetime | None) -> Any:
    zone: tzinfo | None = None if start_date is None else start_date.tzinfo
    # Airflow wants a zone with a name; fixed offsets and datetime.UTC have none that it can store.
    name = getattr(zone, "key", None) or getattr(zone, "name", None)
    return name or "UTC"


def _refusal(schedule: object) -> str:
    return (
        f"The schedule {schedule!r} gives its runs no data interval, and that is the epoch of a dataflow. Use a "
        'cron string ("@daily"), a timedelta, CronDataIntervalTimetable, or None for runs that you trigger with a date'
    )
