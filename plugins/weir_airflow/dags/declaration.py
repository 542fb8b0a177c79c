"""The declaration that all tasks of one dataflow share: dataflow, topology, and how its tasks recover.

Invariant: in Airflow's serialized DAG a declaration is a short text that changes with its content, and only with it.
Recovery is checked when the DAG is parsed, and merged with the deployment's settings when it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow import task_settings
from weir.errors import Misconfigured
from weir.execution.labels import checked_enrichers
from weir.restarts.strategy import RestartChoice, RestartStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk.definitions.retry_policy import RetryPolicy

    from weir.dataflow import Dataflow
    from weir.topology.regions import LogicalRegion, Topology


DEFAULT_RETRY_DELAY: Final = timedelta(minutes=5)
"""Airflow's default of `retry_delay`."""

_TAKEN: Final = {
    "retry_exponential_backoff": "use restart={'restart-strategy.type': 'exponential-delay'}",
    "max_retry_delay": "use restart={'restart-strategy.type': 'exponential-delay'}",
}


@dataclass(frozen=True, slots=True)
class TaskRecovery:
    """The restart strategy of tasks, the user's retry policy, and failure enrichers ("module:function")."""

    restart: RestartChoice = field(default_factory=RestartChoice)
    retry_policy: RetryPolicy | None = None
    failure_enrichers: tuple[str, ...] = ()

    @staticmethod
    def declared(
        default_args: Mapping[str, Any],
        *,
        restart: RestartStrategy | Mapping[str, Any] | None,
        retries: int | None,
        retry_delay: timedelta | None,
        retry_policy: RetryPolicy | None,
        failure_enrichers: Sequence[str],
    ) -> TaskRecovery:
        """Merge the arguments of a dataflow with what its tasks would inherit. Raises Misconfigured."""
        for name, advice in _TAKEN.items():
            if default_args.get(name) is not None:
                raise Misconfigured(f"`{name}` in default_args has no effect on the tasks of a dataflow: {advice}")
        policy = default_args.get("retry_policy") if retry_policy is None else retry_policy
        if policy is not None and not callable(getattr(policy, "evaluate", None)):
            raise Misconfigured(f"retry_policy is a {type(policy).__name__}: expected a RetryPolicy of Airflow")
        enrichers = checked_enrichers(failure_enrichers)
        return TaskRecovery(_restart(restart, retries, retry_delay, default_args), policy, enrichers)


def _restart(
    restart: RestartStrategy | Mapping[str, Any] | None,
    retries: int | None,
    delay: timedelta | None,
    default_args: Mapping[str, Any],
) -> RestartChoice:
    choice = RestartChoice.from_options(restart) if isinstance(restart, Mapping) else RestartChoice.of(restart)
    if choice.strategy is not None and retries is not None:
        raise Misconfigured("Give `retries` or a `restart` strategy, not both")
    count = default_args.get("retries") if retries is None else retries
    if choice.strategy is not None or count is None:
        return choice
    given = default_args.get("retry_delay") if delay is None else delay
    pause = DEFAULT_RETRY_DELAY if given is None else given
    pause = pause if isinstance(pause, timedelta) else timedelta(seconds=pause)
    if type(count) is not int:
        raise Misconfigured(f"retries is {count!r}, expected a whole number: write retries=3")
    strategy = RestartStrategy.from_retries(count, pause)
    return RestartChoice(strategy, choice.limits.filled_from(strategy.limits))


CLOSE: Final = "weir_close"
"""The closing task's name, which is also that of its region."""

_TASK_SETTINGS: Final = ("pool", "queue", "priority_weight", "execution_timeout")


@dataclass(frozen=True, slots=True, repr=False)
class Declaration:
    """A dataflow, the recovery of its tasks, and the prefix of their task ids (`group.`).

    `spark_conn_id` names the connection to Spark (None: that of Weir's settings); a stage may name another.
    """

    flow: Dataflow
    topology: Topology
    recovery: TaskRecovery
    task_prefix: str
    spark_conn_id: str | None = None

    def __repr__(self) -> str:
        """Return name and fingerprint: Airflow stores this text per mapped task, and any change makes a DAG version."""
        content = json.dumps([self.flow.to_json(), self.spark_conn_id], sort_keys=True, default=str)
        return f"Declaration({self.flow.name}, {hashlib.sha256(content.encode()).hexdigest()[:12]})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Declaration:
        """Return itself: it never changes, and Airflow copies a task's arguments for each subset of a DAG."""
        return self

    def restart_strategy(self, deployed: RestartChoice) -> RestartStrategy:
        """Return the declared strategy, else the deployment's, else Weir's default."""
        return self.recovery.restart.resolved(deployed)

    def spark_conn_id_of(self, region: str) -> str | None:
        """Return the id of the connection to the Spark that computes a region; None is that of Weir's settings."""
        return task_settings(self.topology.stages_of(region)).spark_conn_id or self.spark_conn_id

    def task_arguments(self, region: LogicalRegion) -> dict[str, Any]:
        """Return Airflow's settings of the region's task, merged over its stages."""
        merged = task_settings(self.topology.stages_of(region.name))
        single = {name: value for name in _TASK_SETTINGS if (value := getattr(merged, name)) is not None}
        return single | ({"executor_config": dict(merged.executor_config)} if merged.executor_config else {})
