"""The restores of one simulation, and what they have restored.

Invariant: a restored result is what the attempts had made that the checkpoint names, as its manifest was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.simulator.engine import Made
from tests.simulator.history.ledger_view import LedgerView, Partition, Result
from tests.simulator.history.snapshots import Part, Snapshot, Snapshots, parts_of

from weir.formats.manifest import Manifest, RestoredWith
from weir.ledger.database.tables import UNKNOWN_SNAPSHOT
from weir.ledger.runs import run_key


class Restore(NamedTuple):
    """A restore, as the ledger has it."""

    id: int
    dataflow: str
    epoch: str
    lineage: int
    origin: str
    number: int
    mode: str
    unpinned_at: str | None

    @property
    def run(self) -> str:
        """Return the run at whose end the dataflow continues."""
        return run_key(self.dataflow, self.epoch)

    @property
    def is_rebuilt(self) -> bool:
        """Report whether a rebuilt ledger has it from the store, which does not tell of which snapshot it is."""
        return self.number == UNKNOWN_SNAPSHOT

    @property
    def is_fork(self) -> bool:
        """Report whether another dataflow began with it."""
        return self.mode == "fork"


class Restores:
    """The restores of one simulation, and the partitions that they pin."""

    def __init__(self) -> None:
        self.known: dict[int, Restore] = {}
        self.new: list[Restore] = []
        self.pins: dict[int, frozenset[Partition]] = {}
        """By restore, the partitions that must be kept: no later checkpoint is complete without them."""
        self.written: Counter[RestoredWith] = Counter()
        """How many results of each restore were written, whether it was carried out or not."""
        self.written_for: dict[str, RestoredWith] = {}
        """By synthetic attempt, the restore that it was written for."""

    def update(self, view: LedgerView, snapshots: Snapshots, made: dict[str, Made]) -> None:
        """Note new restores, the attempts that made their results, and the checkpoints that unpin them."""
        rows = {row.id: row for row in view.rows(Restore, "restore")}
        self.new = [row for row in rows.values() if row.id not in self.known]
        self.known = rows
        for row in rows.values():
            if row in self.new or (row.is_rebuilt and row.id in self.pins):
                parts = restored_parts(view, snapshots, row)
                self.pins[row.id] = frozenset(part.partition for part in parts)
                _note_made(view, parts, made, None if row.is_rebuilt else row.lineage)
        untold = {row.run for row in view.attempts.values() if row.is_restored and row.id not in made}
        for row in (each for each in rows.values() if each.run in untold):  # the ledger has them from the store
            _note_made(view, _parts_there(view, snapshots, row), made, None)
        for done in snapshots.newly_completed:
            self.pins = {id_: kept for id_, kept in self.pins.items() if not _follows(snapshots, done, rows[id_])}

    def wrote(self, manifest: Manifest) -> None:
        """Note the manifest of a restored result."""
        if manifest.restored_with is not None:
            self.written[manifest.restored_with] += 1
            self.written_for[manifest.attempt] = manifest.restored_with

    def went_back(self, view: LedgerView) -> None:
        """Forget the restores that the ledger has lost."""
        self.known, self.new = {row.id: row for row in view.rows(Restore, "restore")}, []
        self.pins = {id_: kept for id_, kept in self.pins.items() if id_ in self.known}

    def why_kept(self, result: Result) -> str | None:
        """Return which restore still needs a result."""
        for id_, kept in self.pins.items():
            if result.is_current and result.partition in kept:
                return f"it was restored in lineage {self.known[id_].lineage}, and no later checkpoint is complete"
        return None

    def is_pinned(self, run: str) -> bool:
        """Report whether a restore at the end of a run still holds its results."""
        return any(row.run == run and row.unpinned_at is None for row in self.known.values())

    def began_with(self, run: str) -> bool:
        """Report whether a fork began with the end of a run, which no attempt has computed."""
        return any(row.is_fork and row.run == run for row in self.known.values())

    def lineage_of(self, dataflow: str) -> int:
        """Return the lineage in which attempts of a dataflow may commit; 0 if it was never restored."""
        return max((row.lineage for row in self.known.values() if row.dataflow == dataflow), default=0)


def restored_parts(view: LedgerView, snapshots: Snapshots, row: Restore) -> list[Part]:
    """Return the restored parts, as partitions of the run at whose end the dataflow continues."""
    if row.is_rebuilt:
        return list(_parts_there(view, snapshots, row))
    written = snapshots.written[row.origin, row.number]
    return [part._replace(partition=Partition(row.run, part.partition.id)) for part in parts_of(written)]


def _parts_there(view: LedgerView, snapshots: Snapshots, row: Restore) -> Iterator[Part]:
    """Yield what a rebuilt ledger calls restored: parts of whichever snapshots of the epoch had these digests."""
    kept = {
        (part.partition.id, part.digest): part
        for written in snapshots.written.values()
        if written.epoch == row.epoch
        for part in parts_of(written)
    }
    for partition, result in view.current.items():
        if partition.run == row.run and view.attempts[result.attempt].is_restored:
            part = kept[partition.id, result.digest]
            yield part._replace(partition=partition)


def _note_made(view: LedgerView, parts: Iterable[Part], made: dict[str, Made], lineage: int | None) -> None:
    """Note that the synthetic attempts (of a lineage, or of all) have made what the copied attempts had made."""
    for part in parts:
        found = view.current.get(part.partition)
        whose = None if found is None else view.attempts[found.attempt]
        if whose is not None and whose.is_restored and lineage in (None, whose.lineage):
            stage = part.partition.id.stage
            made.setdefault(whose.id, Made()).contents[stage] = made[part.attempt].contents[stage]


def _follows(snapshots: Snapshots, done: Snapshot, row: Restore) -> bool:
    """Report whether a checkpoint is later than a restore, and consists of the dataflow's own files."""
    if done.is_savepoint or done.dataflow != row.dataflow or done.epoch <= row.epoch:
        return False
    return all(path.startswith(f"{row.dataflow}/") for path in snapshots.written[done.key].files)
