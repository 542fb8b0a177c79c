from __future__ import annotations

import json
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tests.messages.kinds import of_kind

from weir.errors import Internal, Misconfigured
from weir.formats.manifest import OF_RESULT
from weir.topology.partitions import KEY_GROUP_COLUMN
from weir_spark.results.digest import digest_of, is_same, observe, schema_fingerprint, to_digest

GOLDEN_VERSION, GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "digest.json").read_text()).values()

DIFFERENT = {
    "a null before and after a value": ("select 1 a, int(null) b", "select int(null) a, 1 b"),
    "values in other columns": ("select 1 a, 2 b", "select 2 a, 1 b"),
    "null and zero": ("select int(null) a", "select 0 a"),
    "null and the empty string": ("select string(null) a", "select '' a"),
    "strings cut elsewhere": ("select 'ab' a, 'c' b", "select 'a' a, 'bc' b"),
    "empty and null binary": ("select binary(null) a", "select binary('') a"),
    "a null element": ("select array(1, null) a", "select array(1) a"),
    "a null element at other places": ("select array(1, null) a", "select array(null, 1) a"),
    "empty and null array": ("select cast(array() as array<int>) a", "select cast(null as array<int>) a"),
    "an array of null and an empty one": ("select array(int(null)) a", "select cast(array() as array<int>) a"),
    "arrays cut elsewhere": ("select array(1, 2) a, array(3) b", "select array(1) a, array(2, 3) b"),
    "nested arrays cut elsewhere": ("select array(array(1), array(2)) a", "select array(array(1, 2)) a"),
    "a null struct and one of nulls": (
        "select cast(null as struct<x:int>) a",
        "select named_struct('x', int(null)) a",
    ),
    "nulls of a struct": ("select struct(1 x, int(null) y) a", "select struct(int(null) x, 1 y) a"),
    "a null in a struct in an array": (
        "select array(struct(1 x, int(null) y)) a",
        "select array(struct(int(null) x, 1 y)) a",
    ),
    "empty and null map": (
        "select cast(map() as map<int, int>) a",
        "select cast(null as map<int, int>) a",
    ),
    "swapped values of a map": ("select map(1, 'a', 2, 'b') a", "select map(1, 'b', 2, 'a') a"),
    "a null value in a map": ("select map(1, int(null)) a", "select map(1, 0) a"),
    "a map in a map": ("select map(1, map(2, 3)) a", "select map(1, map(3, 2)) a"),
    "decimals by value": ("select 1.10BD a", "select 1.11BD a"),
    "timestamps by microsecond": (
        "select timestamp'2013-01-01 00:00:00.000001' a",
        "select timestamp'2013-01-01 00:00:00.000002' a",
    ),
    "a row twice and four times": (
        "select 1 a union all select 1",
        "select 1 a union all select 1 union all select 1 union all select 1",
    ),
    "no row and a pair of equal rows": ("select 1 a where false", "select 1 a union all select 1"),
    "pairs of rows": (
        "select 1 a union all select 1 union all select 2 union all select 2",
        "select 3 a union all select 3 union all select 4 union all select 4",
    ),
    "letters of a collation that ignores case": (
        "select 'a' collate utf8_lcase a",
        "select 'A' collate utf8_lcase a",
    ),
    "types of equal values": ("select 1 a", "select 1L a"),
    "names": ("select 1 a", "select 1 A"),
    "nested names": ("select struct(1 x) a", "select struct(1 y) a"),
    "scales of decimals": ("select cast(1 as decimal(5, 1)) a", "select cast(1 as decimal(5, 2)) a"),
}

EQUAL = {
    "negative and positive zero": ("select -0.0D a", "select 0.0D a"),
    "negative and positive zero of floats": ("select float('-0.0') a", "select float('0.0') a"),
    "negative zero in nests": (
        "select array(struct(map('k', -0.0D) m)) a",
        "select array(struct(map('k', 0.0D) m)) a",
    ),
    "all NaNs": ("select double('NaN') a", "select sqrt(-1D) a"),
    "NaNs in arrays": ("select array(double('NaN')) a", "select array(-double('NaN')) a"),
    "maps in any order": ("select map(1, 'a', 2, 'b') a", "select map(2, 'b', 1, 'a') a"),
    "maps of structs in any order": (
        "select map(struct(1 x, 2 y), 'a', struct(1 x, 1 y), 'b') a",
        "select map(struct(1 x, 1 y), 'b', struct(1 x, 2 y), 'a') a",
    ),
    "decimals of one scale": (
        "select cast('1.1' as decimal(30, 3)) a",
        "select cast('1.100' as decimal(30, 3)) a",
    ),
    "one instant in two time zones": (
        "select timestamp'2013-01-01 00:00:00 America/New_York' a",
        "select timestamp'2013-01-01 05:00:00 UTC' a",
    ),
    "rows in any order": ("select * from values (1), (2), (3) t(a)", "select * from values (3), (1), (2) t(a)"),
    "whether a column may hold nulls": ("select 1 a", "select coalesce(int(null), 1) a"),
}


@pytest.mark.spark
@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_rows_that_differ_have_different_digests(spark: SparkSession, pair: tuple[str, str]) -> None:
    assert digest_of(spark.sql(pair[0])) != digest_of(spark.sql(pair[1]))


@pytest.mark.spark
@pytest.mark.parametrize("pair", EQUAL.values(), ids=EQUAL.keys())
def test_rows_that_are_equal_have_equal_digests(spark: SparkSession, pair: tuple[str, str]) -> None:
    assert digest_of(spark.sql(pair[0])) == digest_of(spark.sql(pair[1]))


@pytest.mark.spark
def test_values_are_the_same_exactly_if_their_digests_are(spark: SparkSession) -> None:
    pairs = [*((pair, False) for pair in DIFFERENT.values()), *((pair, True) for pair in EQUAL.values())]
    others = (" union ", " where ", " values ", " b", " A")  # several rows, columns or names
    alone = [each for each in pairs if not any(other in one for other in others for one in each[0])]
    sides = {f"{'xy'[i]}{number}": one for number, (pair, _) in enumerate(alone) for i, one in enumerate(pair)}
    rows = [spark.sql(one).toDF(name) for name, one in sides.items()]
    both = reduce(DataFrame.crossJoin, rows)
    types = {field.name: field.dataType for field in both.schema.fields}
    asked = [number for number in range(len(alone)) if types[f"x{number}"] == types[f"y{number}"]]
    found = both.select(*[is_same(f"x{number}", f"y{number}", types[f"x{number}"]) for number in asked]).collect()[0]
    assert list(found) == [alone[number][1] for number in asked]
    assert len(asked) > 20


@pytest.mark.spark
@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["name"])
def test_a_digest_never_changes_without_another_version(spark: SparkSession, vector: dict[str, str]) -> None:
    assert str(digest_of(spark.sql(vector["query"]), version=GOLDEN_VERSION)) == vector["digest"]


@pytest.mark.spark
@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["name"])
def test_the_second_version_is_the_first_of_the_rows_without_key_groups(spark: SparkSession, vector) -> None:
    stored = spark.sql(vector["query"])
    first = digest_of(stored.drop(KEY_GROUP_COLUMN))
    assert str(digest_of(stored, version=OF_RESULT)) == f"v2:{first}"
    assert (str(first) == vector["digest"]) is (KEY_GROUP_COLUMN not in stored.columns)


@pytest.mark.spark
def test_partitions_and_their_order_do_not_matter(spark: SparkSession) -> None:
    rows = spark.range(1000).select("id", (F.col("id") % 7).cast("string").alias("text"))
    shuffled = rows.repartition(5, "text").sortWithinPartitions(F.desc("id"))
    assert digest_of(shuffled) == digest_of(rows)


@pytest.mark.spark
@pytest.mark.parametrize("query", [GOLDEN[0]["query"], "select 1 a where false"])
def test_what_is_observed_in_the_pass_of_a_write_equals_what_is_read_afterwards(
    spark: SparkSession, tmp_path: Path, query: str
) -> None:
    rows = spark.sql(query)
    seen = observe(rows)
    seen.rows.write.parquet(f"file://{tmp_path}/out")
    read = spark.read.schema(rows.schema).parquet(f"file://{tmp_path}/out")
    assert to_digest(rows.schema, seen.measures(seen.rows)) == digest_of(read)


@pytest.mark.soak
@pytest.mark.spark
def test_the_null_of_each_of_many_columns_counts(spark: SparkSession) -> None:
    def digest_with_null_at(place: int) -> str:
        values = ", ".join(f"{'int(null)' if each == place else 1} c{each}" for each in range(130))
        return str(digest_of(spark.sql(f"select {values}, struct({values}) nested")))

    assert len({digest_with_null_at(place) for place in (-1, 0, 62, 63, 64, 126, 129)}) == 7


@pytest.mark.spark
def test_types_may_be_nested_deeply(spark: SparkSession) -> None:
    def nested(leaf: str) -> str:
        for level in range(4):
            leaf = f"array(struct(map('k', {leaf}) m{level}, 1 n))"
        return f"select {leaf} a"

    assert digest_of(spark.sql(nested("1"))) != digest_of(spark.sql(nested("int(null)")))


@pytest.mark.spark
def test_a_field_is_not_mistaken_for_a_column_of_rows_that_have_the_name_of_its_struct(spark: SparkSession) -> None:
    query = "select struct({} b) a, 5 b"
    one, two = (spark.sql(query.format(value)).alias("a") for value in (1, 2))
    assert digest_of(one) != digest_of(two)


@pytest.mark.spark
def test_columns_may_have_dots_and_backticks_in_their_names(spark: SparkSession) -> None:
    assert digest_of(spark.sql("select 1 `a.b`, 2 `c``d`, struct(3 `e.f`) `g`")).rows == 1


@pytest.mark.spark
@pytest.mark.parametrize(
    ("query", "column"),
    [
        ("select parse_json('1') v", of_kind("results.type_without_digest")),
        ("select interval 1 day d", of_kind("results.type_without_digest")),
        ("select array(struct(interval 1 month m)) a", of_kind("results.type_without_digest")),
        ("select map(1, parse_json('1')) m", of_kind("results.type_without_digest")),
        ("select null n", of_kind("results.type_without_digest", type="void", where="column n")),
    ],
)
def test_a_type_without_a_canonical_value_is_refused_by_the_name_of_its_column(
    spark: SparkSession, query: str, column: str
) -> None:
    with pytest.raises(Misconfigured, check=column):
        digest_of(spark.sql(query))


@pytest.mark.spark
def test_the_schema_counts_names_types_and_their_order_but_not_nullability(spark: SparkSession) -> None:
    fingerprints = [
        schema_fingerprint(spark.sql(query).schema)
        for query in ("select 1 a, 'x' b", "select 'x' b, 1 a", "select 1 a, 'x' B", "select 1L a, 'x' b")
    ]
    assert len(set(fingerprints)) == len(fingerprints)
    assert schema_fingerprint(spark.sql("select if(true, 1, null) a, 'x' b").schema) == fingerprints[0]


@pytest.mark.spark
def test_a_digest_that_spark_did_not_observe_is_an_error_and_not_an_empty_result(spark: SparkSession) -> None:
    with pytest.raises(Internal, check=of_kind("results.digest_not_observed")):
        to_digest(spark.sql("select 1 a").schema, {})
