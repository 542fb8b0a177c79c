"""Invariants of a dataflow that continues from a checkpoint or savepoint (invariants 2, 4 and 7).

Invariant: what is restored is what those attempts had made that the checkpoint names. From then on it is given, as what
a source reads is: what the next epoch makes of it is computed again like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulator.history.history import History
from tests.simulator.history.restores import restored_parts


def a_restore_is_what_was_kept(history: History) -> Iterator[str]:
    """In its transaction all results of the checkpoint become current and valid, and running attempts are fenced."""
    ledger = history.ledger
    for row in history.restores.new:
        kept = history.snapshots.known.get((row.origin, row.number))
        if kept is None or not (kept.is_retained or kept.is_savepoint):
            yield f"checkpoint {row.number} of {row.origin} is restored, and not retained"
        for part in restored_parts(ledger, history.snapshots, row):
            found = ledger.current.get(part.partition)
            if found is None or found.digest != part.digest or not ledger.is_good(part.partition):
                yield f"{part.partition.id} of {row.run} is not restored as {part.attempt} had made it: it is {found}"
        for attempt in ledger.attempts.values():
            if attempt.state == "running" and attempt.run.startswith(f"{row.dataflow}@"):
                yield f"{attempt.id} is running though {row.run} was restored"


def a_restore_is_taken_whole(history: History) -> Iterator[str]:
    """Of one that was killed before it had written all, a rebuilt ledger takes nothing."""
    restores = history.restores
    for result in history.ledger.current.values():
        restore = restores.written_for.get(result.attempt)
        if restore is not None and restores.written[restore] < restore.partitions:
            yield f"{result.partition.id} of {result.run} is of a restore of which not all was written"


def no_attempt_from_before_a_restore_commits(history: History) -> Iterator[str]:
    """Invariant 2: its results may be of other state."""
    for row in history.ledger.new_commits:
        lineage = history.restores.lineage_of(row.run.partition("@")[0])
        if row.lineage < lineage:
            yield f"{row.id} of lineage {row.lineage} has committed, though {lineage} had begun"


def what_was_restored_stays_pinned(history: History) -> Iterator[str]:
    """Invariant 4: until a later checkpoint consists of the dataflow's own files."""
    restores = history.restores
    for row in restores.known.values():
        if row.unpinned_at is not None and row.id in restores.pins:
            yield f"the restore of {row.run} in lineage {row.lineage} is not pinned any more"
