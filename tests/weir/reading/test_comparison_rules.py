"""What two results have in common: columns in any order and case, keys of declarations, and what digests prove."""

import pytest
from tests.messages.kinds import of_kind
from tests.weir.small_dataflow import ladder

from weir.dataflow import Dataflow, Stage, blocking, broadcast_state, keyed_state, pipelined, sink, source
from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.errors import Misconfigured
from weir.formats.manifest import OF_CHAIN, OF_RESULT, OF_STORED_ROWS, ContentDigest
from weir.reading.comparison_rules import (
    OtherType,
    are_equal,
    column_difference,
    columns_in_common,
    declared_keys,
    named_key,
    rows_of_digests,
    rule_of_both,
    usable_keys,
)
from weir.topology.regions import Topology

A = {"id": "long", "zone": "string", "Fare": "double", "old": "date"}
B = {"zone": "string", "fare": "double", "id": "integer", "new": "date"}


def test_columns_differ_by_name_type_and_spelling_and_not_by_order():
    found = column_difference(A, B)
    assert (found.only_in_a, found.only_in_b) == ({"old": "date"}, {"new": "date"})
    assert (found.types, found.spelling) == ((OtherType("id", "long", "integer"),), {"Fare": "fare"})
    assert not found.is_none
    assert column_difference(A, dict(reversed(A.items()))).is_none


@pytest.mark.parametrize(
    "other",
    [
        {**A, "new": "date"},
        {name: A[name] for name in ("id", "zone", "Fare")},
        {**A, "id": "integer"},
        {("fare" if name == "Fare" else name): kind for name, kind in A.items()},
    ],
)
def test_each_difference_of_columns_is_one(other):
    assert not column_difference(A, other).is_none


def test_values_are_compared_of_columns_of_one_type_that_no_rule_ignores():
    assert columns_in_common(A, B, PLAIN_RULE) == {"zone": "zone", "Fare": "fare"}
    assert columns_in_common(A, B, DigestRule({}, ("Fare",))) == {"zone": "zone"}
    assert columns_in_common({"a": "long"}, {"b": "long"}, PLAIN_RULE) == {}


def test_a_rule_counts_if_both_results_have_it():
    rule = DigestRule({"fare": 2}, ())
    assert rule_of_both(rule, DigestRule({"fare": 2}, ())) == rule
    assert rule_of_both(rule, PLAIN_RULE) == PLAIN_RULE


def test_keys_are_those_of_a_state_of_inputs_and_of_readers():
    """Those of `by_zone` are of its input, of its state as an input, and of its reader."""
    trips = source("trips", "pipelines.ladder:trips")
    states = [
        keyed_state("history", key=["zone", "day"], schema="zone STRING, day DATE, n BIGINT"),
        broadcast_state("rates", schema="zone STRING, rate DOUBLE"),
    ]
    by_zone = Stage("by_zone", "pipelines.ladder:by_zone", [blocking(trips, by=["zone", "day"])], state=states)
    report = Stage("report", "pipelines.ladder:report", [blocking(by_zone, by="day")])
    plain = Stage("plain", "pipelines.ladder:plain", [pipelined(report)])
    topology = Topology(
        Dataflow("trips", [trips, by_zone, report, plain, sink(by_zone, "zones"), sink(plain, "plains")])
    )
    found = {name: list(declared_keys(topology, name)) for name in ("history", "rates", "trips", "by_zone", "zones")}
    assert found == {
        "history": [("zone", "day")],
        "rates": [],
        "trips": [("zone", "day")],
        "by_zone": [("zone", "day"), ("zone", "day"), ("day",)],
        "zones": [("zone", "day"), ("zone", "day"), ("day",)],
    }
    assert list(declared_keys(topology, "plains")) == []


def test_every_stage_that_is_written_has_keys_of_its_columns_or_none():
    topology = Topology(ladder())
    assert [list(declared_keys(topology, name)) for name in ("joined", "report", "delays")] == [[("k",)] * 3, [], []]


def test_declared_keys_are_used_as_they_are_spelled_if_their_columns_are_compared():
    assert usable_keys([("ZONE",), ("day",), ("zone", "id"), ("zone",)], ["zone", "id"]) == (("zone",), ("zone", "id"))
    assert usable_keys([], ["zone"]) == ()


def test_a_named_key_has_columns_that_are_compared():
    assert named_key("zones", ("Zone", "id"), ["id", "zone"]) == (("zone", "id"),)
    with pytest.raises(Misconfigured, check=of_kind("reading.key_not_in_common")) as refused:
        named_key("zones", ("zone", "day"), ["id", "zone"])
    assert "'day'" in str(refused.value)
    assert "id, zone" in str(refused.value)


def test_a_chain_counts_no_rows():
    assert rows_of_digests(PARTS) == 4
    assert rows_of_digests([*PARTS, digest(version=OF_CHAIN)]) is None


def digest(rows=4, xor=7, *, version=OF_RESULT, schema="s", rule=""):
    return ContentDigest(schema=schema, rows=rows, xor=xor, low_sum=xor, high_sum=xor, version=version, rule=rule)


PARTS = [digest(1, 3), digest(2, 4), digest(1, 9)]
WHOLE = digest(4, 3 ^ 4 ^ 9)
SUMMED = ContentDigest(schema="s", rows=4, xor=3 ^ 4 ^ 9, low_sum=16, high_sum=16, version=OF_RESULT)


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (PARTS, [SUMMED], True),
        (PARTS, PARTS[::-1], True),
        (PARTS, [WHOLE], False),
        ([digest()], [digest(xor=8)], False),
        ([digest()], [digest(schema="t")], None),
        ([digest()], [digest(rule="r")], None),
        ([digest(rule="r")], [digest(rule="r")], True),
        ([digest()], [digest(rows=5, rule="r")], False),
        ([digest(version=OF_STORED_ROWS)], [digest(version=OF_STORED_ROWS)], True),
        ([digest(version=OF_STORED_ROWS)], [digest(xor=8, version=OF_STORED_ROWS)], None),
        ([digest(version=OF_STORED_ROWS)], [digest(rows=5, version=OF_STORED_ROWS)], False),
        ([digest(version=OF_CHAIN)], [digest(version=OF_CHAIN)], True),
        ([digest(version=OF_CHAIN)], [digest(rows=5, version=OF_CHAIN)], None),
        ([digest(version=OF_CHAIN)] * 2, [digest(version=OF_CHAIN)] * 2, True),
    ],
)
def test_digests_prove_what_they_can(a, b, equal):
    assert are_equal(a, b) is equal
    assert are_equal(b, a) is equal
