"""Files in memory that can be away, full, unmounted, lost and damaged.

Invariant: they keep the contract of `weir.store.files.Files`, and note who wrote and who deleted what.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import Final

from tests.simulator.process import Process

from weir.store.files import FreeSpace

URL: Final = "memory://simulated"


class Condition(Enum):
    """The condition of the store."""

    UP = "up"
    AWAY = "away"
    """It answers nothing."""
    FULL = "full"
    UNMOUNTED = "unmounted"
    """An empty folder replaces it."""


class MemoryFiles:
    """The files of one simulation. `process` uses them just now: it passes a step before and after each change."""

    workers = 1

    def __init__(
        self,
        process: Callable[[], Process],
        on_change: Callable[[str, str, bytes], None],
        now: Callable[[], datetime],
    ) -> None:
        self.condition = Condition.UP
        self.data: dict[str, bytes] = {}
        self.changes = 0
        """How often processes have written or deleted files."""
        self._times: dict[str, datetime] = {}
        self._now = now
        self._process = process
        self._on_change = on_change

    @property
    def url(self) -> str:
        """Return the root."""
        return URL

    def make_root(self) -> None:
        """Raise an error if the store is unavailable; else its root exists."""
        self._require("")

    def create(self, path: str, data: bytes) -> None:
        """Write a new file."""
        self._before_write(path)
        if path in self.data:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self._write("create", path, data)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file in the place of any earlier one."""
        self._before_write(path)
        self._write("replace", path, data)

    def _before_write(self, path: str) -> None:
        self._process().step(OSError(errno.EIO, "refused", path))
        self._require(path)
        if self.condition is Condition.FULL:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        if self.condition is Condition.UNMOUNTED:
            raise OSError(errno.EIO, "the folder above is gone", path)

    def _write(self, how: str, path: str, data: bytes) -> None:
        self._on_change(how, path, data)
        self.data[path], self._times[path] = data, self._now()
        self.changes += 1
        self._process().step(OSError(errno.EIO, "written, and the answer is lost", path), is_done=True)

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        """Read a part of a file."""
        self._process().read(path)
        data = self._found(path)
        return data[offset:] if length is None else data[offset : offset + length]

    def size(self, path: str) -> int:
        """Return the size of a file."""
        self._process().read(path)
        return len(self._found(path))

    def modified(self, path: str) -> datetime:
        """Return the time at which a file was written."""
        self._found(path)
        return self._times[path]

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        """List names and sizes directly below a folder."""
        self._process().read(path)
        self._require(path)
        prefix = f"{path}/" if path else ""
        found: dict[str, int | None] = {}
        for name, data in self.data.items():
            if name.startswith(prefix) and self.condition is not Condition.UNMOUNTED:
                first, slash, _ = name[len(prefix) :].partition("/")
                found[first] = None if slash else len(data)
        if not found and path:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return list(found.items())

    def delete(self, path: str) -> None:
        """Delete one file."""
        self._process().step(OSError(errno.EIO, "refused", path))
        self._found(path)
        self._on_change("delete", path, b"")
        del self.data[path]
        self.changes += 1

    def delete_folder(self, path: str) -> None:
        """Delete all files below a folder."""
        for name, size in self.entries(path):
            below = f"{path}/{name}"
            if size is None:
                self.delete_folder(below)
            else:
                self.delete(below)

    def flush(self, path: str) -> None:
        """Nothing is buffered."""
        self._require(path)

    def free_space(self) -> FreeSpace | None:
        """Nothing is free on a full disk."""
        self._require("")
        return FreeSpace(0, 1, None) if self.condition is Condition.FULL else None

    def _require(self, path: str) -> None:
        if self.condition is Condition.AWAY:
            raise OSError(errno.EIO, "the store is away", path)

    def _found(self, path: str) -> bytes:
        self._require(path)
        if path not in self.data or self.condition is Condition.UNMOUNTED:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self.data[path]
