"""What a stage's function may know besides its inputs. Invariant: all of it is fixed for the run, whatever the try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from weir.dataflow.resolving import ResolveContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ResolveContext", "StageContext"]


@dataclass(frozen=True, slots=True)
class StageContext:
    """The first argument of every stage function.

    `epoch` is the start of `interval` as `20130101T000000Z`; `interval` is in UTC, its end exclusive. `subtask` counts
    from 0 to `parallelism` - 1. `parameters` are those of the run. `spark` is for sources; other stages are given
    their DataFrames.
    """

    epoch: str
    interval: tuple[datetime, datetime]
    subtask: int
    parallelism: int
    parameters: Mapping[str, Any]
    spark: SparkSession
