"""The example's stage functions against a computation that shares no code with them and needs no Spark."""

from __future__ import annotations

import datetime as dt
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812
from tests.messages.kinds import of_kind

from pipelines import flight_delays
from pipelines.flight_delays_reference import expected_report
from weir.dataflow.quality import Policy
from weir.errors import Misconfigured
from weir.formats.checks import CheckOutcome, CheckReason, CheckToRun
from weir.formats.suite import suite_from_json
from weir_spark.checks.gate import Checked, check
from weir_spark.checks.plain_expectations import plain
from weir_spark.region.context import ResolveContext, StageContext

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NEW_YEAR = dt.date(2013, 1, 1)
BLIZZARD = dt.date(2013, 2, 8)
SPRING_FORWARD = dt.date(2013, 3, 10)
FALL_BACK = dt.date(2013, 11, 3)
LAST_DAY_WITHOUT_WEATHER = dt.date(2013, 12, 31)
DAY_OF_A_HURRICANE = dt.date(2013, 2, 12)
"""The weather says 1,048 mph."""
SUITES = Path(__file__).parents[2] / "include/expectations"
HOUR = ("origin", "time_hour")


@pytest.fixture(scope="module")
def spark(session_of: Callable[[], SparkSession]) -> SparkSession:
    """A session for a few hundred rows: Spark's 200 partitions a shuffle would take ten times as long."""
    session = session_of()
    session.conf.set("spark.sql.shuffle.partitions", "4")
    return session


OTHER_ODD_DAYS = (NEW_YEAR, BLIZZARD, SPRING_FORWARD, LAST_DAY_WITHOUT_WEATHER)


@pytest.mark.parametrize(
    "day", [FALL_BACK, *(pytest.param(day, marks=pytest.mark.soak) for day in OTHER_ODD_DAYS)], ids=str
)
def test_the_report_equals_the_reference_row_by_row(spark: SparkSession, day: dt.date) -> None:
    assert _sorted_rows(run_flow_locally(spark, day)) == expected_report(day)


def test_an_epoch_without_flights_has_an_empty_report_of_the_same_schema(spark: SparkSession) -> None:
    empty = run_flow_locally(spark, dt.date(2014, 1, 1))
    assert empty.collect() == []
    assert empty.dtypes == run_flow_locally(spark, NEW_YEAR).dtypes


def test_the_report_does_not_depend_on_the_order_of_rows(spark: SparkSession) -> None:
    ctx = context(spark, BLIZZARD)
    joined = _joined(spark, BLIZZARD).persist()
    shuffled = joined.repartition(7, "flight").sortWithinPartitions(F.desc("dest"), "tailnum")
    assert _report_rows(ctx, shuffled) == _report_rows(ctx, joined)


def test_the_keys_of_all_keyed_inputs_of_the_join_have_equal_types(spark: SparkSession) -> None:
    ctx = context(spark, NEW_YEAR)
    cleaned = dict(flight_delays.clean(ctx, _flights(spark, NEW_YEAR, 0, 3)).dtypes)
    weather = dict(_weather(spark, NEW_YEAR).dtypes)
    assert [cleaned[key] for key in HOUR] == [weather[key] for key in HOUR] == ["string", "timestamp"]


def test_weather_is_unique_by_its_key_on_the_day_whose_hour_comes_twice(spark: SparkSession) -> None:
    weather = _weather(spark, FALL_BACK)
    assert weather.count() == weather.select(*HOUR).distinct().count() == 3 * 24


def test_times_are_hours_in_utc(spark: SparkSession) -> None:
    first = _flights(spark, NEW_YEAR, 0, 3).agg(F.min("time_hour").alias("first")).toArrow().to_pylist()
    assert first == [{"first": dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)}]


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
def test_every_airport_belongs_to_one_subtask_at_any_parallelism(parallelism: int) -> None:
    now = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    ctx = ResolveContext("flight_delays", "20130101T000000Z", (now, now + dt.timedelta(days=1)), parallelism, {})
    splits = flight_delays.resolve_flights(ctx)
    assert len(splits) == parallelism
    assert sorted(airport for part in splits for airport in part["airports"]) == ["EWR", "JFK", "LGA"]


def test_a_subtask_without_airports_has_no_rows_and_the_same_schema(spark: SparkSession) -> None:
    idle = _flights(spark, NEW_YEAR, 3, 4)
    assert idle.collect() == []
    assert idle.schema == _flights(spark, NEW_YEAR, 0, 4).schema


def test_a_source_refuses_a_file_that_is_not_the_resolved_one(spark: SparkSession) -> None:
    ctx = context(spark, NEW_YEAR)
    (part,) = flight_delays.resolve_weather(_resolve_context(ctx))
    part["file"]["sha256"] = "0" * 64
    with pytest.raises(Misconfigured, check=of_kind("sources.mark_changed")):
        flight_delays.weather(ctx, part)


@pytest.mark.parametrize(
    ("departed", "departure", "arrival", "expected"),
    [
        (None, None, None, ("cancelled", None, None)),
        (None, 7, 9, ("cancelled", None, None)),
        (1201, 7, None, ("diverted", 7, None)),
        (1201, -7, -9, ("flown", -7, -9)),
    ],
)
def test_cleaning_says_how_a_flight_ended(
    spark: SparkSession,
    departed: int | None,
    departure: int | None,
    arrival: int | None,
    expected: tuple[str, int | None, int | None],
) -> None:
    (row,) = _cleaned(spark, _raw(dep_time=departed, dep_delay=departure, arr_delay=arrival))
    assert (row["status"], row["departure_delay"], row["arrival_delay"]) == expected


def test_cleaning_keeps_a_repeated_row_once_and_drops_a_flight_that_nobody_can_name(spark: SparkSession) -> None:
    rows = _cleaned(spark, _raw(), _raw(), _raw(flight=2), _raw(carrier=None), _raw(time_hour=None), _raw(tailnum=None))
    assert sorted((row["flight"], row["tailnum"] is None) for row in rows) == [(1, False), (1, True), (2, False)]


@pytest.mark.parametrize(
    ("day", "warnings"),
    [
        (DAY_OF_A_HURRICANE, {"weather_hours": ["expect_column_values_to_be_between(wind_speed): 1 of 72 rows"]}),
        (
            LAST_DAY_WITHOUT_WEATHER,
            {
                "weather_hours": ["expect_table_row_count_to_be_between(): found 0"],
                "flights_joined": ["expect_column_values_to_not_be_null(rough_weather): 776 of 776 rows"],
            },
        ),
    ],
    ids=str,
)
def test_what_is_expected_of_the_flights_holds_on_strange_days_and_needs_no_great_expectations(
    spark: SparkSession, day: dt.date, warnings: dict[str, list[str]]
) -> None:
    ctx = context(spark, day)
    checked = {
        "flights_clean": flight_delays.clean(ctx, _flights(spark, day, 0, 3)),
        "weather_hours": _weather(spark, day),
        "flights_joined": _joined(spark, day).persist(),
    }
    found = {}
    for name, rows in checked.items():
        suite = suite_from_json(name, (SUITES / f"{name}.json").read_bytes())
        for each in suite.expectations:
            plain(each, rows.schema)  # which raises NotPlain
        report = check(
            rows, CheckToRun(suite, Policy.FAIL, CheckReason.FRESH), Checked(stage=name, subtask=0, digest="", rows=0)
        )
        assert report.violated == ()
        if report.outcome is CheckOutcome.WARNED:
            found[name] = [str(each) for each in report.results if not each.success]
    assert found == warnings


def run_flow_locally(spark: SparkSession, day: dt.date) -> DataFrame:
    """Call the stages as regions would: the flights airport by airport, keyed inputs in halves of their key groups."""
    joined = _joined(spark, day).persist()
    ctx = context(spark, day)
    return _report(ctx, joined)


def context(spark: SparkSession, day: dt.date, subtask: int = 0, parallelism: int = 1) -> StageContext:
    start = dt.datetime.combine(day, dt.time(), dt.UTC)
    interval = (start, start + dt.timedelta(days=1))
    return StageContext(
        epoch=f"{start:%Y%m%dT%H%M%SZ}",
        interval=interval,
        subtask=subtask,
        parallelism=parallelism,
        parameters={},
        spark=spark,
    )


def _resolve_context(ctx: StageContext) -> ResolveContext:
    return ResolveContext("flight_delays", ctx.epoch, ctx.interval, ctx.parallelism, ctx.parameters)


def _flights(spark: SparkSession, day: dt.date, subtask: int, parallelism: int) -> DataFrame:
    ctx = context(spark, day, subtask, parallelism)
    return flight_delays.flights(ctx, flight_delays.resolve_flights(_resolve_context(ctx))[subtask])


def _weather(spark: SparkSession, day: dt.date) -> DataFrame:
    ctx = context(spark, day)
    return flight_delays.weather(ctx, flight_delays.resolve_weather(_resolve_context(ctx))[0])


def _joined(spark: SparkSession, day: dt.date) -> DataFrame:
    ctx = context(spark, day)
    cleaned = _union([flight_delays.clean(ctx, _flights(spark, day, subtask, 3)) for subtask in range(3)])
    planes = flight_delays.planes(ctx, flight_delays.resolve_planes(_resolve_context(ctx))[0])
    halves = zip(_halves(cleaned, *HOUR), _halves(_weather(spark, day), *HOUR), strict=True)
    return _union([flight_delays.join(ctx, flights, weather, planes) for flights, weather in halves])


def _report(ctx: StageContext, joined: DataFrame) -> DataFrame:
    def in_halves(stage: Callable[[StageContext, DataFrame], DataFrame], *keys: str) -> DataFrame:
        return _union([stage(ctx, half) for half in _halves(joined, *keys)])

    carriers = in_halves(flight_delays.by_carrier, "carrier")
    return flight_delays.report(ctx, carriers, in_halves(flight_delays.by_route, "origin", "dest"))


def _report_rows(ctx: StageContext, joined: DataFrame) -> list[dict[str, Any]]:
    return _sorted_rows(_report(ctx, joined))


def _sorted_rows(report: DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = report.toArrow().to_pylist()
    return sorted(rows, key=lambda row: (row["kind"], row["rank"]))


def _halves(rows: DataFrame, *keys: str) -> list[DataFrame]:
    key_group = F.pmod(F.hash(*keys), F.lit(128))
    return [rows.where(key_group < 64), rows.where(key_group >= 64)]


def _union(parts: list[DataFrame]) -> DataFrame:
    return reduce(lambda left, right: left.unionByName(right), parts)


def _raw(**changes: Any) -> dict[str, Any]:
    row = {
        "carrier": "UA",
        "flight": 1,
        "tailnum": "N1",
        "origin": "EWR",
        "dest": "IAH",
        "time_hour": dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC),
        "distance": 1400,
        "dep_time": 517,
        "dep_delay": 2,
        "arr_delay": 11,
    }
    return row | changes


def _cleaned(spark: SparkSession, *rows: dict[str, Any]) -> list[Any]:
    schema = (
        "carrier string, flight bigint, tailnum string, origin string, dest string, time_hour timestamp, "
        "distance bigint, dep_time bigint, dep_delay bigint, arr_delay bigint"
    )
    raw = spark.createDataFrame([tuple(row.values()) for row in rows], schema)
    cleaned: list[Any] = flight_delays.clean(context(spark, NEW_YEAR), raw).collect()
    return cleaned
