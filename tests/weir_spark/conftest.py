"""Small pipelines to run, and a store to run them on."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.store.store import Store
from weir.testing.fakes.jobs import Jobs


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(str(tmp_path / "store"))
    opened.initialise()
    return opened


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module of stage functions and return its name, which no other test has."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(text: str) -> str:
        name = f"pipeline_{uuid.uuid4().hex[:12]}"
        (folder / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def jobs(store: Store) -> Jobs:
    return Jobs(store)
