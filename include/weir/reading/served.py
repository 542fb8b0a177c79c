"""The states that a service answers from, each at its newest committed epoch.

Invariants: a state is looked up under its lock, so that none is closed while it is read. An open epoch has one lease,
which ends when a newer one is served, or with the service. The newest is looked for at most once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from weir.coordination.services import Services
from weir.reading.lookups import Lookups, RowGroupCache
from weir.reading.state_opening import StateReader, WantedState, open_wanted_state

LOOKED_FOR_EVERY: Final = 1.0
"""Seconds for which the newest epoch is taken to be the newest."""


@dataclass(slots=True)
class ServedState:
    """One state of a dataflow; `clock` gives seconds that only grow."""

    services: Services
    dataflow: str
    name: str
    cache: RowGroupCache
    clock: Callable[[], float]
    _newest: Lookups | None = None
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
            yield self._current()

    def close(self) -> None:
        """End the lease."""
        with self._lock:
            self._replace(None)

    def _current(self) -> Lookups:
        now = self.clock()
        if self._newest is not None and now - self._looked_for < LOOKED_FOR_EVERY:
            return self._newest
        found = self._opened(None, fresh=False)
        if self._newest is not None and found.version == self._newest.version:
            found.opened.close()
            found = self._newest
        else:
            self._replace(found)
        self._looked_for = now
        return found

    def _replace(self, found: Lookups | None) -> None:
        if self._newest is not None:
            self._newest.opened.close()
        self._newest = found

    def _opened(self, epoch: str | None, *, fresh: bool) -> Lookups:
        wanted = WantedState(dataflow=self.dataflow, name=self.name, run=epoch, is_fresh=fresh)
        return Lookups(open_wanted_state(StateReader(self.services), wanted, ExitStack()), self.cache)
