"""The schedule of a dataflow, its cadence, and the dates from which and until which it runs.

Invariants: every scheduled run has a data interval that is not empty, or a partition at which an interval of its
cadence begins: that is the dataflow's epoch. A schedule that Airflow would read differently, or not at all, is refused
when the DAG file is parsed. Timetables are told by what they are derived from and by what they answer, never by their
names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Final

import pendulum
from airflow.sdk import AssetAlias, AssetAll, CronDataIntervalTimetable, DeltaDataIntervalTimetable
from airflow.sdk.definitions.asset import BaseAsset

from weir.dataflow.arguments import shown
from weir.errors import Misconfigured
from weir.intervals import offset_name
from weir.wording import did_you_mean
from weir_airflow.assets import DATA_SET

_WITHOUT_INTERVAL: Final = ("@once", "@continuous")
_AIRFLOW: Final = "airflow."
_MODULES: Final = (
    *("airflow.sdk.definitions.timetables.assets", "airflow.sdk.definitions.timetables.events"),
    *("airflow.sdk.definitions.timetables.simple", "airflow.timetables.simple", "airflow.timetables.events"),
    *("airflow.sdk.definitions.timetables.interval", "airflow.timetables.interval"),
)
"""Airflow's timetables, those of its SDK and what they stand for; only what has loaded them can have one."""

_WITHOUT: Final = ("EventsTimetable", "OnceTimetable")
_BY_EVENTS: Final = ("AssetTriggeredTimetable", "ContinuousTimetable")
"""Their runs begin when something happens: an interval, where there is one, says nothing about data."""

_LEAST: Final = timedelta(seconds=1)
"""An epoch is named by the second that it begins in."""

_EXAMPLE: Final = datetime(2025, 1, 1, tzinfo=UTC)


def timetable_of(
    schedule: Any, start_date: object = None, where: str = "the dataflow", *, has_cadence: bool = False
) -> Any:
    """Give a cron string or preset data intervals, and assets their partitions; pass None and timetables through.

    Airflow's own reading of "@daily" has intervals of no length. The expression is read in the start date's time zone.
    Raises Misconfigured for a schedule that is no cron string, or has no intervals ("@once", "@continuous"), and for
    data sets without a cadence.
    """
    timetable = _by_datasets(schedule, where)
    if timetable is not None and has_cadence:
        return timetable
    if timetable is not None:
        raise Misconfigured.of("dags.cadence_missing", where=where)
    if isinstance(schedule, str):
        if schedule in _WITHOUT_INTERVAL:
            raise Misconfigured(_refusal(where, schedule))
        _require_cron(where, schedule)
        return CronDataIntervalTimetable(schedule, timezone=_timezone(start_date))
    if isinstance(schedule, timedelta):
        _require_length(where, schedule)
        return DeltaDataIntervalTimetable(schedule)
    if schedule is None or (hasattr(schedule, "validate") and has_intervals(schedule, start_date)):
        return schedule
    raise Misconfigured(_refusal(where, schedule))


def _by_datasets(schedule: Any, where: str) -> Any:
    """Return the timetable of a schedule by assets with partition keys, None for any other schedule."""
    condition = schedule.asset_condition if is_partitioned(schedule) else schedule
    if isinstance(condition, list | tuple | set):
        if not condition or not all(isinstance(each, BaseAsset) for each in condition):
            return None
        condition = AssetAll(*condition)
    if not (isinstance(condition, BaseAsset) or is_partitioned(schedule)):
        return None
    alias = next((each for each in _assets_in(condition) if isinstance(each, AssetAlias)), None)
    if alias is not None:
        raise Misconfigured.of("dags.alias_without_key", where=where, alias=alias.name)
    if is_partitioned(schedule):
        return schedule
    from airflow.sdk import PartitionedAssetTimetable  # noqa: PLC0415  only such dataflows need it

    return PartitionedAssetTimetable(assets=condition)


def _assets_in(condition: Any) -> Iterator[Any]:
    for each in getattr(condition, "objects", ()):
        yield from _assets_in(each)
    yield condition


def data_sets_of(timetable: Any) -> dict[str, bool]:
    """Return the data sets of dataflows that start runs of a timetable, and whether no mapper changes their keys."""
    if not is_partitioned(timetable):
        return {}
    is_unmapped = not timetable.partition_mapper_config
    is_unmapped &= type(timetable.default_partition_mapper).__name__ == "IdentityMapper"
    found = _assets_in(timetable.asset_condition)
    return {each.name: is_unmapped for each in found if str(getattr(each, "uri", "")).startswith(DATA_SET)}


def is_partitioned(timetable: Any) -> bool:
    """Report whether assets with partition keys start the runs of a timetable."""
    return _is_a(timetable, "PartitionedAssetTimetable")


def declared_cadence(cadence: str | timedelta | None, timetable: Any, where: str) -> str | None:
    """Return `every` of the cadence that a schedule by data sets has, None for any other schedule.

    Raises Misconfigured for a schedule that needs one and has none, that has one in vain, or for one that is none.
    """
    if not is_partitioned(timetable):
        if cadence is not None:
            raise Misconfigured.of("dags.cadence_in_vain", where=where, cadence=shown(cadence))
        return None
    if cadence is None:
        raise Misconfigured.of("dags.cadence_missing", where=where)
    if isinstance(cadence, timedelta):
        _require_length(where, cadence, "cadence")
        return cadence_of(DeltaDataIntervalTimetable(cadence))
    if not isinstance(cadence, str) or cadence in _WITHOUT_INTERVAL:
        raise Misconfigured.of("dags.cadence_malformed", where=where, cadence=shown(cadence))
    _require_cron(where, cadence, "cadence")
    return cadence_of(CronDataIntervalTimetable(cadence, timezone="UTC"))


def _require_length(where: str, length: timedelta, what: str = "schedule") -> None:
    if length < _LEAST:
        raise Misconfigured.of("dags.schedule_not_a_time", where=where, what=what, schedule=length)


def is_without_schedule(timetable: Any) -> bool:
    """Report whether nothing but a person or another DAG starts runs: `schedule=None`."""
    return timetable is None or (_is_a(timetable, "NullTimetable") and not timetable.can_be_scheduled)


def has_intervals(timetable: Any, start_date: object = None) -> bool:
    """Report whether the runs of a timetable have data intervals that are not empty.

    Airflow's own tell by their classes and their `interval`. Any other one is asked for its first run; where it does
    not answer, what it is derived from counts, and the begin of a run looks at the interval.
    """
    if _is_by_events(timetable):
        return False
    if is_without_schedule(timetable):
        return True
    answer = None if type(timetable).__module__.startswith(_AIRFLOW) else _answer(timetable, start_date)
    return _derived(timetable) if answer is None else answer


def _derived(timetable: Any) -> bool:
    parts = list(_parts(timetable))
    is_sound = all(
        _is_least(length, timedelta(microseconds=1)) for each in parts for length in _lengths(each, "interval")
    )
    # Two epochs that begin in one second would be one.
    is_slow = all(_is_least(length, _LEAST) for each in parts for length in _lengths(each, "delta"))
    return is_sound and is_slow and not _is_a(timetable, *_WITHOUT)


def zone_of(timetable: Any, otherwise: tzinfo | None = None) -> str:
    """Return the name of the time zone in which a timetable divides time, else that of its DAG; "UTC" if none has one.

    It is a name of the IANA's database, or an offset such as "+05:30".
    """
    for each in _parts(timetable):
        for name in ("timezone", "_timezone"):
            found = getattr(each, name, None)
            if isinstance(found, str | tzinfo):
                return found if isinstance(found, str) else _name_of_zone(found)
    return "UTC" if otherwise is None else _name_of_zone(otherwise)


def cadence_of(timetable: Any) -> str | None:
    """Return `every` of the cadence by which a timetable divides time without gaps; None for any other timetable.

    One that is derived from Airflow's may leave out what it likes, so that it has none.
    """
    if type(timetable) in _classes("CronDataIntervalTimetable"):
        from airflow.utils.dates import cron_presets  # noqa: PLC0415  only DAG files with a cron string need them

        expression: str = _expression(timetable)
        five_fields: str = cron_presets.get(expression, expression)
        return five_fields
    if type(timetable) in _classes("DeltaDataIntervalTimetable"):
        from weir.execution.cadence import Cadence  # noqa: PLC0415  few DAG files need it

        lengths = [each for each in _lengths(timetable, "delta") if isinstance(each, timedelta)]
        return Cadence.of_length(lengths[0]).every if lengths else None
    return None


def _expression(timetable: Any) -> Any:
    return getattr(timetable, "expression", None) or getattr(timetable, "_expression", None)


def schedule_name(timetable: Any) -> str:
    """Return how a refusal names a timetable; empty for `schedule=None`."""
    if is_without_schedule(timetable):
        return ""
    expression = _expression(timetable)
    return f"{type(timetable).__name__}({expression!r})" if isinstance(expression, str) else type(timetable).__name__


def _is_a(timetable: Any, *names: str) -> bool:
    """Report whether a timetable is derived from one of Airflow's that has one of these names."""
    return isinstance(timetable, _classes(*names))


def _classes(*names: str) -> tuple[type, ...]:
    modules = [sys.modules[name] for name in _MODULES if name in sys.modules]
    return tuple(getattr(each, name) for each in modules for name in names if hasattr(each, name))


def _is_by_events(timetable: Any) -> bool:
    """Report whether its runs have an event, such as an asset's, or a partition's key, in the place of an interval."""
    words = ("partitioned", "partitioned_at_runtime", "asset_condition", "key_format")
    return _is_a(timetable, *_BY_EVENTS) or any(bool(getattr(timetable, word, None)) for word in words)


def _parts(timetable: Any) -> Iterator[Any]:
    """Yield a timetable and those that it is made of."""
    yield timetable
    for name in ("timetables", "_timetables"):
        found = getattr(timetable, name, None)
        if isinstance(found, list | tuple):
            yield from found


def _lengths(timetable: Any, name: str) -> Iterator[Any]:
    """Yield a length of time, a timedelta or a relativedelta, that Airflow's timetables have under a name."""
    for each in (name, f"_{name}"):
        found = getattr(timetable, each, None)
        if hasattr(found, "days"):
            yield found


def _is_least(length: Any, least: timedelta) -> bool:
    is_least: bool = _EXAMPLE + length >= _EXAMPLE + least
    return is_least


def _answer(timetable: Any, start_date: object) -> bool | None:
    """Ask a timetable for its first run, and report whether that has an interval; None where it does not answer."""
    from airflow.serialization.encoders import coerce_to_core_timetable  # noqa: PLC0415  slow, and only users' need it
    from airflow.timetables.base import TimeRestriction  # noqa: PLC0415

    is_aware = isinstance(start_date, datetime) and start_date.tzinfo is not None
    earliest = pendulum.instance(start_date if isinstance(start_date, datetime) and is_aware else _EXAMPLE)
    restriction = TimeRestriction(earliest, None, catchup=True)
    try:
        core = coerce_to_core_timetable(timetable)
        info = core.next_dagrun_info_v2(last_dagrun_info=None, restriction=restriction)
        found = core.infer_manual_data_interval(run_after=earliest) if info is None else info.data_interval
        is_interval: bool = found is not None and found.start < found.end
    except Exception:  # noqa: BLE001  it is the user's, and may need what a parse does not have
        return None
    return is_interval


def require_dates(where: str, start_date: object, end_date: object, *, is_scheduled: bool) -> None:
    """Require dates with a time zone, and a start date for what is scheduled. Raises Misconfigured."""
    for what, given in (("start_date", start_date), ("end_date", end_date)):
        if given is not None and (not isinstance(given, datetime) or given.tzinfo is None):
            has = "has no time zone" if isinstance(given, datetime) else f"is a {type(given).__name__}, not a datetime"
            raise Misconfigured.of(
                "dags.date_malformed", where=where, what=what, given=shown(given), has=has, written=_written(given)
            )
    if is_scheduled and start_date is None:
        raise Misconfigured.of("dags.start_date_missing", where=where, written=_written(_EXAMPLE))
    if isinstance(start_date, datetime) and isinstance(end_date, datetime) and end_date < start_date:
        raise Misconfigured.of("dags.end_date_too_early", where=where, end_date=end_date, start_date=start_date)


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


def _require_cron(where: str, schedule: str, what: str = "schedule") -> None:
    from airflow.utils.dates import cron_presets  # noqa: PLC0415  only DAG files with a cron string need them
    from croniter import CroniterError, croniter  # noqa: PLC0415

    try:
        croniter(cron_presets.get(schedule, schedule))
    except (CroniterError, ValueError) as error:
        said = did_you_mean(schedule, cron_presets, f"{str(error).rstrip('.')}.", likeness=0.5)
        raise Misconfigured.of(
            "dags.cron_malformed", where=where, what=what, schedule=schedule, said=said, cron_presets=cron_presets
        ) from error


def _timezone(start_date: object) -> Any:
    """Return the zone in which Airflow reads a DAG of this start date, as it can store it."""
    if not isinstance(start_date, datetime) or start_date.tzinfo is None:
        return "UTC"
    found = pendulum.instance(start_date).timezone
    name = getattr(found, "name", None)
    if isinstance(found, pendulum.FixedTimezone):
        if start_date.tzinfo.utcoffset(None) is None:  # a zone of dateutil: Airflow would keep its offset of this day
            raise Misconfigured.of("dags.zone_without_name", start_date=start_date)
        return "UTC" if found.offset == 0 else found
    return name or "UTC"


def _name_of_zone(zone: tzinfo) -> str:
    """Return the name by which `weir.intervals.time_zone` finds a zone."""
    if isinstance(zone, pendulum.FixedTimezone):
        return offset_name(timedelta(seconds=zone.offset))  # it may have any name
    found = getattr(zone, "key", None) or getattr(zone, "zone", None) or getattr(zone, "name", None)
    return found if isinstance(found, str) and found else offset_name(zone.utcoffset(_EXAMPLE.replace(tzinfo=None)))


def _refusal(where: str, schedule: object) -> str:
    return (
        f"{where}: the schedule {_named(schedule)} gives its runs no data interval, and that is the epoch of a "
        'dataflow. Use a cron string ("@daily"), a timedelta of at least a second, CronDataIntervalTimetable, '
        'on_dataset("trips.zones") with a cadence, '
        "CronTriggerTimetable(..., interval=timedelta(days=1)), or None for runs that you trigger with a date"
    )


def _named(schedule: object) -> str:
    is_timetable = hasattr(schedule, "validate")
    return type(schedule).__name__ if is_timetable else shown(schedule)
