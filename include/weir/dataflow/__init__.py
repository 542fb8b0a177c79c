"""The public API for declaring dataflows: stages joined by exchanges.

Invariant: importing this imports no Spark and no Airflow, since DAG files do so at every parse.
"""

from weir.code.generation_rules import RepairCode
from weir.dataflow.dataflow import Consumers, Dataflow, FailoverStrategy
from weir.dataflow.digest_rule import DigestRule, digest
from weir.dataflow.quality import Gate, Policy, When, expectations
from weir.dataflow.stage import (
    Exchange,
    ExchangeKind,
    Stage,
    StageKind,
    TaskSettings,
    blocking,
    cached,
    pipelined,
    previous,
    sink,
    source,
    spark_conf,
    task_settings,
)
from weir.dataflow.state import OnReprocess, State, StateKind, broadcast_state, keyed_state, list_state
from weir.dataflow.targets import Target, delta, files, iceberg, postgres, target

__all__ = [
    "Consumers",
    "Dataflow",
    "DigestRule",
    "Exchange",
    "ExchangeKind",
    "FailoverStrategy",
    "Gate",
    "OnReprocess",
    "Policy",
    "RepairCode",
    "Stage",
    "StageKind",
    "State",
    "StateKind",
    "Target",
    "TaskSettings",
    "When",
    "blocking",
    "broadcast_state",
    "cached",
    "delta",
    "digest",
    "expectations",
    "files",
    "iceberg",
    "keyed_state",
    "list_state",
    "pipelined",
    "postgres",
    "previous",
    "sink",
    "source",
    "spark_conf",
    "target",
    "task_settings",
]
