"""Ledgers and folders for hundreds of tests. Invariant: each is new, and is deleted when its test ends."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Dialect, Engine, create_engine, make_url
from sqlalchemy.pool import NullPool, Pool, QueuePool

from weir.ledger.database.reading import refuse_writing
from weir.ledger.database.sqlite import sqlite_engine
from weir.ledger.ledger import Ledger

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps a file system in memory; used only if it is there

_COMPILED: dict[Any, Any] = {}
"""The statements that were compiled in this process."""


def new_ledger(path: Path) -> Ledger:
    """Open a new SQLite ledger at `path`; migrated once a process, then copied."""
    path.write_bytes(_empty_ledger())
    return copied_ledger(path)


def copied_ledger(path: Path) -> Ledger:
    """Open a copy of a SQLite ledger that this process has migrated, for tests that do not fork.

    It keeps its connections, and all of them share the statements that were compiled.
    """
    engine = sharing_engine(make_url(f"sqlite:///{path}"), QueuePool)
    refuse_writing(engine)
    return Ledger(engine)


def sharing_engine(url: URL, pool: type[Pool] = NullPool) -> Engine:
    """Make an engine for a SQLite ledger that shares the statements that were compiled in this process."""
    engine = sqlite_engine(url, pool)
    engine.dialect = _dialect()  # compiled statements are those of a dialect
    engine.update_execution_options(compiled_cache=_COMPILED)
    return engine


@cache
def _dialect() -> Dialect:
    return create_engine("sqlite://").dialect


@cache
def _empty_ledger() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        Ledger.open(f"sqlite:///{path}").close()
        return path.read_bytes()


@contextmanager
def fast_folder() -> Iterator[Path]:
    """Give an empty folder in memory, where the system has such: each commit and each file is flushed to disk."""
    folder = Path(tempfile.mkdtemp(prefix="weir-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
