"""The table of guarantees by sink in docs/scenarios.md has each kind of target, and each of its rows names a test."""

import inspect
import re

import pytest
from tests.weir.cli.test_guides import DOCS

from weir.dataflow import targets
from weir.testing.sink_contract import SinkContract

SECTION = (DOCS / "scenarios.md").read_text().partition("\n## What is guaranteed by sink\n")[2]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in SECTION.splitlines() if line.startswith("| ")]
KINDS = {
    name
    for name, made in inspect.getmembers(targets, inspect.isfunction)
    if made.__annotations__.get("return") == "Target" and not name.startswith("_")
}


def test_each_kind_of_target_has_a_row():
    shown = {name for _, _, sink, *_ in ROWS[1:] for name in re.findall(r"^`(\w+)`", sink)}
    assert {"delta", "target"} < KINDS <= shown


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row[2])
def test_what_a_row_says_is_tested(row):
    *_, guarantee, _, held = row
    file, _, name = held.strip("`").partition("::")
    text = (DOCS.parent / file).read_text()
    is_inherited = hasattr(SinkContract, name) and "(SinkContract)" in text
    assert guarantee
    assert f"def {name}(" in text or is_inherited
