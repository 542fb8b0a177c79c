"""Files whose operations have a time limit, and the pauses between tries within one.

Invariant: an operation that was abandoned takes no effect later, as far as the file system can be observed.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from weir.errors import Misconfigured
from weir.store.files import Files, ForwardedFiles, FreeSpace, R
from weir.store.worker_threads import in_time

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


def pauses(first: float = FIRST_PAUSE, longest: float = _LONGEST_PAUSE) -> Iterator[float]:
    """Return pauses in seconds that grow, between tries of one request; they never end."""
    pause = first
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311  # spreads those that were refused together
        pause = min(2 * pause, longest)


def repeated(server: str, request: str, ask: Callable[[], R], seconds: float, end: float) -> R:
    """Ask a server until it has answered: a ConnectionError may pass. Raises TimeoutError at `end`, `seconds` after."""
    last: ConnectionError | None = None
    for tries, pause in enumerate(pauses(), 1):
        try:
            return ask()
        except ConnectionError as error:
            if last is None or error.errno != errno.ETIMEDOUT:
                last = error  # more telling than that the time was over
            if time.monotonic() + pause >= end:
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    f"{server} did not complete {request} within {seconds:g} s, in {tries} tries; last error: "
                    f'{last.strerror}. Nothing is marked lost. The store option "{OPTION}" sets the limit',
                ) from error
        time.sleep(pause)
    raise AssertionError  # the pauses never end


class TimeLimitedFiles(ForwardedFiles):
    """Files of which each operation ends after `seconds` at the latest, by TimeoutError."""

    def __init__(self, files: Files, seconds: float) -> None:
        super().__init__(files)
        self._seconds = seconds

    def make_root(self) -> None:
        """Make the root."""
        self._limited("", self._files.make_root)

    def prune(self, path: str) -> None:
        """Remove empty folders, where the file system has such."""
        prune = getattr(self._files, "prune", None)
        if prune is not None:
            self._limited(path, partial(prune, path), _MANY_FILES)

    def free_space(self) -> FreeSpace | None:
        """Return how much can be written."""
        return self._limited("", self._files.free_space)

    def _do(self, operation: Callable[..., R], path: str, *more: Any) -> R:
        is_of_many = operation in (self._files.delete_folder, self._files.flush)
        return self._limited(path, partial(operation, path, *more), _MANY_FILES if is_of_many else 1)

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
