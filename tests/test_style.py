"""The code is formatted, linted and typed by the rules of pyproject.toml."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("command", ["ruff format --check .", "ruff check .", "mypy"])
def test_the_code_is_formatted_linted_and_typed(command):
    found = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, f"{command}:\n{found.stdout[-3000:]}{found.stderr[-1000:]}"
