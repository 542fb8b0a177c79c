"""Entering what forks began with into a ledger that is built again, before any dataflow of it is.

Invariant 4: whichever dataflow is built again first, no file goes that another one in the store was restored with.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.coordinator.services import Services
from weir.ledger.restores import enter_pins, last_restore, origins_of
from weir.ledger.runs import ensure_dataflow
from weir.results.manifest import Manifest
from weir.store.catalogue import restored, stored_dataflows


def enter_pins_of_all(services: Services, store_id: str) -> dict[str, set[str]]:
    """Enter the forks in the store of which the ledger knows nothing; answers the forks, by their origins.

    Raises Retryable, and Misconfigured for files of a newer Weir.
    """
    forks: dict[str, set[str]] = {}
    for dataflow in stored_dataflows(services.store):
        found: dict[str, list[Manifest]] = {}
        for each in restored(services.store, dataflow):
            if each.released is None:
                found.setdefault(each.manifest.epoch, []).append(each.manifest)
        of_others = {epoch: manifests for epoch, manifests in found.items() if origins_of(dataflow, manifests)}
        for origin in _enter(services, store_id, dataflow, of_others):
            forks.setdefault(origin, set()).add(dataflow)
    return forks


def _enter(services: Services, store_id: str, dataflow: str, found: dict[str, list[Manifest]]) -> Iterable[str]:
    entered: set[str] = set()
    if not found:
        return entered
    with services.ledger.transaction(dataflow) as session:
        ensure_dataflow(session, dataflow, store_id)
        for epoch, manifests in found.items():
            if last_restore(session, dataflow, epoch) is None:
                enter_pins(session, dataflow, epoch, manifests, services.now())
                entered |= set(origins_of(dataflow, manifests))
    return entered
