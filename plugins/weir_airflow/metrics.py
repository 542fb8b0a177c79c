"""Weir's metrics, exported as Airflow exports its own: by StatsD or OpenTelemetry, as `[metrics]` says.

Invariant: nothing that goes wrong here reaches the task. A metric has the name and the tags that
`weir.execution.metrics` gives it. As of Airflow's own, plain StatsD drops the tags; with `[metrics] legacy_names_on`,
Airflow's default, each is exported a second time, under a name that ends in the values of its tags.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

from weir.execution.metrics import MetricKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weir.execution.metrics import Measurement

log: Final = logging.getLogger(__name__)


def is_exporting() -> bool:
    """Report whether Airflow exports metrics: gauges need not be read where it does not."""
    return get_stats_factory() is not NoStatsLogger


def export(measurements: Sequence[Measurement]) -> None:
    """Export values of metrics. Raises nothing: they are of what is done already."""
    try:
        for each in measurements:
            _export(each)
    except Exception:
        log.warning("Metrics were not exported", exc_info=True)


def _export(measured: Measurement) -> None:
    name = measured.metric.name
    tags = {tag: stats.normalize_name_for_stats(value, log_warning=False) for tag, value in measured.tags.items()}
    _tell(measured, name, tags)
    if conf.getboolean("metrics", "legacy_names_on", fallback=False):
        _tell(measured, ".".join([name, *(value.replace(".", "__") for value in tags.values())]), {})


def _tell(measured: Measurement, name: str, tags: dict[str, str]) -> None:
    if measured.metric.kind is MetricKind.GAUGE:
        stats.gauge(name, measured.value, tags=tags)
    elif measured.value > 0:
        stats.incr(name, measured.value, tags=tags)
