"""Compare the copies of what sources have read with their descriptions.

Invariant: nothing is changed. Whether a source is to be asked again, whose rows may be others now, a person decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from weir.coordination.services import Services
from weir.coordination.source_copies import binding_of, checked_copy
from weir.formats.paths import folder_of
from weir.integrity.archives import due_this_hour
from weir.integrity.records import Inconsistency
from weir.ledger.runs import run_by_id, unexpired_runs
from weir.ledger.sources import copied_splits
from weir.store.probe import StoreFinding

_MEND = (
    "Bring the files back from a backup of the store. Results that were made of it are not affected; a task of the "
    "source that runs again fails, and says how to read what the source has now"
)


@dataclass(frozen=True, slots=True)
class _Copy:
    run: str
    binding: str


def source_copy_inconsistencies(services: Services, runs: Collection[str]) -> tuple[Inconsistency, ...]:
    """Compare byte for byte the copies of what the sources of some runs have read. Raises Retryable."""
    return tuple(_checked(services, _named(services, runs)))


def scrubbed_source_copies(services: Services, dataflow: str, share: float, now: datetime) -> tuple[Inconsistency, ...]:
    """Compare this hour's share of the copies of a dataflow, as `source_copy_inconsistencies` does."""
    if share <= 0:
        return ()
    with services.ledger.transaction() as session:
        runs = unexpired_runs(session, dataflow)
    return tuple(_checked(services, due_this_hour(_named(services, runs), share, now)))


def _named(services: Services, runs: Collection[str]) -> list[_Copy]:
    with services.ledger.transaction() as session:
        return [
            _Copy(each.run, binding)
            for each in copied_splits(session, runs)
            if (binding := binding_of(run_by_id(session, each.run), each.stage, each.subtask, each.split)) is not None
        ]


def _checked(services: Services, copies: Iterable[_Copy]) -> Iterator[Inconsistency]:
    for each in copies:
        found = checked_copy(services, each.binding)
        if found is None or isinstance(found, StoreFinding):
            detail = "found no such file" if found is None else found.detail
            yield Inconsistency(each.run, folder_of(each.binding), f"what a source has read: {detail}", _MEND)
