"""The timetable of a dataflow. Invariant: every scheduled run has a data interval, which is the dataflow's epoch."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import CronDataIntervalTimetable, DeltaDataIntervalTimetable
from airflow.sdk.exceptions import AirflowTimetableInvalid

from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping

_EXAMPLE: Final = "datetime(2026, 1, 1, tzinfo=UTC)"

_WITHOUT_INTERVAL: Final = frozenset({"@once", "@continuous"})


def timetable_of(schedule: Any, start_date: datetime | None = None) -> Any:
    """Give a cron string or preset data intervals; pass None and timetables through.

    Airflow's own reading of "@daily" has intervals of no length. The expression is read in the start date's time zone.
    Raises Misconfigured for a schedule that has no intervals: assets, "@once", "@continuous".
    """
    if isinstance(schedule, str):
        if schedule in _WITHOUT_INTERVAL:
            raise Misconfigured(_refusal(schedule))
        made = CronDataIntervalTimetable(schedule, timezone=_timezone(start_date))
        try:
            made.validate()
        except AirflowTimetableInvalid as error:
            raise Misconfigured(
                f'The schedule {schedule!r} is no cron expression: write one such as "0 5 * * *" (each day at five), '
                'or a preset such as "@daily"'
            ) from error
        return made
    if isinstance(schedule, timedelta):
        return DeltaDataIntervalTimetable(schedule)
    if schedule is None or hasattr(schedule, "validate"):
        return schedule
    raise Misconfigured(_refusal(schedule))


def require_dates(dates: Mapping[str, Any]) -> None:
    """Require that the dates of a DAG, by their arguments, have time zones. Raises Misconfigured."""
    for name, found in dates.items():
        if found is None:
            continue
        if not isinstance(found, datetime):
            raise Misconfigured(f"{name} is {found!r}, expected a datetime: write {name}={_EXAMPLE}")
        if found.tzinfo is None:
            raise Misconfigured(
                f"{name} is {found!r}, which has no time zone: write {name}={_EXAMPLE}, or name another zone"
            )


def require_start(schedule: Any, start_date: datetime | None) -> None:
    """Require a start date where Airflow schedules the runs. Raises Misconfigured."""
    if schedule is not None and start_date is None:
        raise Misconfigured(
            f"there is no start_date, so that Airflow would never start a run: write start_date={_EXAMPLE}, the start "
            "of the first epoch"
        )


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
