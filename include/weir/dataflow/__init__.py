"""The public API for declaring dataflows: stages joined by exchanges.

Invariant: importing this imports no Spark and no Airflow, since DAG files do so at every parse.
"""

from weir.code.application_rules import Application
from weir.code.generation_rules import RepairCode
from weir.dataflow.dataflow import Consumers, Dataflow, FailoverStrategy
from weir.dataflow.digest_rule import DigestRule, digest
from weir.dataflow.graph import spark_conf, task_settings
from weir.dataflow.notifications import EventKind, Receiver, callback, notifier, webhook
from weir.dataflow.quality import Gate, Policy, When, expectations
from weir.dataflow.record_values import avro, json
from weir.dataflow.resolving import NotReady, Resolved
from weir.dataflow.sources import (
    delta_source,
    files_source,
    iceberg_source,
    jdbc_source,
    kafka_source,
    postgres_source,
)
from weir.dataflow.stage import (
    Exchange,
    ExchangeKind,
    Stage,
    StageKind,
    TaskSettings,
    blocking,
    cached,
    dataset,
    last,
    pipelined,
    previous,
    sink,
    source,
)
from weir.dataflow.state import (
    Incremental,
    OnReprocess,
    Replay,
    State,
    StateKind,
    broadcast_state,
    keyed_state,
    list_state,
)
from weir.dataflow.targets import Target, delta, files, iceberg, kafka, postgres, target

__all__ = [
    "Application",
    "Consumers",
    "Dataflow",
    "DigestRule",
    "EventKind",
    "Exchange",
    "ExchangeKind",
    "FailoverStrategy",
    "Gate",
    "Incremental",
    "NotReady",
    "OnReprocess",
    "Policy",
    "Receiver",
    "RepairCode",
    "Replay",
    "Resolved",
    "Stage",
    "StageKind",
    "State",
    "StateKind",
    "Target",
    "TaskSettings",
    "When",
    "avro",
    "blocking",
    "broadcast_state",
    "cached",
    "callback",
    "dataset",
    "delta",
    "delta_source",
    "digest",
    "expectations",
    "files",
    "files_source",
    "iceberg",
    "iceberg_source",
    "jdbc_source",
    "json",
    "kafka",
    "kafka_source",
    "keyed_state",
    "last",
    "list_state",
    "notifier",
    "pipelined",
    "postgres",
    "postgres_source",
    "previous",
    "sink",
    "source",
    "spark_conf",
    "target",
    "task_settings",
    "webhook",
]
