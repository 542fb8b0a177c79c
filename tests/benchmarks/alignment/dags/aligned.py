"""A dataflow for each parallelism and number of shuffles: each stage behind a shuffle keeps a state."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir_airflow.dag import dataflow_dag


def aligned(parallelism: int, shuffles: int) -> Dataflow:
    """Numbers that are divided by id so many times."""
    stages = [source("numbers", "alignment_work:numbers", parallelism=parallelism)]
    for number in range(1, shuffles + 1):
        kept = keyed_state(f"kept{number}", key="id", schema="id BIGINT, n BIGINT")
        stages.append(
            Stage(
                f"shuffle{number}",
                f"alignment_work:shuffle{number}",
                {"rows": blocking(stages[-1], by="id")},
                parallelism=parallelism,
                state=kept,
            )
        )
    return Dataflow(f"aligned_{parallelism}_{shuffles}", [*stages, sink(stages[-1], "last")])


for each in json.loads(os.environ["WEIR_BENCHMARK_SHAPES"]):
    flow = aligned(*each)
    globals()[flow.name] = dataflow_dag(flow, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC))
