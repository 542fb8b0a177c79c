"""What tasks import, imported by the scheduler before it forks its workers: most of what a short task costs is that.

Invariant: nothing of Airflow is imported here, since Airflow itself is being imported when this is called.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Final

MODULES: Final = (
    "weir.attempts.coordinator",
    "weir.store.local",
    "weir_spark.transport.bundle",
    "weir_spark.transport.connect",
    "weir_spark.region.context",
)


def preload() -> None:
    """To be called by `airflow_local_settings.py`: Airflow's LocalExecutor forks each task from the scheduler.

    So does its DAG processor each parse of a DAG file. In all other processes this does nothing.
    """
    if sys.argv[1:2] not in (["scheduler"], ["dag-processor"]):
        return
    for name in MODULES:
        with suppress(ImportError):  # whoever needs it says so
            import_module(name)
