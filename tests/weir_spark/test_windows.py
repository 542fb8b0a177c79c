"""Windows over epochs against plain Python: whatever comes, late or in any order, each window fires when it is to."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from tests.builders.state_chain import StateChain
from tests.messages.kinds import of_kind
from tests.simulation.event_time import epochs_of
from tests.simulator.event_time.windows import DELAY, HOURS_OF_A_WINDOW, LATENESS, Fired, Row

from weir.dataflow.state import keyed_state, list_state
from weir.errors import Misconfigured
from weir.formats.region_job import InputToRead
from weir.topology.partitions import PLAIN
from weir_spark.region.context import StageContext
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.operator_state import ListState
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import write_state
from weir_spark.windows import late_rows, session_window, watermark, window, windowed

pytestmark = pytest.mark.spark

FIRST = datetime(2013, 1, 1, tzinfo=UTC)
ROWS = "zone STRING, at TIMESTAMP, site STRING, fare BIGINT"
SUMS = {"rides": "count(*)", "fare": "sum(fare)", "least": "min(fare)", "mean": "avg(fare)"}
OF_SUMS = "rides: BIGINT, fare: BIGINT, least: BIGINT, mean_sum: DOUBLE, mean_count: BIGINT"
MEDIAN = {"middle": "percentile(fare, 0.5)", "rides": "count(*)"}
OF_ROWS = "rows: ARRAY<STRUCT<at: TIMESTAMP, site: STRING, fare: BIGINT>>"


def minutes(number):
    return timedelta(minutes=number)


def schema_of(kept):
    return f"zone STRING, open ARRAY<STRUCT<start: TIMESTAMP, end: TIMESTAMP, {kept}>>"


@dataclass
class Pipeline:
    """A stage that makes the watermark, and one that aggregates windows, over epochs of an hour."""

    spark: object
    store: object
    over: object
    aggregates: dict
    kept: str
    delay: str = "10 minutes"
    lateness: str = "0 seconds"
    early: bool = False
    more: dict = field(default_factory=dict)
    by: str = "zone"
    rows: str = ROWS
    ttl: str | None = None
    epochs: int = 0
    arrived: list = field(default_factory=list)

    def __post_init__(self):
        self.declare("zone", schema_of(self.kept))

    def declare(self, key, schema):
        declared = keyed_state("windows", key=key, schema=schema, ttl=self.ttl)
        self.chain = StateChain(self.store, declared, 16)

    def marks(self, rows):
        """The name of the next epoch, in which these rows come, the rows as Spark has them, and the watermark's row."""
        begun = FIRST + timedelta(hours=self.epochs)
        interval = (begun, begun + timedelta(hours=1))
        name = f"{begun:%Y%m%dT%H%M%SZ}"
        self.epochs += 1
        of = self.spark.createDataFrame(rows, self.rows)
        context = StageContext(epoch=name, interval=interval, subtask=0, parallelism=1, parameters={}, spark=self.spark)
        given = InputToRead(argument="arrived", layout=PLAIN, spark_schema="", partitions=())
        seen = ListState(state=list_state("arrived"), session=self.spark, given_as=given, subtask=0, parallelism=1)
        seen._lists = [self.arrived]
        marks = watermark(context, of, seen, "at", self.delay, **self.more)
        self.arrived = seen.kept()
        return name, of, marks

    def mark(self, rows):
        """The watermark of the next epoch alone."""
        _, _, marks = self.marks(rows)
        return utc(marks.collect()[0]["watermark"])

    def fired(self, name, of, marks):
        """What fires, and the state with its changes."""
        state = KeyedState(StoredState(self.spark, self.chain.read(name, (0, 15)), (0, 15)))
        how = {"lateness": self.lateness, "early": self.early}
        return windowed(of, marks, state, self.by, self.over, self.aggregates, **how), state

    def epoch(self, rows):
        """What fires in an epoch in which these rows come, the late ones among them, and the watermark."""
        name, of, marks = self.marks(rows)
        found, state = self.fired(name, of, marks)
        fired = found.collect()
        late = late_rows(of, marks, self.over, self.lateness).collect()
        self.chain.go_on(name, {(0, 15): write_state(state, "windows", self.chain.output(name), self.store)})
        return fired, late, marks.collect()[0]["watermark"]

    def open(self):
        """The windows in the state, by key."""
        end = f"{FIRST + timedelta(hours=self.epochs):%Y%m%dT%H%M%SZ}"
        rows = StoredState(self.spark, self.chain.read(end, (0, 15)), (0, 15)).rows().collect()
        return {row["zone"]: [(utc(each["start"]), utc(each["end"])) for each in row["open"]] for row in rows}


def utc(time):
    return time.replace(tzinfo=UTC)


class Model:
    """The same by definition: all rows that were in time when they came, in plain Python."""

    def __init__(self, windows_of, lateness=0, *, early=False, gap=None):
        self.windows_of, self.early, self.gap = windows_of, early, gap
        self.lateness, self.delay = minutes(lateness), minutes(10)
        self.rows, self.watermark, self.newest = defaultdict(list), None, None

    def epoch(self, rows):
        before, late, touched = self.watermark, [], set()
        for zone, at, _, fare in rows:
            if at is None:
                continue
            kept = [each for each in self.windows_of(at) if before is None or each[1] + self.lateness > before]
            late += [] if kept else [(zone, at, fare)]
            for each in kept:
                touched.add((zone, each))
                self.rows[zone, each].append(fare)
            self.newest = max(at, self.newest or at)
        if self.newest is not None:
            self.watermark = max(self.newest - self.delay, before or self.newest - self.delay)
        if self.gap is not None:
            touched = self._merged(touched)
        fired = {}
        for (zone, span), fares in self.rows.items():
            is_over, was_over = (mark is not None and span[1] <= mark for mark in (self.watermark, before))
            is_new = (zone, span) in touched
            if (is_over and not was_over) or (is_new and (is_over or self.early)):
                fired[zone, span] = (fares, "late" if was_over else "on_time" if is_over else "early")
        answer = {each: (sorted(fares), how) for each, (fares, how) in fired.items()}
        if self.watermark is not None:
            for each in [each for each in self.rows if each[1][1] + self.lateness <= self.watermark]:
                del self.rows[each]
        return answer, late

    def _merged(self, touched):
        """Put sessions of a key together that overlap or touch."""
        found, new = {}, set()
        for zone, span in sorted(self.rows, key=lambda each: (each[0] or "", each[1])):
            fares, is_new, whole = self.rows[zone, span], (zone, span) in touched, span
            last = max((each for each in found if each[0] == zone), key=lambda each: each[1][1], default=None)
            if last is not None and span[0] <= last[1][1]:
                fares, is_new = [*found.pop(last), *fares], is_new or last in new
                new -= {last}
                whole = (last[1][0], max(last[1][1], span[1]))
            found[zone, whole] = fares
            new |= {(zone, whole)} if is_new else set()
        self.rows = defaultdict(list, found)
        return new


def spans(size, slide, start=0):
    """The windows of a time, which are that many minutes long, and begin that many minutes apart."""
    size, slide, origin = minutes(size), minutes(slide), FIRST + minutes(start)

    def windows_of(at):
        first = origin + ((at - origin) // slide) * slide
        found = [(first - number * slide, first - number * slide + size) for number in range(-(-size // slide))]
        return [each for each in found if each[0] <= at < each[1]]

    return windows_of


def some_rows(chance, hour):
    """Rows of an hour: some come hours late, some are at the edges of windows, some twice, and some have no time."""
    found = []
    for _ in range(chance.choice((0, 3, 9))):
        back = chance.choice((0, 0, 0, 0, 60, 100, 240))
        at = FIRST + minutes(60 * hour - back + chance.choice((0, 15, 30, chance.randrange(60))))
        row = (chance.choice(("a", "b", None)), chance.choice((at, at, at, at, at, at, None)), "s", chance.randrange(9))
        found += [row] * chance.choice((1, 1, 2))
    return found


@dataclass(frozen=True)
class Case:
    """Windows, the same in plain Python, and what is asked of them."""

    over: object
    windows_of: object
    gap: int | None = None
    lateness: int = 0
    early: bool = False
    of_rows: bool = False


HOURS = Case(window("at", "1 hour"), spans(60, 60))
SESSIONS = Case(session_window("at", "15 minutes"), lambda at: [(at, at + minutes(15))], gap=15)
SLIDING = Case(window("at", "50 minutes", "20 minutes", "5 minutes"), spans(50, 20, 5))
TRIED = [
    replace(HOURS, of_rows=True, early=True),
    replace(SLIDING, lateness=90),
    replace(SESSIONS, lateness=90, early=True),
]
MORE = [
    replace(each, lateness=lateness, early=early, of_rows=of_rows)
    for each in (HOURS, SESSIONS, SLIDING)
    for lateness, early, of_rows in ((0, False, False), (60, True, True))
]


@pytest.mark.parametrize("case", TRIED)
def test_windows_fire_as_plain_python_says(spark, store, case):
    compare(spark, store, case, random.Random(7), 4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", MORE)
def test_windows_fire_as_plain_python_says_for_days(spark, store, case, seed):
    compare(spark, store, case, random.Random(seed), 30)


def test_the_simulators_twin_of_windows_gives_what_spark_gives(spark, store):
    how = {"delay": f"{DELAY} hours", "lateness": f"{LATENESS} hours"}
    pipeline = Pipeline(spark, store, window("at", f"{HOURS_OF_A_WINDOW} hours"), SUMS, OF_SUMS, **how)
    for epoch in epochs_of("e2")[:4]:
        rows = [(str(key), FIRST + timedelta(hours=hour), "s", number) for key, hour, number in epoch.rows]
        fired, late, _ = pipeline.epoch(rows)
        assert epoch.fired == {
            (int(row["zone"]), (utc(row["window"]["start"]) - FIRST).days): Fired(
                row["fare"] % 7, row["firing"] == "late"
            )
            for row in fired
        }
        hours = [(row["zone"], (utc(row["at"]) - FIRST) // timedelta(hours=1), row["fare"]) for row in late]
        assert epoch.late == sorted(Row(int(zone), hour, fare) for zone, hour, fare in hours)


def compare(spark, store, case, chance, hours):
    aggregates, kept = (MEDIAN, OF_ROWS) if case.of_rows else (SUMS, OF_SUMS)
    pipeline = Pipeline(
        spark, store, case.over, aggregates, kept, lateness=f"{case.lateness} minutes", early=case.early
    )
    model = Model(case.windows_of, case.lateness, early=case.early, gap=case.gap)
    for hour in range(hours):
        rows = some_rows(chance, hour)
        fired, late, mark = pipeline.epoch(rows)
        expected, expected_late = model.epoch(rows)
        found = {
            (row["zone"], (utc(row["window"]["start"]), utc(row["window"]["end"]))): answer_of(row, case.of_rows)
            for row in fired
        }
        assert len(found) == len(fired)
        assert found == {each: expected_of(*answer, case.of_rows) for each, answer in expected.items()}
        given = sorted((row["zone"] or "", utc(row["at"]), row["fare"]) for row in late)
        assert given == sorted((zone or "", at, fare) for zone, at, fare in expected_late)
        assert (None if mark is None else utc(mark)) == model.watermark
        assert {(zone, each) for zone, spans in pipeline.open().items() for each in spans} == {*model.rows}


def answer_of(row, of_rows):
    names = MEDIAN if of_rows else SUMS
    return ({name: row[name] for name in names}, row["firing"])


def expected_of(fares, firing, of_rows):
    middle = (fares[(len(fares) - 1) // 2] + fares[len(fares) // 2]) / 2
    found = {
        "middle": middle,
        "rides": len(fares),
        "fare": sum(fares),
        "least": fares[0],
        "mean": sum(fares) / len(fares),
    }
    return ({name: found[name] for name in (MEDIAN if of_rows else SUMS)}, firing)


def spark_streaming(spark, folder, over, rows, name):
    """What Spark's Structured Streaming has emitted, in append mode, when these rows have come, too."""
    spark.createDataFrame(rows, ROWS).coalesce(1).write.parquet(f"{folder}/in/{name}")
    stream = spark.readStream.schema(ROWS).parquet(f"{folder}/in/*").withWatermark("at", "10 minutes")
    sums = (F.count("*").alias("rides"), F.sum("fare").alias("fare"))
    found = stream.groupBy("zone", over.alias("window")).agg(*sums).writeStream.outputMode("append")
    options = {"path": f"{folder}/out", "checkpointLocation": f"{folder}/checkpoint"}
    found.format("parquet").options(**options).trigger(availableNow=True).start().awaitTermination()
    return sums_of(spark.read.parquet(f"{folder}/out").collect())


def sums_of(rows):
    return sorted(((row["zone"], *row["window"], row["rides"], row["fare"]) for row in rows), key=str)


@pytest.mark.parametrize("case", [HOURS, pytest.param(SESSIONS, marks=pytest.mark.soak)], ids=["hours", "sessions"])
def test_what_fires_on_time_is_what_structured_streaming_emits_of_the_same_rows(spark, store, tmp_path, case):
    over = F.window("at", "1 hour") if case is HOURS else F.session_window("at", "15 minutes")
    pipeline, chance, fired, late = Pipeline(spark, store, case.over, SUMS, OF_SUMS), random.Random(3), [], []
    for hour in range(4):
        rows = some_rows(chance, hour)
        new, too_late, _ = pipeline.epoch(rows)
        fired, late = fired + new, late + too_late
        assert sums_of(fired) == spark_streaming(spark, tmp_path, over, rows, str(hour))
    assert late


def test_the_watermark_is_that_of_the_split_that_is_behind_unless_it_is_idle(spark, store):
    more = {"split": "site", "idle": "2 hours"}
    pipeline = Pipeline(spark, store, HOURS.over, SUMS, OF_SUMS, more=more)
    marks = [
        pipeline.mark([("a", FIRST + minutes(at), site, 1) for site, at in came.items()])
        for came in ({"x": 50, "y": 20}, {"x": 110}, {"x": 170}, {"y": 30}, {"x": 230, "y": 225}, {})
    ]
    assert [(each - FIRST) // minutes(1) for each in marks] == [10, 10, 160, 160, 215, 215]


def test_splits_that_are_idle_or_of_another_column_leave_the_state(spark, store):
    pipeline = Pipeline(spark, store, HOURS.over, SUMS, OF_SUMS, more={"split": "fare", "idle": "2 hours"})
    for number in range(3):
        pipeline.mark([("a", FIRST + minutes(number), "x", number)])
    assert '"splits":{"1":' in pipeline.arrived[0]
    pipeline.more = {"split": "site"}
    assert pipeline.mark([("a", FIRST + minutes(60), "x", 1)]) == FIRST + minutes(50)


def test_a_row_may_be_in_very_many_windows(spark):
    starts = window("at", "1 day", "1 minute").starts()
    found = spark.createDataFrame([(FIRST + minutes(3),)], "at TIMESTAMP").select(starts.alias("starts")).collect()
    of_row = [datetime.fromtimestamp(each / 1_000_000, UTC) for each in found[0]["starts"]]
    assert sorted(of_row) == [FIRST + minutes(4 - 1440 + number) for number in range(1440)]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"aggregates": {"rides": "count(*)"}}, "windows.state_unfit"),
        ({"ttl": "7 days"}, "windows.state_expires"),
        ({"aggregates": {"window": "count(*)"}}, "windows.name_taken"),
        ({"aggregates": {"start": "min(at)"}}, "windows.name_taken"),
        ({"aggregates": {"Zone": "count(*)"}}, "windows.name_taken"),
        ({"aggregates": {"rides": "count(*)", "Rides": "sum(fare)"}}, "windows.name_taken"),
        ({"aggregates": {}}, "windows.no_texts"),
        ({"by": "nowhere"}, "windows.key_missing"),
        ({"by": "Zone"}, "windows.key_missing"),
        *(
            ({"by": name, "rows": f"{ROWS}, {name} STRING"}, "windows.name_taken")
            for name in ("window", "firing", "open")
        ),
        ({"over": "1 hour"}, "windows.no_window"),
        ({"lateness": "soon"}, "windows.duration_malformed"),
        ({"over": window("fare", "1 hour")}, "windows.time_unfit"),
        ({"over": window("when", "1 hour")}, "windows.time_unfit"),
    ],
)
def test_what_is_declared_wrongly_is_refused(spark, store, change, kind):
    pipeline = Pipeline(spark, store, HOURS.over, SUMS, OF_SUMS)
    for name, value in change.items():
        setattr(pipeline, name, value)
    pipeline.declare("zone", schema_of(OF_SUMS))
    marks = spark.createDataFrame([], "before TIMESTAMP, watermark TIMESTAMP")
    with pytest.raises(Misconfigured, check=of_kind(kind)):
        pipeline.fired("20130101T000000Z", spark.createDataFrame([], pipeline.rows), marks)


@pytest.mark.parametrize(
    ("key", "more", "value", "aggregates"),
    [
        ("a key", "window STRING, firing STRING, `a.b``` STRUCT<`x y`: INT>", ("w", "f", (1,)), MEDIAN),
        ("mean_sum", "rows STRING", ("r",), {"mean": "avg(fare)"}),
        ("key", "start DECIMAL(9, 2)", (None,), {"open": "min(start)", "`a b": "min(struct(fare, at))"}),
    ],
)
def test_the_error_about_a_state_has_the_schema_to_write(spark, store, key, more, value, aggregates):
    rows = f"`{key}` STRING, at TIMESTAMP, fare BIGINT, {more}"
    pipeline = Pipeline(spark, store, HOURS.over, aggregates, OF_SUMS, by=key, rows=rows)
    with pytest.raises(Misconfigured, check=of_kind("windows.state_unfit")) as refused:
        pipeline.epoch([])
    pipeline.declare(key, str(refused.value).partition("schema='")[2].partition("'")[0])
    pipeline.epoch([("a", FIRST, 1, *value), ("a", FIRST, 3, *value)])
    fired, _, _ = pipeline.epoch([("b", FIRST + minutes(80), 5, *value)])
    expected = spark.createDataFrame([("a", FIRST, 1, *value), ("a", FIRST, 3, *value)], rows).agg(
        *(F.expr(text).alias(name) for name, text in aggregates.items())
    )
    assert [tuple(row)[2:-1] for row in fired] == [tuple(row) for row in expected.collect()]
    assert [(row[key], row["firing"]) for row in fired] == [("a", "on_time")]


def test_windows_that_would_leave_rows_out_are_refused():
    with pytest.raises(Misconfigured, check=of_kind("windows.slide_too_long")):
        window("at", "1 hour", "2 hours")


def test_a_watermark_of_several_subtasks_is_refused(spark):
    interval = (FIRST, FIRST + timedelta(hours=1))
    context = StageContext(epoch="", interval=interval, subtask=0, parallelism=2, parameters={}, spark=spark)
    with pytest.raises(Misconfigured, check=of_kind("windows.watermark_of_subtasks", parallelism=2)):
        watermark(context, spark.createDataFrame([], ROWS), None, "at", "1 hour")
