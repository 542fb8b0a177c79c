"""The states of a result partition (DESIGN 7), as far as the ledger records them."""

from __future__ import annotations

from enum import Enum


class PartitionState(Enum):
    """Where a committed result partition stands in its life; whether it is valid is another question."""

    FINISHED = "finished"
    LOST = "lost"
    QUARANTINED = "quarantined"
    RELEASED = "released"
    SUPERSEDED = "superseded"
