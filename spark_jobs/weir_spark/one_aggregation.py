"""Answers expectations that are plain by one aggregation. Invariant: rows are read once, whatever is expected of them.

But for what has to be grouped: of which values there are two is a query of its own. So are examples of what violates an
expectation, and that is made only where there is any.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import DecimalType

from weir.quality.check import ExpectationResult
from weir.quality.suite import Expectation
from weir_spark.digest import hashed, quoted
from weir_spark.plain_aggregates import Aggregate, Found
from weir_spark.plain_expectations import Rows

EXAMPLES = 20
"""As many values as GX shows, too."""

LONGEST = 200
"""So many characters of a text are kept."""

Plain = Rows | Aggregate

_ABOUT_VALUES = ("22", "42")
"""SQL states of what an expression says, and of the values that it meets; others are faults of the machinery."""

_SQL_STATE = re.compile(r"SQLSTATE: (\w{5})")

_COUNT, _WHICH, _VALUE, _HASH = "_weir_count", "_weir_which", "_weir_value", "_weir_hash"

_HASHED = frozenset(
    {"tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "date", "timestamp"}
)
"""The types, but for decimals, of which equal values have equal hashes; strings with a collation have not."""


def answers(rows: DataFrame, plains: Sequence[Plain]) -> list[ExpectationResult]:
    """What has become of each expectation.

    One that Spark cannot compute takes the others into their own queries, and its result says why. What is no fault of
    an expectation, such as a file that cannot be read, is raised.
    """
    try:
        found: list[Found | str] = [*_measured(rows, plains)]
    except PySparkException as error:
        require_fault_of_expectation(error)
        found = [_alone(rows, each) for each in plains]
    violating = {
        number: each
        for number, (each, came_to) in enumerate(zip(plains, found, strict=True))
        if isinstance(each, Rows) and isinstance(came_to, Found) and not came_to.success
    }
    examples = _examples(rows, violating) if violating else {}
    return [
        result_of(each.expectation, came_to, tuple(examples.get(number, ())))
        for number, (each, came_to) in enumerate(zip(plains, found, strict=True))
    ]


def result_of(expectation: Expectation, found: Found | str, examples: tuple[Any, ...] = ()) -> ExpectationResult:
    """The result of an expectation that has come to something, or that could not be computed: then a text says why."""
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


def require_fault_of_expectation(error: PySparkException) -> None:
    """Raise the error unless it is about what an expression says or the values that it meets."""
    if "PatternSyntaxException" in str(error):
        return
    told = _SQL_STATE.search(str(error))  # where an executor has failed the error has none itself
    state = error.getSqlState() or (told[1] if told else "")
    if not state.startswith(_ABOUT_VALUES):
        raise error


def first_line(error: BaseException) -> str:
    """What an error says, shortly."""
    text = str(error).strip()
    if "PatternSyntaxException" in text:
        text = text[text.index("PatternSyntaxException") :]
    return f"{type(error).__name__}: {text.split(chr(10), 1)[0][:300]}"


def _alone(rows: DataFrame, plain: Plain) -> Found | str:
    try:
        return _measured(rows, [plain])[0]
    except PySparkException as error:
        require_fault_of_expectation(error)
        return first_line(error)


def _measured(rows: DataFrame, plains: Sequence[Plain]) -> list[Found]:
    measures = [each for plain in plains for each in plain.measures]
    named = [each.alias(f"_weir_{number}") for number, each in enumerate(measures)]
    count, *values = rows.agg(F.count(F.lit(1)).alias(_COUNT), *named).collect()[0]
    found, start = [], 0
    for plain in plains:
        own = values[start : start + len(plain.measures)]
        start += len(plain.measures)
        if isinstance(plain, Rows) and plain.unique:
            own[1] = 0 if _is_unique(rows, plain, own[0]) else _repeated(rows, plain).agg(F.sum(_COUNT)).collect()[0][0]
        found.append(plain.judge(int(count), own))
    return found


def _is_unique(rows: DataFrame, plain: Rows, count: int) -> bool:
    """Whether the rows that count have so many different hashes: a number is shuffled instead of the values.

    False may also mean that two values have one hash, or types of which equal values may have two.
    """
    fields = [rows.schema[each] for each in plain.unique]
    if not all(each.dataType.simpleString() in _HASHED or isinstance(each.dataType, DecimalType) for each in fields):
        return False
    keys = _keys(rows, plain)
    hashes = hashed(keys, keys.schema, _HASH)
    return bool(hashes.agg(F.count_distinct(F.col(_HASH))).collect()[0][0] == count)


def _repeated(rows: DataFrame, plain: Rows) -> DataFrame:
    """The values that more than one of the rows that count have, and how many have them."""
    keys = [F.col(quoted(each)) for each in plain.unique]
    return _keys(rows, plain).groupBy(*keys).agg(F.count(F.lit(1)).alias(_COUNT)).where(F.col(_COUNT) > 1)


def _keys(rows: DataFrame, plain: Rows) -> DataFrame:
    """What has to be unique, of the rows that count."""
    counting = rows if plain.counts is None else rows.where(plain.counts)
    return counting.select(*[quoted(each) for each in plain.unique])


def _examples(rows: DataFrame, violating: Mapping[int, Rows]) -> dict[int, list[Any]]:
    """Values of rows that violate expectations, by the expectations' numbers."""
    parts = [_some(rows, number, plain) for number, plain in violating.items()]
    found: dict[int, list[Any]] = {}
    for which, text in reduce(DataFrame.unionAll, parts).collect():
        values = json.loads(text)
        shown = [values.get(f"_{place}") for place in range(len(violating[which].shown))]
        found.setdefault(which, []).append(shown[0] if len(shown) == 1 else shown)
    return found


def _some(rows: DataFrame, number: int, plain: Rows) -> DataFrame:
    if plain.unique:
        some = _repeated(rows, plain).limit(EXAMPLES)
    else:
        some = (rows if plain.violates is None else rows.where(plain.violates)).limit(EXAMPLES)
    values = F.struct(*[_shown(some, name).alias(f"_{place}") for place, name in enumerate(plain.shown)])
    return some.select(F.lit(number).alias(_WHICH), F.to_json(values).alias(_VALUE))


def _shown(rows: DataFrame, name: str) -> Any:
    """A value as JSON has it; what JSON has no word for is a text."""
    kind = rows.schema[name].dataType.typeName()
    is_json = kind in {"byte", "short", "integer", "long", "double", "float", "boolean", "string", "decimal"}
    return F.col(quoted(name)) if is_json else F.col(quoted(name)).cast("string")
