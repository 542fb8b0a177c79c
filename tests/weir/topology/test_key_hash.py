import json
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow.key_types import canonical_type
from weir.errors import Misconfigured
from weir.topology.key_hash import SEED, key_group, key_hash

VECTORS = json.loads((Path(__file__).parents[2] / "golden" / "key_hash.json").read_text(encoding="utf-8"))["vectors"]
READ = {
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamp_ntz": datetime.fromisoformat,
    "binary": bytes.fromhex,
}


def key(written):
    return [(t, READ.get(t, lambda v: v)(value) if value is not None else None) for t, value in written]


@pytest.mark.parametrize(
    "vector", VECTORS, ids=lambda vector: str(vector["key"])[:60].encode("ascii", "replace").decode()
)
def test_a_hash_is_that_of_spark(vector):
    assert key_hash(key(vector["key"])) == vector["hash"]


def test_there_are_vectors_of_each_type_that_can_be_a_key():
    tried = {canonical_type(t) for vector in VECTORS for t, value in vector["key"] if value is not None}
    assert tried == {"bigint", "boolean", "date", "timestamp", "timestamp_ntz", "binary", "string"}


@pytest.mark.parametrize("spark_type", ["tinyint", "smallint", "int", "bigint"])
def test_equal_integers_of_all_widths_have_one_hash(spark_type):
    assert key_hash([(spark_type, 1)]) == key_hash([("bigint", 1)])


def test_a_null_leaves_the_hash_as_it_is():
    assert key_hash([("string", None)]) == SEED
    assert key_hash([("bigint", None), ("string", "JFK")]) == key_hash([("string", "JFK"), ("date", None)])


def test_a_timestamp_is_a_moment_whatever_its_zone():
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    there = noon.astimezone(timezone(timedelta(hours=-5)))
    assert key_hash([("timestamp", noon)]) == key_hash([("timestamp", there)])


def test_a_timestamp_of_the_other_kind_is_refused():
    with pytest.raises(Misconfigured, check=of_kind("topology.timestamp_without_zone")):
        key_hash([("timestamp", datetime(2013, 1, 1))])  # noqa: DTZ001 - what is refused
    with pytest.raises(Misconfigured, check=of_kind("topology.timestamp_with_zone")):
        key_hash([("timestamp_ntz", datetime(2013, 1, 1, tzinfo=UTC))])


def test_a_key_group_is_never_negative():
    assert key_hash([("bigint", 0)]) < 0
    assert key_group([("bigint", 0)], 128) == key_hash([("bigint", 0)]) % 128 >= 0


@pytest.mark.parametrize(
    ("spark_type", "advice"),
    [
        ("float", "cast it to bigint or string"),
        ("double", "cast it to bigint or string"),
        ("decimal(10,2)", "cast it to string, or to bigint"),
        ("array<int>", "to_json"),
        ("map<string,int>", "its entries have no order"),
        ("struct<a:int>", "select them as columns"),
        ("variant", "cast it to string or bigint"),
        ("char(3)", "padded"),
        ("varchar(3)", "cast it to string"),
        ("string collate UTF8_LCASE", "cast it to plain string"),
        ("interval day to second", "cast it to string or bigint"),
        ("time(6)", "cast it to string or bigint"),
        ("void", "cast it"),
    ],
)
def test_a_type_that_is_no_good_as_a_key_is_refused_with_advice(spark_type, advice):
    with pytest.raises(Misconfigured) as raised:
        canonical_type(spark_type)
    assert f"a key column cannot be of type {spark_type}" in str(raised.value)
    assert advice in str(raised.value)
