"""Compare archives of code in the store with their fingerprints.

Invariant: an archive that is missing or damaged leaves the ledger, so that the next begin that has its modules stores
them again, and one that has not is told what is lost.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from weir.code.archive import archive_of
from weir.coordination.services import Services
from weir.integrity.records import Inconsistency, confirmed
from weir.ledger.code import archives_in_use, archives_of, forget_archive
from weir.ledger.database.code_tables import ArchiveRow
from weir.ledger.runs import dataflow_of
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.topology.ids import RunId

_HOUR = 3600

_MEND = (
    "The next task that begins with this code deployed stores it again. Where other code is deployed, clear a task "
    "that ran it: its whole stage runs the deployed code then"
)

A = TypeVar("A")
_Named = tuple[RunId, ArchiveRow]


def archive_inconsistencies(services: Services, runs: Collection[str]) -> tuple[Inconsistency, ...]:
    """Compare the archives that some runs name, and forget those that are missing or damaged. Raises Retryable."""
    wanted = set(runs)
    return _checked(
        services,
        [
            (min(naming & wanted), row)
            for dataflow in sorted({dataflow_of(run) for run in runs})
            for naming, row in _named(services, dataflow)
            if naming & wanted
        ],
    )


def scrubbed_archives(services: Services, dataflow: str, share: float, now: datetime) -> tuple[Inconsistency, ...]:
    """Compare this hour's share of the archives that a dataflow's runs name, as `archive_inconsistencies` does."""
    named = [] if share <= 0 else _named(services, dataflow)
    return _checked(services, [(min(runs), row) for runs, row in due_this_hour(named, share, now)])


def due_this_hour(items: Sequence[A], share: float, now: datetime) -> list[A]:
    """Return the part of some items that is compared in this hour, so that each has its turn; none without a share."""
    if share <= 0:
        return []
    hours = math.ceil(1 / share)
    this = int(now.timestamp() // _HOUR) % hours
    return [each for place, each in enumerate(items) if place % hours == this]


def _named(services: Services, dataflow: str) -> list[tuple[set[RunId], ArchiveRow]]:
    with services.ledger.transaction() as session:
        in_use = archives_in_use(session, dataflow)
        rows = [row for row in archives_of(session, dataflow) if row.deleting_at is None]
    return [(in_use[row.fingerprint], row) for row in rows if row.fingerprint in in_use]


def _checked(services: Services, named: Iterable[_Named]) -> tuple[Inconsistency, ...]:
    wanted = list(named)
    found = confirmed(services, wanted, partial(_of_archive, services.store))
    bad = {each.path for each in found}
    for _, row in wanted:
        if row.path in bad:
            with services.ledger.transaction(row.dataflow) as session:
                forget_archive(session, row.dataflow, row.fingerprint, row.path)
    return found


def _of_archive(store: Store, named: _Named) -> Inconsistency | None:
    run, row = named
    try:
        archive_of(store.read(row.path), row.fingerprint)
    except NotFound:
        return Inconsistency(run, row.path, "the code of runs, found no such file", _MEND)
    except ValueError as error:
        return Inconsistency(run, row.path, f"the code of runs: {error}", _MEND)
    return None
