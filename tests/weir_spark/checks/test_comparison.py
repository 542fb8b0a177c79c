"""Two results are compared row by row: what a plain comparison of their rows says, by a key or without one."""

from __future__ import annotations

import math
import random
import uuid
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.dataflow.state_schema import fields_of_ddl, spark_json
from weir.formats.programs import ComparisonToMake, RepeatedKey, RowsToCompare
from weir.reading.comparison_rules import columns_in_common
from weir.state.spark_schema import arrow_schema, column_types
from weir_spark.checks.comparison import compare

pytestmark = pytest.mark.spark

TRIPS = "id BIGINT, zone STRING, distance DOUBLE"
DAY = [(1, "north", 2.5), (2, "north", 4.0), (3, "south", 1.25)]


@pytest.fixture
def compared(spark, tmp_path):
    """Write rows into as many files as asked, and compare them: what was counted, and the first differing rows."""

    def stored(rows, schema, files=1):
        folder = tmp_path / uuid.uuid4().hex
        if not isinstance(rows, list):
            rows.write.parquet(str(folder))
            return rows.schema.json(), tuple(map(str, folder.glob("*.parquet")))
        folder.mkdir()
        spark_schema = spark_json(fields_of_ddl(schema))
        columns = arrow_schema(spark_schema)
        for number in range(files):
            own = [dict(zip(columns.names, row, strict=True)) for row in rows[number::files]]
            pq.write_table(pa.Table.from_pylist(own, columns), folder / f"part-{number}.parquet")
        return spark_schema, tuple(map(str, folder.iterdir()))

    def compare_them(a, b, schema=TRIPS, *, other=None, keys=(), named=False, rule=PLAIN_RULE, files=(1, 1), shown=9):
        (schema_a, files_a), (schema_b, files_b) = stored(a, schema, files[0]), stored(b, other or schema, files[1])
        types_a, types_b = column_types(schema_a), column_types(schema_b)
        columns = columns_in_common(types_a, types_b, rule)
        asked = ComparisonToMake(
            a=RowsToCompare(files=files_a, spark_schema=schema_a, columns=tuple(columns)),
            b=RowsToCompare(files=files_b, spark_schema=schema_b, columns=tuple(columns.values())),
            keys=tuple((each,) if isinstance(each, str) else each for each in keys),
            is_key_named=named,
            rule=rule,
            shown=shown,
        )
        counts, differing = compare(spark, asked)
        return counts, differing.to_pylist()

    return compare_them


def counted(found):
    return found.rows_a, found.rows_b, found.only_a, found.only_b, found.changed


def pairs(rows):
    """The rows of both results that are shown, as values."""
    return [tuple(None if row[side] is None else tuple(row[side].values()) for side in "ab") for row in rows]


def test_equal_rows_in_other_files_and_another_order_are_equal(compared):
    found, rows = compared(DAY, DAY[::-1], keys=["id"], files=(1, 3))
    assert (found.key, counted(found), rows) == (("id",), (3, 3, 0, 0, 0), [])
    assert found.columns == {"zone": 0, "distance": 0}


def test_added_removed_and_changed_rows_are_told_apart_by_the_key(compared):
    other = [(2, "north", 4.5), (3, "south", 1.25), (4, "west", 1.0)]
    found, rows = compared(DAY, other, keys=["id"])
    assert (counted(found), found.columns) == ((3, 3, 1, 1, 1), {"zone": 0, "distance": 1})
    assert pairs(rows) == [(DAY[0], None), (DAY[1], other[0]), (None, other[2])]
    assert [row["columns"] for row in rows] == [[], ["distance"], []]


def test_without_a_key_rows_count_as_often_as_they_are_there(compared):
    found, rows = compared([DAY[0]] * 3 + DAY[1:], [DAY[0], DAY[1], *[(9, None, None)] * 2])
    assert (found.key, counted(found)) == (None, (5, 4, 3, 2, 0))
    assert pairs(rows) == [(DAY[0], None), (DAY[2], None), (None, (9, None, None))]
    assert [(row["rows_a"], row["rows_b"]) for row in rows] == [(2, 0), (1, 0), (0, 2)]


def test_the_first_unique_key_is_taken_and_the_others_are_told(compared):
    found, _ = compared(DAY, [*DAY, (4, "south", 9.0)], keys=["zone", "id"])
    assert (found.key, found.repeated) == (("id",), (RepeatedKey(("zone",), 1, 2),))
    assert counted(found) == (3, 4, 0, 1, 0)


def test_where_no_key_is_unique_there_is_none(compared):
    found, rows = compared(DAY, DAY[1:], keys=["zone"])
    assert (found.key, found.repeated) == (None, (RepeatedKey(("zone",), 1, 0),))
    assert (counted(found), pairs(rows)) == ((3, 2, 1, 0, 0), [(DAY[0], None)])


def test_a_named_key_that_is_not_unique_is_used_and_its_repeated_rows_are_no_changes(compared):
    other = [(1, "north", 2.5), (2, "north", 9.0), (7, "south", 1.25)]
    found, rows = compared(DAY, other, keys=["zone"], named=True)
    assert (found.key, found.repeated) == (("zone",), (RepeatedKey(("zone",), 1, 1),))
    assert (counted(found), found.columns) == ((3, 3, 1, 1, 1), {"id": 1, "distance": 0})
    assert pairs(rows) == [(DAY[1], other[1]), (DAY[2], other[2])]
    assert [row["columns"] for row in rows] == [[], ["id"]]


def test_a_key_that_all_rows_have_in_common_costs_no_join(compared, spark):
    many = spark.range(30_000).selectExpr("id", "'all' zone", "0D distance")
    found, _ = compared(many, many.where("id > 9"), keys=["zone"], named=True, shown=1)
    assert counted(found) == (30_000, 29_990, 10, 0, 0)


def test_nulls_and_nans_equal_themselves_and_not_each_other(compared):
    nothing = [(None, None, None), (1, None, math.nan), (2, "", 0.0)]
    found, rows = compared(nothing, nothing, keys=["id"])
    assert (counted(found), rows) == ((3, 3, 0, 0, 0), [])
    other = [(None, None, math.nan), (1, "", None), (2, "", -0.0)]
    found, rows = compared(nothing, other, keys=["id"])
    assert (counted(found), found.columns) == ((3, 3, 0, 0, 2), {"zone": 1, "distance": 2})


NESTED = (
    "id BIGINT, of STRUCT<x: INT, y: ARRAY<STRING>>, named MAP<STRING, INT>, bytes BINARY, exact DECIMAL(20,4), "
    "day DATE, at TIMESTAMP, there TIMESTAMP_NTZ, flag BOOLEAN, single FLOAT, tiny TINYINT"
)


VALUES = {
    "of": "named_struct('x', 1, 'y', array('a', null))",
    "named": "map('a', 1, 'b', null)",
    "bytes": "X'00FF'",
    "exact": "1.5000",
    "day": "DATE'2013-01-01'",
    "at": "TIMESTAMP'2013-01-01 12:00:00.000001'",
    "there": "TIMESTAMP_NTZ'2013-01-01 12:00:00'",
    "flag": "true",
    "single": "0.1",
    "tiny": "7",
}
NULLS = "named_struct('x', CAST(null AS INT), 'y', CAST(null AS ARRAY<STRING>))"
OTHERS = [
    ("of", "named_struct('x', 1, 'y', array('a'))"),
    ("of", NULLS),
    ("named", "map('a', 1, 'b', 2)"),
    ("bytes", "X'00FE'"),
    ("exact", "1.5001"),
    ("day", "DATE'2013-01-02'"),
    ("at", "TIMESTAMP'2013-01-01 12:00:00.000002'"),
    ("there", "TIMESTAMP_NTZ'2013-01-01 12:00:01'"),
    ("flag", "false"),
    ("single", "0.2"),
    ("tiny", "CAST(null AS TINYINT)"),
]


def nested(spark, *rows):
    """A row for each of these other values, by their column."""
    texts = [
        f"SELECT {number} AS id, " + ", ".join(f"{value} AS {name}" for name, value in (VALUES | row).items())
        for number, row in enumerate(rows)
    ]
    return spark.sql(" UNION ALL ".join(texts)).to(spark.createDataFrame([], NESTED).schema).coalesce(1)


def test_values_of_every_type_are_compared(compared, spark):
    changed = nested(spark, *({column: value} for column, value in OTHERS))
    found, rows = compared(nested(spark, *[{}] * len(OTHERS)), changed, keys=["id"], shown=20)
    assert counted(found) == (11, 11, 0, 0, 11)
    assert [row["columns"] for row in rows] == [[column] for column, _ in OTHERS]
    assert found.columns == Counter(column for column, _ in OTHERS)


def test_a_null_struct_is_no_struct_of_nulls(compared, spark):
    null = "CAST(null AS STRUCT<x: INT, y: ARRAY<STRING>>)"
    found, _ = compared(nested(spark, {"of": null}), nested(spark, {"of": NULLS}))
    assert counted(found) == (1, 1, 1, 1, 0)


@pytest.mark.parametrize("key", [("id",), ("named", "of", "bytes")])
def test_maps_are_equal_in_any_order_also_in_a_key(compared, spark, key):
    turned = nested(spark, {"named": "map('b', null, 'a', 1)"})
    found, rows = compared(nested(spark, {}), turned, keys=[key])
    assert (found.key, counted(found), rows) == (key, (1, 1, 0, 0, 0), [])


def test_columns_are_compared_by_name_whatever_their_order_and_what_only_one_has_is_left_out(compared):
    turned = [(distance, id_, zone, "more") for id_, zone, distance in DAY]
    found, rows = compared(DAY, turned[:2], other="distance DOUBLE, id BIGINT, zone STRING, more STRING", keys=["id"])
    assert counted(found) == (3, 2, 1, 0, 0)
    assert [row["a"] for row in rows] == [{"id": 3, "zone": "south", "distance": 1.25}]


def test_columns_are_compared_in_any_spelling_and_named_as_in_the_first_result(compared):
    changed = [(1, "north", 2.5), (2, "north", 4.0), (3, "west", 1.25)]
    found, rows = compared(DAY, changed, other="ID BIGINT, Zone STRING, distance DOUBLE", keys=["id"])
    assert (found.key, counted(found), found.columns) == (("id",), (3, 3, 0, 0, 1), {"zone": 1, "distance": 0})
    assert [(row["b"], row["columns"]) for row in rows] == [({"id": 3, "zone": "west", "distance": 1.25}, ["zone"])]


def test_columns_count_as_the_rule_of_the_digest_says(compared):
    near = [(id_, "elsewhere", distance + 0.001) for id_, _, distance in DAY]
    found, rows = compared(DAY, near, keys=["id"], rule=DigestRule({"distance": 2}, ("zone",)))
    assert (counted(found), rows) == ((3, 3, 0, 0, 0), [])
    far = [(id_, "elsewhere", distance + 0.01) for id_, _, distance in DAY]
    found, rows = compared(DAY, far, keys=["id"], rule=DigestRule({"distance": 2}, ("zone",)), shown=1)
    assert (counted(found), found.columns) == ((3, 3, 0, 0, 3), {"distance": 3})
    assert pairs(rows) == [((1, 2.5), (1, 2.51))]


def test_awkward_names_of_columns_are_names(compared):
    schema = "`a b` BIGINT, `c.d` STRING, `e``f` DOUBLE"
    other = [(1, "north", 2.5), (2, "east", 4.0), (3, "south", 1.25)]
    found, rows = compared(DAY, other, schema, keys=[("a b",)])
    assert (counted(found), found.columns) == ((3, 3, 0, 0, 1), {"c.d": 1, "e`f": 0})
    assert (rows[0]["a"], rows[0]["columns"]) == ({"a b": 2, "c.d": "north", "e`f": 4.0}, ["c.d"])


def test_a_result_without_rows_is_compared_too(compared):
    found, rows = compared([], DAY[:1], keys=["id"])
    assert (counted(found), pairs(rows)) == ((0, 1, 0, 1, 0), [(None, DAY[0])])
    found, rows = compared([], [], keys=["id"])
    assert (counted(found), rows) == ((0, 0, 0, 0, 0), [])


# Against a plain comparison


def plainly(a, b, key):
    """Counts as `counted`, and how many changed rows differ in each column, by comparing the rows one by one."""
    more_a, more_b = Counter(a) - Counter(b), Counter(b) - Counter(a)
    of_a, of_b = Counter(row[key] for row in a), Counter(row[key] for row in b)
    once = {value for value in of_a if of_a[value] == of_b[value] == 1}
    changed = [(one, other) for one in more_a for other in more_b if one[key] == other[key] and one[key] in once]
    columns = [sum(one[place] != other[place] for one, other in changed) for place in range(3) if place != key]
    only_a, only_b = more_a.total() - len(changed), more_b.total() - len(changed)
    return (len(a), len(b), only_a, only_b, len(changed)), columns


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_a_plain_comparison(compared, seed):
    drawn = random.Random(seed)

    def row():
        return drawn.choice([None, *range(6)]), drawn.choice(["x", "y", None]), drawn.choice([0.5, 1.5, None])

    a = [row() for _ in range(drawn.randrange(9))]
    b = [each for each in a if drawn.random() < 0.7] + [row() for _ in range(drawn.randrange(5))]
    expected, columns = plainly(a, b, 0)
    by_key, rows = compared(a, b, keys=["id"], named=True, files=(2, 1), shown=100)
    assert (counted(by_key), list(by_key.columns.values())) == (expected, columns)
    assert sum(each["rows_a"] for each in rows) == (Counter(a) - Counter(b)).total()
    plain, rows = compared(a, b, files=(1, 2), shown=100)
    assert counted(plain) == (len(a), len(b), (Counter(a) - Counter(b)).total(), (Counter(b) - Counter(a)).total(), 0)
    shown = {(tuple((each["a"] or each["b"]).values()), each["rows_a"], each["rows_b"]) for each in rows}
    assert shown == {(each, n, 0) for each, n in (Counter(a) - Counter(b)).items()} | {
        (each, 0, n) for each, n in (Counter(b) - Counter(a)).items()
    }
