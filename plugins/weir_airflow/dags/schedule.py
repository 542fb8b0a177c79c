"""The schedule of a dataflow, and the dates from which and until which it runs.

Invariants: every scheduled run has a data interval, which is the dataflow's epoch. A schedule that Airflow would read
differently, or not at all, is refused when the DAG file is parsed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Final

from airflow.sdk import CronDataIntervalTimetable, DeltaDataIntervalTimetable

from weir.dataflow.arguments import shown
from weir.errors import Misconfigured

_WITHOUT_INTERVAL: Final = ("@once", "@continuous")
_TIMETABLES_WITHOUT_INTERVAL: Final = ("OnceTimetable", "ContinuousTimetable", "AssetTriggeredTimetable")
_EXAMPLE: Final = datetime(2025, 1, 1, tzinfo=UTC)


def timetable_of(schedule: Any, start_date: object = None, where: str = "the dataflow") -> Any:
    """Give a cron string or preset data intervals; pass None and timetables with intervals through.

    Airflow's own reading of "@daily" has intervals of no length. The expression is read in the start date's time zone.
    Raises Misconfigured for a schedule that is no cron string, or has no intervals: assets, "@once", "@continuous".
    """
    if isinstance(schedule, str):
        if schedule in _WITHOUT_INTERVAL:
            raise Misconfigured(_refusal(where, schedule))
        _require_cron(where, schedule)
        return CronDataIntervalTimetable(schedule, timezone=_timezone(start_date))
    if isinstance(schedule, timedelta):
        if schedule <= timedelta(0):
            raise Misconfigured(f"{where}: the schedule {schedule} is no time: write one such as timedelta(hours=6)")
        return DeltaDataIntervalTimetable(schedule)
    if schedule is None or (hasattr(schedule, "validate") and has_intervals(schedule)):
        return schedule
    raise Misconfigured(_refusal(where, schedule))


def has_intervals(timetable: Any) -> bool:
    """Report whether the runs of a timetable have data intervals that are not empty, as far as Airflow's own tell."""
    is_point = getattr(timetable, "interval", None) == timedelta(0)  # what Airflow makes of a cron string
    return not is_point and type(timetable).__name__ not in _TIMETABLES_WITHOUT_INTERVAL


def require_dates(where: str, start_date: object, end_date: object, *, is_scheduled: bool) -> None:
    """Require dates with a time zone, and a start date for what is scheduled. Raises Misconfigured."""
    for what, given in (("start_date", start_date), ("end_date", end_date)):
        if given is not None and (not isinstance(given, datetime) or given.tzinfo is None):
            has = "has no time zone" if isinstance(given, datetime) else f"is a {type(given).__name__}, not a datetime"
            raise Misconfigured(f"{where}: {what}={shown(given)} {has}: write {what}={_written(given)}")
    if is_scheduled and start_date is None:
        raise Misconfigured(
            f"{where} has a schedule and no start_date, so that no run would be scheduled: write the start of its "
            f"first epoch, as in start_date={_written(_EXAMPLE)}"
        )
    if isinstance(start_date, datetime) and isinstance(end_date, datetime) and end_date < start_date:
        raise Misconfigured(
            f"{where}: end_date={end_date} is before start_date={start_date}: no run would be scheduled"
        )


def inherited_date(what: str, given: object, default_args: Mapping[str, Any]) -> object:
    """Return a date of a DAG: its own, else that of `default_args`."""
    return default_args.get(what) if given is None else given


def _written(given: object) -> str:
    found = given if isinstance(given, date) else _parsed(given) or _EXAMPLE
    parts = [found.year, found.month, found.day]
    if isinstance(found, datetime) and (found.hour or found.minute):
        parts += [found.hour, found.minute]
    return f"datetime({', '.join(map(str, parts))}, tzinfo=UTC)"


def _parsed(text: object) -> datetime | None:
    """Return the date that a text has, in UTC where it names no time zone."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


def _require_cron(where: str, schedule: str) -> None:
    from airflow.utils.dates import cron_presets  # noqa: PLC0415  only DAG files with a cron string need them
    from croniter import CroniterError, croniter  # noqa: PLC0415

    try:
        croniter(cron_presets.get(schedule, schedule))
    except (CroniterError, ValueError) as error:
        near = difflib.get_close_matches(schedule, cron_presets, 1, 0.5)
        said = f"did you mean {near[0]!r}?" if near else f"{str(error).rstrip('.')}."
        raise Misconfigured(
            f'{where}: the schedule {schedule!r} is no cron string: {said} Write five fields such as "30 6 * * *", '
            f"or one of {', '.join(cron_presets)}, or a timedelta"
        ) from error


def _timezone(start_date: object) -> Any:
    zone: tzinfo | None = getattr(start_date, "tzinfo", None)
    # Airflow wants a zone with a name; fixed offsets and datetime.UTC have none that it can store.
    name = getattr(zone, "key", None) or getattr(zone, "name", None)
    return name or "UTC"


def _refusal(where: str, schedule: object) -> str:
    return (
        f"{where}: the schedule {_named(schedule)} gives its runs no data interval, and that is the epoch of a "
        'dataflow. Use a cron string ("@daily"), a timedelta, CronDataIntervalTimetable, or None for runs that you '
        "trigger with a date"
    )


def _named(schedule: object) -> str:
    is_timetable = hasattr(schedule, "validate")
    return type(schedule).__name__ if is_timetable else shown(schedule)
