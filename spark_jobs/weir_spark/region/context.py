"""The context of a stage's function. Invariant: it is the same in all tries of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from weir.connections import Connections, Variables, from_environment, variable_from_environment
from weir.dataflow.resolving import ResolveContext
from weir.errors import Internal
from weir.intervals import in_zone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


__all__ = ["ResolveContext", "StageContext"]


def _no_file(name: str, data: bytes) -> str:
    raise Internal.of("region.file_of_no_attempt", name=name, bytes=len(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """The first argument of every stage function.

    `epoch` is the start of `interval` as `20130101T000000Z`; `interval` is in UTC, its end exclusive, `local_interval`
    the same in the time zone of the schedule. `subtask` counts from 0 to `parallelism` - 1. `parameters` are those of
    the run. `spark` is for sources; other stages are given their DataFrames. `connection` looks up an Airflow
    connection by its id, `variable` an Airflow variable by its key, as text, where the stage runs. `create_file` writes
    bytes under a name, for Spark to read, and returns the path; the file is deleted when the attempt ends.
    """

    epoch: str
    interval: tuple[datetime, datetime]
    subtask: int
    parallelism: int
    parameters: Mapping[str, Any]
    spark: SparkSession
    connection: Connections = from_environment
    variable: Variables = variable_from_environment
    create_file: Callable[[str, bytes], str] = _no_file
    zone: str = "UTC"
    """The time zone of the schedule."""

    @property
    def local_interval(self) -> tuple[datetime, datetime]:
        """The interval in the time zone of the schedule: where clocks change, a day has 23 or 25 hours."""
        return in_zone(self.interval, self.zone)


class ObservedContext(StageContext):
    """The context of a function of which it is known what it has looked at; who hands it on whole looks at all."""

    __slots__ = ("_looked_at",)

    def __getattribute__(self, name: str) -> Any:
        """Note what is asked for, once there is a set to note it in."""
        if name in _FIELDS:
            with suppress(AttributeError):
                object.__getattribute__(self, "_looked_at").add(name)
        return object.__getattribute__(self, name)


_FIELDS = frozenset(each.name for each in fields(StageContext))


def observed(context: StageContext, looked_at: set[str]) -> StageContext:
    """Return a context equal to another one that adds to a set the names of the fields that are looked at."""
    found = ObservedContext(**{name: getattr(context, name) for name in _FIELDS})
    object.__setattr__(found, "_looked_at", looked_at)
    return found


def prepare_for_connect() -> None:
    """Make `pyspark.sql.functions` build Spark Connect's columns from now on in this process.

    pyspark decides at each call by this variable, which it sets when a remote session is created. A module with
    `@udf` at its top level that is imported before, by a source's resolver for example, would get UDFs that fail later.
    """
    os.environ.setdefault("SPARK_CONNECT_MODE_ENABLED", "1")
