"""The interface between the store and a file system.

Invariant: adapters raise failures as `OSError` only; the store alone translates them into errors of Weir.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """The free space of a file system; `free_files` is None where files are not limited."""

    free_bytes: int
    total_bytes: int
    free_files: int | None = None

    def __str__(self) -> str:
        """Describe it as part of a sentence."""
        files = ", and no free inode for another file" if self.free_files == 0 else ""
        return f"{self.free_bytes} of {self.total_bytes} bytes free{files}"


class Files(Protocol):
    """The root folder of a store on a file system; paths are relative, "/"-separated, and "" is the root itself.

    `FileNotFoundError` must be a definite answer. Every other failure is another `OSError`.
    """

    @property
    def url(self) -> str:
        """The root, with its scheme and without a slash at the end."""
        ...

    def make_root(self) -> None:
        """Make the root folder unless it is there; an `OSError` if it cannot be read and written."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write a new file, whole or not at all; of many writers exactly one wins, others get `FileExistsError`."""
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a file, whole or not at all, in the place of any earlier one."""
        ...

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        """Read at most `length` bytes (None: all) from `offset`; fewer only where the file ends."""
        ...

    def size(self, path: str) -> int:
        """Ask for the size of a file in bytes."""
        ...

    def modified(self, path: str) -> datetime:
        """Ask when a file was last written, by the file system's own clock; with a time zone."""
        ...

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        """List names and sizes directly below a folder; the size of a folder is None."""
        ...

    def delete(self, path: str) -> None:
        """Delete one file."""
        ...

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all that is in it."""
        ...

    def flush(self, path: str) -> None:
        """Make the files of a folder, and its place in the folders above, survive a power cut."""
        ...

    def free_space(self) -> FreeSpace | None:
        """Return how much can still be written; None where there is no limit or it is unknown."""
        ...


class ForwardedFiles:
    """Files that are those of another adapter, which `_do` asks: a subclass says how. See `Files`."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def _do(self, operation: Callable[..., R], path: str, *more: Any) -> R:
        return operation(path, *more)

    @property
    def url(self) -> str:
        """The root."""
        return self._files.url

    def make_root(self) -> None:
        """Make the root."""
        self._files.make_root()

    def create(self, path: str, data: bytes) -> None:
        """Write a new file."""
        self._do(self._files.create, path, data)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file in the place of any earlier one."""
        self._do(self._files.replace, path, data)

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        """Read a part of a file."""
        return self._do(self._files.read, path, offset, length)

    def size(self, path: str) -> int:
        """Ask for the size of a file."""
        return self._do(self._files.size, path)

    def modified(self, path: str) -> datetime:
        """Ask when a file was last written."""
        return self._do(self._files.modified, path)

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        """List a folder."""
        return self._do(self._files.entries, path)

    def delete(self, path: str) -> None:
        """Delete one file."""
        self._do(self._files.delete, path)

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all that is in it."""
        self._do(self._files.delete_folder, path)

    def flush(self, path: str) -> None:
        """Make the files of a folder durable."""
        self._do(self._files.flush, path)

    def free_space(self) -> FreeSpace | None:
        """Return how much can be written."""
        return self._files.free_space()
