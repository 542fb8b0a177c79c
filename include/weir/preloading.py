"""Modules that the scheduler imports before it forks its workers, since a short task consists mostly of imports.

Invariant: no module of Airflow is imported here, since this is called while Airflow itself is being imported.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Final

MODULES: Final = (
    "weir.assembly",
    "weir.attempts.attempt",
    "weir.attempts.closing",
    "weir.attempts.compacting",
    "weir.attempts.coordinator",
    "weir.attempts.failing",
    "weir.attempts.waiting",
    "weir.coordination.airflow_client",
    "weir.coordination.clearing",
    "weir.secret_forms",
    "weir.settling",
    "weir.sinks.targets.files",
    "weir.store.local",
    "weir.store.stop_file",
    "weir_spark.transport.bundle",
    "weir_spark.transport.connect",
    "weir_spark.region.context",
    "weir_spark.sources.files",
)


def preload() -> None:
    """Import the modules, in the scheduler and the DAG processor only; `airflow_local_settings.py` calls this.

    Airflow's LocalExecutor forks each task from the scheduler, and the DAG processor forks each parse of a DAG file.
    """
    if sys.argv[1:2] not in (["scheduler"], ["dag-processor"]):
        return
    for name in MODULES:
        with suppress(ImportError):  # the task that needs the module reports it
            import_module(name)
