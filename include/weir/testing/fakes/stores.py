"""Stores in memory, that count, that fail, and that have no exclusive create, for tests of Weir and of pipelines.

Invariant: apart from that they do what a store of local files, or the wrapped store, does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from weir.store.files import Files, FreeSpace
from weir.store.local import LocalFiles
from weir.store.store import Store

R = TypeVar("R")


class FilesInMemory(LocalFiles):
    """Files of a folder in memory, which answers at once: they need neither a time limit nor several threads."""

    __slots__ = ()
    workers = 1


def store_in_memory(folder: Path) -> Store:
    """Open a store in a folder in memory (`weir.testing.fakes.ledgers.fast_folder`)."""
    return Store(FilesInMemory(folder))


class CountingStore(Store):
    """Counts the bytes that were read, by path: `store.bytes_read["a/part-0.parquet"]`, `store.total_bytes_read`."""

    __slots__ = ("_lock", "bytes_read")

    def __init__(self, store: Store) -> None:
        super().__init__(store.files)
        self.bytes_read: Counter[str] = Counter()
        self._lock = threading.Lock()

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read as the store does, and count."""
        data = super().read(path, offset, length)
        with self._lock:
            self.bytes_read[path] += len(data)
        return data

    @property
    def total_bytes_read(self) -> int:
        """Return the bytes read of all files."""
        return self.bytes_read.total()


@dataclass(slots=True)
class _Failure:
    pattern: str
    error: OSError
    times: int | None


class FailingStore(Store):
    """Answers chosen paths with chosen errors, as a broken disk or mount would.

        store = FailingStore(Store.open("memory://weir"))
        store.fail("*/part-0.parquet", PermissionError(errno.EACCES, "Permission denied"), times=1)

    A pattern is a shell pattern over the relative path. The error is raised below the store, which gives it a meaning:
    `FileNotFoundError` becomes NotFound, any other Retryable.
    """

    __slots__ = ("_failures",)

    def __init__(self, store: Store) -> None:
        self._failures: list[_Failure] = []
        super().__init__(_FailingFiles(store.files, self._inject))

    def fail(self, pattern: str, error: OSError, times: int | None = None) -> None:
        """Let the next `times` (None: all) operations on matching paths fail."""
        self._failures.append(_Failure(pattern, error, times))

    def heal(self) -> None:
        """Forget all failures."""
        self._failures.clear()

    def _inject(self, path: str) -> None:
        for failure in self._failures:
            if failure.times == 0 or not fnmatchcase(path, failure.pattern):
                continue
            if failure.times is not None:
                failure.times -= 1
            raise failure.error


class _FailingFiles:
    """Calls `inject`, which may raise, before each operation."""

    __slots__ = ("_files", "_inject")

    def __init__(self, files: Files, inject: Callable[[str], None]) -> None:
        self._files = files
        self._inject = inject

    @property
    def url(self) -> str:
        return self._files.url

    def make_root(self) -> None:
        self._inject("")
        self._files.make_root()

    def create(self, path: str, data: bytes) -> None:
        self._on(path).create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._on(path).replace(path, data)

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        return self._on(path).read(path, offset, length)

    def size(self, path: str) -> int:
        return self._on(path).size(path)

    def modified(self, path: str) -> datetime:
        return self._on(path).modified(path)

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        return self._on(path).entries(path)

    def delete(self, path: str) -> None:
        self._on(path).delete(path)

    def delete_folder(self, path: str) -> None:
        self._on(path).delete_folder(path)

    def flush(self, path: str) -> None:
        self._on(path).flush(path)

    def free_space(self) -> FreeSpace | None:
        return self._files.free_space()

    def _on(self, path: str) -> Files:
        self._inject(path)
        return self._files


class OverwritingStore(Store):
    """Writes over a name that is taken, as servers do that know no conditional writes: every creator wins."""

    __slots__ = ()

    def create(self, path: str, data: bytes) -> None:
        """Write, whatever is there."""
        self.replace(path, data)
