"""Settings of the task that runs a region. Invariant: stages that share a task never contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from weir.dataflow.stage import Stage, TaskSettings
from weir.errors import Misconfigured

_SINGLE = ("pool", "queue", "priority_weight", "execution_timeout", "spark_conn_id")


def task_settings(region: Sequence[Stage]) -> TaskSettings:
    """Merge the task settings of a region's stages; an unset one agrees with anything. Raises Misconfigured."""
    single = _merged(
        (stage, key, getattr(stage.task, key))
        for stage in region
        for key in _SINGLE
        if getattr(stage.task, key) is not None
    )
    executor = _merged((stage, key, value) for stage in region for key, value in stage.task.executor_config.items())
    return TaskSettings(**single, executor_config=executor)


def spark_conf(region: Sequence[Stage]) -> dict[str, str]:
    """Merge the Spark settings of a region's stages, sorted by key. Raises Misconfigured where two disagree."""
    return dict(sorted(_merged((stage, key, value) for stage in region for key, value in stage.spark.items()).items()))


def _merged(settings: Iterable[tuple[Stage, str, Any]]) -> dict[str, Any]:
    said: dict[str, tuple[Stage, Any]] = {}
    for stage, key, value in settings:
        first, other = said.setdefault(key, (stage, value))
        if other != value:
            raise Misconfigured(
                f"stages {first.name!r} and {stage.name!r} run in one task but set {key} differently "
                f"({other!r} and {value!r}): set it in one of them, or join them by a blocking exchange"
            )
    return {key: value for key, (_, value) in said.items()}
