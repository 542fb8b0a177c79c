"""What the README shows is true."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

BLOCKS = re.findall(r"(?s)```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text())


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
