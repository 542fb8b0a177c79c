"""The metrics of Weir: their names, kinds and tags, and values of them.

Invariant: all are listed here, and docs/metrics.md has the same. The names and the tags are those that Airflow would
give its own: the name has no variable, each variable is a tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class MetricKind(Enum):
    """A counter adds up what has happened; a gauge tells how something stands."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name, the names of its tags, in their order, and what it is."""

    name: str
    kind: MetricKind
    tags: tuple[str, ...]
    text: str

    def of(self, value: float, *tags: str) -> Measurement:
        """Return a value of it, with these values of its tags."""
        return Measurement(self, value, dict(zip(self.tags, tags, strict=True)))


@dataclass(frozen=True, slots=True)
class Measurement:
    """A value of a metric: what a counter is raised by, or how a gauge stands."""

    metric: Metric
    value: float
    tags: Mapping[str, str]


def _counter(name: str, tags: tuple[str, ...], text: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, tags, text)


def _gauge(name: str, tags: tuple[str, ...], text: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, tags, text)


_OF_DATAFLOW: Final = ("dataflow",)
_OF_TASK: Final = ("dataflow", "task_id")

ATTEMPTS = _counter("weir.attempts", (*_OF_TASK, "state", "failure"), "Attempts that have ended")
WAITING = _counter("weir.waiting.seconds", _OF_TASK, "How long attempts have waited for their inputs or predecessors")
LOSSES = _counter("weir.losses", (*_OF_DATAFLOW, "cause"), "Results that were found lost or damaged")
RECOMPUTED_SECONDS = _counter(
    "weir.recomputed.seconds", (*_OF_DATAFLOW, "cleared_by"), "How long it took to compute results again"
)
RECOMPUTED_BYTES = _counter(
    "weir.recomputed.bytes", (*_OF_DATAFLOW, "cleared_by"), "The bytes of results that were computed again"
)
SPARED_SECONDS = _counter(
    "weir.spared.seconds", _OF_DATAFLOW, "How long those tasks had taken that a failover did not restart"
)
SPARED_BYTES = _counter(
    "weir.spared.bytes", _OF_DATAFLOW, "The bytes of the results of tasks that a failover did not restart"
)

AT_REST = _gauge("weir.at_rest.bytes", (*_OF_DATAFLOW, "reason"), "Stored bytes, by what keeps them")
PENDING_CLEARS = _gauge("weir.pending_clears", _OF_DATAFLOW, "Task instances that are still to be cleared in Airflow")
LATE_FILES = _gauge(
    "weir.late_files", _OF_DATAFLOW, "Files that came, changed or went after a source had read their interval"
)
CHECKPOINT_SECONDS = _gauge(
    "weir.checkpoint.seconds", _OF_DATAFLOW, "How long it took to complete the newest checkpoint"
)
CHECKPOINT_BYTES = _gauge("weir.checkpoint.bytes", _OF_DATAFLOW, "The bytes that the newest checkpoint names")
CHECKPOINT_NEW_BYTES = _gauge(
    "weir.checkpoint.new_bytes", _OF_DATAFLOW, "Those of them that the checkpoint before does not name"
)
CHECKPOINT_AGE = _gauge("weir.checkpoint.age_seconds", _OF_DATAFLOW, "How long ago it was completed")
SCRUB_RATIO = _gauge(
    "weir.scrub.verified_ratio", _OF_DATAFLOW, "The share of the stored bytes, 0 to 1, that was read again once"
)
SCRUB_AGE = _gauge("weir.scrub.age_seconds", _OF_DATAFLOW, "How long ago the oldest look at a stored result was")
DELIVERY_LAG = _gauge(
    "weir.delivery.lag_seconds",
    (*_OF_DATAFLOW, "sink"),
    "How long the oldest published version has waited for its target",
)
NOTIFICATION_LAG = _gauge(
    "weir.notification.lag_seconds",
    (*_OF_DATAFLOW, "receiver"),
    "How long the oldest notification has waited for its receiver",
)

METRICS: Final = (
    *(ATTEMPTS, WAITING, LOSSES, RECOMPUTED_SECONDS, RECOMPUTED_BYTES, SPARED_SECONDS, SPARED_BYTES),
    *(AT_REST, PENDING_CLEARS, LATE_FILES, CHECKPOINT_SECONDS, CHECKPOINT_BYTES, CHECKPOINT_NEW_BYTES, CHECKPOINT_AGE),
    *(SCRUB_RATIO, SCRUB_AGE, DELIVERY_LAG, NOTIFICATION_LAG),
)
"""All of them."""
