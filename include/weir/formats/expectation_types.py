"""The arguments of the expectations that are plain aggregates, so that their mistakes are found without GX.

Invariant: what is refused here Great Expectations would refuse, too, or would check nothing by it; what it may read
otherwise is not plain, and GX judges it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from weir.errors import Message
from weir.wording import did_you_mean

Accepts = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_bound(value: Any) -> bool:
    return value is None or _is_number(value) or _is_time(value)


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


def _is_whole_bound(value: Any) -> bool:
    return value is None or _is_whole(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def are_texts(value: Any) -> bool:
    """Report whether a value of JSON is a list of texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_MOSTLY: Final[Mapping[str, Accepts]] = {"mostly": _is_share}
_STRICT: Final[Mapping[str, Accepts]] = {"strict_min": _is_flag, "strict_max": _is_flag}
_BOUNDS: Final[Mapping[str, Accepts]] = {"min_value": _is_bound, "max_value": _is_bound, **_STRICT}
_COUNTS: Final[Mapping[str, Accepts]] = {"min_value": _is_whole_bound, "max_value": _is_whole_bound}
_COLUMN: Final[Mapping[str, Accepts]] = {"column": _is_text}
_PAIR: Final[Mapping[str, Accepts]] = {"column_A": _is_text, "column_B": _is_text}
_LIST: Final[Mapping[str, Accepts]] = {"column_list": are_texts}
_OF_ROWS: Final[Mapping[str, Accepts]] = {**_MOSTLY, "ignore_row_if": _is_text}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a type of expectation, each with the values that are plain."""

    needed: Mapping[str, Accepts] = field(default_factory=dict)
    others: Mapping[str, Accepts] = field(default_factory=dict)

    @property
    def all(self) -> Mapping[str, Accepts]:
        """Those that are needed, then those that may be absent."""
        return {**self.needed, **self.others}


PLAIN: Final[Mapping[str, Arguments]] = {
    "expect_column_values_to_not_be_null": Arguments(_COLUMN, _MOSTLY),
    "expect_column_values_to_be_null": Arguments(_COLUMN, _MOSTLY),
    "expect_column_values_to_be_unique": Arguments(_COLUMN, _MOSTLY),
    "expect_column_values_to_be_between": Arguments(_COLUMN, {**_BOUNDS, **_MOSTLY}),
    "expect_column_values_to_be_in_set": Arguments({**_COLUMN, "value_set": _is_list}, _MOSTLY),
    "expect_column_values_to_not_be_in_set": Arguments({**_COLUMN, "value_set": _is_list}, _MOSTLY),
    "expect_column_value_lengths_to_be_between": Arguments(_COLUMN, {**_COUNTS, **_STRICT, **_MOSTLY}),
    "expect_column_value_lengths_to_equal": Arguments({**_COLUMN, "value": _is_number}, _MOSTLY),
    "expect_column_values_to_match_regex": Arguments({**_COLUMN, "regex": _is_text}, _MOSTLY),
    "expect_column_values_to_not_match_regex": Arguments({**_COLUMN, "regex": _is_text}, _MOSTLY),
    "expect_column_values_to_match_regex_list": Arguments(
        {**_COLUMN, "regex_list": are_texts}, {"match_on": _is_text, **_MOSTLY}
    ),
    "expect_column_values_to_not_match_regex_list": Arguments({**_COLUMN, "regex_list": are_texts}, _MOSTLY),
    "expect_column_values_to_be_of_type": Arguments({**_COLUMN, "type_": _is_text}),
    "expect_column_type_to_be": Arguments({**_COLUMN, "type_": _is_text}),
    "expect_column_values_to_be_in_type_list": Arguments({**_COLUMN, "type_list": are_texts}),
    "expect_column_min_to_be_between": Arguments(_COLUMN, _BOUNDS),
    "expect_column_max_to_be_between": Arguments(_COLUMN, _BOUNDS),
    "expect_column_mean_to_be_between": Arguments(_COLUMN, _BOUNDS),
    "expect_column_sum_to_be_between": Arguments(_COLUMN, _BOUNDS),
    "expect_column_stdev_to_be_between": Arguments(_COLUMN, _BOUNDS),
    "expect_column_median_to_be_between": Arguments(_COLUMN, _BOUNDS),
    "expect_column_proportion_of_non_null_values_to_be_between": Arguments(_COLUMN, _BOUNDS),
    "expect_column_to_exist": Arguments(_COLUMN, {"column_index": _is_whole_bound}),
    "expect_column_pair_values_to_be_equal": Arguments(_PAIR, _OF_ROWS),
    "expect_column_pair_values_a_to_be_greater_than_b": Arguments(_PAIR, {"or_equal": _is_flag, **_OF_ROWS}),
    "expect_compound_columns_to_be_unique": Arguments(_LIST, _OF_ROWS),
    "expect_multicolumn_sum_to_equal": Arguments({**_LIST, "sum_total": _is_number}, _OF_ROWS),
    "expect_multicolumn_values_to_be_equal": Arguments(_LIST, _OF_ROWS),
    "expect_select_column_values_to_be_unique_within_record": Arguments(_LIST, _OF_ROWS),
    "expect_table_row_count_to_be_between": Arguments(others={**_COUNTS, **_STRICT}),
    "expect_table_row_count_to_equal": Arguments({"value": _is_whole}),
    "expect_table_column_count_to_be_between": Arguments(others=_COUNTS),
    "expect_table_column_count_to_equal": Arguments({"value": _is_whole}),
    "expect_table_columns_to_match_ordered_list": Arguments(_LIST),
    "expect_table_columns_to_match_set": Arguments({"column_set": are_texts}, {"exact_match": _is_flag}),
}
"""The types that Weir evaluates itself, where all arguments are plain."""

OF_GX: Final = frozenset(
    {"batch_id", "catch_exceptions", "condition_parser", "mostly", "result_format", "row_condition", "windows"}
    | {"description", "id", "meta", "notes", "rendered_content", "severity"}
)
"""Arguments that GX takes besides: with one of these, GX evaluates an expectation."""

_WITHOUT_EFFECT: Final = frozenset(
    {"catch_exceptions", "description", "id", "meta", "notes", "rendered_content", "result_format", "severity"}
)
"""Arguments of GX that change nothing of a result here: where they are given, Weir evaluates an expectation as ever."""

CONDITION: Final = "row_condition"
PARSER: Final = "condition_parser"
_PARSERS_OF_SQL: Final = ("spark", "pandas")
"""The parsers with which GX hands a condition to Spark, as SQL."""

ABSENT_IF_NULL: Final = frozenset({"min_value", "max_value", "or_equal", "row_condition", "condition_parser"})
"""Arguments of which null means that they are not given."""

_BOUNDED: Final = ("min_value", "max_value")
_NOT_UNBOUNDED: Final = ("expect_column_values_to_be_between", "expect_column_value_lengths_to_be_between")


def is_plain(type_: str, kwargs: Mapping[str, Any]) -> bool:
    """Report whether Weir evaluates an expectation itself, if the type of the column is such."""
    known = PLAIN.get(type_)
    if known is None or any(argument_problems(type_, kwargs)):
        return False
    given = {
        name: each
        for name, each in (without_condition(kwargs) if sql_condition(kwargs) else kwargs).items()
        if name not in _WITHOUT_EFFECT and (each is not None or name not in ABSENT_IF_NULL)
    }
    is_known = given.keys() <= known.all.keys() and all(known.all[name](value) for name, value in given.items())
    return is_known and _is_in_order(given.get("min_value"), given.get("max_value"))


def without_condition(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without the condition of the rows that an expectation is of: it is applied to the rows."""
    return {name: each for name, each in kwargs.items() if name not in (CONDITION, PARSER)}


def sql_condition(kwargs: Mapping[str, Any]) -> str:
    """Return the condition of the rows that an expectation is of, if it is given as SQL; else an empty text."""
    condition = kwargs.get(CONDITION)
    return condition if isinstance(condition, str) and kwargs.get(PARSER) in _PARSERS_OF_SQL else ""


def _is_in_order(low: Any, high: Any) -> bool:
    return not (_is_number(low) and _is_number(high)) or bool(low <= high)


def argument_problems(type_: str, kwargs: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the arguments of an expectation, as far as it is known without GX."""
    if isinstance(kwargs.get(CONDITION), str) and kwargs[CONDITION] and kwargs.get(PARSER) is None:
        yield Message("formats.condition_without_parser", expectation=type_, condition=CONDITION, parser=PARSER)
    known = PLAIN.get(type_)
    if known is None:
        return
    for name in kwargs:
        if name not in known.all and name not in OF_GX:
            yield Message(
                "formats.expectation_argument_unknown", expectation=type_, name=name, meant=meant(name, known.all)
            )
    missing = [name for name in known.needed if name not in kwargs]
    if missing:
        yield Message("formats.expectation_argument_missing", expectation=type_, missing=missing, all=known.all)
    elif type_ in _NOT_UNBOUNDED and all(kwargs.get(name) is None for name in _BOUNDED):
        yield Message("formats.expectation_without_bounds", expectation=type_)


def registry_problems(type_: str, kwargs: Mapping[str, Any], registry: Any) -> Iterator[str]:
    """Yield what is wrong with an expectation by GX's own judgement.

    `registry` is the module great_expectations.expectations.registry, which knows the types, and as whose models their
    arguments are validated.
    """
    known = registry.list_registered_expectation_implementations()
    if type_ not in known:
        yield Message("formats.expectation_unknown", expectation=type_, meant=meant(type_, known))
        return
    model = registry.get_expectation_impl(type_)
    taken = [name for name in model.__fields__ if name not in OF_GX]
    try:
        model(**kwargs)
    except ValueError as error:  # pydantic's, with a list of errors: several for a value of several types
        said = dict[str, str]()
        for each in error.errors():  # type: ignore[attr-defined]
            said.setdefault(str(each["loc"][0]), each["msg"])
        for name, text in said.items():
            if name in model.__fields__:
                found = f"={kwargs[name]!r}" if name in kwargs else ""
                yield Message("formats.expectation_refused", expectation=type_, text=f"{name}{found}: {text}")
            elif name in kwargs:
                yield Message(
                    "formats.expectation_argument_unknown", expectation=type_, name=name, meant=meant(name, taken)
                )
            else:
                yield Message("formats.expectation_refused", expectation=type_, text=text)


def meant(name: str, known: Collection[str]) -> str:
    """Return the end of an error about a name that is not among the known ones: the closest one, else all."""
    return did_you_mean(name, known, f"there are {', '.join(known)}", form="{}")
