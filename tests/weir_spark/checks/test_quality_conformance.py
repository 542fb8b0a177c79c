"""What is answered by one aggregation is what Great Expectations answers: the same random rows, asked of both."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from weir.formats.suite import Expectation
from weir_spark.checks import gx
from weir_spark.checks.one_aggregation import answers
from weir_spark.checks.plain_expectations import plain

pytestmark = pytest.mark.spark

SCHEMA = (
    "n BIGINT, i INT, small SMALLINT, d DOUBLE, f FLOAT, dec DECIMAL(12, 2), s STRING, day DATE, at TIMESTAMP, "
    "b BOOLEAN"
)
LAST = datetime(2013, 2, 1, tzinfo=UTC)


def rows_of(spark, chance, count):
    def maybe(value):
        return None if chance.random() < 0.15 else value

    def row():
        return (
            maybe(chance.randint(-5, 60)),
            maybe(chance.randint(0, 9)),
            maybe(chance.randint(-3, 3)),
            maybe(chance.choice([math.nan, -0.0, 0.0, 1.5, -2.25, chance.uniform(-100, 100)])),
            maybe(chance.choice([0.5, -1.25, 3.0])),
            maybe(Decimal(chance.randint(-500, 500)) / 100),
            maybe(chance.choice(["", "AA", "UA", "B6", "éé", "N123", "n 7"])),
            maybe(date(2013, 1, 1) + timedelta(days=chance.randint(0, 31))),
            maybe(LAST - timedelta(seconds=chance.randint(0, 31 * 86400), microseconds=chance.randint(0, 999_999))),
            maybe(chance.random() < 0.5),
        )

    return spark.createDataFrame([row() for _ in range(count)], SCHEMA).localCheckpoint(eager=True)


def asked_of(chance):
    """Expectations of all plain types, with random arguments."""

    def some(**kwargs):
        given = {key: value for key, value in kwargs.items() if value is not None}
        return given | ({"mostly": chance.choice([0, 0.3, 0.5, 0.85, 0.9, 1, 1.0])} if chance.random() < 0.6 else {})

    def bounds(low, high, *, strict=True):
        given = {"min_value": low, "max_value": high}
        if chance.random() < 0.4:
            given.pop(chance.choice(["min_value", "max_value"]))
        return given | ({"strict_min": chance.random() < 0.5, "strict_max": chance.random() < 0.5} if strict else {})

    numbers = {
        "n": (0, 50),
        "i": (1, 8.5),
        "small": (-2, 2),
        "d": (-2.25, 90.0),
        "f": (-1.25, 0.5),
        "dec": (-4.5, 4.25),
    }
    times = {"day": ("2013-01-02", "2013-01-31"), "at": ("2013-01-02T10:00:00", "2013-01-30 23:59:59.5")}
    every = [*numbers, *times, "s", "b"]
    for column in every:
        yield "expect_column_values_to_not_be_null", some(column=column)
        yield "expect_column_values_to_be_null", some(column=column.upper())
        yield "expect_column_values_to_be_unique", some(column=column)
        yield "expect_column_to_exist", {"column": column, "column_index": chance.choice([0, 1, -1, 3, 40])}
        kind = chance.choice(["IntegerType", "LongType", "StringType", "DateType", "DoubleType"])
        yield "expect_column_values_to_be_of_type", {"column": column, "type_": kind}
        yield "expect_column_values_to_be_in_type_list", {"column": column, "type_list": [kind, "BooleanType"]}
    for column, (low, high) in {**numbers, **times, "at": ("2013-01-02", "2013-01-31")}.items():
        yield "expect_column_values_to_be_between", some(column=column, **bounds(low, high))
        yield "expect_column_min_to_be_between", {"column": column, **bounds(low, high)}
        yield "expect_column_max_to_be_between", {"column": column, **bounds(low, high)}
    yield "expect_column_values_to_be_between", some(column="at", **bounds(*times["at"]))
    yield "expect_column_max_to_be_between", {"column": "at", **bounds(*times["at"])}
    for column, (low, high) in numbers.items():
        for what in ("sum", "stdev", "median", *(["mean"] if column != "small" else [])):
            yield f"expect_column_{what}_to_be_between", {"column": column, **bounds(low, high)}
    for column, values in {
        "n": [1, 2, 30],
        "i": [0, 1.0, 7],
        "d": [0, 1.5],
        "s": ["AA", "UA", ""],
        "b": [True],
    }.items():
        yield "expect_column_values_to_be_in_set", some(column=column, value_set=values)
        yield (
            "expect_column_values_to_not_be_in_set",
            some(column=column, value_set=[*values, None][: 3 + len(values) % 2]),
        )
    yield "expect_column_values_to_be_in_set", some(column="day", value_set=["2013-01-05", "2013-01-06"])
    yield "expect_column_values_to_be_in_set", some(column="s", value_set=[])
    yield "expect_column_value_lengths_to_be_between", some(column="s", **bounds(1, 3))
    yield "expect_column_value_lengths_to_equal", some(column="s", value=2)
    for not_ in ("", "not_"):
        yield f"expect_column_values_to_{not_}match_regex", some(column="s", regex="^[A-Z]{2}$|\\d")
        yield f"expect_column_values_to_{not_}match_regex_list", some(column="s", regex_list=["^A", "3$"])
    yield "expect_column_values_to_match_regex_list", some(column="s", regex_list=["^N", "3$"], match_on="all")
    for ignored in (None, "either_value_is_missing", "neither"):
        pair = {"column_A": "n", "column_B": "i", "ignore_row_if": ignored}
        yield (
            "expect_column_pair_values_a_to_be_greater_than_b",
            some(**pair, or_equal=chance.choice([True, False, None])),
        )
        yield "expect_column_pair_values_to_be_equal", some(**pair)
    for ignored in (None, "any_value_is_missing", "never"):
        several = {"column_list": ["n", "i", "small"], "ignore_row_if": ignored}
        yield "expect_multicolumn_sum_to_equal", some(**several, sum_total=20)
        yield "expect_multicolumn_values_to_be_equal", some(**several)
        yield "expect_select_column_values_to_be_unique_within_record", some(**several)
        yield "expect_compound_columns_to_be_unique", some(**several | {"column_list": ["i", "d", "s"]})
    names = [each.split()[0] for each in SCHEMA.replace("(12, 2)", "").split(", ")]
    yield "expect_table_columns_to_match_ordered_list", {"column_list": names}
    yield "expect_table_columns_to_match_ordered_list", {"column_list": names[::-1]}
    yield "expect_table_columns_to_match_set", {"column_set": names[1:], "exact_match": chance.random() < 0.5}
    yield "expect_table_columns_to_match_set", {"column_set": [*names, "other"], "exact_match": False}
    yield "expect_table_column_count_to_equal", {"value": chance.choice([9, 10])}
    yield "expect_table_column_count_to_be_between", {"min_value": 3, "max_value": chance.choice([9, 10])}
    yield "expect_column_proportion_of_non_null_values_to_be_between", {"column": "n", **bounds(0.5, 0.9)}
    yield "expect_table_row_count_to_equal", {"value": chance.choice([0, 40])}
    yield "expect_table_row_count_to_be_between", bounds(0, 40)


def comparable(result):
    return (
        result.type,
        str(result.kwargs),
        result.success,
        result.observed,
        result.rows,
        result.unexpected,
        result.error,
    )


def some_of_each(chance, more):
    """One expectation of each type, and some more: all of them take GX a minute."""
    by_type: dict[str, list[Expectation]] = {}
    for kind, kwargs in asked_of(chance):
        by_type.setdefault(kind, []).append(Expectation(kind, kwargs))
    for each in by_type.values():
        chance.shuffle(each)
    rest = [each for several in by_type.values() for each in several[1:]]
    return [*(each[0] for each in by_type.values()), *chance.sample(rest, min(more, len(rest)))]


@pytest.mark.parametrize(("seed", "count", "more"), [(1, 25, 10), pytest.param(2, 0, 0, marks=pytest.mark.soak)])
def test_one_aggregation_answers_as_great_expectations_does(spark, seed, count, more) -> None:
    chance = random.Random(seed)
    rows = rows_of(spark, chance, count)
    asked = some_of_each(chance, more)
    ours = answers(rows, [plain(each, rows.schema) for each in asked])
    theirs = gx.validate(rows, asked)
    differing = [
        f"{comparable(one)}\n  GX: {comparable(other)}"
        for one, other in zip(ours, theirs, strict=True)
        if comparable(one) != comparable(other)
    ]
    assert not differing, "\n".join(differing)
    assert count == 0 or {each.success for each in ours} == {True, False}


UNEXPECTED = {"a": 0, "same": 0, "once": 2, "twice": 3000}


@pytest.mark.parametrize("columns", [("a", "same", "once"), ("a", "once", "twice")])
def test_values_of_several_columns_are_looked_for_together_and_told_apart(spark, columns):
    """More values are repeated in `twice` than are looked up by their hashes."""
    rows = spark.range(3000).selectExpr("id a", "id same", "if(id = 7, 8, id) once", "id div 2 twice")
    unique = [Expectation("expect_column_values_to_be_unique", {"column": column}) for column in columns]
    found = answers(rows, [plain(each, rows.schema) for each in unique])
    assert [each.unexpected for each in found] == [UNEXPECTED[column] for column in columns]
