"""Computes plain expectations by one aggregation. Invariant: rows are read once, however many expectations there are.

Except for uniqueness: values that several rows have are looked for by a query for all expectations. So are examples of
violating rows, where there are any.
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
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from weir.formats.checks import ExpectationResult
from weir.formats.suite import Expectation
from weir.wording import shortened
from weir_spark.checks.plain_aggregates import Aggregate, Found
from weir_spark.checks.plain_expectations import Rows
from weir_spark.checks.uniqueness import COUNT, repeated_values
from weir_spark.results.digest import quoted
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
