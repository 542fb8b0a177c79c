"""The states that a service answers from, each at its newest epoch.

Invariants: a state is not closed while a request reads it. With leases an open epoch has one, which ends when a newer
one is served and nobody reads it any more, or with the service. The newest is looked for at most once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final

from weir.reading.lookups import Lookups, RowGroupCache
from weir.reading.state_opening import StateReader, WantedState, open_wanted_state

LOOKED_FOR_EVERY: Final = 1.0
"""Seconds for which the newest epoch is taken to be the newest."""


@dataclass(slots=True)
class _Held:
    """An open epoch, how many requests read it, and whether a newer one is served."""

    lookups: Lookups
    readers: int = 0
    is_replaced: bool = False


@dataclass(slots=True)
class ServedState:
    """What is answered of a state, as `wanted` says, which names no epoch; `clock` gives seconds that only grow."""

    by: StateReader
    wanted: WantedState
    cache: RowGroupCache
    clock: Callable[[], float]
    _newest: _Held | None = None
    _looked_for: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    @contextmanager
    def at(self, epoch: str | None, *, fresh: bool = False) -> Iterator[Lookups]:
        """Give look-ups at the end of an epoch; None: the newest. Raises Misconfigured, Unreadable, Retryable."""
        if epoch is not None or fresh:
            found = self._opened(epoch, fresh=fresh)
            with found.opened:
                yield found
            return
        with self._lock:
            held = self._current()
            held.readers += 1
        try:
            yield held.lookups
        finally:
            with self._lock:
                held.readers -= 1
                _close_unread(held)

    def close(self) -> None:
        """End the lease, and have the next request look for the newest epoch."""
        with self._lock:
            self._replace(None)

    def _current(self) -> _Held:
        now = self.clock()
        if self._newest is not None and now - self._looked_for < LOOKED_FOR_EVERY:
            return self._newest
        found = self._opened(None, fresh=False)
        if self._newest is not None and found.version == self._newest.lookups.version:
            found.opened.close()
        else:
            self._replace(_Held(found))
        self._looked_for = now
        assert self._newest is not None  # noqa: S101  # it has been opened
        return self._newest

    def _replace(self, found: _Held | None) -> None:
        if self._newest is not None:
            self._newest.is_replaced = True
            _close_unread(self._newest)
        self._newest = found

    def _opened(self, epoch: str | None, *, fresh: bool) -> Lookups:
        wanted = replace(self.wanted, run=epoch, is_fresh=fresh)
        return Lookups(open_wanted_state(self.by, wanted, ExitStack()), self.cache)


def _close_unread(held: _Held) -> None:
    if held.is_replaced and not held.readers:
        held.lookups.opened.close()
