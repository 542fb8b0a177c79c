"""Compares the rows of two results, by a key or as multisets.

Invariants: two rows are equal exactly if a digest cannot tell them apart: nulls are equal, all NaNs are, and maps in
any order. Rows are grouped and never joined, so that a key that many rows have in common costs what they cost, and a
row counts as often as it is there. What is shown comes in the order of the key.

The rows of both are grouped by all their columns, which leaves those that one of them has more often; these are grouped
by the key. Both are kept in Spark's blocks until the rows to show are collected.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from weir.errors import WeirError
from weir.formats.programs import ComparisonAnswer, ComparisonToMake, RepeatedKey, RowsCompared, RowsToCompare
from weir.typed_json import message_from_json, message_to_json
from weir_spark.checks.content import as_written
from weir_spark.program import QUIET, answer_request, in_one_line, write_rows
from weir_spark.results.digest import comparable, quoted
from weir_spark.results.reader import read_files, schema_of
from weir_spark.session import SPARK_ERRORS
from weir_spark.state.reader import StoredState

ANSWERS = "answers.json"

_Key = tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the comparisons that the command line names; return the exit code."""
    return answer_request(
        "weir compare",
        arguments,
        partial(message_from_json, tuple[ComparisonToMake, ...]),
        _answer_all,
        description="Compare the rows of results.",
        options={"folder": f"path of a folder for {ANSWERS} and the rows that differ"},
        settings=QUIET,
    )


def _answer_all(session: SparkSession, asked: Sequence[ComparisonToMake], given: Namespace) -> None:
    folder = Path(given.folder)
    answers = [_answer(session, each, folder / f"rows-{number}.arrow") for number, each in enumerate(asked)]
    (folder / ANSWERS).write_text(message_to_json(answers))


def _answer(session: SparkSession, asked: ComparisonToMake, path: Path) -> ComparisonAnswer:
    try:
        compared, differing = compare(session, asked)
    except (*SPARK_ERRORS, WeirError) as error:
        return ComparisonAnswer(error=in_one_line(error))
    write_rows(differing, str(path))
    return ComparisonAnswer(compared)


def compare(session: SparkSession, asked: ComparisonToMake) -> tuple[RowsCompared, pa.Table]:
    """Return what differs, and the first rows that do, in the order of the key, or of all columns without one.

    Of each there are `rows_a` and `rows_b`, how many of these rows one result has more than the other; the row of each,
    `a` and `b`, named as the columns of the first result, and null where there is none; and the `columns` in which a
    changed row differs. Of several rows of a result with the same key it is the first in the order of the others.
    Raises Misconfigured for a column of a type without a canonical value, and Spark's error where rows cannot be read.
    """
    schema = schema_of(asked.a.spark_schema)
    rows = _Rows(asked, tuple(schema[name] for name in asked.a.columns), _both(session, asked))
    repeated = list[RepeatedKey]()
    key: _Key | None = None
    for each in asked.keys:
        found = RepeatedKey(each, *rows.repeated(each))
        if found.a or found.b:
            repeated.append(found)
        if asked.is_key_named or not (found.a or found.b):
            key = each
            break
    grouped = rows.differing(key, is_unique=not any(each.key == key for each in repeated)).persist()
    try:
        compared = rows.compared(grouped, key, repeated)
        return compared, rows.first(grouped, key).toArrow()
    finally:
        grouped.unpersist()


def _both(session: SparkSession, asked: ComparisonToMake) -> DataFrame:
    """Return the rows of both results: columns by place, and of which of them a row is, as two numbers."""
    a, b = (_read(session, each) for each in (asked.a, asked.b))
    in_a = a.select("*", F.lit(1).alias("in_a"), F.lit(0).alias("in_b"))
    return in_a.union(b.select("*", F.lit(0).alias("in_a"), F.lit(1).alias("in_b")))


def _read(session: SparkSession, rows: RowsToCompare) -> DataFrame:
    if rows.state is not None:
        found = StoredState(session, as_written(rows.state, rows.spark_schema)).rows()
    else:
        schema = schema_of(rows.spark_schema)
        found = read_files(session, rows.files, StructType([schema[name] for name in rows.columns]))
    return found.select(*[F.col(quoted(name)).alias(_at(place)) for place, name in enumerate(rows.columns)])


def _at(place: int) -> str:
    return f"c{place}"


@dataclass(frozen=True)
class _Rows:
    """The rows of both results, whose columns are `fields` by their places."""

    asked: ComparisonToMake
    fields: tuple[StructField, ...]
    both: DataFrame

    def repeated(self, key: _Key) -> tuple[int, int]:
        """Return how many values of a key several rows of the one, and of the other result have in common."""
        values = self.both.groupBy(self._form(key).alias("key")).agg(
            F.sum("in_a").alias("rows_a"), F.sum("in_b").alias("rows_b")
        )
        found = values.agg(F.count_if(F.col("rows_a") > 1), F.count_if(F.col("rows_b") > 1)).collect()[0]
        return int(found[0]), int(found[1])

    def compared(self, grouped: DataFrame, key: _Key | None, repeated: Sequence[RepeatedKey]) -> RowsCompared:
        """Count what differs, by a key that need not be unique, or without one (None)."""
        differs = self._differs(key)
        counts = grouped.agg(
            *(F.coalesce(F.sum(name), F.lit(0)) for name in ("more_a", "more_b")),
            F.count_if("is_changed"),
            *(F.count_if(F.col("is_changed") & condition) for condition in differs.values()),
        )
        more_a, more_b, changed, *columns = map(int, counts.collect()[0])
        total = self.both.agg(*(F.coalesce(F.sum(name), F.lit(0)) for name in ("in_a", "in_b"))).collect()[0]
        return RowsCompared(
            key=key,
            repeated=tuple(repeated),
            rows_a=int(total[0]),
            rows_b=int(total[1]),
            only_a=more_a - changed,
            only_b=more_b - changed,
            changed=changed,
            columns=dict(zip(differs, columns, strict=True)),
        )

    def differing(self, key: _Key | None, *, is_unique: bool) -> DataFrame:
        """Return a row for each value of the key with rows that a result has more often than the other.

        It has how many these are, the first of them of each result, and its columns that are not of the key.
        """
        equal = self._equal(key)
        counted = equal.select(
            "*",
            F.greatest(F.col("rows_a") - F.col("rows_b"), F.lit(0)).alias("more_a"),
            F.greatest(F.col("rows_b") - F.col("rows_a"), F.lit(0)).alias("more_b"),
        )
        differs = "more_a > 0 OR more_b > 0"
        # Of a unique key no other row is in both.
        grouped = (counted.where(differs) if is_unique else counted).groupBy("key")
        found = grouped.agg(
            *(F.sum(name).alias(name) for name in ("rows_a", "rows_b", "more_a", "more_b")),
            *(F.expr(f"min_by(row, other) FILTER (WHERE more_{side} > 0)").alias(side) for side in "ab"),
            *(F.expr(f"min(other) FILTER (WHERE more_{side} > 0)").alias(f"other_{side}") for side in "ab"),
        )
        is_pair = (F.col("rows_a") == 1) & (F.col("rows_b") == 1)
        return found.where(differs).withColumn("is_changed", F.lit(key is not None) & is_pair)

    def first(self, grouped: DataFrame, key: _Key | None) -> DataFrame:
        """Return the first differing rows, as `compare` gives them."""
        named = [F.when(condition, F.lit(name)) for name, condition in self._differs(key).items()]
        none = F.array().cast("array<string>")
        return (
            grouped.orderBy("key")
            .limit(self.asked.shown)
            .select(
                F.col("more_a").alias("rows_a"),
                F.col("more_b").alias("rows_b"),
                self._named("a"),
                self._named("b"),
                F.when(F.col("is_changed"), F.array_compact(F.array(*named)) if named else none)
                .otherwise(none)
                .alias("columns"),
            )
        )

    def _equal(self, key: _Key | None) -> DataFrame:
        """Group equal rows: their key and other columns as they are compared, how many there are, and one of them.

        Where its columns are compared as they are, that one is made of these, since Spark groups fastest by numbers.
        """
        names = tuple(each.name for each in self.fields) if key is None else key
        others = self._others(key)
        apart = [_at(place) for place, each in enumerate(self.fields) if self._is_apart(each)]
        forms = self.both.select(
            self._form(names).alias("key"),
            self._form(others).alias("other"),
            F.struct(*apart).alias("apart") if apart else F.lit(0).alias("apart"),
            "in_a",
            "in_b",
        )
        one = [F.first("apart").alias("apart")] if apart else []
        equal = forms.groupBy("key", "other").agg(F.sum("in_a").alias("rows_a"), F.sum("in_b").alias("rows_b"), *one)
        places = {name: F.col("key")[_at(place)] for place, name in enumerate(names)}
        places |= {name: F.col("other")[_at(place)] for place, name in enumerate(others)}
        values = [
            (F.col("apart")[_at(place)] if self._is_apart(each) else places[each.name]).alias(_at(place))
            for place, each in enumerate(self.fields)
        ]
        return equal.select("key", "other", "rows_a", "rows_b", F.struct(*values).alias("row"))

    def _is_apart(self, field: StructField) -> bool:
        """Report whether a column is compared in another form than it has."""
        return isinstance(field.dataType, (ArrayType, MapType, StructType)) or field.name in self.asked.rule.round

    def _others(self, key: _Key | None) -> _Key:
        return () if key is None else tuple(each.name for each in self.fields if each.name not in key)

    def _differs(self, key: _Key | None) -> dict[str, Column]:
        """Return, by column, whether two rows of a key differ in it."""
        return {
            name: ~F.col("other_a")[_at(place)].eqNullSafe(F.col("other_b")[_at(place)])
            for place, name in enumerate(self._others(key))
        }

    def _form(self, names: _Key) -> Column:
        """Return columns as one value that groups and orders rows as the digest counts them."""
        parts = [self._forms[name].alias(_at(place)) for place, name in enumerate(names)]
        return F.struct(*parts) if parts else F.struct(F.lit(0).alias("none"))

    @cached_property
    def _forms(self) -> dict[str, Column]:
        rule = self.asked.rule
        return {each.name: F.expr(comparable(_at(place), each, rule)) for place, each in enumerate(self.fields)}

    def _named(self, side: str) -> Column:
        values = [F.col(side)[_at(place)].alias(each.name) for place, each in enumerate(self.fields)]
        return F.when(F.col(side).isNotNull(), F.struct(*values)).alias(side)


if __name__ == "__main__":
    sys.exit(main())
