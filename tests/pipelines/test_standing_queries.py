"""Standing queries over shuffled flights, against pandas: each window of each query, whatever comes and goes."""

# ruff: noqa: S608

from __future__ import annotations

import json
import runpy
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import psycopg2
import pyarrow.parquet as pq
import pytest
from tests.builders.ledgers import new_ledger
from tests.weir.command_line import typed, use
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

import weir
from pipelines.standing_queries import EVENTS, problem_of
from weir.coordination.services import Services
from weir.dataflow import Dataflow, files_source, sink
from weir.dataflow import postgres as in_postgres
from weir.ledger.checkpoints import retained_checkpoints
from weir.store.catalogue import published
from weir.store.store import Store
from weir.testing.fakes.airflow import Killed

pytestmark = pytest.mark.spark

DAG_FILE = Path(__file__).parents[2] / "dags" / "standing_queries.py"
FIRST = pd.Timestamp("2013-01-01", tz=UTC)
DELAY, LATENESS = pd.Timedelta("6h"), pd.Timedelta("2d")


def start_of(day):
    return FIRST + timedelta(days=day - 1)


def run_of(day):
    return f"standing_queries@{start_of(day):%Y%m%dT%H%M%SZ}"


def some_flights(seed, day, count):
    """Flights of a day in any order; some come up to a day late, and some days late."""
    chance = np.random.default_rng([seed, day])
    back = chance.choice([0, 0, 0, 0, 0, 0, 0, 20, 90], count)
    at = FIRST + pd.to_timedelta(24 * (day - 1) + chance.integers(0, 24, count) - back, unit="h")
    delay = pd.array(chance.integers(-20, 120, count), "Int64")
    delay[chance.random(count) < 0.05] = pd.NA
    return pd.DataFrame(
        {
            "carrier": chance.choice(["AA", "UA", "DL"], count),
            "flight": chance.integers(0, 50, count),
            "tailnum": chance.choice(["N1", "N2", None], count),
            "origin": chance.choice(["EWR", "JFK", "LGA"], count),
            "dest": chance.choice(["IAH", "MIA"], count),
            "time_hour": at,
            "distance": chance.integers(100, 2500, count),
            "status": "flown",
            "departure_delay": delay,
            "arrival_delay": delay,
        }
    )


def more_flights(seed, day, count):
    """Flights that are added to a day that is computed again: its watermark is another, as some are of the next day."""
    found = some_flights(seed, day, count)
    return found.assign(time_hour=found["time_hour"] + pd.Timedelta("5h"))


class Running:
    """The dataflow as it is declared, over files of flights and of queries."""

    def __init__(self, server, folder, monkeypatch):
        self.folder, self.url, self.monkeypatch = folder, server.url, monkeypatch
        monkeypatch.setenv("WEIR_QUERIES", str(folder / "queries"))
        self.declared = runpy.run_path(str(DAG_FILE))
        self.store = Store.open(str(folder / "store"))
        self.store.initialise()
        self.services = Services(ledger=new_ledger(folder / "ledger.db"), store=self.store)
        self.airflow = AirflowWithCode(self.services, OnSpark(server.url, self.store), self.flow(parallelism=1))
        use(monkeypatch, folder)

    def flow(self, parallelism, table=None):
        clean = files_source(
            "clean", f"{self.folder}/flights/{{start:%Y-%m-%d}}.csv", format="csv", schema=EVENTS, parallelism=1
        )
        stages = {
            name: self.declared[name] for name in ("changes", "standing", "marks", "pieces", "problems", "windows")
        }
        for name in ("pieces", "windows"):
            stages[name] = replace(stages[name], parallelism=parallelism)
        kept = tuple(replace(each, table=table) for each in stages["windows"].states)
        stages["windows"] = replace(stages["windows"], state=kept)
        sinks = (("windows", "results"), ("problems", "wrong"), ("standing", "known"))
        return Dataflow("standing_queries", [clean, *stages.values(), *(sink(stages[name], to) for name, to in sinks)])

    def land(self, day, flights, *queries):
        self.land_flights(day, flights)
        self.land_queries(day, *queries)

    def land_flights(self, day, flights):
        file = self.folder / "flights" / f"{start_of(day):%Y-%m-%d}.csv"
        file.parent.mkdir(exist_ok=True)
        flights.to_csv(file, header=False, index=False, date_format="%Y-%m-%d %H:%M:%S")

    def land_queries(self, day, *queries, file="queries.json"):
        folder = self.folder / "queries" / f"{start_of(day):%Y-%m-%d}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [each if isinstance(each, str) else json.dumps(each) for each in queries]
        (folder / file).write_text("".join(f"{line}\n" for line in lines))

    def run(self, day):
        self.airflow.dag_run(day)
        self.settle()

    def settle(self):
        self.airflow.run_until_quiet()
        assert set(self.airflow.states().values()) == {"success"}, [
            each.failed_because for each in self.airflow.tasks.values() if each.failed_because
        ]

    def again(self, day):
        typed("run", "adopt", run_of(day))
        self.airflow.clear_run_by_hand(f"scheduled__{start_of(day):%Y-%m-%d}")
        self.settle()

    def published(self, name, day):
        pointer = published(self.store, "standing_queries", name, f"{start_of(day):%Y%m%dT%H%M%SZ}")
        root = Path(self.store.url.removeprefix("file://"))
        files = [file for part in pointer.partitions for file in (root / part.folder).glob("*.parquet")]
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def fired(self, day):
        rows = self.published("results", day)
        found = {
            (row["name"], row["key"], row["start"], row["end"], row["aggregate"]): (row["value"], row["firing"])
            for row in rows
        }
        assert len(found) == len(rows)
        return found


class Expected:
    """The same by pandas, of all flights of a query that were in time when they came."""

    def __init__(self):
        self.queries, self.came, self.newest, self.watermark = {}, {}, None, None

    def epoch(self, flights, queries, failing=()):
        """What fires; `queries` are those that run, by name, each a tuple of the functions that a test gives for it."""
        before = self.watermark
        for name in [name for name in self.came if self.queries.get(name) is not queries.get(name)]:
            del self.came[name]
        self.queries = dict(queries)
        self.newest = max(each for each in (self.newest, flights["time_hour"].max()) if each is not None)
        self.watermark = self.newest - DELAY
        fired = {}
        for name, query in queries.items():
            new = windows_of(query, flights) if name not in failing else windows_of(query, flights.head(0))
            if before is not None:
                new = new[new["end"] + LATENESS > before]
            all_ = pd.concat([self.came[name], new]) if name in self.came else new
            touched = set(zip(new["_key"], new["start"], strict=True))
            for (key, start, end), rows in all_.groupby(["_key", "start", "end"]):
                was_over = before is not None and end <= before
                if end <= self.watermark and (not was_over or (key, start) in touched):
                    for aggregate, function in query["pandas"].items():
                        value = function(rows)
                        fired[name, key, start, end, aggregate] = (
                            None if pd.isna(value) else float(value),
                            "late" if was_over else "on_time",
                        )
            self.came[name] = all_[all_["end"] + LATENESS > self.watermark]
        return fired


def windows_of(query, flights):
    rows = flights[query["matches"](flights).fillna(False).astype(bool)]
    rows = rows.assign(_key=query["by"](rows) if len(rows) else pd.Series(dtype=str))
    size, slide, start = (pd.Timedelta(each) for each in query["spans"])
    last = (rows["time_hour"] - FIRST - start).dt.floor(slide) + FIRST + start
    found = [rows.assign(start=last - slide * number) for number in range(size // slide)]
    return pd.concat(found).pipe(lambda all_: all_.assign(end=all_["start"] + size))


ORIGINS, CARRIERS = ("EWR", "JFK", "LGA"), ("AA", "UA", "DL")


def some_query(number):
    """A query of this number: as JSON, and what pandas needs."""
    origin, least = ORIGINS[number % 3], number % 40
    size, slide, start = [
        ("1 day",) * 2 + ("0 hours",),
        ("6 hours", "2 hours", "1 hour"),
        ("3 hours",) * 2 + ("0 hours",),
    ][number % 3]
    by_carrier, is_either = number % 2 == 0, number % 4 == 3
    told = {
        "name": f"query_{number}",
        "filter": f"origin = '{origin}' AND departure_delay > {least}" + (" OR dest = 'IAH'" if is_either else ""),
        "window": [size, slide, start],
        "aggregates": {
            "flights": "count(*)",
            "worst": "max(departure_delay)",
            "least": "min(distance)",
            "mean": f"avg(departure_delay + {number})",
            "far": "count_if(distance > 1000)",
            "known": "count(tailnum)",
            "miles": "sum(distance)",
        },
    }
    if by_carrier:
        told["key"] = "concat(carrier, '-', dest)"
    return {
        "json": told,
        "matches": lambda rows: (
            ((rows["origin"] == origin) & (rows["departure_delay"] > least)) | (is_either & (rows["dest"] == "IAH"))
        ),
        "by": lambda rows: rows["carrier"] + "-" + rows["dest"] if by_carrier else pd.Series("", rows.index),
        "spans": (size, slide, start),
        "pandas": {
            "flights": len,
            "worst": lambda rows: rows["departure_delay"].max(),
            "least": lambda rows: rows["distance"].min(),
            "mean": lambda rows: (rows["departure_delay"] + number).mean(),
            "far": lambda rows: (rows["distance"] > 1000).sum(),
            "known": lambda rows: rows["tailnum"].notna().sum(),
            "miles": lambda rows: rows["distance"].sum(),
        },
    }


@pytest.fixture
def running(server, tmp_path, monkeypatch):
    found = Running(server, tmp_path, monkeypatch)
    yield found
    found.services.ledger.close()


FAILS = {"name": "fails", "filter": "true", "window": ["1 day"], "aggregates": {"n": "sum(1 / (flight - 7))"}}


def test_queries_come_and_go_and_a_bad_one_disturbs_no_other(running):
    queries, expected = {each: some_query(each) for each in range(6)}, Expected()
    flights = {day: some_flights(1, day, 120) for day in range(1, 4)}
    bad = {"name": "bad", "filter": "altitude > 3", "window": ["1 day"], "aggregates": {"n": "count(*)"}}
    changed = some_query(7)
    changed["json"]["name"] = "query_1"
    running.land(1, flights[1], *(queries[each]["json"] for each in (0, 1, 2)), bad)
    running.land(2, flights[2], queries[3]["json"], FAILS, "{broken")
    running.land(3, flights[3], {"name": "query_0", "remove": True}, changed["json"])
    named = {f"query_{number}": query for number, query in queries.items()}
    runs = {1: ("query_0", "query_1", "query_2"), 2: ("query_0", "query_1", "query_2", "query_3")}
    of = {day: {name: named[name] for name in runs[day]} for day in runs}
    of[3] = {"query_1": changed, "query_2": named["query_2"], "query_3": named["query_3"]}
    fired = {}
    for day, came in flights.items():
        running.run(day)
        fired[day] = running.fired(day)
        assert fired[day] == expected.epoch(came, of[day])
    wrong = {day: [(row["name"], row["reason"]) for row in running.published("wrong", day)] for day in flights}
    assert wrong[1] == [("bad", "filter: UNRESOLVED_COLUMN.WITH_SUGGESTION")]
    assert sorted(wrong[2]) == [
        ("fails", "DIVIDE_BY_ZERO"),
        ("queries.json", "it is no line of JSON with the fields of a query"),
    ]
    assert wrong[3] == [("fails", "DIVIDE_BY_ZERO")]

    flights[2] = pd.concat([flights[2], more_flights(4, 2, 60)])
    running.land_flights(2, flights[2])
    running.again(2)
    again = modelled(flights, of)
    assert {day: running.fired(day) for day in flights} == again
    assert [day for day in flights if again[day] == fired[day]] == [1]


GOOD = {"filter": "distance > 3", "key": "carrier", "window": ["1 day"], "aggregates": {"n": "count(*)"}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"aggregates": {"n": "count(distance)", "m": "min(distance)", "c": "count_if(origin = 'EWR')"}}, None),
        ({"filter": "distance"}, "filter: 'distance' is bigint, not boolean"),
        ({"filter": "distance >"}, "filter: PARSE_SYNTAX_ERROR"),
        ({"filter": "rand() > 0.5"}, "filter: AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION"),
        ({"filter": "now() > time_hour"}, "filter: now is not allowed"),
        ({"filter": "EXISTS (SELECT 1)"}, "filter: SELECT is not allowed"),
        ({"filter": "max(distance) > 3"}, "filter: NESTED_AGGREGATE_FUNCTION"),
        ({"key": "explode(array(1, 2))"}, "key: UNSUPPORTED_GENERATOR.NESTED_IN_EXPRESSIONS"),
        ({"key": "array(carrier)"}, "key: 'array(carrier)' is array<string>, not atomic"),
        ({"key": "*"}, "key: '*' is string, bigint"),
        ({"window": ["1 hour", "2 hours"]}, "window: the slide does not divide the size"),
        ({"window": ["1 day", None, "soon"]}, "window: its start is no time"),
        ({"window": ["1 day", "1 hour", "0 hours"]}, None),
        ({"window": ["1 month"]}, "window: it needs a size"),
        ({"window": ["7 hours", "2 hours"]}, "window: the slide does not divide the size"),
        ({"window": None}, "window: it needs a size"),
        ({"aggregates": {}}, "it has no aggregates"),
        ({"aggregates": {"n": "count(DISTINCT origin)"}}, "n: UNRESOLVED_COLUMN"),
        ({"aggregates": {"n": "sum(distance) / sum(flight)"}}, "n: PARSE_SYNTAX_ERROR"),
        ({"aggregates": {"n": "sum(origin)"}}, "n: 'origin' is string, not numeric"),
        ({"aggregates": {"n": "sum(*)"}}, "n: * is for count alone"),
        ({"aggregates": {"n": "percentile(distance, 0.5)"}}, "n: 'percentile(distance, 0.5)' is none of "),
        ({"aggregates": {f"n{each}": "sum(distance)" for each in range(7)}}, "it needs more than 6 sums"),
    ],
)
def test_a_query_is_refused_with_its_reason(spark, change, reason):
    line = {"name": "asked", "remove": None, "_corrupt_record": None}
    found = problem_of(line, 1, json.dumps({**GOOD, **change}), spark.createDataFrame([], EVENTS))
    assert found == reason if reason is None else found is not None and found.startswith(reason)


@pytest.mark.soak
@pytest.mark.timeout(10_000)
@pytest.mark.parametrize(("days", "count", "again", "rescaled"), [(4, 8, 2, 3), (12, 30, 5, 6), (60, 100, 25, 30)])
def test_days_of_queries_with_kills_a_rescale_and_a_day_computed_again(running, days, count, again, rescaled):
    chance = np.random.default_rng(60)
    begins = {number: int(chance.integers(1, days * 2 // 3 + 1)) for number in range(count)}
    ends = {number: begins[number] + int(chance.integers(2, days)) for number in begins}
    queries = {number: some_query(number) for number in begins}
    flights = {day: some_flights(2, day, 200) for day in range(1, days + 1)}
    corrected = {**flights, again: pd.concat([flights[again], more_flights(3, again, 50)])}
    standing = {
        day: {f"query_{each}": queries[each] for each in queries if begins[each] <= day < ends[each]} for day in flights
    }
    before, after = modelled(flights, standing), modelled(corrected, standing)
    assert before[again] != after[again]
    assert before[again + 1] != after[again + 1]
    running.airflow.deploy(running.flow(parallelism=2))
    killed = Counter()
    running.airflow.during = running.airflow.after_commit = kills(days, killed)
    for day, came in flights.items():
        new = [queries[each]["json"] for each in queries if begins[each] == day]
        gone = [{"name": f"query_{each}", "remove": True} for each in queries if ends[each] == day]
        bad = [{"name": f"bad_{day}", "filter": "rand() > 0", "window": ["1 day"], "aggregates": {"n": "count(*)"}}]
        running.land(day, came, *new, *gone, *bad, *([FAILS] if day == 1 else []))
        if day == rescaled:
            running.airflow.deploy(running.flow(parallelism=3))
        running.run(day)
        assert fired_but_fails(running, day) == (after if day > again + 1 else before)[day]
        if day == again + 1:
            running.land_flights(again, corrected[again])
            running.again(again)
            for each in (again, again + 1):
                assert fired_but_fails(running, each) == after[each]
    assert killed


class Polling:
    """An independent reader of the state's table, which asks all the time: a checkpoint keeps its rows."""

    def __init__(self, url, name):
        self.url, self.name, self.seen, self.newest = url, name, {}, []
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.problems = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_done.set()
        self._thread.join()

    def _ask(self):
        with closing(psycopg2.connect(self.url)) as db, db.cursor() as cursor:
            db.autocommit = True
            while not self._is_done.wait(0.05):
                try:
                    self._look(cursor)
                except psycopg2.errors.UndefinedTable:
                    continue
                except Exception as error:
                    self.problems.append(error)
                    raise

    def _look(self, cursor):
        row = "md5(string_agg(row(query, key, open)::text, '|' order by query, key)), count(*)"
        cursor.execute(f"select {row} from {self.name}")
        (newest,) = cursor.fetchall()
        cursor.execute(f"select _epoch, _checkpoint, {row} from {self.name}_at group by 1, 2 order by 1, 2")
        found = cursor.fetchall()
        assert len({epoch for epoch, *_ in found}) == len(found)
        for epoch, checkpoint, *rows in found:
            assert self.seen.setdefault((epoch, checkpoint), rows) == rows
        if not self.newest or self.newest[-1] != newest:
            self.newest.append(newest)


@pytest.mark.soak
@pytest.mark.timeout(10_000)
@pytest.mark.parametrize("days", [4, 12, 60])
def test_the_table_of_open_windows_has_each_epoch_while_a_reader_polls(running, postgres, monkeypatch, days):
    """Of days that are killed and computed again, and rescaled; the reader never sees two epochs in one answer."""
    url = postgres.url(f"windows_{days}").replace("+psycopg2", "")
    monkeypatch.setenv("AIRFLOW_CONN_WINDOWS", url)
    table = in_postgres("windows", "open_windows")
    flights = {day: some_flights(5, day, 120) for day in range(1, days + 1)}
    queries = [some_query(each)["json"] for each in range(6)]
    running.airflow.deploy(running.flow(parallelism=2, table=table))
    running.airflow.during = running.airflow.after_commit = kills(days, killed := Counter())
    again = [day for day in flights if day % 5 == 2]
    with Polling(url, "open_windows") as polling:
        for day, came in flights.items():
            running.land(day, came, *(queries if day == 1 else []))
            if day % 10 == 3:
                running.airflow.deploy(running.flow(parallelism=3, table=table))
            running.run(day)
            assert in_table(url) == in_state(running)
            if day - 1 in again:
                running.land_flights(day - 1, pd.concat([flights[day - 1], more_flights(6, day - 1, 50)]))
                running.again(day - 1)
                assert in_table(url) == in_state(running)
    assert killed
    assert polling.problems == []
    seen = Counter(epoch for epoch, _ in polling.seen)
    assert set(seen) == {f"{start_of(day):%Y%m%dT%H%M%SZ}" for day in flights}
    assert all(seen[f"{start_of(day):%Y%m%dT%H%M%SZ}"] > 1 for day in again if day < days)
    assert len(set(polling.newest)) == len(polling.newest) >= len(flights)


def in_table(url):
    """The rows of each epoch in the table, and of the newest one: which windows of which key begin when."""
    with closing(psycopg2.connect(url)) as db, db.cursor() as cursor:
        cursor.execute("select _epoch, query, key, open from open_windows_at")
        found = {}
        for epoch, query, key, opened in cursor.fetchall():
            found.setdefault(epoch, {})[query, key] = [each["start"][:19] for each in opened]
        cursor.execute("select query, key, open from open_windows")
        newest = {(query, key): [each["start"][:19] for each in opened] for query, key, opened in cursor.fetchall()}
        assert newest == found[max(found)]
        return found


def in_state(running):
    with running.services.ledger.transaction() as session:
        kept = [(row.epoch, row.number) for row in retained_checkpoints(session, "standing_queries")]
    found = {}
    for epoch, number in kept:
        with weir.open("standing_queries", state="open_windows", checkpoint=number, services=running.services) as state:
            found[epoch] = {
                (row["query"], row["key"]): [f"{each['start']:%Y-%m-%dT%H:%M:%S}" for each in row["open"]]
                for row in state.arrow().to_pylist()
            }
    return found


def modelled(flights, standing):
    expected = Expected()
    return {day: expected.epoch(came, standing[day]) for day, came in flights.items()}


def fired_but_fails(running, day):
    return {window: value for window, value in running.fired(day).items() if window[0] != FAILS["name"]}


def kills(seed, killed):
    """Kill some processes in the middle of what they compute, or after their commit; none more than twice."""
    chance = np.random.default_rng(seed)

    def kill(key):
        if chance.random() < 0.05 and killed[key] < 2:
            killed[key] += 1
            raise Killed

    return kill


@pytest.mark.soak
@pytest.mark.timeout(2000)
def test_a_query_that_is_filled_has_the_windows_that_began_before_it_and_no_other_changes(running):
    queries = {f"query_{number}": some_query(number) for number in range(4)}
    others = {name: query for name, query in queries.items() if name != "query_3"}
    flights = {day: some_flights(5, day, 150) for day in range(1, 6)}
    asked = modelled(flights, {1: others, 2: others, 3: others, 4: queries, 5: queries})
    filled = {
        since: modelled(flights, {day: queries if day >= since else others for day in flights}) for since in (2, 3)
    }
    running.airflow.deploy(running.flow(parallelism=2))
    for day, came in flights.items():
        new = {1: others, 4: {"query_3": queries["query_3"]}}.get(day, {})
        running.land(day, came, *(each["json"] for each in new.values()))

    running.run(1)
    typed("savepoint", "create", "standing_queries", "--name", "first")
    for day in (2, 3, 4):
        running.run(day)
    assert {day: running.fired(day) for day in (1, 2, 3, 4)} == {day: asked[day] for day in (1, 2, 3, 4)}
    known = known_of(running, 4)

    running.land_queries(3, queries["query_3"]["json"], file="filled.json")
    running.again(3)
    assert {day: running.fired(day) for day in (3, 4)} == {day: filled[3][day] for day in (3, 4)}
    assert filled[3][4] != asked[4]
    since = {"id": "query_3@20130103T000000Z", "since": "20130103T000000Z"}
    assert known_of(running, 4) == {**known, "query_3": {**known["query_3"], **since}}
    tries = running.airflow.executed("scheduled__2013-01-04")
    assert (tries["clean[0]"], tries["changes[0]"], tries["marks[0]"]) == (1, 1, 1)

    running.land_queries(2, queries["query_3"]["json"], file="filled.json")
    typed("restore", "standing_queries", "first")
    running.again(2)
    running.run(5)
    assert {day: running.fired(day) for day in flights} == filled[2]
    assert known_of(running, 5)["query_3"]["since"] == "20130102T000000Z"


def known_of(running, day):
    return {row["name"]: row for row in running.published("known", day)}
