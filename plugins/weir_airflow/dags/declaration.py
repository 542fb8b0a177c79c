"""The declaration that all tasks of one dataflow share: dataflow, topology, and how its tasks recover.

Invariant: in Airflow's serialized DAG a declaration is a short text that changes with its content, and only with it.
Recovery is checked when the DAG is parsed, and merged with the deployment's settings when it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow import Dataflow, task_settings
from weir.dataflow.arguments import problem_of, require, shown
from weir.errors import Misconfigured
from weir.execution.labels import checked_enrichers
from weir.restarts.strategy import RestartChoice, RestartStrategy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from airflow.sdk.definitions.retry_policy import RetryPolicy

    from weir.topology.regions import LogicalRegion, Topology


DEFAULT_RETRY_DELAY: Final = timedelta(minutes=5)
"""Airflow's default of `retry_delay`."""

_TAKEN: Final = {
    "retry_exponential_backoff": "use restart={'restart-strategy.type': 'exponential-delay'}",
    "max_retry_delay": "use restart={'restart-strategy.type': 'exponential-delay'}",
}


_RESTART: Final = 'restart={"restart-strategy.type": "fixed-delay"}, or a RestartStrategy'


@dataclass(frozen=True, slots=True)
class TaskRecovery:
    """The restart strategy of tasks, the user's retry policy, and failure enrichers ("module:function")."""

    restart: RestartChoice = field(default_factory=RestartChoice)
    retry_policy: RetryPolicy | None = None
    failure_enrichers: tuple[str, ...] = ()

    @staticmethod
    def declared(
        flow: Dataflow,
        default_args: Mapping[str, Any],
        *,
        restart: RestartStrategy | Mapping[str, Any] | None,
        retries: int | None,
        retry_delay: timedelta | None,
        retry_policy: RetryPolicy | None,
        failure_enrichers: Sequence[str],
    ) -> TaskRecovery:
        """Merge the arguments of a dataflow with what its tasks would inherit.

        Raises Misconfigured, which names the dataflow.
        """
        try:
            policy = _policy(default_args, retry_policy)
            enrichers = checked_enrichers(failure_enrichers)
            chosen = _restart(restart, retries, retry_delay, default_args).of_dataflow(keeps_state=flow.keeps_state)
            return TaskRecovery(chosen, policy, enrichers)
        except Misconfigured as error:
            raise Misconfigured.of("dataflow.columns_wrong", where=flow, error=error) from error


def _policy(default_args: Mapping[str, Any], given: RetryPolicy | None) -> RetryPolicy | None:
    for name, advice in _TAKEN.items():
        if default_args.get(name) is not None:
            raise Misconfigured.of("dags.default_arg_in_vain", name=name, advice=advice)
    policy = default_args.get("retry_policy") if given is None else given
    if policy is not None and not callable(getattr(policy, "evaluate", None)):
        raise Misconfigured.of("dags.retry_policy_malformed", name=type(policy).__name__)
    return policy


def _restart(
    restart: RestartStrategy | Mapping[str, Any] | None,
    retries: int | None,
    delay: timedelta | None,
    default_args: Mapping[str, Any],
) -> RestartChoice:
    for problem in problem_of("restart", restart, (RestartStrategy, Mapping, type(None)), _RESTART):
        raise Misconfigured(problem)
    choice = RestartChoice.from_options(restart) if isinstance(restart, Mapping) else RestartChoice.of(restart)
    if choice.strategy is not None and retries is not None:
        raise Misconfigured.of("dags.retries_and_restart")
    count = default_args.get("retries") if retries is None else retries
    if retries is None and count is None and delay is not None and choice.strategy is None:
        raise Misconfigured.of("dags.retry_delay_in_vain")
    if choice.strategy is not None or count is None:
        return choice
    given = default_args.get("retry_delay") if delay is None else delay
    pause = DEFAULT_RETRY_DELAY if given is None else given
    if not isinstance(pause, timedelta | int | float) or isinstance(pause, bool):
        raise Misconfigured.of("dags.retry_delay_malformed", pause=shown(pause))
    pause = pause if isinstance(pause, timedelta) else timedelta(seconds=pause)
    strategy = RestartStrategy.from_retries(_count(count), pause)
    return RestartChoice(strategy, choice.limits.filled_from(strategy.limits))


def _count(retries: object) -> int:
    is_whole = isinstance(retries, int) and not isinstance(retries, bool) and retries >= 0
    if not is_whole and not (isinstance(retries, str) and retries.isdecimal()):  # such as an environment variable has
        raise Misconfigured.of("dags.retries_malformed", retries=shown(retries))
    return int(str(retries))


def require_declared(function: str, flow: object, default_args: object, **texts: str | None) -> str:
    """Require a dataflow, and the kinds of the arguments that it shares with a DAG. Return how an answer names it."""
    require(f"{function}(...)", "flow", flow, Dataflow, f'{function}(Dataflow("name", [stages]), ...)')
    where = str(flow)
    require(where, "default_args", default_args, (Mapping, type(None)), "a dict such as default_args={'retries': 2}")
    for what, given in texts.items():
        require(where, what, given, (str, type(None)), f'{what}="name"')
    return where


CLOSE: Final = "weir_close"
"""The closing task's name, which is also that of its region."""

_TASK_SETTINGS: Final = ("pool", "queue", "priority_weight", "execution_timeout")


_SEEN: Final[ContextVar[list[Declaration] | None]] = ContextVar("declarations", default=None)


@contextmanager
def declared_meanwhile() -> Iterator[list[Declaration]]:
    """Give the declarations that are made meanwhile, in their order, also those of DAGs that nothing refers to."""
    found: list[Declaration] = []
    token = _SEEN.set(found)
    try:
        yield found
    finally:
        _SEEN.reset(token)


@dataclass(frozen=True, slots=True, repr=False)
class Declaration:
    """A dataflow, the recovery of its tasks, and the prefix of their task ids (`group.`).

    `spark_conn_id` names the connection to Spark (None: that of Weir's settings); a stage may name another. `sql` has
    the texts of the SQL files of its stages, `applications` the files of their applications. These are code: a change
    of them changes no DAG. `schedule` names the timetable of the DAG (empty: it has none), `zone` its time zone,
    `cadence` is `every` of its cadence (None: it has none), `is_partitioned` says that data sets start its runs,
    `started_by` which of them other dataflows publish, and whether no mapper changes their keys.
    """

    flow: Dataflow
    topology: Topology
    recovery: TaskRecovery
    task_prefix: str
    spark_conn_id: str | None = None
    sql: Mapping[str, str] = field(default_factory=dict)
    applications: Mapping[str, Path] = field(default_factory=dict)
    schedule: str = ""
    zone: str = "UTC"
    cadence: str | None = None
    is_partitioned: bool = False
    started_by: Mapping[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen = _SEEN.get()
        if seen is not None:
            seen.append(self)

    def __repr__(self) -> str:
        """Return name and fingerprint: Airflow stores this text per mapped task, and any change makes a DAG version."""
        content = json.dumps([self.flow.to_json(), self.spark_conn_id], sort_keys=True, default=str)
        return f"Declaration({self.flow.name}, {hashlib.sha256(content.encode()).hexdigest()[:12]})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Declaration:
        """Return itself: it never changes, and Airflow copies a task's arguments for each subset of a DAG."""
        return self

    def restart_strategy(self, deployed: RestartChoice) -> RestartStrategy:
        """Return the declared strategy, else the deployment's, else Weir's default."""
        return self.recovery.restart.resolved(deployed.of_dataflow(keeps_state=self.flow.keeps_state))

    def spark_conn_id_of(self, region: str) -> str | None:
        """Return the id of the connection to the Spark that computes a region; None is that of Weir's settings."""
        return task_settings(self.topology.stages_of(region)).spark_conn_id or self.spark_conn_id

    def task_arguments(self, region: LogicalRegion) -> dict[str, Any]:
        """Return Airflow's settings of the region's task, merged over its stages."""
        merged = task_settings(self.topology.stages_of(region.name))
        single = {name: value for name in _TASK_SETTINGS if (value := getattr(merged, name)) is not None}
        return single | ({"executor_config": dict(merged.executor_config)} if merged.executor_config else {})
