"""A store without an exclusive create, for tests of what relies on one. Invariant: it does all else as it should."""

from __future__ import annotations

from weir.store.store import Store


class OverwritingStore(Store):
    """Writes over a name that is taken, as servers do that know no conditional writes: every creator wins."""

    __slots__ = ()

    def create(self, path: str, data: bytes) -> None:
        """Write, whatever is there."""
        self.replace(path, data)
