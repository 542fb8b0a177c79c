"""Sinks: the versions of a data set in a table or in files that are not Weir's."""

from weir.sinks.protocol import (
    ROLLED_BACK,
    Delivery,
    Held,
    Outcome,
    PutBytes,
    Reach,
    SinkTarget,
    TargetAway,
    TargetConflict,
    TargetFailed,
    TargetUnknown,
    Version,
    VersionFile,
    outcome_of,
)

__all__ = [
    "ROLLED_BACK",
    "Delivery",
    "Held",
    "Outcome",
    "PutBytes",
    "Reach",
    "SinkTarget",
    "TargetAway",
    "TargetConflict",
    "TargetFailed",
    "TargetUnknown",
    "Version",
    "VersionFile",
    "outcome_of",
]
