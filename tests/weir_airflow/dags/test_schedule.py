"""Schedules and dates that Airflow would read differently, or not at all, are refused when the DAG file is parsed."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import Dataflow, sink, source
from weir.errors import Misconfigured

START = datetime(2013, 1, 1, tzinfo=UTC)
FLOW = Dataflow("delays", [source("flights", "p:flights"), sink("flights", "raw")])


def dag(**arguments):
    from weir_airflow import dataflow_dag

    return dataflow_dag(FLOW, **{"schedule": "@daily", "start_date": START, **arguments})


def refusal(**arguments):
    with pytest.raises(Misconfigured) as error:
        dag(**arguments)
    return str(error.value)


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        (
            "2013-01-31",
            "start_date='2013-01-31' is a str, not a datetime: write start_date=datetime(2013, 1, 31, tzinfo=",
        ),
        ("soon", "start_date='soon' is a str, not a datetime: write start_date=datetime(2025, 1, 1, tzinfo=UTC)"),
        (date(2013, 1, 31), "is a date, not a datetime: write start_date=datetime(2013, 1, 31, tzinfo=UTC)"),
        (datetime(2013, 1, 31, 6, 30), "has no time zone: write start_date=datetime(2013, 1, 31, 6, 30, tzinfo=UTC)"),  # noqa: DTZ001
        (
            None,
            "dataflow 'delays' has a schedule and no start_date, so that no run would be scheduled: write the start",
        ),
    ],
)
def test_a_start_date_is_a_datetime_with_a_time_zone(given, answer):
    said = refusal(start_date=given)
    assert answer in said
    assert said.startswith("dataflow 'delays'")


def test_an_end_date_is_one_too_and_not_before_the_start():
    assert "write end_date=datetime(2013, 2, 1, tzinfo=UTC)" in refusal(end_date="2013-02-01")
    assert "end_date=2012-12-31 00:00:00+00:00 is before start_date=2013" in refusal(end_date=START - timedelta(1))


def test_the_dates_may_be_those_of_default_args():
    found = dag(start_date=None, default_args={"start_date": datetime(2013, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))})
    assert str(found.timetable.timezone) == "Europe/Berlin"
    assert dag(start_date=None, default_args={"start_date": START}).start_date == START
    assert "write start_date=" in refusal(start_date=None, default_args={"start_date": "2013-01-01"})


def test_a_misspelt_argument_is_told_the_closest_one_of_the_dataflow_or_of_airflow():
    assert "dataflow_dag(dataflow 'delays') has no argument shedule=: did you mean schedule=?" in refusal(shedule=None)
    assert "has no argument catch_up=: did you mean catchup=?" in refusal(catch_up=True)
    assert "has no argument zzz=: it has flow, schedule, cadence, start_date, dag_id, retries" in refusal(zzz=1)
    assert dag(catchup=True, max_active_runs=3).max_active_runs == 3


def test_what_nobody_schedules_needs_no_start():
    assert dag(schedule=None, start_date=None).start_date is None


@pytest.mark.parametrize(
    ("schedule", "answer"),
    [
        ("every day", "the schedule 'every day' is no cron string: Exactly 5, 6 or 7 columns"),
        ("61 * * * *", "is no cron string: [61 * * * *] is not acceptable, out of range. Write five fields such as"),
        ("@dayly", "the schedule '@dayly' is no cron string: did you mean '@daily'?"),
        ("", "the schedule '' is no cron string"),
    ],
)
def test_a_schedule_that_is_no_cron_string_is_refused(schedule, answer):
    said = refusal(schedule=schedule)
    assert answer in said
    assert "@hourly, @daily, @weekly" in said


@pytest.mark.parametrize("schedule", [timedelta(0), timedelta(hours=-1)])
def test_a_timedelta_is_positive(schedule):
    assert "is no time: write one such as timedelta(hours=6)" in refusal(schedule=schedule)


def test_a_timetable_without_intervals_is_refused():
    from airflow.sdk import CronTriggerTimetable

    at_a_time = CronTriggerTimetable("@daily", timezone="UTC")
    assert "the schedule CronTriggerTimetable gives its runs no data interval" in refusal(schedule=at_a_time)
    of_a_day = CronTriggerTimetable("@daily", timezone="UTC", interval=timedelta(days=1))
    assert dag(schedule=of_a_day).timetable is of_a_day


def without_intervals():
    import airflow.timetables.assets as of_assets
    import airflow.timetables.events as events
    import airflow.timetables.simple as simple
    import airflow.timetables.trigger as trigger
    from airflow import sdk
    from airflow.sdk.definitions.timetables.simple import ContinuousTimetable, OnceTimetable

    asset, at = sdk.Asset("trips"), [START]
    daily = sdk.CronDataIntervalTimetable("@daily", timezone="UTC")

    class Mine(sdk.CronTriggerTimetable):
        pass

    class MineInCore(trigger.DeltaTriggerTimetable):
        pass

    class OnceMore(simple.OnceTimetable):
        pass

    class OnceInSdk(OnceTimetable):
        pass

    class Events(events.EventsTimetable):
        pass

    class AlwaysOn(ContinuousTimetable):
        pass

    class Answers(simple.Timetable):
        def next_dagrun_info(self, *, last_automated_data_interval, restriction):
            from airflow.timetables.base import DagRunInfo

            return DagRunInfo.exact(restriction.earliest)

    return [
        sdk.AssetOrTimeSchedule(assets=[asset], timetable=daily),
        of_assets.AssetOrTimeSchedule(assets=[asset], timetable=simple.NullTimetable()),
        sdk.PartitionedAssetTimetable(assets=asset),
        sdk.PartitionedAtRuntime(),
        sdk.CronPartitionTimetable("@daily", timezone="UTC"),
        trigger.CronPartitionTimetable("@daily", timezone="UTC"),
        simple.AssetTriggeredTimetable([asset]),
        *(OnceTimetable(), simple.OnceTimetable(), OnceMore(), OnceInSdk()),
        *(ContinuousTimetable(), simple.ContinuousTimetable(), AlwaysOn()),
        *(sdk.EventsTimetable(at), events.EventsTimetable(at), Events(at)),
        *(sdk.CronTriggerTimetable("@daily", timezone="UTC"), trigger.CronTriggerTimetable("@daily", timezone="UTC")),
        sdk.MultipleCronTriggerTimetable("@daily", "30 6 * * *", timezone="UTC"),
        trigger.MultipleCronTriggerTimetable("@daily", "30 6 * * *", timezone="UTC"),
        *(sdk.DeltaTriggerTimetable(timedelta(days=1)), trigger.DeltaTriggerTimetable(timedelta(days=1))),
        sdk.CronTriggerTimetable("@daily", timezone="UTC", interval=timedelta(days=-1)),
        sdk.DeltaDataIntervalTimetable(timedelta(milliseconds=500)),
        *(Mine("@daily", timezone="UTC"), MineInCore(timedelta(days=1)), Answers()),
    ]


def with_intervals():
    import airflow.timetables.trigger as trigger
    from airflow import sdk
    from airflow.timetables.base import DagRunInfo, Timetable
    from airflow.timetables.interval import CronDataIntervalTimetable as InCore
    from dateutil.relativedelta import relativedelta

    day = timedelta(days=1)

    class Workdays(Timetable):
        """A user's own, derived from nothing that has intervals."""

        def next_dagrun_info(self, *, last_automated_data_interval, restriction):
            return DagRunInfo.interval(restriction.earliest, restriction.earliest + day)

    class OfADay(trigger.CronTriggerTimetable):
        """A user's own, derived from what has none."""

        def next_dagrun_info(self, *, last_automated_data_interval, restriction):
            return DagRunInfo.interval(restriction.earliest, restriction.earliest + day)

    class Unanswered(Timetable):
        def next_dagrun_info(self, *, last_automated_data_interval, restriction):
            raise ConnectionError("it asks a calendar on the net")

    return [
        *(sdk.CronDataIntervalTimetable("@daily", timezone="UTC"), InCore("@daily", timezone="UTC")),
        *(sdk.DeltaDataIntervalTimetable(day), sdk.DeltaDataIntervalTimetable(relativedelta(months=1))),
        sdk.CronTriggerTimetable("@daily", timezone="UTC", interval=relativedelta(days=1)),
        sdk.MultipleCronTriggerTimetable("@daily", "30 6 * * *", timezone="UTC", interval=day),
        sdk.DeltaTriggerTimetable(day, interval=day),
        *(Workdays(), OfADay("@daily", timezone="UTC"), Unanswered()),
    ]


def test_timetables_are_told_by_what_they_are_derived_from_and_by_what_they_answer():
    from weir_airflow.dags.schedule import timetable_of

    accepted = []
    for timetable in without_intervals():
        with suppress(Misconfigured):
            accepted.append(timetable_of(timetable, START))
    assert accepted == []
    for timetable in with_intervals():
        assert timetable_of(timetable, START) is timetable


def test_a_group_is_asked_as_a_dag_is():
    from airflow.sdk import DAG, Asset, AssetOrTimeSchedule, CronDataIntervalTimetable

    from weir_airflow import dataflow_group

    daily = CronDataIntervalTimetable("@daily", timezone="UTC")
    either = AssetOrTimeSchedule(assets=[Asset("trips")], timetable=daily)
    with (
        DAG("mixed", schedule=either, start_date=START),
        pytest.raises(
            Misconfigured, check=of_kind("dag.schedule_without_intervals", schedule_name="AssetOrTimeSchedule")
        ),
    ):
        dataflow_group(FLOW)


def zone_of_dag(**arguments):
    from weir_airflow.dags.declaration import declared_meanwhile

    with declared_meanwhile() as found:
        dag(**arguments)
    return found[0].zone


def test_a_schedule_is_read_in_the_zone_of_the_start_date_however_that_is_written():
    import pendulum
    from airflow.sdk import CronTriggerTimetable, MultipleCronTriggerTimetable

    day = timedelta(days=1)
    by_offset = datetime(2013, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert zone_of_dag(start_date=START) == "UTC"
    assert zone_of_dag(start_date=by_offset) == zone_of_dag(schedule=day, start_date=by_offset) == "+05:30"
    for zone in (ZoneInfo("Asia/Kolkata"), pendulum.timezone("Asia/Kolkata")):
        start = datetime(2013, 1, 1, tzinfo=zone)
        assert {zone_of_dag(schedule=each, start_date=start) for each in ("@daily", day, None)} == {"Asia/Kolkata"}
    for own in (CronTriggerTimetable, MultipleCronTriggerTimetable):
        assert zone_of_dag(schedule=own("@daily", timezone="America/New_York", interval=day)) == "America/New_York"


def declared_by(**arguments):
    from weir_airflow.dags.declaration import declared_meanwhile

    with declared_meanwhile() as found:
        made = dag(**arguments)
    return made.timetable, (found[0].cadence, found[0].zone, found[0].is_partitioned)


def test_a_dataflow_that_data_sets_schedule_declares_how_long_an_epoch_is():
    from airflow.sdk import Asset, AssetAll, PartitionedAssetTimetable

    from weir_airflow import on_dataset
    from weir_airflow.assets import sink_asset

    zones, calls = on_dataset("trips.zones"), Asset("calls")
    assert zones == sink_asset("trips", "zones")
    for schedule, condition in (
        (zones, zones),
        (zones & calls, zones & calls),
        ([zones, calls], AssetAll(zones, calls)),
    ):
        timetable, declared = declared_by(schedule=schedule, cadence="@daily", start_date=None)
        assert isinstance(timetable, PartitionedAssetTimetable)
        assert repr(timetable.asset_condition) == repr(condition)
        assert declared == ("0 0 * * *", "UTC", True)
    own = PartitionedAssetTimetable(assets=zones | calls)
    berlin = datetime(2013, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    timetable, declared = declared_by(schedule=own, cadence=timedelta(hours=6), start_date=berlin)
    assert (timetable is own, declared) == (True, ("PT21600S", "Europe/Berlin", True))


def test_a_dag_that_data_sets_schedule_is_stored_and_read_as_it_was():
    from airflow.serialization.serialized_objects import DagSerialization

    from weir_airflow import on_dataset

    made = dag(schedule=on_dataset("trips.zones") | on_dataset("trips.calls"), cadence="@daily")
    read = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(made))
    assert read.timetable.partitioned
    assert [each.uri for each, _ in read.timetable.asset_condition.iter_assets()] == [
        "weir://trips/zones",
        "weir://trips/calls",
    ]


def test_a_group_may_be_in_a_dag_that_data_sets_schedule():
    from airflow.sdk import DAG, PartitionedAssetTimetable

    from weir_airflow import dataflow_group, on_dataset
    from weir_airflow.dags.declaration import declared_meanwhile

    by_zones = PartitionedAssetTimetable(assets=on_dataset("trips.zones"))
    with declared_meanwhile() as found, DAG("mixed", schedule=by_zones, start_date=START):
        dataflow_group(FLOW, cadence="@hourly")
    assert (found[0].cadence, found[0].is_partitioned, found[0].started_by) == (
        "0 * * * *",
        True,
        {"trips.zones": True},
    )
    with (
        DAG("mixed", schedule=by_zones, start_date=START),
        pytest.raises(Misconfigured, check=of_kind("dags.cadence_missing")),
    ):
        dataflow_group(FLOW)


def test_a_cadence_is_for_a_schedule_by_data_sets_and_has_to_be_one():
    from airflow.sdk import Asset, AssetAlias

    from weir_airflow import on_dataset

    zones = on_dataset("trips.zones")
    for kind, arguments in (
        ("dags.cadence_missing", {"schedule": zones}),
        ("dags.cadence_missing", {"schedule": [zones]}),
        ("dags.cadence_in_vain", {"schedule": "@daily", "cadence": "@daily"}),
        ("dags.cadence_in_vain", {"schedule": None, "cadence": "@daily"}),
        ("dags.cadence_malformed", {"schedule": zones, "cadence": 24}),
        ("dags.cadence_malformed", {"schedule": zones, "cadence": "@once"}),
        ("dags.cron_malformed", {"schedule": zones, "cadence": "@dayly"}),
        ("dags.schedule_not_a_time", {"schedule": zones, "cadence": timedelta(0)}),
        ("dags.alias_without_key", {"schedule": Asset("calls") | AssetAlias("trips.zones"), "cadence": "@daily"}),
    ):
        with pytest.raises(Misconfigured, check=of_kind(kind)):
            dag(**arguments)


@pytest.mark.parametrize("name", ["zones", "trips.", ".zones", "trips.zones.all", "", None, 7])
def test_a_data_set_is_named_by_dataflow_and_sink(name):
    from weir_airflow import on_dataset

    with pytest.raises(Misconfigured, check=of_kind("dags.dataset_malformed")):
        on_dataset(name)


def test_a_cadence_is_that_of_a_timetable_of_airflow_that_leaves_no_gap():
    import pendulum
    from airflow.sdk import CronDataIntervalTimetable, CronTriggerTimetable, DeltaDataIntervalTimetable
    from airflow.serialization.encoders import coerce_to_core_timetable
    from dateutil.relativedelta import relativedelta

    from weir_airflow.dags.declaration import declared_meanwhile
    from weir_airflow.dags.schedule import cadence_of

    class WithoutHolidays(CronDataIntervalTimetable):
        pass

    cron = CronDataIntervalTimetable("@hourly", timezone=pendulum.timezone("Europe/Berlin"))
    delta = DeltaDataIntervalTimetable(timedelta(minutes=90))
    for timetable, every in ((cron, "0 * * * *"), (delta, "PT5400S")):
        assert cadence_of(timetable) == cadence_of(coerce_to_core_timetable(timetable)) == every
    for timetable in (
        None,
        WithoutHolidays("@daily", timezone="UTC"),
        CronTriggerTimetable("@daily", timezone="UTC", interval=timedelta(days=1)),
        DeltaDataIntervalTimetable(relativedelta(months=1)),
    ):
        assert cadence_of(timetable) is None
    with declared_meanwhile() as found:
        dag()
    assert found[0].cadence == "0 0 * * *"


def test_a_zone_that_airflow_could_not_store_is_refused():
    from dateutil.tz import gettz

    assert "ZoneInfo" in refusal(start_date=datetime(2013, 1, 1, tzinfo=gettz("Europe/Berlin")))


def test_a_group_in_a_dag_whose_runs_have_no_interval_is_refused():
    from airflow.sdk import DAG, CronDataIntervalTimetable

    from weir_airflow import dataflow_group

    with DAG("mixed", schedule="@daily", start_date=START), pytest.raises(Misconfigured) as error:
        dataflow_group(FLOW)
    assert "dataflow 'delays': the schedule of the DAG 'mixed' gives its runs no data interval" in str(error.value)
    with DAG("mixed"), pytest.raises(Misconfigured, check=of_kind("dataflow.argument_misspelled", wrong="schedule")):
        dataflow_group(FLOW, schedule="@daily")
    with DAG("mixed", schedule=CronDataIntervalTimetable("@daily", timezone="UTC"), start_date=START) as mixed:
        dataflow_group(FLOW)
    assert "delays.weir_close" in mixed.task_dict
