"""Which processes read and change which paths of the store, in any schedule so far.

Invariant: what a process does at a path that no other process has ever met it at is seen by none, and no point to
switch at. A conflict that is new may have made an earlier decision wrong: a search that meets one is not whole.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator
from typing import Final

_SLOT: Final = struct.Struct("<QQ")
_SLOTS: Final = 2**16
_SEVERAL: Final = 2**63


class Traffic:
    """The paths and their users, in memory that all forks share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 + _SLOTS * _SLOT.size)

    @property
    def conflicts(self) -> int:
        """Return how many conflicts there were."""
        return int(struct.unpack_from("<Q", self._memory, 0)[0])

    def is_met(self, process: int, path: str, *, changes: bool) -> bool:
        """Report whether another process reads what this one changes, or changes what it reads or changes."""
        users = [self._user(f"changes {path}")]
        users += [self._user(f"reads {each}") for each in _above(path)] if changes else []
        return any(each not in (0, process) for each in users)

    def note(self, process: int, path: str, *, changes: bool) -> None:
        """Note what a process does."""
        keys = [f"changes {each}" for each in _above(path)] if changes else [f"reads {path}"]
        news = [key for key in keys if self._add(key, process)]
        if news and self.is_met(process, path, changes=changes):
            struct.pack_into("<Q", self._memory, 0, self.conflicts + 1)

    def _user(self, key: str) -> int:
        return int(_SLOT.unpack_from(self._memory, self._at(number_of(key)))[1])

    def _add(self, key: str, process: int) -> bool:
        number = number_of(key)
        at = self._at(number)
        user = _SLOT.unpack_from(self._memory, at)[1]
        if user in (process, _SEVERAL):
            return False
        _SLOT.pack_into(self._memory, at, number, process if user == 0 else _SEVERAL)
        return True

    def _at(self, number: int) -> int:
        slot = number % _SLOTS
        while True:
            where = 8 + slot * _SLOT.size
            if _SLOT.unpack_from(self._memory, where)[0] in (0, number):
                return where
            slot = (slot + 1) % _SLOTS


def number_of(text: str) -> int:
    """Return a number for a text, the same in each process; never 0."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") | 1


def _above(path: str) -> Iterator[str]:
    """Yield a path and all folders that it is in."""
    yield ""
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        yield "/".join(parts[:count])
