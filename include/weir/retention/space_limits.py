"""Limits of the bytes at rest: the disk of the store, and the quota of a dataflow.

Invariant: an attempt is refused only if not even the smallest estimate fits; space is reclaimed for the largest. A
wrong estimate may cost results that only policies keep, never a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from weir.coordination.services import Services
from weir.errors import DiskFull, Message, QuotaExceeded
from weir.retention.sizes import RunningAttempt, SizeEstimate, bytes_at_rest, dataflows
from weir.store.files import FreeSpace
from weir.units import format_size

_ONE_FILE = 1
"""Bytes that are short if no file can be added: at least some."""


@dataclass(frozen=True, slots=True)
class SpaceRequest:
    """The space that an attempt (`name`) will need: its results, its cached output, and other running attempts'."""

    name: str
    dataflow: str
    own: SizeEstimate
    copies: int
    others: tuple[RunningAttempt, ...]


class Limit(Protocol):
    """A limit of bytes. Space is reclaimed for `most` bytes; with less than `least` an attempt is refused."""

    @property
    def least(self) -> int:
        """The bytes without which an attempt is refused."""
        ...

    @property
    def most(self) -> int:
        """The bytes that may be needed."""
        ...

    @property
    def counts_files(self) -> bool:
        """Report whether all files count, not only results in the ledger."""
        ...

    def dataflows(self) -> list[str]:
        """Return the dataflows that share it."""
        ...

    def short_of(self, needed: int) -> int:
        """Return how many bytes must be deleted until `needed` fit; 0 or less if they fit now."""
        ...

    def refusal(self, freed: str, held: str) -> DiskFull:
        """Return the error to raise; `freed` describes what was deleted, `held` what holds the rest."""
        ...


@dataclass(frozen=True, slots=True)
class DiskLimit:
    """The disk of the store, of which `least_free` stays free; all dataflows of the ledger share it."""

    services: Services
    request: SpaceRequest

    @property
    def counts_files(self) -> bool:
        """All files take space."""
        return True

    @property
    def least(self) -> int:
        """The attempt's own results: those of other running attempts may be written already."""
        return self.request.own.least

    @property
    def most(self) -> int:
        """The attempt's own results and cached output, and the results of all other running attempts."""
        return self.request.own.most + self.request.copies + sum(each.estimate.most for each in self.request.others)

    def dataflows(self) -> list[str]:
        """Return all dataflows."""
        with self.services.ledger.transaction() as session:
            return dataflows(session)

    def short_of(self, needed: int) -> int:
        """Compare with the free space of the disk."""
        room = self._room()
        is_no_file_left = room.free_files == 0
        return max(needed + self.services.retention.least_free - room.free_bytes, _ONE_FILE if is_no_file_left else 0)

    def refusal(self, freed: str, held: str) -> DiskFull:
        """Describe how full the disk is, and of what."""
        room, request, spare = self._room(), self.request, self.services.retention.least_free
        return DiskFull(
            Message(
                "retention.disk_too_small",
                store_url=self.services.store.url,
                request=request.name,
                described=_described(room),
                wanted=_wanted(request.own),
                limit=format_size(spare),
                freed=freed,
                held=held,
                others=self._others(room),
            )
        )

    def _others(self, room: FreeSpace) -> str:
        with self.services.ledger.transaction() as session:
            known = bytes_at_rest(session)
        other = max(0, room.total_bytes - room.free_bytes - known)
        return (
            f"  {format_size(other)} of that disk are no results: files of other programs, partial files of running "
            "attempts, copies, and files of dead attempts (`weir gc --dry-run` lists those of the store)"
        )

    def _room(self) -> FreeSpace:
        return self.services.store.free_space() or FreeSpace(2**63, 2**63)


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """The bytes that the results of one dataflow may have at rest."""

    services: Services
    request: SpaceRequest
    quota: int

    @property
    def counts_files(self) -> bool:
        """Only results count."""
        return False

    @property
    def least(self) -> int:
        """The attempt's own results, and those of attempts that began before: they come first."""
        return self.request.own.least + sum(each.estimate.least for each in self._others() if each.is_earlier)

    @property
    def most(self) -> int:
        """The attempt's own results and those of all running attempts."""
        return self.request.own.most + sum(each.estimate.most for each in self._others())

    def dataflows(self) -> list[str]:
        """Return the dataflow of the quota."""
        return [self.request.dataflow]

    def short_of(self, needed: int) -> int:
        """Compare with the bytes at rest by the ledger."""
        return self._at_rest() + needed - self.quota

    def refusal(self, freed: str, held: str) -> DiskFull:
        """Describe what the dataflow keeps."""
        request, earlier = self.request, self.least - self.request.own.least
        others = f"running attempts that began before are to write {format_size(earlier)}, " if earlier else ""
        return QuotaExceeded(
            Message(
                "retention.quota_too_small",
                dataflow=request.dataflow,
                quota=format_size(self.quota),
                request=request.name,
                wanted=_wanted(request.own),
                others=others,
                at_rest=format_size(self._at_rest()),
                freed=freed,
                held=held,
            )
        )

    def _others(self) -> Iterable[RunningAttempt]:
        return (each for each in self.request.others if each.dataflow == self.request.dataflow)

    def _at_rest(self) -> int:
        with self.services.ledger.transaction() as session:
            return bytes_at_rest(session, self.request.dataflow)


def _described(room: FreeSpace) -> str:
    files = ", and no file can be added" if room.free_files == 0 else ""
    return f"{format_size(room.free_bytes)} of {format_size(room.total_bytes)} are free{files}"


def _wanted(own: SizeEstimate) -> str:
    if not own.most:
        return ""
    sizes = format_size(own.least) if own.least == own.most else f"{format_size(own.least)} to {format_size(own.most)}"
    return f"it is to write about {sizes}, "
