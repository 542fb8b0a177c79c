"""Measures rows while they are computed for something else: no job and no request of its own.

pyspark's Observation asks a server, for a remote DataFrame, whether the rows are a stream: that plans them once more.
So remote rows are observed by name, and the answer of the request that computes them has the measures.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

from weir.errors import Internal, Message
from weir_spark.session import is_remote


@dataclass(frozen=True, slots=True)
class Observed:
    """Rows, and what is measured once that these, or rows that are made of them, are computed."""

    rows: DataFrame
    _name: str
    _observation: Observation | None

    def measures(self, computed: DataFrame) -> Mapping[str, Any]:
        """Return the measures, from the DataFrame that was written or computed. Raises Internal if there are none."""
        if self._observation is not None:
            return dict(self._observation.get)
        info = computed.executionInfo
        found: dict[str, dict[str, Any]] = dict(info.flows) if info is not None else {}
        if self._name not in found:
            raise Internal(Message("results.not_observed", name=self._name, found=sorted(found)))
        return found[self._name]


def observed(rows: DataFrame, measures: Sequence[Column]) -> Observed:
    """Return the rows, to be measured when they are computed."""
    name = f"weir-{uuid.uuid4()}"
    if is_remote(rows.sparkSession):
        return Observed(rows.observe(name, *measures), name, None)
    observation = Observation(name)
    return Observed(rows.observe(observation, *measures), name, observation)


def computed_once(rows: DataFrame) -> tuple[int, DataFrame]:
    """Compute rows, keep them in Spark's blocks, and count them."""
    seen = observed(rows, [F.count(F.lit(1)).alias("rows")])
    kept = seen.rows.localCheckpoint(eager=True)
    return int(seen.measures(seen.rows)["rows"]), kept
