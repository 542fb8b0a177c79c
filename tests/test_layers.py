"""Arrows point one way: dags -> weir_airflow -> weir <- weir_spark <- pipelines; the core does no I/O (DESIGN 3)."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE = ("dataflow", "topology", "recovery", "results", "state", "sinks", "quality")
OURS = {"weir", "weir_airflow", "weir_spark", "pipelines"}
DOING = {"os", "io", "socket", "subprocess", "pathlib", "shutil", "tempfile", "time", "random", "secrets", "threading"}
"""Modules of the standard library that reach out of the process, or that tell another thing at each call."""


def imports_of(file):
    """All modules that a file imports, at its top or later."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: write absolute imports"
            yield node.module


def offences(folder, allowed):
    """Imports below `folder` that `allowed` does not allow, each with its file."""
    return [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        for name in imports_of(file)
        if not allowed(file, name)
    ]


@pytest.mark.parametrize("package", PURE)
def test_the_pure_part_imports_only_itself_and_what_does_nothing(package):
    def allowed(_file, name):
        top = name.partition(".")[0]
        if top == "weir":
            return name == "weir.errors" or name.split(".")[1] in PURE
        return top in sys.stdlib_module_names and top not in DOING

    assert offences(f"include/weir/{package}", allowed) == []


def test_weir_knows_neither_airflow_nor_spark():
    foreign = (OURS - {"weir"}) | {"airflow", "pyspark", "great_expectations"}
    assert offences("include/weir", lambda _file, name: name.partition(".")[0] not in foreign) == []


def test_the_spark_side_knows_neither_airflow_nor_the_ledger():
    def allowed(_file, name):
        outer = ("weir.ledger", "weir.coordinator", "weir.cli")
        return name.partition(".")[0] not in {"airflow", "weir_airflow", "sqlalchemy"} and not name.startswith(outer)

    assert offences("spark_jobs", allowed) == []


def test_the_airflow_side_knows_spark_at_one_place_only():
    def allowed(file, name):
        return file.name == "engines.py" or name.partition(".")[0] not in {"weir_spark", "pyspark", "pipelines"}

    assert offences("plugins", allowed) == []


def test_pipelines_know_spark_and_nothing_of_the_machinery():
    def allowed(_file, name):
        return name.partition(".")[0] not in {"airflow", "weir_airflow", "weir"}

    assert offences("spark_jobs/pipelines", allowed) == []


def test_dag_files_know_no_spark():
    assert offences("dags", lambda _file, name: name.partition(".")[0] not in {"pyspark", "weir_spark"}) == []


def test_no_module_is_longer_than_three_hundred_lines():
    folders = ("include", "plugins", "spark_jobs", "dags")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert [str(file) for file in files if len(file.read_text().splitlines()) > 300] == []


def test_what_ships_does_not_import_what_tests_it():
    def allowed(_file, name):
        return not name.startswith("weir.testing")

    assert offences("include/weir/attempts", allowed) == []
    assert offences("plugins", allowed) == []
