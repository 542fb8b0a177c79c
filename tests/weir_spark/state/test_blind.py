"""Blind upserts: the rows are those of an exact twin, the digest is a chain, and what is looked up once is used."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.builders.state_chain import StateChain
from tests.messages.kinds import of_kind

from weir.dataflow.state import keyed_state
from weir.errors import Misconfigured
from weir.formats.manifest import RowRange, is_chain
from weir.formats.region_job import ReplacedState
from weir_spark.state.changes import incoming
from weir_spark.state.keyed_state import KeyedState
from weir_spark.state.reader import StoredState
from weir_spark.state.writer import state_digest, write_state

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


CHANGES = [([("a", 1), ("b", 1), ("c", 1)], ()), ([("b", 2), ("d", 2)], ("a", "never")), ([("a", 3)], ("d",))]
ROWS = [("a", 3), ("b", 2), ("c", 1)]


def third_day_again(spark, chain):
    """Compute three days, and let the third be computed again; returns the reports of the three."""
    first, second = (epoch(spark, chain, day, *CHANGES[at], blind=True) for at, day in enumerate(DAYS[:2]))
    before = chain.partitions, chain.digests
    third = epoch(spark, chain, DAYS[2], *CHANGES[2], blind=True)
    old = chain.read(DAYS[3])
    chain.replaced = {ALL: ReplacedState(digest=chain.digests[ALL], files=old.files, expired_until=None)}
    kept, (chain.partitions, chain.digests) = chain.partitions, before
    return first, second, third, kept


@pytest.mark.spark
def test_a_blind_epoch_has_a_chain_and_keeps_it_where_it_is_computed_again_to_equal_rows(spark, chain):
    first, second, third, kept = third_day_again(spark, chain)
    assert [is_chain(str(each.digest)) for each in (first, second, third)] == [False, True, True]
    assert sum(each.rows for each in first.state.tallies) == 3  # nothing was there to be looked for
    assert (second.state.tallies, second.state.changed, second.state.rows) == (None, 4, RowRange(2, 5))
    assert third.state.rows == RowRange(1, 6)
    again = written(spark, chain, DAYS[2], [("a", 3), ("b", 2)], ("d",), blind=True)
    assert again.digest == third.digest
    assert sum(each.rows for each in again.state.tallies) == 3
    chain.partitions = kept
    assert found(spark, chain, DAYS[3]) == ROWS


@pytest.mark.soak
@pytest.mark.spark
def test_other_rows_have_another_chain_and_an_exact_epoch_has_the_digest_of_its_exact_twin(spark, chain):
    third = third_day_again(spark, chain)[2]
    other = written(spark, chain, DAYS[2], [("a", 4)], ("d",), blind=True)
    assert is_chain(str(other.digest))
    assert other.digest != third.digest
    twin = StateChain(chain.store, replace(chain.state, name="twin"))
    exact = [epoch(spark, twin, day, *changes) for day, changes in zip(DAYS, CHANGES, strict=False)][-1]
    counted = written(spark, chain, DAYS[2], *CHANGES[2])
    assert (counted.digest, counted.state.tallies) == (third.digest, exact.state.tallies)
    chain.replaced = {}
    assert epoch(spark, chain, DAYS[2], *CHANGES[2]).digest == exact.digest


@pytest.mark.spark
def test_a_blind_upsert_is_refused_where_old_rows_are_needed(spark, store):
    rows = spark.createDataFrame([("a", 1)], SCHEMA)
    grows = opened(spark, StateChain(store, keyed_state("h", key="k", schema=SCHEMA, grows=True)), DAYS[0])
    with pytest.raises(Misconfigured, check=of_kind("state.blind_and_counted", counting=["grows=True"])):
        grows.upsert(rows, blind=True)
    plain = opened(spark, StateChain(store, keyed_state("h", key="k", schema=SCHEMA)), DAYS[0])
    with pytest.raises(
        Misconfigured, check=of_kind("state.blind_and_counted", counting=["expect_table_row_count_to_equal"])
    ):
        replace(plain, counted_by=("expect_table_row_count_to_equal",)).upsert(rows, blind=True)
    with pytest.raises(Misconfigured, check=of_kind("state.blind_and_compared")):
        plain.upsert(rows, blind=True, only_changed=True)
    with pytest.raises(Misconfigured, check=of_kind("state.per_key_and_blind")):
        plain.per_key(rows, lambda key, rows, state: None, "k STRING")


@pytest.mark.spark
def test_what_the_function_has_looked_up_is_not_looked_up_again(spark, chain):
    epoch(spark, chain, DAYS[0], [("a", 1), ("b", 1), ("c", 1)])
    epoch(spark, chain, DAYS[1], [("b", 2)], ("c",))
    rows = spark.createDataFrame([("a", 3), ("c", 3), ("d", 3)], SCHEMA)
    state = opened(spark, chain, DAYS[2])
    assert [tuple(row) for row in state.read(rows).collect()] == [("a", 1)]
    state.upsert(rows)
    state.delete(spark.createDataFrame([("a",)], "k STRING"))
    output = chain.output(DAYS[2])
    assert incoming(state, "h", output.layout).looked_up is not None
    report = write_state(state, "h", output, chain.store)
    chain.go_on(DAYS[2], {ALL: report})
    now = opened(spark, chain, DAYS[3]).stored
    assert (report.digest.rows, state_digest(now)) == (3, report.digest)
    state.delete(spark.createDataFrame([("b",)], "k STRING"))
    assert incoming(state, "h", output.layout).looked_up is None
