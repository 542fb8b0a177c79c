"""Keyed state whose keys have maps, on Spark: each entry is a row, and only what is changed of a map is written."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.builders.ledgers import new_ledger
from tests.builders.state_chain import StateChain
from tests.messages.kinds import of_kind
from tests.weir_spark.on_spark import AirflowWithCode, OnSpark

import weir
from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.dataflow.state import keyed_state
from weir.errors import Misconfigured
from weir.topology.key_groups import key_group_range
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import write_state

pytestmark = pytest.mark.spark

EPOCHS = [f"201301{day:02}T000000Z" for day in range(1, 10)]
WHOLE = (0, 127)
ROUTES = keyed_state(
    "routes", key="tail", map_key="route", schema="tail STRING, route STRING, flights BIGINT", ttl="3 days"
)
KEPT = keyed_state("routes", key="tail", map_key="route", schema=ROUTES.schema)
FLIGHTS = "tail STRING, route STRING"


@pytest.fixture
def epochs(spark, store):
    """Compute epochs of a state: `go_on(work)` calls `work` with the handle of the next one."""

    class Epochs:
        def __init__(self, state=ROUTES):
            self.chain, self.number = StateChain(store, state), 0

        def open(self):
            return KeyedState(StoredState(spark, self.chain.read(EPOCHS[self.number], WHOLE)))

        def go_on(self, work):
            state = self.open()
            result = work(state)
            report = write_state(state, self.chain.state.name, self.chain.output(EPOCHS[self.number]), store)
            self.chain.go_on(EPOCHS[self.number], {WHOLE: report})
            self.number += 1
            return report, result

    return Epochs


def counting():
    """A function of no module, as Spark's Python workers have no tests."""

    def count(key, rows, routes):
        """Count flights by route; one without a route forgets all routes of its aircraft, "-X" forgets the route X."""
        for row in rows:
            if row["route"] is None:
                routes.clear()
            elif row["route"].startswith("-"):
                routes.remove(row["route"][1:])
            else:
                routes.put(row["route"], routes.get(row["route"], 0) + 1)
        return {"tail": key[0], "routes": len(routes), "flights": sum(routes.values())}

    return count


def counted(spark, flights, **options):
    rows = spark.createDataFrame([(*flight, i) for i, flight in enumerate(flights)], f"{FLIGHTS}, i INT")
    schema = "tail STRING, routes BIGINT, flights BIGINT"
    return lambda state: rows_of(state.per_key(rows, counting(), schema, order_by="i", form="rows", **options))


def rows_of(df):
    return sorted((tuple(row) for row in df.collect()), key=repr)


def test_over_epochs_maps_are_what_dictionaries_would_be(epochs, spark) -> None:
    rng, days, model = random.Random(7), epochs(), {}
    for day in range(8):
        tails, routes = [None, "N1", "N2", "N3"], ["JFK", "LAX", "SFO", "-JFK", "-LAX", None]
        flights = [(rng.choice(tails), rng.choice(routes)) for _ in range(9)]
        model = {key: entry for key, entry in model.items() if day - entry[0] < 3}
        before, expected = dict(model), []
        for tail in {flight[0] for flight in flights}:
            for route in (flight[1] for flight in flights if flight[0] == tail):
                if route is None:
                    model = {key: entry for key, entry in model.items() if key[0] != tail}
                elif route.startswith("-"):
                    model.pop((tail, route[1:]), None)
                else:
                    model[tail, route] = (day, model.get((tail, route), (day, 0))[1] + 1)
            own = [entry[1] for key, entry in model.items() if key[0] == tail]
            expected.append((tail, len(own), sum(own)))
        report, results = days.go_on(counted(spark, flights))
        assert results == sorted(expected, key=repr)
        written = [key for key, entry in model.items() if entry[0] == day]
        assert report.state.changed == len(written) + len(before.keys() - model.keys())
        days.number = day + 1
        kept = sorted(((*key, entry[1]) for key, entry in model.items() if day + 1 - entry[0] < 3), key=repr)
        assert rows_of(days.open().read()) == kept


def test_one_entry_of_a_large_map_is_written_alone(epochs, spark) -> None:
    days = epochs(KEPT)
    first, _ = days.go_on(counted(spark, [("N1", f"R{i}") for i in range(500)]))
    second, found = days.go_on(counted(spark, [("N1", "R7")]))
    assert (first.state.changed, second.state.changed) == (500, 1)
    assert (found, second.digest.rows, sum(file.rows for file in second.files)) == ([("N1", 500, 501)], 500, 1)


def test_entries_that_rows_name_are_loaded_alone(epochs, spark) -> None:
    def grown(key, rows, routes):
        with pytest.raises(ValueError, match="'LAX' is not loaded"):
            routes.get("LAX")
        routes.put("JFK", routes.get("JFK", 0) + len(rows))
        routes.put("SFO", routes.get("SFO", 10))
        return {"tail": key[0]}

    days = epochs()
    days.go_on(counted(spark, [("N1", "JFK"), ("N1", "LAX"), ("N2", "JFK")]))
    rows = spark.createDataFrame([("N1", "JFK"), ("N1", "JFK"), ("N1", "SFO")], FLIGHTS)
    report, _ = days.go_on(lambda state: state.per_key(rows, grown, "tail STRING", form="rows", entries="rows"))
    assert report.state.changed == 2
    assert rows_of(days.open().read()) == [
        ("N1", "JFK", 4),
        ("N1", "LAX", 1),
        ("N1", "SFO", 10),
        ("N2", "JFK", 1),
    ]


@pytest.mark.parametrize("form", ["pandas", "arrow"])
def test_a_map_is_the_same_in_each_form_of_the_rows(form, epochs, spark) -> None:
    def seen(key, rows, routes):
        names = rows["route"].to_list() if form == "pandas" else rows["route"].to_pylist()
        for route in names:
            routes.put(route, 1)
        return {"tail": key[0]}

    days = epochs()
    days.go_on(counted(spark, [("N1", "JFK")]))
    rows = spark.createDataFrame([("N1", "LAX"), ("N2", "SFO")], FLIGHTS)
    days.go_on(lambda state: state.per_key(rows, seen, "tail STRING", form=form, entries="rows"))
    assert rows_of(days.open().read()) == [("N1", "JFK", 1), ("N1", "LAX", 1), ("N2", "SFO", 1)]


def test_a_read_by_key_gives_all_entries_and_by_both_keys_one(epochs, spark) -> None:
    days = epochs()
    days.go_on(counted(spark, [("N1", "JFK"), ("N1", "LAX"), ("N2", "JFK"), (None, "JFK")]))
    days.go_on(counted(spark, [("N1", "LAX"), ("N2", "-JFK")]))
    state = days.open()
    assert rows_of(state.read(spark.sql("select 'N1' tail, 1 other"))) == [("N1", "JFK", 1), ("N1", "LAX", 2)]
    assert rows_of(state.read(spark.sql("select 'N1' tail, 'LAX' route"))) == [("N1", "LAX", 2)]
    assert rows_of(state.read(spark.sql("select cast(null as string) tail"))) == [(None, "JFK", 1)]
    assert rows_of(state.read(spark.sql("select 'N2' tail"))) == []


def test_changes_of_a_read_map_look_for_no_rows_again(epochs, spark) -> None:
    days = epochs()
    days.go_on(counted(spark, [("N1", "JFK"), ("N1", "LAX")]))

    def changed(state):
        known = state.read(spark.sql("select 'N1' tail"))
        state.upsert(known.selectExpr("tail", "route", "flights + 1 flights"))
        state.upsert(spark.sql("select 'N1' tail, 'SFO' route, 1L flights"))
        state.delete(spark.sql("select 'N1' tail, 'LAX' route"))

    report, _ = days.go_on(changed)
    assert (report.state.changed, report.digest.rows) == (3, 2)
    assert rows_of(days.open().read()) == [("N1", "JFK", 2), ("N1", "SFO", 1)]


def test_entries_of_a_key_are_in_one_subtask(spark, store) -> None:
    chain = StateChain(store, ROUTES)
    keys = [(f"N{i}", route) for i in range(20) for route in ("JFK", "LAX")]
    rows = spark.createDataFrame([(*key, 1) for key in keys], ROUTES.schema)
    handle = KeyedState(StoredState(spark, chain.read(EPOCHS[0], WHOLE)))
    handle.upsert(rows)
    report = write_state(handle, "routes", chain.output(EPOCHS[0]), store)
    chain.go_on(EPOCHS[0], {WHOLE: report})
    halves = [
        rows_of(StoredState(spark, chain.read(EPOCHS[1], key_group_range(128, 2, half))).rows().select("tail", "route"))
        for half in (0, 1)
    ]
    assert all(halves)
    assert sorted(halves[0] + halves[1]) == sorted(keys)
    assert {tail for tail, _ in halves[0]}.isdisjoint(tail for tail, _ in halves[1])


def test_a_wrong_call_is_refused(epochs, spark) -> None:
    state, rows = epochs().open(), spark.sql("select 'N1' tail")

    def nothing(key, rows, routes):
        return None

    with pytest.raises(Misconfigured, check=of_kind("state.per_key_entries_unknown", entries="some")):
        state.per_key(rows, nothing, "tail STRING", entries="some")
    with pytest.raises(
        Misconfigured, check=of_kind("state.key_missing", keys=["tail", "route"], missing=["route"], types=["tail"])
    ):
        state.per_key(rows, nothing, "tail STRING", entries="rows")
    plain = epochs(keyed_state("plain", key="tail", schema="tail STRING")).open()
    with pytest.raises(Misconfigured, check=of_kind("state.per_key_entries_of_none", name="plain")):
        plain.per_key(rows, nothing, "tail STRING", entries="rows")
    with pytest.raises(Misconfigured, check=of_kind("state.column_missing", missing=["route"])):
        state.delete(rows)


STAGES = """
def flights(ctx):
    day = int(ctx.epoch[6:8])
    return ctx.spark.range(40).selectExpr(
        "concat('N', id % 8) tail", f"concat('R', (id * {day}) % 10) route"
    )

def routes(ctx, flights, routes):
    def count(key, rows, state):
        for row in rows:
            state.put(row["route"], state.get(row["route"], 0) + 1)
        return {"tail": key[0], "routes": len(state)}

    return routes.per_key(flights, count, "tail STRING, routes BIGINT", form="rows")
"""


def test_maps_go_on_over_runs_that_are_divided_in_two_and_in_three(server, store, pipeline, tmp_path) -> None:
    module = pipeline(STAGES)

    def flow(parallelism):
        kept = Stage("counted", f"{module}:routes", [blocking("flights", by="tail")], parallelism, state=KEPT)
        return Dataflow("flow", [source("flights", f"{module}:flights"), kept, sink("counted", "out")])

    ledger = new_ledger(tmp_path / "ledger.db")
    services = Services(ledger=ledger, store=store, now=lambda: airflow.time)
    airflow = AirflowWithCode(services, OnSpark(server.url, store), flow(2))
    for day, parallelism in ((1, 2), (2, 3), (3, 3)):
        airflow.flow = flow(parallelism)
        airflow.dag_run(day)
        airflow.run_until_quiet()
    assert set(airflow.states().values()) == {"success"}
    counts = Counter((f"N{i % 8}", f"R{i * day % 10}") for day in (1, 2, 3) for i in range(40))
    with weir.open("flow", state="routes", services=services) as state:
        rows = sorted(tuple(row.values()) for row in state.arrow().to_pylist())
        assert rows == sorted((*key, count) for key, count in counts.items())
        assert state.keys == ("tail", "route")
        for (tail, route), count in counts.items():
            assert state.get(tail, route) == {"tail": tail, "route": route, "flights": count}
        assert state.get("N1", "none") is None
        with pytest.raises(Misconfigured, check=of_kind("reading.key_incomplete", expected=2, given=1)):
            state.get("N1")
    ledger.close()
