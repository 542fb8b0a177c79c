"""Joins the attempts with the rooms that they stand on (`weir.attempts.rooms`).

Invariant: this is the only place that knows both sides.
"""

from __future__ import annotations

from weir.attempts.coordinator import Coordinator
from weir.attempts.rooms import Rooms
from weir.coordination.services import Services
from weir.quality.gates import SuiteGates
from weir.retention.space import StoreSpace
from weir.sinks.publishing import SinkPublishing


def coordinator_of(services: Services) -> Coordinator:
    """Return the coordinator of one ledger and store."""
    return Coordinator(services, Rooms(SuiteGates(services), StoreSpace(services), SinkPublishing(services)))
