"""Metrics as Airflow's own loggers export them: their names and tags by StatsD and OpenTelemetry."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from airflow.sdk.observability import stats
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.weir.small_dataflow import ladder
from tests.weir_airflow.statsd import StatsdServer

from weir.coordination.services import Services
from weir.execution.failure_class import FailureClass
from weir.execution.metrics import ATTEMPTS, METRICS, NOTIFICATION_LAG, PENDING_CLEARS, SPARED_SECONDS, MetricKind
from weir.ledger.ledger import Ledger
from weir.store.store import Store
from weir.testing.fakes.airflow import FakeAirflow
from weir.testing.fakes.engine import FakeEngine
from weir_airflow.metrics import export, is_exporting

DOCS = Path(__file__).parents[2] / "docs"
FAILED = ATTEMPTS.of(1, "trips", "days.joined", "failed", FailureClass.KILLED.value)
ODD = NOTIFICATION_LAG.of(2.5, "trips", "callback alerts:on_event, please")


@pytest.fixture
def exported(airflow_home):
    """Has Airflow's stats go to a logger of a test's, and then nowhere again."""
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

    def to(logger):
        stats.initialize(factory=lambda: logger, export_legacy_names=True)

    yield to
    to(NoStatsLogger())


@pytest.fixture
def statsd(exported):
    server = StatsdServer()
    yield server
    server.close()


@pytest.fixture
def legacy(monkeypatch):
    def names(on):
        monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", str(on))

    return names


def test_plain_statsd_has_the_name_and_by_airflows_default_one_with_the_values_of_the_tags(statsd, exported):
    exported(statsd.logger())
    export([FAILED, PENDING_CLEARS.of(0, "trips")])
    assert statsd.received() == [
        ("airflow.weir.attempts", 1, "c"),
        ("airflow.weir.attempts.trips.days__joined.failed.killed", 1, "c"),
        ("airflow.weir.pending_clears", 0, "g"),
        ("airflow.weir.pending_clears.trips", 0, "g"),
    ]


def test_without_legacy_names_each_metric_is_exported_once(statsd, exported, legacy):
    legacy(on=False)
    exported(statsd.logger())
    export([FAILED])
    assert statsd.received() == [("airflow.weir.attempts", 1, "c")]


def test_statsd_with_tags_of_influx_has_them_and_no_value_breaks_a_name(statsd, exported, legacy):
    legacy(on=False)
    exported(statsd.logger(influxdb_tags_enabled=True, statsd_influxdb_enabled=True))
    export([FAILED, ODD])
    assert [name for name, *_ in statsd.received()] == [
        "airflow.weir.attempts,dataflow=trips,task_id=days.joined,state=failed,failure=killed",
        "airflow.weir.notification.lag_seconds,dataflow=trips,receiver=callback_alerts_on_event__please",
    ]


def test_opentelemetry_has_the_tags_as_attributes_and_parts_of_seconds(exported, legacy):
    from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger

    legacy(on=False)
    reader = InMemoryMetricReader()
    exported(SafeOtelLogger(MeterProvider(metric_readers=[reader])))
    export([FAILED, FAILED, SPARED_SECONDS.of(1.5, "trips"), SPARED_SECONDS.of(0, "trips"), ODD])
    [scope] = reader.get_metrics_data().resource_metrics[0].scope_metrics
    found = {each.name: each.data.data_points[0] for each in scope.metrics}
    assert found["airflow.weir.attempts"].value == 2
    assert dict(found["airflow.weir.attempts"].attributes) == {
        "dataflow": "trips",
        "task_id": "days.joined",
        "state": "failed",
        "failure": "killed",
    }
    assert found["airflow.weir.spared.seconds"].value == 1.5
    assert found["airflow.weir.notification.lag_seconds"].value == 2.5


def test_an_exporter_that_fails_fails_nothing(exported, caplog):
    class Broken:
        def incr(self, *_args, **_options):
            raise OSError("the socket is closed")

    exported(Broken())
    with caplog.at_level(logging.WARNING):
        export([FAILED])
    assert [each.name for each in caplog.records] == ["weir_airflow.metrics"]


@pytest.mark.parametrize("option", ["STATSD_ON", "STATSD_DATADOG_ENABLED"])
def test_gauges_are_read_only_where_airflow_exports_metrics(monkeypatch, option):
    assert not is_exporting()
    monkeypatch.setenv(f"AIRFLOW__METRICS__{option}", "True")
    assert is_exporting()


def test_upkeep_exports_the_gauges_of_each_dataflow(statsd, exported, monkeypatch, tmp_path):
    from weir_airflow.tasks.upkeep import release_results

    url, place = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "store"
    place.mkdir()
    ledger = Ledger.open(url)
    services = Services(ledger=ledger, store=Store.open(str(place)), now=lambda: airflow.time)
    airflow = FakeAirflow(services, FakeEngine(services.store, {}), ladder())
    airflow.dag_run(1)
    airflow.run_until_quiet()
    ledger.close()
    named = {"WEIR_LEDGER": url, "WEIR_STORE": str(place), "AIRFLOW__METRICS__STATSD_ON": "True"}
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    exported(statsd.logger())
    release_results([].append)
    got = {name: value for name, value, _ in statsd.received()}
    assert got["airflow.weir.pending_clears.ladder"] == 0
    assert got["airflow.weir.at_rest.bytes.ladder.version"] > 0


def test_the_docs_have_a_row_of_each_metric():
    rows = re.findall(r"(?m)^\| `(weir\.[\w.]+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", (DOCS / "metrics.md").read_text())
    assert rows == [
        (each.name, each.kind.value, ", ".join(f"`{tag}`" for tag in each.tags), each.text) for each in METRICS
    ]


def test_the_dashboard_asks_for_metrics_that_exist_and_shows_each():
    dashboard = json.loads((DOCS / "metrics.grafana.json").read_text())
    asked = re.findall(r"airflow_(weir_\w+)", json.dumps(dashboard["panels"]))
    assert set(asked) == {each.name.replace(".", "_") for each in METRICS}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    counters = {each.name.replace(".", "_") for each in METRICS if each.kind is MetricKind.COUNTER}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            of = re.search(r"airflow_(weir_\w+)", target["expr"])[1]
            assert ("increase(" in target["expr"]) is (of in counters)
