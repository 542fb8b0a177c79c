"""Stores in memory, that count, that fail, and that have no exclusive create, for tests of Weir and of pipelines.

Invariant: apart from that they do what a store of local files, or the wrapped store, does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from weir.store.files import Files, ForwardedFiles, R
from weir.store.local import LocalFiles
from weir.store.store import Store


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


class _FailingFiles(ForwardedFiles):
    """Calls `inject`, which may raise, before each operation."""

    def __init__(self, files: Files, inject: Callable[[str], None]) -> None:
        super().__init__(files)
        self._inject = inject

    def make_root(self) -> None:
        self._do(lambda _: self._files.make_root(), "")

    def _do(self, operation: Callable[..., R], path: str, *more: Any) -> R:
        self._inject(path)
        return operation(path, *more)


class OverwritingStore(Store):
    """Writes over a name that is taken, as servers do that know no conditional writes: every creator wins."""

    __slots__ = ()

    def create(self, path: str, data: bytes) -> None:
        """Write, whatever is there."""
        self.replace(path, data)
