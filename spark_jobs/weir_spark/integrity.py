"""Checks of a restored partition, which only a restored one can fail. Invariant: it is looked at as its files are."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from weir.quality.check import CheckReport, Why
from weir.results.region_job import RestoredToCheck

Say = Callable[[str], None]


def check_restored(
    session: SparkSession, restored: RestoredToCheck, argument: str = "", why: Why = Why.RESTORED, say: Say = print
) -> tuple[CheckReport, ...]:
    """Check a restored partition."""
    return ()
