"""The published pointers of one simulation: which there are, and since when."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from weir.formats.pointer import Pointer

GRACE: Final = timedelta(hours=1)
"""The time for which readers may use a pointer that a newer version has replaced."""


class Publications:
    """The pointers that readers of published data may see, and since when."""

    def __init__(self) -> None:
        self._there: dict[str, tuple[Pointer, datetime]] = {}
        self.provisional: dict[str, Pointer] = {}
        """Those to provisional rows, by their paths: they go at any time."""

    def add(self, path: str, pointer: Pointer, now: datetime) -> None:
        """Note a new pointer."""
        if pointer.lacks:
            self.provisional[path] = pointer
        else:
            self._there[path] = pointer, now

    def remove(self, path: str) -> None:
        """Note that a pointer is deleted."""
        self._there.pop(path, None)
        self.provisional.pop(path, None)

    def holds(self, folder: str) -> bool:
        """Report whether a pointer names a folder."""
        every = (*(pointer for pointer, _ in self._there.values()), *self.provisional.values())
        return any(folder == part.folder for pointer in every for part in pointer.partitions)

    def has_equal(self, sink: str, run: str, subtask: int, digest: str) -> bool:
        """Report whether the newest version of a sink in a run has a part with this digest."""
        versions = [
            each
            for each, _ in self._there.values()
            if (each.sink, each.dataflow, each.epoch) == (sink, *run.split("@"))
        ]
        newest = max(versions, key=lambda each: each.version, default=None)
        return newest is not None and any(
            (each.subtask, each.digest) == (subtask, digest) for each in newest.partitions
        )

    def may_be_read(self, path: str, now: datetime) -> bool:
        """Report whether a pointer is the newest of its epoch, or was within the last hour."""
        if path not in self._there:
            return False
        mine, _ = self._there[path]
        of_epoch = [each for each in self._there.values() if _of_epoch(each[0]) == _of_epoch(mine)]
        newest, since = max(of_epoch, key=lambda each: each[0].version)
        return newest.version == mine.version or since + GRACE > now


def _of_epoch(pointer: Pointer) -> tuple[str, str, str]:
    return pointer.dataflow, pointer.sink, pointer.epoch
