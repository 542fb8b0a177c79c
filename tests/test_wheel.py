"""The wheel that is built of the project: it has the product, and nothing that only a checkout needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"weir": "include", "weir_airflow": "plugins", "weir_spark": "spark_jobs"}
"""By package, the folder of its sources."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of what a wheel is built of: the build writes into the folder of the project."""
    root = tmp_path_factory.mktemp("wheel") / "project"
    root.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root / name)
    for name in PACKAGES.values():
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return root


@pytest.fixture(scope="module")
def wheel(project):
    """The wheel, built by the project's own build backend."""
    program = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(project.parent)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return project.parent / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_has_the_three_packages_of_the_product_and_nothing_else(files):
    assert {name.partition("/")[0] for name in files} == set(PACKAGES)


def test_the_wheel_has_every_module_of_its_packages(files):
    modules = {
        str(path.relative_to(ROOT / folder))
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder / package).rglob("*.py")
    }
    assert modules - files == set()


def test_the_wheel_has_the_migrations_of_the_ledger_and_says_that_it_is_typed(files):
    folder = ROOT / "include" / "weir/ledger/database/migrations"
    migrations = {str(path.relative_to(ROOT / "include")) for path in folder.rglob("*.py")}
    assert len(migrations) > 1
    assert migrations | {"weir/ledger/database/migrations/script.py.mako", "weir/py.typed"} <= files


def test_the_command_line_of_a_wheel_has_no_verb_that_needs_a_checkout(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # -S: the paths of this checkout, which its .venv has in a file, are not added.
    code = "import sys; sys.path[:0] = sys.argv[1:]; import weir.cli.main as main; print(main.__file__, *main.COMMANDS)"
    site = next(Path(sys.prefix).glob("lib/python*/site-packages"))
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    module, *verbs = done.stdout.split()
    assert module == str(tmp_path / "weir/cli/main.py")
    assert set(verbs).isdisjoint({"demo", "up", "down", "status", "chaos", "test"})
    assert "doctor" in verbs
