"""The part of requirements.lock that a deployment needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from weir_dev import requirements

LOCK = """\
airflow==3 \\
    --hash=sha256:aa
    # via weir (pyproject.toml)
attrs==1 ; python_full_version < '3.12' \\
    --hash=sha256:bb
    # via
    #   airflow
    #   pytest
attrs==2 ; python_full_version >= '3.12' \\
    --hash=sha256:cc
    # via
    #   airflow
    #   pytest
deep==1 \\
    --hash=sha256:dd
    # via attrs
pytest==9 \\
    --hash=sha256:ee
    # via weir (pyproject.toml:dev)
wheel==1 \\
    --hash=sha256:ff
    # via
    #   weir (pyproject.toml:dev)
    #   pytest
"""


@pytest.fixture
def select(tmp_path):
    """Run the script as the Dockerfile does, without any package."""
    lock = tmp_path / "requirements.lock"

    def run(*names, text=LOCK):
        lock.write_text(text)
        command = [sys.executable, "-I", "-S", requirements.__file__, lock, *names]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_a_run_needs_what_the_project_requires_and_what_that_requires():
    assert requirements.runtime(LOCK) == {"airflow", "attrs", "deep"}


def test_a_checkout_has_besides_its_server_and_what_builds_it(select):
    lock = (
        LOCK
        + "server==1 \\\n    # via weir (pyproject.toml:server)\n"
        + "setuptools==1 \\\n    # via weir (pyproject.toml:dev)\n"
    )
    assert requirements.checkout(lock) == {"airflow", "attrs", "deep", "server", "setuptools"}
    assert select("--checkout", text=lock).stdout == lock.replace(LOCK[LOCK.index("pytest==9") :], "")


def test_pins_are_passed_on_as_they_stand_with_markers_and_hashes(select):
    assert select().stdout == LOCK[: LOCK.index("pytest==9")]


def test_a_package_that_is_named_is_passed_on_alone(select):
    assert select("wheel").stdout == LOCK[LOCK.index("wheel==") :]


def test_a_package_that_is_not_there_is_named(select):
    done = select("setuptools")
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not pin setuptools" in done.stderr


def test_a_lock_that_does_not_say_what_the_project_requires_is_refused(select):
    done = select(text="attrs==1 \\\n    --hash=sha256:bb\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "with annotations" in done.stderr


def test_the_last_line_needs_no_end(select):
    assert select("wheel", text=LOCK.removesuffix("\n")).stdout == LOCK[LOCK.index("wheel==") :].removesuffix("\n")


def test_circles_end():
    circle = "a==1 \\\n    # via\n    #   b\n    #   weir (pyproject.toml)\nb==1 \\\n    # via a\n"
    assert requirements.runtime(circle) == {"a", "b"}


def test_the_project_is_called_in_the_lock_as_it_is_here():
    assert requirements.PROJECT in (Path(__file__).parents[2] / "requirements.lock").read_text()
