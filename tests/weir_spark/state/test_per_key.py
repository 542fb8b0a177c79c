"""Keyed state key by key, on Spark: over epochs it is what a plain dictionary would be."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from tests.builders.state_chain import StateChain
from tests.messages.kinds import of_kind

from weir.dataflow.state import keyed_state
from weir.errors import Misconfigured
from weir.execution.failure_class import FailureClass, classify
from weir.formats.region_job import InputToRead
from weir.topology.partitions import Layout
from weir_spark.region import region
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import write_state

pytestmark = pytest.mark.spark

EPOCHS = [f"2013010{day}T000000Z" for day in range(1, 8)]
WHOLE = (0, 127)


@pytest.fixture
def chain(store):
    return lambda state: StateChain(store, state)


@pytest.fixture
def open_state(spark):
    """The handle of a state in an epoch."""
    return lambda chain, epoch: KeyedState(StoredState(spark, chain.read(epoch, WHOLE)))


@pytest.fixture
def go_on(store):
    """Write what was done in an epoch."""

    def write(chain, epoch, state):
        report = write_state(state, chain.state.name, chain.output(epoch), store)
        chain.go_on(epoch, {WHOLE: report})
        return report

    return write


def rows_of(df):
    return sorted((tuple(row) for row in df.collect()), key=repr)


HISTORY = keyed_state(
    "history",
    key=["tail", "year"],
    schema="tail STRING, year INT, flights BIGINT, last TIMESTAMP, cost DECIMAL(10,2), routes MAP<STRING, INT>, "
    "seen ARRAY<STRUCT<at: DATE, late: DOUBLE>>",
    ttl="2 days",
)
FLIGHTS = "tail STRING, year INT, route STRING, at TIMESTAMP, late DOUBLE"


def history():
    """All kinds of handles; a flight without a route makes its aircraft be forgotten."""

    def called(key, rows, state):
        flights = rows if isinstance(rows, list) else rows.to_pylist()
        if any(each["route"] is None for each in flights):
            state.clear()
            return
        for each in flights:
            state.reducing("flights", lambda one, other: one + other).add(1)
            state.map("routes").put(each["route"], state.map("routes").get(each["route"], 0) + 1)
            state.list("seen").append({"at": each["at"].date(), "late": each["late"]})
        last = max(each["at"] for each in flights)
        state.value("last").set(max(last, state.value("last").get(last)))
        state.value("cost").set(state.value("cost").get(Decimal(0)) + Decimal("1.25") * len(flights))
        yield key[0], state.value("flights").get(), len(state.map("routes")), state.value("cost").get()

    return called


def flights_of(rng, day):
    tails, routes = [None, "N1", "N2", "N3", "N4"], ["JFK-LAX", "JFK-SFO", "JFK-LAX", None]
    at = datetime(2013, 1, day, tzinfo=UTC)
    return [
        (
            rng.choice(tails),
            rng.choice([2012, None]),
            rng.choice(routes),
            at + timedelta(seconds=rng.random() * 80000),
            1.5,
        )
        for _ in range(8)
    ]


def modelled(model, flights, day):
    """What a dictionary comes to: by key the day of the last update and the row; answers the results."""
    results = []
    for key in {flight[:2] for flight in flights}:
        mine = sorted((flight for flight in flights if flight[:2] == key), key=lambda flight: flight[3])
        if any(flight[2] is None for flight in mine):
            model.pop(key, None)
            continue
        known = model.get(key)
        row = known[1] if known and day - known[0] < 2 else (0, mine[0][3], Decimal(0), {}, [])
        routes = dict(row[3])
        for flight in mine:
            routes[flight[2]] = routes.get(flight[2], 0) + 1
        seen = [*row[4], *((flight[3].date(), flight[4]) for flight in mine)]
        last = max(row[1], *(flight[3] for flight in mine))
        cost = row[2] + Decimal("1.25") * len(mine)
        model[key] = (day, (row[0] + len(mine), last, cost, routes, seen))
        results.append((key[0], row[0] + len(mine), len(routes), cost))
    return results


@pytest.mark.soak
def test_over_epochs_a_state_is_what_a_dictionary_would_be(chain, open_state, go_on, spark) -> None:
    rng, kept, model = random.Random(3), chain(HISTORY), {}
    for day, form in enumerate(["rows", "arrow", "rows"], 1):
        flights = flights_of(rng, day)
        state = open_state(kept, EPOCHS[day - 1])
        done = state.per_key(
            spark.createDataFrame(flights, FLIGHTS),
            history(),
            "tail STRING, flights BIGINT, routes INT, cost DECIMAL(10,2)",
            order_by="at",
            form=form,
        )
        assert rows_of(done) == sorted(modelled(model, flights, day), key=repr)
        go_on(kept, EPOCHS[day - 1], state)
        found = open_state(kept, EPOCHS[day]).read().select("*", "flights").collect()
        visible = {key: row for key, (updated, row) in model.items() if day + 1 - updated < 2}
        assert {(row["tail"], row["year"]): _plain(row) for row in found} == visible
        assert len(found) == len(visible)


def _plain(row):
    seen = [(each["at"], each["late"]) for each in row["seen"]]
    last = row["last"].replace(tzinfo=UTC)
    return row["flights"], last, row["cost"], row["routes"], seen


COUNTS = keyed_state("counts", key="k", schema="k BIGINT, n BIGINT")


def test_results_and_changes_come_out_of_one_call(chain, open_state, go_on, spark) -> None:
    def guess(key, rows, state):
        import secrets

        state.set(n=secrets.randbits(60))
        return {"k": key[0], "n": state.value("n").get()}

    kept = chain(COUNTS)
    state = open_state(kept, EPOCHS[0])
    done = state.per_key(spark.sql("select id % 50 k, rand() x from range(200)"), guess, COUNTS.schema)
    report = go_on(kept, EPOCHS[0], state)
    assert report.digest.rows == 50
    assert rows_of(open_state(kept, EPOCHS[1]).read()) == rows_of(done)


def test_what_is_as_it_was_is_not_written_and_other_keys_stay(chain, open_state, go_on, spark) -> None:
    def set_to(key, rows, state):
        state.set(n=int(rows["n"].iloc[0]))

    kept = chain(COUNTS)
    first = open_state(kept, EPOCHS[0])
    first.upsert(spark.sql("select id k, id n from range(5)"))
    before = go_on(kept, EPOCHS[0], first)
    again = open_state(kept, EPOCHS[1])
    # The key is an INT here: it is the same key.
    assert again.per_key(spark.sql("select 3 k, 3 n"), set_to, "k BIGINT").count() == 0
    report = go_on(kept, EPOCHS[1], again)
    assert (report.state.changed, report.digest) == (0, before.digest)
    other = open_state(kept, EPOCHS[2])
    other.per_key(spark.sql("select int(id) k, 9 n from range(3, 7)"), set_to, "k BIGINT")
    assert go_on(kept, EPOCHS[2], other).state.changed == 4
    assert rows_of(open_state(kept, EPOCHS[3]).read()) == [(0, 0), (1, 1), (2, 2), (3, 9), (4, 9), (5, 9), (6, 9)]


def test_whole_numbers_beside_nulls_go_through_a_function_of_pandas_as_they_were(
    chain, open_state, go_on, spark
) -> None:
    def last(key, rows, state):
        state.set(n=rows["n"].iloc[-1])
        return rows

    def cut(key, rows, state):
        state.set(n=1.5)

    kept = chain(COUNTS)
    rows = spark.sql(
        "select * from values (1, 9007199254740993L), (1, null), (2, null), (2, -9007199254740993L) r(k, n)"
    )
    with pytest.raises(Misconfigured, check=of_kind("state.per_key_value_unfit")):
        open_state(kept, EPOCHS[0]).per_key(rows, cut, COUNTS.schema)
    state = open_state(kept, EPOCHS[0])
    done = state.per_key(rows, last, COUNTS.schema, order_by="n")
    assert rows_of(done) == rows_of(rows)
    go_on(kept, EPOCHS[0], state)
    assert rows_of(open_state(kept, EPOCHS[1]).read()) == [(1, 2**53 + 1), (2, -(2**53) - 1)]


def test_a_state_may_have_nothing_but_keys_and_an_input_no_rows(chain, open_state, go_on, spark) -> None:
    def first_time(key, rows, state):
        if not state.exists:
            state.set()
            return key
        return None

    kept = chain(keyed_state("known", key="k", schema="k STRING"))
    found = []
    for epoch, words in zip(EPOCHS, ["a b", "b c", ""], strict=False):
        state = open_state(kept, epoch)
        rows = spark.createDataFrame([(word,) for word in words.split()], "k STRING")
        found.append(rows_of(state.per_key(rows, first_time, "k STRING", form="arrow")))
        go_on(kept, epoch, state)
    assert found == [[("a",), ("b",)], [("c",)], []]


PIPELINE = """
from weir.errors import SuppressRestarts

def flights(ctx):
    return ctx.spark.sql("select id % 3 k, id m from range(9)")

def counted(ctx, flights, counts):
    return counts.per_key(flights, count, "k BIGINT, n BIGINT")

def count(key, rows, state):
    state.reducing("n", _sum).add(len(rows))
    return key[0], state.value("n").get()

def _sum(one, other):
    return one + other

def hopeless(ctx, flights, counts):
    return counts.per_key(flights, give_up, "k BIGINT, n BIGINT")

def give_up(key, rows, state):
    raise SuppressRestarts("never")
"""


@pytest.fixture
def run(spark, store, jobs, pipeline, chain):
    """Run a region whose stage keeps the counts."""
    module = pipeline(PIPELINE)
    kept = chain(COUNTS)
    layout = Layout(("k",), 128)

    def do(function):
        written = region.run(
            jobs.region(jobs.stage("flights", f"{module}:flights", jobs.output("flights", layout))),
            spark,
            store,
            lambda line: None,
        )
        state = InputToRead(
            argument="counts",
            layout=layout,
            spark_schema="",
            partitions=(),
            key_groups=WHOLE,
            declared_schema=COUNTS.schema,
            state=kept.read(EPOCHS[0], WHOLE),
        )
        flights = jobs.read("flights", *written.outputs, key_groups=WHOLE)
        keeper = jobs.stage("counted", f"{module}:{function}", jobs.output("counted"), inputs=(flights, state))
        of = jobs.stage(
            "counts",
            "",
            kept.output(EPOCHS[0]),
            pipelined={"counted": "counted"},
            keeps_state_of="counted",
        )
        return region.run(jobs.region(keeper, of), spark, store, lambda line: None)

    return do


def test_a_function_of_the_pipelines_own_module_reaches_the_workers(run) -> None:
    report = run("counted")
    assert [(each.stage, each.digest.rows) for each in report.outputs] == [("counted", 3), ("counts", 3)]


def test_what_a_function_raises_fails_the_stage_as_it_would_elsewhere(run) -> None:
    with pytest.raises(Exception, match=r"(?s)SuppressRestarts: never.*in per_key, for the key \(") as raised:
        run("hopeless")
    assert classify(raised.value) is FailureClass.FATAL


def test_a_wrong_call_is_refused_before_anything_is_computed(chain, open_state, spark) -> None:
    state, rows = open_state(chain(COUNTS), EPOCHS[0]), spark.sql("select 1L k")

    def nothing(key, rows, state):
        return None

    with pytest.raises(
        Misconfigured, check=of_kind("state.per_key_form_unknown", form="polars", forms=["pandas", "arrow", "rows"])
    ):
        state.per_key(rows, nothing, "k BIGINT", form="polars")
    with pytest.raises(
        Misconfigured, check=of_kind("state.key_missing", keys=["k"], missing=["k"], types=["key"], what="per_key")
    ):
        state.per_key(spark.sql("select 1L key"), nothing, "k BIGINT")
    with pytest.raises(Misconfigured, check=of_kind("state.per_key_column_missing", column="at", types=["k"])):
        state.per_key(rows, nothing, "k BIGINT", order_by="at")
    with pytest.raises(
        Misconfigured, check=of_kind("dataflow.key_cast_missing", declared="bigint", found="string", key="k")
    ):
        state.per_key(spark.sql("select '1' k"), nothing, "k BIGINT")
    with pytest.raises(Misconfigured, check=of_kind("state.per_key_schema_malformed")):
        state.per_key(rows, nothing, "k BIGINT BIGINT")
    with pytest.raises(Misconfigured, check=of_kind("state.per_key_column_twice", columns=["k", "k"])):
        state.per_key(spark.sql("select 1L k, 2L k"), nothing, "k BIGINT")
    state.per_key(rows, nothing, "k BIGINT")
    with pytest.raises(Misconfigured, check=of_kind("state.per_key_twice")):
        state.per_key(rows, nothing, "k BIGINT")
