"""Files whose operations have a time limit, and the pauses between tries within one.

Invariant: an operation that was abandoned takes no effect later, as far as the file system can be observed.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from weir.errors import Misconfigured
from weir.store.files import Files, FreeSpace
from weir.store.worker_threads import in_time

R = TypeVar("R")

OPTION: Final = "timeout"
"""The name of the store option, in seconds."""

SECONDS: Final = 300.0
"""The default: longer than the restart of a file server or the spin-up of a disk takes."""

_DAY: Final = 86_400

_MANY_FILES: Final = 12
"""The factor of the limit for operations that visit all files of a folder."""


def time_limit(storage_options: Mapping[str, Any], default: float = SECONDS) -> float:
    """Return the time limit of an operation in seconds. Raises Misconfigured unless it is in (0, a day]."""
    given = storage_options.get(OPTION, default)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= _DAY:
        raise Misconfigured.of("store.time_limit_wrong", option=OPTION, given=given, day=_DAY)
    return float(given)


FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


def pauses() -> Iterator[float]:
    """Return pauses in seconds that grow, between tries of one request; they never end."""
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311  # spreads those that were refused together
        pause = min(2 * pause, _LONGEST_PAUSE)


class TimeLimitedFiles:
    """Files of which each operation ends after `seconds` at the latest, by TimeoutError."""

    __slots__ = ("_files", "_seconds")

    def __init__(self, files: Files, seconds: float) -> None:
        self._files = files
        self._seconds = seconds

    @property
    def url(self) -> str:
        """The root."""
        return self._files.url

    def make_root(self) -> None:
        """Make the root."""
        self._limited("", self._files.make_root)

    def create(self, path: str, data: bytes) -> None:
        """Write a new file."""
        self._limited(path, partial(self._files.create, path, data))

    def replace(self, path: str, data: bytes) -> None:
        """Write a file in the place of any earlier one."""
        self._limited(path, partial(self._files.replace, path, data))

    def read(self, path: str, offset: int, length: int | None) -> bytes:
        """Read a part of a file."""
        return self._limited(path, partial(self._files.read, path, offset, length))

    def size(self, path: str) -> int:
        """Ask for the size of a file."""
        return self._limited(path, partial(self._files.size, path))

    def modified(self, path: str) -> datetime:
        """Ask when a file was last written."""
        return self._limited(path, partial(self._files.modified, path))

    def entries(self, path: str) -> list[tuple[str, int | None]]:
        """List a folder."""
        return self._limited(path, partial(self._files.entries, path))

    def delete(self, path: str) -> None:
        """Delete one file."""
        self._limited(path, partial(self._files.delete, path))

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all that is in it."""
        self._limited(path, partial(self._files.delete_folder, path), _MANY_FILES)

    def prune(self, path: str) -> None:
        """Remove empty folders, where the file system has such."""
        prune = getattr(self._files, "prune", None)
        if prune is not None:
            self._limited(path, partial(prune, path), _MANY_FILES)

    def flush(self, path: str) -> None:
        """Make the files of a folder durable."""
        self._limited(path, partial(self._files.flush, path), _MANY_FILES)

    def free_space(self) -> FreeSpace | None:
        """Return how much can be written."""
        return self._limited("", self._files.free_space)

    def _limited(self, path: str, operation: Callable[[], R], times: int = 1) -> R:
        seconds = self._seconds * times
        try:
            return in_time(operation, seconds)
        except TimeoutError as error:
            if error.errno is not None:
                raise  # the file system's own
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"no answer within {seconds:g} s: it hangs (a network mount whose server is gone?). Nothing is marked "
                f'lost; check the mount. The store option "{OPTION}" sets the limit',
                path,
            ) from error
