"""The DAGs of `ladder`: what they look like is read at every parse from the JSON file that WEIR_LADDER names.

`dags` has more arguments of `dataflow_dag` by DAG; all are the same dataflow under names of their own.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.recovery.restart import RestartStrategy
from weir_airflow.dag import dataflow_dag

control = Path(os.environ["WEIR_LADDER"])
settings = json.loads(control.read_text())
parallelism = {"numbers": 2, "doubled": 2, "totals": 2} | settings.get("parallelism", {})
functions = {name: f"ladder:{name}" for name in parallelism} | settings.get("functions", {})


def ladder_dag(name: str, **more: Any) -> Any:
    numbers = source("numbers", functions["numbers"], parallelism=parallelism["numbers"])
    doubled = Stage(
        "doubled", functions["doubled"], {"numbers": blocking(numbers, by="number")}, parallelism=parallelism["doubled"]
    )
    totals = Stage(
        "totals", functions["totals"], {"doubled": blocking(doubled, by="bucket")}, parallelism=parallelism["totals"]
    )
    flow = Dataflow(name, [numbers, doubled, totals, sink(totals, "sums")], parameters={"control": str(control)})
    return dataflow_dag(
        flow,
        schedule="@daily",
        start_date=datetime(2024, 1, 1, tzinfo=UTC),
        end_date=datetime.fromisoformat(settings.get("last_day", "2024-01-01")).replace(tzinfo=UTC),
        catchup=True,
        max_active_runs=2,
        restart=RestartStrategy.from_options(settings["restart"]) if "restart" in settings else None,
        **more,
    )


for dag_id, more in settings.get("dags", {"ladder": {}}).items():
    ladder_dag(dag_id, **more)
