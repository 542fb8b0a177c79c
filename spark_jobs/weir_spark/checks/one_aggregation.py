"""Computes plain expectations by one aggregation. Invariant: rows are read once, however many expectations there are.

Except for uniqueness: values that several rows have are looked for by a query for all expectations. So are examples of
violating rows, where there are any.

For uniqueness there is one shuffle for all expectations of a suite. Numbers are shuffled instead of the values: a row
gives one hash for each expectation, other than those of the others. Where no hash comes twice, no value does. The
values of the few hashes that do are compared.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import DecimalType, StructType

from weir.formats.checks import ExpectationResult
from weir.formats.suite import Expectation
from weir.wording import shortened
from weir_spark.checks.plain_aggregates import Aggregate, Found
from weir_spark.checks.plain_expectations import Rows
from weir_spark.results.digest import hashed, quoted
from weir_spark.session import SPARK_ERRORS

EXAMPLES = 20
"""As many values as GX shows, too."""

LONGEST = 200
"""So many characters of a text are kept."""

Plain = Rows | Aggregate

_ABOUT_VALUES = ("22", "42")
"""SQL states of faulty expressions and of values that they cannot take; others are no fault of an expectation."""

_SQL_STATE = re.compile(r"SQLSTATE: (\w{5})")
_WHICH, _VALUE = "_weir_which", "_weir_value"


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result of an expectation, or why it could not be computed; of uniqueness also the repeated values."""

    found: Found | str
    repeated: DataFrame | None = None


def answers(rows: DataFrame, plains: Sequence[Plain]) -> list[ExpectationResult]:
    """Return the result of each expectation.

    Where Spark cannot compute one, each gets a query of its own, and the result of the faulty one has the reason. An
    error that is no fault of an expectation, such as a file that cannot be read, is raised.
    """
    try:
        found = _measured(rows, plains)
    except SPARK_ERRORS as error:
        require_fault_of_expectation(error)
        found = [_alone(rows, each) for each in plains]
    violating = {
        number: (each, answer)
        for number, (each, answer) in enumerate(zip(plains, found, strict=True))
        if isinstance(each, Rows) and isinstance(answer.found, Found) and not answer.found.success
    }
    examples = _examples(rows, violating) if violating else {}
    return [
        result_of(each.expectation, answer.found, tuple(examples.get(number, ())))
        for number, (each, answer) in enumerate(zip(plains, found, strict=True))
    ]


def result_of(expectation: Expectation, found: Found | str, examples: tuple[Any, ...] = ()) -> ExpectationResult:
    """Return the result of an expectation; `found` is a text with the reason where it could not be computed."""
    about = (expectation.type, expectation.kwargs, expectation.severity)
    if isinstance(found, str):
        return ExpectationResult(*about, success=False, blames=expectation.blames, error=found)
    shown = tuple(_to_keep(each) for each in examples)
    observed = _to_keep(found.observed)
    return ExpectationResult(*about, found.success, observed, found.rows, found.unexpected, shown, expectation.blames)


def _to_keep(value: Any) -> Any:
    """A value as it can be kept in JSON anywhere: short, without what PostgreSQL refuses."""
    if isinstance(value, list | tuple):
        return [_to_keep(each) for each in value]
    if isinstance(value, dict):
        return {key: _to_keep(each) for key, each in value.items()}
    if isinstance(value, str):
        text = value.replace("\x00", "\ufffd")
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def require_fault_of_expectation(error: Exception) -> None:
    """Raise the error unless its cause is an expression or the values that it was given."""
    if "PatternSyntaxException" in str(error):
        return
    stated = _SQL_STATE.search(str(error))  # where an executor has failed the error has none itself
    own = error.getSqlState() if isinstance(error, PySparkException) else None
    state = own or (stated[1] if stated else "")
    if not state.startswith(_ABOUT_VALUES):
        raise error


def in_one_line(error: BaseException) -> str:
    """Return the first line of an error, shortened."""
    text = str(error).strip()
    if "PatternSyntaxException" in text:
        text = text[text.index("PatternSyntaxException") :]
    elif not isinstance(error, PySparkException) and isinstance(error, SPARK_ERRORS):
        text = text.partition("\n: ")[2]  # the first line is py4j's
    return f"{type(error).__name__}: {shortened(text.split(chr(10), 1)[0], 300)}"


def _alone(rows: DataFrame, plain: Plain) -> _Answer:
    try:
        return _measured(rows, [plain])[0]
    except SPARK_ERRORS as error:
        require_fault_of_expectation(error)
        return _Answer(in_one_line(error))


def _measured(rows: DataFrame, plains: Sequence[Plain]) -> list[_Answer]:
    measures = [each for plain in plains for each in plain.measures]
    named = [each.alias(f"_weir_{number}") for number, each in enumerate(measures)]
    count, *values = rows.agg(F.count(F.lit(1)).alias(COUNT), *named).collect()[0]
    rest = iter(values)
    own = [[next(rest) for _ in plain.measures] for plain in plains]
    uniques = {number: each for number, each in enumerate(plains) if isinstance(each, Rows) and each.unique}
    found = repeated_values(rows, list(uniques.values()), [int(own[number][0]) for number in uniques])
    repeated = dict(zip(uniques, found, strict=True))
    for number, several in repeated.items():
        own[number][1] = 0 if several is None else several.agg(F.sum(COUNT)).collect()[0][0]
    return [_Answer(each.result(int(count), own[place]), repeated.get(place)) for place, each in enumerate(plains)]


def _examples(rows: DataFrame, violating: Mapping[int, tuple[Rows, _Answer]]) -> dict[int, list[Any]]:
    """Values of rows that violate expectations, by the expectations' numbers."""
    parts = [_some(rows, number, *violated) for number, violated in violating.items()]
    found: dict[int, list[Any]] = {}
    for which, text in reduce(DataFrame.unionAll, parts).collect():
        values = json.loads(text)
        shown = [values.get(f"_{place}") for place in range(len(violating[which][0].shown))]
        found.setdefault(which, []).append(shown[0] if len(shown) == 1 else shown)
    return found


def _some(rows: DataFrame, number: int, plain: Rows, answer: _Answer) -> DataFrame:
    bad = rows if plain.violates is None else rows.where(plain.violates)
    if answer.repeated is not None:
        bad = answer.repeated
    some = bad.limit(EXAMPLES)
    values = F.struct(*[_shown(some, name).alias(f"_{place}") for place, name in enumerate(plain.shown)])
    return some.select(F.lit(number).alias(_WHICH), F.to_json(values).alias(_VALUE))


def _shown(rows: DataFrame, name: str) -> Any:
    """A value as JSON has it; what JSON has no word for is a text."""
    kind = rows.schema[name].dataType.typeName()
    is_json = kind in {"byte", "short", "integer", "long", "double", "float", "boolean", "string", "decimal"}
    return F.col(quoted(name)) if is_json else F.col(quoted(name)).cast("string")


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
