"""The page on Flink's terms says where each of them stands, and names the tests that hold what it says."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/flink-terms.md"
HEADING = ["Flink", "Weir", "Held by"]
ABSENT = "not here"
NOTHING = "-"


def rows_of(text):
    """The headings of all tables, which stand above a line of dashes, and the cells of all rows."""
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line.startswith("|")]
    breaks = [place for place, cells in enumerate(lines) if {*cells} == {"---"}]
    headings = [lines[place - 1] for place in breaks]
    return headings, [cells for place, cells in enumerate(lines) if not {place, place + 1} & {*breaks}]


HEADINGS, ROWS = rows_of(PAGE.read_text())


@cache
def functions_of(file):
    """The functions that a file of tests defines, also in a class."""
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def missing_of(held_by):
    """The tests that a cell names, by their paths below `tests`, and that are not there, with the reason."""
    for name in re.findall(r"`([^`]*)`", held_by):
        path, _, function = name.partition("::")
        if not (TESTS / path).is_file():
            yield f"there is no tests/{path}"
        elif function not in functions_of(TESTS / path):
            yield f"tests/{path} has no {function}"


def test_each_table_has_a_column_with_the_tests():
    assert len(HEADINGS) > 5
    assert [each for each in HEADINGS if each != HEADING] == []
    assert [each for each in ROWS if len(each) != len(HEADING)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_term_names_tests_that_are_there_unless_weir_does_not_have_it(row):
    _, stands, held_by = row
    assert list(missing_of(held_by)) == []
    is_held = re.fullmatch(r"`[\w/]+\.py::test_\w+`(, `[\w/]+\.py::test_\w+`)*", held_by)
    assert is_held or (held_by == NOTHING and ABSENT in stands), held_by


def test_no_term_is_told_twice():
    terms = [row[0] for row in ROWS]
    assert sorted({*terms}) == sorted(terms)


@pytest.mark.parametrize("held_by", ["`conformance/test_flink_terms.py::test_x`", "`test_none.py::test_x`"])
def test_a_test_that_is_not_there_is_seen(held_by):
    assert list(missing_of(held_by)) != []
