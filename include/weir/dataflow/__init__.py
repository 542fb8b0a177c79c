"""What a user declares: stages joined by exchanges. Importing this is cheap: DAG files do it at every parse."""

from weir.dataflow.dataflow import Dataflow
from weir.dataflow.exchange import Exchange, ExchangeKind, blocking, pipelined
from weir.dataflow.settings import spark_conf, task_settings
from weir.dataflow.stage import Stage, StageKind, TaskSettings, sink, source

__all__ = [
    "Dataflow",
    "Exchange",
    "ExchangeKind",
    "Stage",
    "StageKind",
    "TaskSettings",
    "blocking",
    "pipelined",
    "sink",
    "source",
    "spark_conf",
    "task_settings",
]
