"""Compares the rows of two results, by a key or as multisets.

Invariants: two rows are equal exactly if a digest cannot tell them apart: nulls are equal, all NaNs are, and maps in
any order. Rows are grouped and never joined, so that a key that many rows have in common costs what they cost, and a
row counts as often as it is there. What is shown comes in the order of the key.

The rows of both are grouped by all their columns, which leaves those that one of them has more often; these are grouped
by the key.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructField, StructType

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
        write_rows(differing.toArrow(), str(path))
    except (*SPARK_ERRORS, WeirError) as error:
        return ComparisonAnswer(error=in_one_line(error))
    return ComparisonAnswer(compared)


def compare(session: SparkSession, asked: ComparisonToMake) -> tuple[RowsCompared, DataFrame]:
    """Return what differs, and the first rows that do, in the order of the key, or of all columns without one.

    Of each there are `rows_a` and `rows_b`, how many of these rows one result has more than the other; the row of each,
    `a` and `b`, named as the columns of the first result, and null where there is none; and the `columns` in which a
    changed row differs. Of several rows of a result with the same key it is the first in the order of the others.
    Raises Misconfigured for a column of a type without a canonical value, and Spark's error where rows cannot be read.
    """
    schema = schema_of(asked.a.spark_schema)
    rows = _Rows(asked, tuple(schema[name] for name in asked.a.columns), _both(session, asked))
    repeated = list[RepeatedKey]()
    for key in asked.keys:
        found = RepeatedKey(key, *rows.repeated(key))
        if not (found.a or found.b):
            return rows.by_key(key, repeated)
        repeated.append(found)
    return rows.by_key(asked.keys[0] if asked.is_key_named else None, repeated)


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

    def by_key(self, key: _Key | None, repeated: Sequence[RepeatedKey]) -> tuple[RowsCompared, DataFrame]:
        """Compare by a key, which need not be unique, or without one (None)."""
        others = () if key is None else tuple(each.name for each in self.fields if each.name not in key)
        grouped = self._grouped(key, others)
        differs = {
            name: ~F.col("other_a")[_at(place)].eqNullSafe(F.col("other_b")[_at(place)])
            for place, name in enumerate(others)
        }
        counts = grouped.agg(
            *(F.coalesce(F.sum(name), F.lit(0)) for name in ("rows_a", "rows_b", "more_a", "more_b")),
            F.count_if("is_changed"),
            *(F.count_if(F.col("is_changed") & condition) for condition in differs.values()),
        )
        rows_a, rows_b, more_a, more_b, changed, *columns = map(int, counts.collect()[0])
        compared = RowsCompared(
            key=key,
            repeated=tuple(repeated),
            rows_a=rows_a,
            rows_b=rows_b,
            only_a=more_a - changed,
            only_b=more_b - changed,
            changed=changed,
            columns=dict(zip(others, columns, strict=True)),
        )
        return compared, self._first(grouped, differs, self.asked.shown if more_a or more_b else 0)

    def _grouped(self, key: _Key | None, others: _Key) -> DataFrame:
        """Return a row for each value of the key, with the first row of each result that the other has less often."""
        names = tuple(each.name for each in self.fields) if key is None else key
        forms = self.both.select(
            self._form(names).alias("key"),
            self._form(others).alias("other"),
            F.struct(*[_at(place) for place in range(len(self.fields))]).alias("row"),
            "in_a",
            "in_b",
        )
        equal = forms.groupBy("key", "other").agg(
            F.first("row").alias("row"), F.sum("in_a").alias("rows_a"), F.sum("in_b").alias("rows_b")
        )
        counted = equal.select(
            "*",
            F.greatest(F.col("rows_a") - F.col("rows_b"), F.lit(0)).alias("more_a"),
            F.greatest(F.col("rows_b") - F.col("rows_a"), F.lit(0)).alias("more_b"),
        )
        grouped = counted.groupBy("key").agg(
            *(F.sum(name).alias(name) for name in ("rows_a", "rows_b", "more_a", "more_b")),
            *(F.expr(f"min_by(row, other) FILTER (WHERE more_{side} > 0)").alias(side) for side in "ab"),
            *(F.expr(f"min(other) FILTER (WHERE more_{side} > 0)").alias(f"other_{side}") for side in "ab"),
        )
        is_pair = (F.col("rows_a") == 1) & (F.col("rows_b") == 1) & (F.col("more_a") == 1)
        return grouped.withColumn("is_changed", F.lit(key is not None) & is_pair)

    def _form(self, names: _Key) -> Column:
        """Return columns as one value that groups and orders rows as the digest counts them."""
        parts = [self._forms[name].alias(_at(place)) for place, name in enumerate(names)]
        return F.struct(*parts) if parts else F.struct(F.lit(0).alias("none"))

    @cached_property
    def _forms(self) -> dict[str, Column]:
        rule = self.asked.rule
        return {each.name: F.expr(comparable(_at(place), each, rule)) for place, each in enumerate(self.fields)}

    def _first(self, grouped: DataFrame, differs: dict[str, Column], most: int) -> DataFrame:
        named = [F.when(condition, F.lit(name)) for name, condition in differs.items()]
        columns = F.array_compact(F.array(*named)) if named else F.array().cast("array<string>")
        first = grouped.where("more_a > 0 OR more_b > 0").orderBy("key").limit(most)
        return first.select(
            F.col("more_a").alias("rows_a"),
            F.col("more_b").alias("rows_b"),
            self._row("a"),
            self._row("b"),
            F.when(F.col("is_changed"), columns).otherwise(F.array().cast("array<string>")).alias("columns"),
        )

    def _row(self, side: str) -> Column:
        values = [F.col(side)[_at(place)].alias(each.name) for place, each in enumerate(self.fields)]
        return F.when(F.col(side).isNotNull(), F.struct(*values)).alias(side)


if __name__ == "__main__":
    sys.exit(main())
