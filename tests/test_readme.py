"""What the README shows is true."""

from __future__ import annotations

import inspect
import re
from html import unescape
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from weir_dev.airflow_api import TaskInstance
from weir_dev.demo.demo import CONSUMER, CONSUMER_SUBTASK, DAMAGED_DAY, DAYS, EXPECTED_TRIES, LOST
from weir_dev.demo.hold import LostPartition
from weir_dev.demo.report import (
    DayCheck,
    Healing,
    picture_of,
    print_checks,
    print_cleared,
    print_found,
    print_healing,
    print_lost,
)

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"(?s)```python\n(.*?)```", README)
(PICTURE,) = re.findall(r"!\[.*?\]\((.*?\.svg)\)", README)


@pytest.fixture(scope="module")
def example():
    """The two modules of the README's pipeline: stage functions, and the DAG file."""
    modules = [{}, {}]
    for block, module in zip(BLOCKS, modules, strict=True):
        exec(compile(block, "README.md", "exec"), module)  # noqa: S102  it is ours
    return modules


def test_the_pipeline_is_a_dag_of_the_regions_that_the_text_names(example):
    _, module = example
    assert {task.task_id for task in module["dag"].tasks} == {"trips-clean", "by_zone-zones", "weir_close"}
    assert module["dag"].get_task("by_zone-zones").is_mapped


def test_each_stage_names_a_function_that_takes_its_inputs(example):
    functions, module = example
    for name in ("trips", "clean", "by_zone"):
        stage = module[name]
        assert stage.function == f"pipelines.trips:{name}"
        assert list(inspect.signature(functions[name]).parameters) == ["ctx", *stage.inputs]


def test_a_pipeline_takes_about_twenty_lines():
    assert sum(bool(line.strip()) for block in BLOCKS for line in block.splitlines()) <= 25


def task_instances(names):
    """Task instances by their names, `join[0..2]` for three."""
    found = []
    for task_id, first, last in re.findall(r"([\w-]+)(?:\[(\d+)(?:\.\.(\d+))?\])?", names):
        indexes = range(int(first), int(last or first) + 1) if first else [-1]
        found += [
            TaskInstance(task_id=task_id, map_index=index, run_id="run", state="success", try_number=1, note="")
            for index in indexes
        ]
    return found


def test_the_picture_is_what_the_demo_prints():
    """A run has written the picture; for its sizes and reasons, the demo's code prints exactly the same.

    Where it does not any more: `./weir demo --picture docs/figures/demo.svg`.
    """
    again = {
        "by_carrier[0]": "try 2: cleared by a person, backtrack; try 3: retry, committed",
        "join[0]": "missing, expected the manifest, found no such file; needed by by_carrier[0]",
    }
    spared = {
        "by_carrier[1], by_route[0..1]": "only if the digest of join[0] changes, and it did not",
        "flights-clean[0..2], join[1], planes, weather": "nothing it reads is recomputed",
        "report-delays": "only if the digest of by_carrier[0], by_carrier[1], by_route[0] or by_route[1] "
        "changes, and it did not",
        "weir_close": "only if the digest of report-delays[0] changes, and it did not",
    }
    assert list(again) == list(EXPECTED_TRIES)
    reasons = {one: why for names, why in (again | spared).items() for one in task_instances(names)}
    tries = {one: (1, 1 + EXPECTED_TRIES[str(one)]) for one in reasons if str(one) in EXPECTED_TRIES}
    consumers = (f"{CONSUMER}[0]", f"{CONSUMER}[1]")
    lost = LostPartition(
        name=f"{LOST} by carrier", folder="folder", rows=519, bytes=11833, consumers=consumers, held_results=14
    )
    console = Console(file=StringIO(), width=120, record=True)
    print_found(console, DAMAGED_DAY, lost, len(reasons) * len(DAYS), [])
    print_lost(console, DAMAGED_DAY, lost, 2)
    print_cleared(console, DAMAGED_DAY, f"{CONSUMER}[{CONSUMER_SUBTASK}]")
    others = len(DAYS) - 1
    print_healing(
        console, Healing(tries, reasons, [one for one in reasons if one not in tries], len(reasons) * others, others)
    )
    checks = [DayCheck(day, 1, rows, None) for day, rows in zip(DAYS, (180, 190), strict=True)]
    print_checks(console, checks, sorted(EXPECTED_TRIES), None, "its files and its table")
    printed = lines(console.file.getvalue())
    assert lines_of_svg((ROOT / PICTURE).read_text()) == printed
    assert lines_of_svg(picture_of(console)) == printed


def lines(text):
    """The lines that are not empty, without white space."""
    return [found for line in text.splitlines() if (found := "".join(line.split()))]


def lines_of_svg(svg):
    """The same of a picture, in which each line is made of pieces of one style."""
    pieces = re.findall(r'<text [^>]*clip-path="url\(#demo-line-(\d+)\)">(.*?)</text>', svg)
    numbers = dict.fromkeys(number for number, _ in pieces)
    return lines("\n".join("".join(unescape(text) for at, text in pieces if at == number) for number in numbers))
