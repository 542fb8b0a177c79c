"""Keys of a version and of a topic, in a temporary database on disk: memory does not grow with their number.

Invariant: a key is known by 16 bytes of its BLAKE2 digest.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Final

_AT_ONCE: Final = 10_000


class Keys:
    """Keys that are there, each with the epoch that has written it last, and the partition in which it is."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute(
            "create table keys (digest blob primary key, epoch text, key blob, partition int) without rowid"
        )

    def first_twice(self, keys: Iterable[bytes]) -> bytes | None:
        """Return the first of these keys that comes a second time, if one does."""
        left = iter(keys)
        while chunk := list(islice(left, _AT_ONCE)):
            for key in chunk:
                try:
                    self._database.execute("insert into keys (digest) values (?)", (_digest(key),))
                except sqlite3.IntegrityError:
                    return key
        return None

    def note(self, found: Iterable[tuple[bytes, str | None, int]]) -> None:
        """Take over the last epoch of each key, in the order of a topic; None for a key that nobody has any more."""
        for key, epoch, partition in found:
            if epoch is None:
                self._database.execute("delete from keys where digest = ?", (_digest(key),))
            else:
                row = (_digest(key), epoch, key, partition)
                self._database.execute("insert or replace into keys values (?, ?, ?, ?)", row)

    def take(self, key: bytes) -> str | None:
        """Return the epoch that has written a key last, None if none has, and forget the key."""
        digest = _digest(key)
        found = self._database.execute("select epoch from keys where digest = ?", (digest,)).fetchone()
        self._database.execute("delete from keys where digest = ?", (digest,))
        return None if found is None else str(found[0])

    def left_of(self, epoch: str) -> Iterator[tuple[bytes, int]]:
        """Yield the keys that an epoch has written last and that were not taken, each with its partition."""
        yield from self._database.execute("select key, partition from keys where epoch = ?", (epoch,))


@contextmanager
def open_keys() -> Iterator[Keys]:
    """Make an empty database, in a temporary folder that goes at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-keys-") as folder,
        closing(sqlite3.connect(Path(folder) / "keys", isolation_level=None)) as database,
    ):
        database.execute("pragma journal_mode = off")
        database.execute("pragma synchronous = off")
        database.execute("begin")
        yield Keys(database)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()
