"""Blind upserts: the rows are those of an exact twin, the digest is a chain, and what is looked up once is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weir.dataflow.state import keyed_state
from weir.errors import Misconfigured
from weir.formats.manifest import RowRange, is_chain
from weir.formats.region_job import ReplacedState
from weir.testing.fakes.state_chain import StateChain
from weir_spark.state.changes import incoming
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import write_state

SCHEMA = "k STRING, n BIGINT"
DAYS = tuple(f"2013010{day}T000000Z" for day in range(1, 8))
ALL = (0, 127)


@pytest.fixture
def chain(store):
    return StateChain(store, keyed_state("h", key="k", schema=SCHEMA))


def opened(spark, chain, day):
    return KeyedState(StoredState(spark, chain.read(day), ALL))


def written(spark, chain, day, rows, gone=(), **options):
    state = opened(spark, chain, day)
    state.upsert(spark.createDataFrame(rows, SCHEMA), **options)
    if gone:
        state.delete(spark.createDataFrame([(each,) for each in gone], "k STRING"))
    return write_state(state, "h", chain.output(day), chain.store)


def epoch(spark, chain, day, *changes, **options):
    report = written(spark, chain, day, *changes, **options)
    chain.go_on(day, {ALL: report})
    return report


def found(spark, chain, day):
    return sorted(tuple(row) for row in opened(spark, chain, day).read().collect())


@pytest.mark.spark
def test_a_blind_state_has_the_rows_of_its_exact_twin_and_an_epoch_computed_again_its_chain(spark, chain):
    twin = StateChain(chain.store, replace(chain.state, name="twin"))
    days = [([("a", 1), ("b", 1), ("c", 1)], ()), ([("b", 2), ("d", 2)], ("a", "never")), ([("a", 3)], ("d",))]
    blind = []
    for day, changes in zip(DAYS, days, strict=False):
        exact = epoch(spark, twin, day, *changes)
        if day == DAYS[2]:
            before = dict(chain.partitions), dict(chain.digests)
        blind.append(epoch(spark, chain, day, *changes, blind=True))
    assert found(spark, chain, DAYS[3]) == found(spark, twin, DAYS[3]) == [("a", 3), ("b", 2), ("c", 1)]
    first, second, third = blind
    assert first.state.tallies == (replace(first.state.tallies[0], rows=3),)  # nothing is there to be looked for
    assert [is_chain(str(each.digest)) for each in blind] == [False, True, True]
    assert (second.state.tallies, second.state.changed, second.state.rows) == (None, 4, RowRange(2, 5))
    assert third.state.rows == RowRange(1, 6)

    # The third epoch again, from the same state, by other changes that come to the same rows, and to others.
    old = chain.read(DAYS[3])
    chain.replaced = {ALL: ReplacedState(digest=chain.digests[ALL], files=old.files, expired_until=None)}
    chain.partitions, chain.digests = before
    again = written(spark, chain, DAYS[2], [("a", 3), ("b", 2)], ("d",), blind=True)
    assert again.digest == third.digest
    assert sum(each.rows for each in again.state.tallies) == 3
    other = written(spark, chain, DAYS[2], [("a", 4)], ("d",), blind=True)
    assert is_chain(str(other.digest))
    assert other.digest != third.digest
    counted = written(spark, chain, DAYS[2], [("a", 3)], ("d",))
    assert counted.digest == third.digest
    assert counted.state.tallies == exact.state.tallies

    chain.replaced = {}
    after = epoch(spark, chain, DAYS[2], [("a", 3)], ("d",))
    assert after.digest == exact.digest


@pytest.mark.spark
def test_a_blind_upsert_is_refused_where_old_rows_are_needed(spark, store):
    rows = spark.createDataFrame([("a", 1)], SCHEMA)
    grows = opened(spark, StateChain(store, keyed_state("h", key="k", schema=SCHEMA, grows=True)), DAYS[0])
    with pytest.raises(Misconfigured, match="which grows=True expects something of"):
        grows.upsert(rows, blind=True)
    plain = opened(spark, StateChain(store, keyed_state("h", key="k", schema=SCHEMA)), DAYS[0])
    with pytest.raises(Misconfigured, match="expect_table_row_count_to_equal expects"):
        replace(plain, counted_by=("expect_table_row_count_to_equal",)).upsert(rows, blind=True)
    with pytest.raises(Misconfigured, match="only_changed, or per_key, compares with them"):
        plain.upsert(rows, blind=True, only_changed=True)
    with pytest.raises(Misconfigured, match="per_key looks its keys up"):
        plain.per_key(rows, lambda key, rows, state: None, "k STRING")


@pytest.mark.spark
def test_what_the_function_has_looked_up_is_not_looked_up_again(spark, chain):
    twin = StateChain(chain.store, replace(chain.state, name="twin"))
    for each in (chain, twin):
        epoch(spark, each, DAYS[0], [("a", 1), ("b", 1), ("c", 1)])
        epoch(spark, each, DAYS[1], [("b", 2)], ("c",))
    rows = spark.createDataFrame([("a", 3), ("c", 3), ("d", 3)], SCHEMA)
    state = opened(spark, chain, DAYS[2])
    assert [tuple(row) for row in state.read(rows).collect()] == [("a", 1)]
    state.upsert(rows)
    state.delete(spark.createDataFrame([("a",)], "k STRING"))
    output = chain.output(DAYS[2])
    assert incoming(state, "h", output.layout).looked_up is not None
    assert (
        write_state(state, "h", output, chain.store).digest
        == epoch(spark, twin, DAYS[2], rows.collect()[1:], ("a",)).digest
    )
    state.delete(spark.createDataFrame([("b",)], "k STRING"))
    assert incoming(state, "h", output.layout).looked_up is None
