"""Weir's own housekeeping. Invariant: what it finds undone it does or names; a failure of one step hides no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weir.attempts.steps import deliver_clears
from weir.upkeep import Upkept, release_everywhere, scrub_everywhere, sweep_everywhere
from weir_airflow.tasks.context import Office
from weir_airflow.tasks.quality_pages import make_all_pages

if TYPE_CHECKING:
    from collections.abc import Callable


def settle_owed_clears(tell: Callable[[str], None]) -> dict[str, Any]:
    """Carry out the clears that are still owed, of every dataflow in the ledger."""
    with Office.open() as office:
        remaining = deliver_clears(office.coordinator, office.clearer, None, tell)
    tell(f"{remaining} clear(s) remain owed" if remaining else "Nothing is owed")
    return {"owed": remaining}


def release_results(tell: Callable[[str], None]) -> dict[str, Any]:
    """Release and delete the results that nobody needs any more, of every dataflow in the ledger."""
    with Office.open() as office:
        return _told(release_everywhere(office.services), tell)


def make_pages(tell: Callable[[str], None]) -> dict[str, Any]:
    """Make pages about checks that have none yet, of every dataflow in the ledger."""
    with Office.open() as office:
        return _told(make_all_pages(office), tell)


def sweep_store(tell: Callable[[str], None]) -> dict[str, Any]:
    """Remove what dead attempts, deleted DagRuns and expired runs have left in the store."""
    with Office.open() as office:
        return _told(sweep_everywhere(office.services, office.clearer), tell)


def scrub_results(tell: Callable[[str], None]) -> dict[str, Any]:
    """Read a share of all stored results again, and have those made again that are bad and needed."""
    with Office.open() as office:
        return _told(scrub_everywhere(office.services, office.clearer), tell)


def _told(kept: Upkept, tell: Callable[[str], None]) -> dict[str, Any]:
    """Say what was done, then raise what has failed."""
    for line in kept.lines():
        tell(line)
    kept.require_whole()
    return dict(kept.done)
