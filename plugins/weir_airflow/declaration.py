"""What the tasks of one dataflow share.

Invariant: in Airflow's serialized DAG it is a short text that changes with the content, and only with it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow import task_settings

if TYPE_CHECKING:
    from weir.dataflow import Dataflow
    from weir.recovery.restart import RestartChoice, RestartStrategy
    from weir.topology.regions import LogicalRegion, Topology
    from weir_airflow.task_recovery import TaskRecovery

CLOSE: Final = "weir_close"
"""The closing task's name, which is also that of its region."""

_TASK_SETTINGS: Final = ("pool", "queue", "priority_weight", "execution_timeout")


@dataclass(frozen=True, slots=True, repr=False)
class Declaration:
    """A dataflow, what the DAG says of its tasks' recovery, and what precedes their task ids (`group.`).

    `spark_conn_id` names the connection to Spark (None: that of Weir's settings); a stage may name another.
    """

    flow: Dataflow
    topology: Topology
    recovery: TaskRecovery
    task_prefix: str
    spark_conn_id: str | None = None

    def __repr__(self) -> str:
        """Name and fingerprint: Airflow stores this text per mapped task and makes a DAG version of any change."""
        content = json.dumps([self.flow.to_json(), self.spark_conn_id], sort_keys=True, default=str)
        return f"Declaration({self.flow.name}, {hashlib.sha256(content.encode()).hexdigest()[:12]})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Declaration:
        """Itself: it never changes, and Airflow copies a task's arguments for each subset of a DAG."""
        return self

    def restart_strategy(self, deployed: RestartChoice) -> RestartStrategy:
        """What was declared, else what the deployment says, else Weir's default."""
        return self.recovery.restart.resolved(deployed)

    def spark_conn_id_of(self, region: str) -> str | None:
        """The connection to the Spark that computes a region; None is that of Weir's settings."""
        return task_settings(self.topology.stages_of(region)).spark_conn_id or self.spark_conn_id

    def task_arguments(self, region: LogicalRegion) -> dict[str, Any]:
        """Airflow's settings of the region's task, merged over its stages."""
        merged = task_settings(self.topology.stages_of(region.name))
        single = {name: value for name in _TASK_SETTINGS if (value := getattr(merged, name)) is not None}
        return single | ({"executor_config": dict(merged.executor_config)} if merged.executor_config else {})
