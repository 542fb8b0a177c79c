"""The invariants of sources: all that is valid together of one is of one listing.

Invariant: what an attempt has read is known from the engine, which files there were from the world; the ledger's tables
say only what a run is recorded to have resolved.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulator.history.history import History
from tests.simulator.listings import divided


def a_source_is_recorded_as_it_once_was(history: History) -> Iterator[str]:
    """Invariant 1: what the subtasks of a source are to read is one listing, whole and divided among all of them."""
    for (run, source), splits in history.ledger.splits.items():
        if source in history.listings.sources:
            parallelism = history.topology_of(run).dataflow.stage(source).parallelism
            if not any(divided(files, parallelism) == splits for files in history.listings.ever(source)):
                yield f"{source} of {run} is to read {splits}, which it never had at once"


def results_of_a_source_are_of_one_listing(history: History) -> Iterator[str]:
    """Invariant 1: each valid result was made from the splits that its run is recorded to have resolved."""
    ledger = history.ledger
    for partition, result in ledger.current.items() if history.listings.sources else ():
        if ledger.attempts[result.attempt].is_restored or not ledger.is_valid(partition):
            continue
        for source, read in history.engine.made[result.attempt].splits.items():
            recorded = ledger.splits.get((partition.run, source), [])
            subtask = ledger.attempts[result.attempt].subtask
            wanted = recorded[subtask] if subtask < len(recorded) else None
            if read != wanted:
                yield f"{partition.id} of {result.attempt} is valid, and {source} read {read}; recorded is {wanted}"
