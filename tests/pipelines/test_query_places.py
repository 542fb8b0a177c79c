"""Filters of standing queries that are looked up: each flight is of the queries whose filter Spark finds true."""

from __future__ import annotations

import random

import pytest
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from pipelines.standing_queries import EVENTS, Place, _matched, place_of


@pytest.mark.parametrize(
    ("condition", "column", "among", "rest"),
    [
        ("dest = 'JFK'", "dest", ("JFK",), "true"),
        ("distance > 3 AND DEST = 'JFK' and flight = 1", "dest", ("JFK",), "distance > 3 AND flight = 1"),
        ("dest in ('LAX', 'JFK','LAX') AND x", "dest", ("JFK", "LAX"), "x"),
        ("distance BETWEEN -5 AND 7 AND x", "distance", range(-5, 8), "x"),
        ("distance >= 25 AND x and distance < 50", "distance", range(25, 50), "x"),
        ("distance >25 and distance<=50", "distance", range(26, 51), "true"),
        ("distance > 3 AND flight = -7", "flight", range(-7, -6), "distance > 3"),
        ("NOT x BETWEEN 1 AND 2 AND dest = 'a'", "dest", ("a",), "NOT x BETWEEN 1 AND 2"),
        ("exists(a, x -> x = 1 or y) AND dest = 'a'", "dest", ("a",), "exists(a, x -> x = 1 or y)"),
    ],
)
def test_a_place_is_a_part_of_a_conjunction(condition, column, among, rest):
    assert place_of(condition) == Place(column, among, rest)


@pytest.mark.parametrize(
    "condition",
    [
        "true",
        "dest = 'a' OR x",
        "distance = 1 OR x",
        "x AND dest = 'a' OR y",
        "NOT dest = 'a'",
        "(dest = 'a' OR x)",
        "CASE WHEN x AND dest = 'a' THEN true ELSE y END",
        "dest = 'it''s'",
        r"dest = 'a\'b'",
        "dest <=> 'a'",
        "dest != 'a'",
        "dest = 'a' = true",
        "dest IN ('a') IS NULL",
        "dest IN ('a', carrier)",
        "dest = 'a' -- x",
        "dest = 'a' /* AND */ OR x",
        "dest || 'b' = 'a'",
        "no_column = 'a'",
        "time_hour = 3",
        "distance = 3.5",
        "distance = 3L",
        "distance > 3",
        "distance <> 3",
        "distance = 1000000000000000000",
        "-distance = 3",
        "distance = 3 + 4",
        "end > (1 AND distance = 3)",
    ],
)
def test_what_is_not_known_to_be_a_part_is_no_place(condition):
    assert place_of(condition) == Place("", None, condition)


PARTS = (
    "dest = 'D{n}'",
    "carrier IN ('C{n}', 'C0', 'X')",
    "distance BETWEEN {n} AND {n} + 1",
    "distance BETWEEN {n} AND 1{n}",
    "flight = {n}",
    "departure_delay >= -{n} AND departure_delay < {n}",
    "departure_delay > {n}",
    "length(tailnum) = {n} OR origin = 'O{n}'",
    "tailnum IS NULL",
    "(distance > {n} OR dest = 'D{n}')",
)


@pytest.mark.spark
def test_each_flight_is_of_the_queries_whose_filter_is_true(spark):
    rng = random.Random(3)
    conditions = [
        " AND ".join(part.format(n=rng.randrange(6)) for part in rng.sample(PARTS, k=rng.choice([1, 1, 2, 3])))
        for _ in range(120)
    ]
    assert {type(place_of(each).among) for each in conditions} == {tuple, range, type(None)}

    flights = spark.range(300).selectExpr(
        "if(id % 7 = 0, null, concat('C', id % 4)) carrier",
        "if(id % 11 = 0, null, id % 6) flight",
        "if(id % 5 = 0, null, concat('N', id)) tailnum",
        "concat('O', id % 3) origin",
        "if(id % 13 = 0, null, concat('D', id % 5)) dest",
        "timestamp_seconds(1356998400 + id) time_hour",
        "if(id = 299, -9223372036854775808L, if(id % 17 = 0, null, id % 20)) distance",
        "'flown' status",
        "id % 14 - 7 departure_delay",
        "id arrival_delay",
    )
    assert flights.columns == [each.split()[0] for each in EVENTS.split(", ")]
    found = sorted(map(tuple, _matched(flights, conditions).select("_weir_number", "arrival_delay").collect()))
    one_by_one = [F.when(F.expr(f"({each})"), number) for number, each in enumerate(conditions)]
    expected = flights.select(F.explode(F.array_compact(F.array(*one_by_one))).alias("n"), "arrival_delay")
    assert found == sorted(map(tuple, expected.collect()))
    assert len({number for number, _ in found}) > 60
