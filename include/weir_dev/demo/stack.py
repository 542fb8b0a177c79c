"""The demo's stack: a real Airflow and Spark in a folder of their own, set up for two short runs of one DAG.

Invariant: nothing in it releases a result, or takes a task that a busy machine delays for a dead one.
"""

from __future__ import annotations

import os
import shutil
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final

from weir.errors import Misconfigured
from weir_dev.project import checkout, state_folder
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import StackRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from weir_dev.stack.state import Database, StackState

DAG: Final = "flight_delays"
FIRST_DAY: Final = date(2013, 1, 1)
DAYS: Final = tuple(FIRST_DAY + timedelta(days=number) for number in range(2))

ENVIRONMENT: Final = {
    "WEIR_FLIGHTS_LAST_DAY": DAYS[-1].isoformat(),
    # Nothing is to be released between the end of a run and the lease that the demo takes on its results, whatever
    # the person's own settings say.
    "WEIR_KEEP": "7 days",
    # No process is killed here, and one that a busy machine delays is neither dead nor to be killed.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "300",
    "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "60",
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
    "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "600",
    # The DAG file does not change while the demo runs: it is not parsed again.
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "300",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
}

JAVA_VARIABLE: Final = "JDK_JAVA_OPTIONS"
JAVA_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=240m")
"""In two minutes, what the JVM's optimising compiler costs does not come back."""


def new_stack(on_change: Callable[[StackState], None], database: Database) -> Stack:
    """Make an empty folder for the demo, and a stack in it that is not started. Raises Misconfigured if one runs."""
    root = checkout()
    folder = state_folder() / "demo"
    request = StackRequest.owned_by_this_process(
        folder=folder,
        dags=(folder / "dags",),
        plugins=root / "plugins",
        cache=state_folder() / "cache",
        environment={
            **ENVIRONMENT,
            JAVA_VARIABLE: " ".join(filter(None, (os.environ.get(JAVA_VARIABLE), *JAVA_OPTIONS))),
        },
        database=database,
        has_triggerer=False,  # no task of the demo is deferred
    )
    stack = Stack(request, on_change)
    if stack.is_running():
        raise Misconfigured.of("dev.another_demo_runs", stack_url=stack.url)
    stack.stop()  # what a demo that was killed has left
    shutil.rmtree(folder, ignore_errors=True)
    # Only the demo's DAG: without Weir's upkeep and the other examples, which would take a third of a small machine.
    (folder / "dags").mkdir(parents=True)
    (folder / "dags" / f"{DAG}.py").symlink_to(root / "dags" / f"{DAG}.py")
    return stack
