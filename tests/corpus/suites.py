"""Expectations as strangers write them, on a value of a type: they hold, are violated, or are mistakes.

The arguments of a line are JSON, as a file has them: how a number is written counts. COLUMN is the column's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Verdict(Enum):
    """What is right."""

    HOLDS = "holds"
    VIOLATED = "violated"
    MISTAKE = "a mistake of the suite, found in one try"


HOLDS, VIOLATED, MISTAKE = Verdict


@dataclass(frozen=True)
class Expected:
    """The rows of a column `v`, as SQL writes them; an expectation of it; and what is right."""

    rows: tuple[str, ...]
    type: str
    kwargs: str
    verdict: Verdict


def between(value, bounds, verdict):
    return Expected((value,), "expect_column_values_to_be_between", bounds, verdict)


def in_set(value, members, verdict):
    return Expected((value,), "expect_column_values_to_be_in_set", f'"value_set": {members}', verdict)


def not_in_set(value, members, verdict):
    return Expected((value,), "expect_column_values_to_not_be_in_set", f'"value_set": {members}', verdict)


BEYOND: Final = "9007199254740993L"

EXPECTED: Final = (
    between(BEYOND, '"max_value": 9007199254740992', VIOLATED),
    between(BEYOND, '"max_value": 9007199254740993', HOLDS),
    between(BEYOND, '"min_value": 9007199254740994', VIOLATED),
    between("9223372036854775807L", '"max_value": 9223372036854775806', VIOLATED),
    between("cast(0.1 as float)", '"min_value": 0.1, "max_value": 0.3', HOLDS),
    between("cast(0.3 as float)", '"min_value": 0.1, "max_value": 0.3', HOLDS),
    between("0.1D", '"min_value": 0.1, "max_value": 0.1', HOLDS),
    between("cast(0.1 as float)", '"min_value": 0.1, "strict_min": true', VIOLATED),
    between("cast(1.10 as decimal(10,2))", '"min_value": 1.1, "max_value": 1.1', HOLDS),
    between("cast(12345678901234567890.12 as decimal(38,2))", '"max_value": 12345678901234567890', VIOLATED),
    between("cast(1 as decimal(38,2))", '"max_value": 12345678901234567890.11', MISTAKE),
    between("double('NaN')", '"min_value": 0, "max_value": 1', VIOLATED),
    between("date'2013-01-02'", '"max_value": "2013-01-01"', VIOLATED),
    between("date'2013-01-01'", '"max_value": "2013-01-01"', HOLDS),
    between("timestamp'2013-01-01 12:00:00Z'", '"max_value": "2013-01-01T11:59:59"', VIOLATED),
    between("int(null)", '"min_value": 1', HOLDS),
    between("1", '"min_value": "one"', MISTAKE),
    in_set("'cd'", '["ab", null]', VIOLATED),
    in_set("'ab'", '["ab", null]', HOLDS),
    in_set("string(null)", '["ab"]', HOLDS),
    in_set(BEYOND, "[9007199254740992]", VIOLATED),
    in_set("cast(0.1 as float)", "[0.1]", HOLDS),
    in_set("date'2013-01-01'", '["2013-01-01"]', HOLDS),
    not_in_set("'ab'", '["ab", null]', VIOLATED),
    not_in_set("'cd'", '["ab", null]', HOLDS),
    Expected(("1", "1", "null", "null"), "expect_column_values_to_be_unique", "", VIOLATED),
    Expected(("1", "2", "null", "null"), "expect_column_values_to_be_unique", "", HOLDS),
    Expected(("double('NaN')", "double('NaN')"), "expect_column_values_to_be_unique", "", VIOLATED),
    Expected(("1",), "expect_column_values_to_be_between", '"min_value": 2, "row_condition": "COLUMN = 1"', MISTAKE),
    Expected(
        ("1",),
        "expect_column_values_to_be_between",
        '"min_value": 2, "row_condition": "idd = 1", "condition_parser": "spark"',
        MISTAKE,
    ),
    Expected(
        ("1",),
        "expect_column_values_to_be_between",
        '"min_value": 2, "row_condition": "COLUMN = 1", "condition_parser": "spark"',
        VIOLATED,
    ),
    Expected(("'ab'",), "expect_column_values_to_match_regex", '"regex": "["', MISTAKE),
    Expected(("'ab'",), "expect_column_value_lengths_to_equal", '"value": 2', HOLDS),
)
