"""The interface between the store and a file system.

Invariant: adapters raise failures as `OSError` only; the store alone translates them into errors of Weir.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


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
