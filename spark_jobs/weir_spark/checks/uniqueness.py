"""Finds the values that several rows have. Invariant: one shuffle for all expectations of uniqueness of a suite.

Numbers are shuffled instead of the values: a row gives one hash for each expectation, other than those of the others.
Where no hash comes twice, no value does. The values of the few hashes that do are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import DecimalType, StructType

from weir_spark.checks.plain_expectations import Rows
from weir_spark.results.digest import hashed, quoted

COUNT = "_weir_count"

SUSPECTS = 1000
"""The most hashes whose values are looked up; above it all values are grouped."""

_ROWS_A_PART = 400_000

_MOST_PARTS = 2_000
"""The most parts of hashes; those of a part are counted in memory."""

_HASH = "_weir_hash"

_HASHED = frozenset(
    {"tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "date", "timestamp"}
)
"""The types, but for decimals, of which equal values have equal hashes; strings with a collation have not."""


def repeated_values(rows: DataFrame, uniques: Sequence[Rows], counts: Sequence[int]) -> list[DataFrame | None]:
    """Return the values that more than one row has, and in COUNT how many have them, by expectation; None if none.

    `counts` are the numbers of the rows that count for each expectation.
    """
    places = [place for place, each in enumerate(uniques) if _has_hash(rows, each)]
    suspects = _suspects(rows, {place: uniques[place] for place in places}, sum(counts[place] for place in places))
    if len(places) > 1 and len(suspects) > SUSPECTS:  # perhaps all of one expectation: nothing is known of the others
        return [repeated_values(rows, [each], [count])[0] for each, count in zip(uniques, counts, strict=True)]
    found: list[DataFrame | None] = []
    for place, each in enumerate(uniques):
        if place in places and not suspects:
            found.append(None)
            continue
        counting = rows if each.counts is None else rows.where(each.counts)
        keys = counting.select(*[quoted(name) for name in each.unique])
        if place in places and len(suspects) <= SUSPECTS:
            keys = _having(keys, place, suspects)
        found.append(_grouped(keys))
    return found


def _has_hash(rows: DataFrame, plain: Rows) -> bool:
    kinds = [rows.schema[each].dataType for each in plain.unique]
    return all(each.simpleString() in _HASHED or isinstance(each, DecimalType) for each in kinds)


def _suspects(rows: DataFrame, uniques: Mapping[int, Rows], count: int) -> list[int]:
    """Return the hashes that several of `count` rows have, or more than SUSPECTS of them.

    They are placed before they are grouped: most often there are as many groups as rows, so that it would be of no use
    to group them first, and costs four times as much.
    """
    if not uniques:
        return []
    schema, names = rows.schema, {place: f"{_HASH}_{place}" for place in uniques}
    for place, each in uniques.items():
        rows = hashed(rows, StructType([schema[name] for name in each.unique]), names[place])
    hashes = [
        _salted(names[place], place) if each.counts is None else F.when(each.counts, _salted(names[place], place))
        for place, each in uniques.items()
    ]
    parts = min(-(-count // _ROWS_A_PART), _MOST_PARTS) or 1
    placed = rows.select(F.explode(F.array(*hashes)).alias(_HASH)).dropna().repartition(parts, F.col(_HASH))
    several = placed.groupBy(_HASH).agg(F.count(F.lit(1)).alias(COUNT)).where(F.col(COUNT) > 1)
    return [row[0] for row in several.select(_HASH).limit(SUSPECTS + 1).collect()]


def _having(keys: DataFrame, place: int, suspects: Sequence[int]) -> DataFrame:
    """Return the keys that have one of these hashes."""
    few = F.broadcast(keys.sparkSession.createDataFrame([(each,) for each in suspects], f"{_HASH} BIGINT"))
    keyed = hashed(keys, keys.schema, _HASH)
    return keyed.withColumn(_HASH, _salted(_HASH, place)).join(few, _HASH, "left_semi").drop(_HASH)


def _salted(name: str, place: int) -> Column:
    """The hash for the expectation at a place: equal values of two expectations are no repetition."""
    return F.col(name).bitwiseXOR(F.lit(place))


def _grouped(keys: DataFrame) -> DataFrame:
    by = [F.col(quoted(name)) for name in keys.columns]
    return keys.groupBy(*by).agg(F.count(F.lit(1)).alias(COUNT)).where(F.col(COUNT) > 1)
