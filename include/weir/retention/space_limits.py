"""What bounds the bytes that may lie about: the disk of the store, and the quota of a dataflow.

Invariant: an attempt is refused only where not even the least fits that its partitions had lately; room is made for the
most that they had. A wrong guess may cost results that were kept for convenience, never a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from weir.coordination.services import Services
from weir.errors import DiskFull, QuotaExceeded
from weir.retention.sizes import AtWork, Likely, bytes_at_rest, dataflows
from weir.store.files import FreeSpace
from weir.units import format_size

_ONE_FILE = 1
"""Bytes that are short where there is no room for another file: some at least."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What an attempt, by its name, asks for: what it will write, copies among it, and what others at work will."""

    name: str
    dataflow: str
    own: Likely
    copies: int
    others: tuple[AtWork, ...]


class Limit(Protocol):
    """A bound. `most` bytes are made room for, and with less than `least` an attempt is refused."""

    @property
    def least(self) -> int:
        """The bytes without which it is in vain to begin."""
        ...

    @property
    def most(self) -> int:
        """The bytes that may be needed."""
        ...

    @property
    def counts_files(self) -> bool:
        """Whether all files count, or only results that the ledger knows."""
        ...

    def dataflows(self) -> list[str]:
        """The dataflows that share it."""
        ...

    def short_of(self, needed: int) -> int:
        """How many bytes have to go before `needed` fit; 0 or less where they fit now."""
        ...

    def refusal(self, freed: str, held: str) -> DiskFull:
        """The error to raise; `freed` says what has gone already, `held` who has what is left."""
        ...


@dataclass(frozen=True, slots=True)
class DiskLimit:
    """The disk of the store, of which some is to stay free; all dataflows of the ledger share it."""

    services: Services
    demand: Demand

    @property
    def counts_files(self) -> bool:
        """All files take room."""
        return True

    @property
    def least(self) -> int:
        """Of its own results: what others at work will write may be there already."""
        return self.demand.own.least

    @property
    def most(self) -> int:
        """Its own results and copies, and those of all others at work."""
        return self.demand.own.most + self.demand.copies + sum(each.likely.most for each in self.demand.others)

    def dataflows(self) -> list[str]:
        """All of them."""
        with self.services.ledger.transaction() as session:
            return dataflows(session)

    def short_of(self, needed: int) -> int:
        """Ask the disk."""
        room = self._room()
        is_no_file_left = room.free_files == 0
        return max(needed + self.services.retention.least_free - room.free_bytes, _ONE_FILE if is_no_file_left else 0)

    def refusal(self, freed: str, held: str) -> DiskFull:
        """Tell how full the disk is, and of what."""
        room, demand, spare = self._room(), self.demand, self.services.retention.least_free
        return DiskFull(
            f"the disk of the store {self.services.store.url} has too little room for {demand.name}: {_told(room)}, "
            f"{_wanted(demand.own)}and {format_size(spare)} are to stay free (least_free); {freed}.\n"
            f"{held}\n{self._others(room)}\n"
            "Make room there, or enlarge the disk: the task tries again by itself, and nothing is marked lost"
        )

    def _others(self, room: FreeSpace) -> str:
        with self.services.ledger.transaction() as session:
            known = bytes_at_rest(session)
        other = max(0, room.total_bytes - room.free_bytes - known)
        return (
            f"  {format_size(other)} of that disk are no results: files of other programs, what attempts at work are "
            "writing, copies, and what dead attempts have left (`weir gc --dry-run` lists those of the store)"
        )

    def _room(self) -> FreeSpace:
        return self.services.store.free_space() or FreeSpace(2**63, 2**63)


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """The bytes that the results of one dataflow may have at rest."""

    services: Services
    demand: Demand
    quota: int

    @property
    def counts_files(self) -> bool:
        """Only results count."""
        return False

    @property
    def least(self) -> int:
        """Its own results, and those of attempts that have begun before: they come first."""
        return self.demand.own.least + sum(each.likely.least for each in self._others() if each.is_earlier)

    @property
    def most(self) -> int:
        """Its own results and those of all attempts at work."""
        return self.demand.own.most + sum(each.likely.most for each in self._others())

    def dataflows(self) -> list[str]:
        """The one."""
        return [self.demand.dataflow]

    def short_of(self, needed: int) -> int:
        """Ask the ledger."""
        return self._at_rest() + needed - self.quota

    def refusal(self, freed: str, held: str) -> DiskFull:
        """Tell what the dataflow keeps."""
        demand, earlier = self.demand, self.least - self.demand.own.least
        at_work = f"attempts at work that began before are to write {format_size(earlier)}, " if earlier else ""
        return QuotaExceeded(
            f"{demand.dataflow} may keep {format_size(self.quota)}, its quota, which leaves too little for "
            f"{demand.name}: {_wanted(demand.own)}{at_work}and {format_size(self._at_rest())} are at rest; "
            f"{freed}.\n{held}\n"
            "Raise the quota (`Dataflow(quota=...)` in the DAG file, or quota in Airflow's section [weir]), or keep "
            "less (keep, keep_failed, keep_published): the task tries again by itself, and nothing is marked lost"
        )

    def _others(self) -> Iterable[AtWork]:
        return (each for each in self.demand.others if each.dataflow == self.demand.dataflow)

    def _at_rest(self) -> int:
        with self.services.ledger.transaction() as session:
            return bytes_at_rest(session, self.demand.dataflow)


def _told(room: FreeSpace) -> str:
    files = ", and no file can be added" if room.free_files == 0 else ""
    return f"{format_size(room.free_bytes)} of {format_size(room.total_bytes)} are free{files}"


def _wanted(own: Likely) -> str:
    if not own.most:
        return ""
    sizes = format_size(own.least) if own.least == own.most else f"{format_size(own.least)} to {format_size(own.most)}"
    return f"it is to write about {sizes}, "
