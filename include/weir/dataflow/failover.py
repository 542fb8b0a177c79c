"""What a dataflow says of its recovery: which regions a failure restarts. Invariant: each choice has one text."""

from __future__ import annotations

from enum import Enum


class FailoverStrategy(Enum):
    """Which regions run again after a failure (Flink's `jobmanager.execution.failover-strategy`, and one more)."""

    REGION = "region"
    """The failed region, producers of what is not available, and consumers of what has changed."""
    FULL = "full"
    """All regions of the run that have begun."""
    INDIVIDUAL = "individual"
    """The failed region alone: Weir clears nothing by itself, and names what a person may."""


class Consumers(Enum):
    """What becomes of the consumers of what is made again."""

    IF_CHANGED = "if_changed"
    """They restart if its digest is another one: Weir's default."""
    ALWAYS = "always"
    """They restart: Flink's rule."""
