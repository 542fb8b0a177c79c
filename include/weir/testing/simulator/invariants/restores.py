"""What must hold where a dataflow goes on from what was kept (DESIGN 8, and 9's invariants 2, 4 and 7).

Invariant: what is restored is what those attempts had made that the checkpoint names, as its manifest was written. From
then on it is given, as what a source reads is: what the next epoch makes of it is worked out anew like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from weir.ledger.runs import run_key
from weir.testing.simulator.engine import Made
from weir.testing.simulator.invariants.sight import Partition, Result
from weir.testing.simulator.invariants.snapshots import Part, Snapshot, parts_of

if TYPE_CHECKING:
    from weir.testing.simulator.witness import Witness


class Restore(NamedTuple):
    """What the ledger knows of a restore."""

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
        """The run at whose end the dataflow goes on."""
        return run_key(self.dataflow, self.epoch)

    @property
    def is_fork(self) -> bool:
        """Whether another dataflow began with it."""
        return self.mode == "fork"


class Restores:
    """The restores of one simulation, and what each has restored."""

    def __init__(self) -> None:
        self.known: dict[int, Restore] = {}
        self.new: list[Restore] = []
        self.pins: dict[int, frozenset[Partition]] = {}
        """What has to stay: no checkpoint behind it can do without."""

    def look(self, witness: Witness) -> None:
        """Note what was restored, by whom it was made, and which checkpoints stand behind it."""
        rows = {row.id: row for row in witness.sight.rows(Restore, "restore")}
        self.new = [row for row in rows.values() if row.id not in self.known]
        self.known = rows
        for row in self.new:
            self.pins[row.id] = frozenset(part.partition for part in restored_parts(witness, row))
            _note_made(witness, row)
        for done in witness.snapshots.newly_completed:
            self.pins = {id_: kept for id_, kept in self.pins.items() if not _stands_behind(witness, done, rows[id_])}

    def why_kept(self, result: Result) -> str | None:
        """Which restore still needs a result."""
        for id_, kept in self.pins.items():
            if result.is_current and result.partition in kept:
                return f"it was restored in lineage {self.known[id_].lineage}, and no checkpoint behind it is complete"
        return None

    def began_with(self, run: str) -> bool:
        """Whether a fork began with the end of a run, which nobody has computed."""
        return any(row.is_fork and row.run == run for row in self.known.values())

    def lineage_of(self, dataflow: str) -> int:
        """The lineage in which attempts of a dataflow may commit, if it was ever restored."""
        return max((row.lineage for row in self.known.values() if row.dataflow == dataflow), default=0)


def restored_parts(witness: Witness, row: Restore) -> list[Part]:
    """What a restore restores, as partitions of the run at whose end the dataflow goes on."""
    written = witness.snapshots.written[row.origin, row.number]
    return [part._replace(partition=Partition(row.run, part.partition.id)) for part in parts_of(written)]


def _note_made(witness: Witness, row: Restore) -> None:
    """Who is nobody has made what those had made who were copied."""
    made = witness.engine.made
    for part in restored_parts(witness, row):
        found = witness.sight.current.get(part.partition)
        whose = None if found is None else witness.sight.attempts[found.attempt]
        if whose is not None and whose.is_restored and whose.lineage == row.lineage:
            stage = part.partition.id.stage
            made.setdefault(whose.id, Made()).contents[stage] = made[part.attempt].contents[stage]


def _stands_behind(witness: Witness, done: Snapshot, row: Restore) -> bool:
    """Whether a checkpoint goes on from a restore, and consists of the dataflow's own files."""
    if done.is_savepoint or done.dataflow != row.dataflow or done.epoch <= row.epoch:
        return False
    return all(path.startswith(f"{row.dataflow}/") for path in witness.snapshots.written[done.key].files)


def a_restore_is_what_was_kept(witness: Witness) -> Iterator[str]:
    """In its transaction all becomes current that the checkpoint has, valid; and nobody goes on who began before."""
    sight = witness.sight
    for row in witness.restores.new:
        kept = witness.snapshots.known.get((row.origin, row.number))
        if kept is None or not (kept.is_retained or kept.is_savepoint):
            yield f"checkpoint {row.number} of {row.origin} is restored, and not retained"
        for part in restored_parts(witness, row):
            found = sight.current.get(part.partition)
            if found is None or found.digest != part.digest or not sight.is_good(part.partition):
                yield f"{part.partition.id} of {row.run} is not restored as {part.attempt} had made it: it is {found}"
        for attempt in sight.attempts.values():
            if attempt.state == "running" and attempt.run.startswith(f"{row.dataflow}@"):
                yield f"{attempt.id} goes on though {row.run} was restored"


def nobody_commits_who_began_before_a_restore(witness: Witness) -> Iterator[str]:
    """Invariant 2: what they have made may be of other state."""
    for row in witness.sight.new_commits:
        lineage = witness.restores.lineage_of(row.run.partition("@")[0])
        if row.lineage < lineage:
            yield f"{row.id} of lineage {row.lineage} has committed, though {lineage} had begun"


def what_was_restored_stays_pinned(witness: Witness) -> Iterator[str]:
    """Invariant 4: until a checkpoint behind it consists of the dataflow's own files."""
    restores = witness.restores
    for row in restores.known.values():
        if row.unpinned_at is not None and row.id in restores.pins:
            yield f"the restore of {row.run} in lineage {row.lineage} is not pinned any more"
