"""What Airflow finds of Weir by the entry point `apache_airflow_provider`: options of `[weir]`, and a connection type.

Invariant: nothing is imported but the standard library, since Airflow reads this while it reads its configuration. No
option has a default here: Weir would take it for one that a person has set, before its own and before a dataflow's.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

_SINCE: Final = "0.1.0"
_SPARK_PROVIDER: Final = "apache-airflow-providers-apache-spark"

OPTIONS: Final = {
    "store": (
        "Where results are stored: a folder that all workers and Spark share, or an object store.",
        "s3://b/weir",
    ),
    "ledger": (
        "SQLAlchemy's URL of Weir's database: PostgreSQL, or SQLite on one machine.",
        "sqlite:////path/ledger.db",
    ),
    "spark_conn_id": ("The connection to Spark. Default: spark_connect_weir.", "spark_connect_weir"),
    "api_conn_id": ("The connection to Airflow's API, to clear task instances. Default: weir_api.", "weir_api"),
    "expectations": ("The folder of the expectation suites, one file <suite>.json each.", "/opt/airflow/expectations"),
    "small_result": (
        "Results up to this size are written once, and filtered by readers. Default: 16 MiB.",
        "1 MiB",
    ),
    "keep": ("Retention of intermediate results. Default: 2 runs.", "7 days"),
    "keep_failed": ("Retention of the results of a run that never closed. Default: 14 days.", "3 days"),
    "keep_published": ("Retention of the newest published version of an epoch. Default: forever.", "365 days"),
    "quota": ("Maximum of stored bytes of a dataflow. Default: none.", "500 GB"),
    "retained_checkpoints": (
        "Retained checkpoints and persons' savepoints of a dataflow with state. Default: 3.",
        "10",
    ),
    "least_free": ("Free space that a write leaves on a local disk. Default: 16 MiB.", "5 GB"),
    "expire_runs": ("Time without an event after which a run's records are deleted. Default: 90 days.", "365 days"),
    "orphan_age": ("Age at which files without an owner are deleted. Default: 1 day.", "2 days"),
    "scrub_share": ("Fraction of all bytes that is verified per hour; 0: none. Default: 0.006.", "0.01"),
    "scrub_repair": ("Whether damaged results that are needed are recomputed at once. Default: true.", "false"),
    "failover": (
        "Failover strategy of the dataflows that declare none: region, full or individual. Default: region.",
        "full",
    ),
    "restart_strategy_type": (
        "Restart strategy of all dataflows, by Flink's name, or flink-1.18; its other options are Flink's.",
        "exponential-delay",
    ),
    "restart_strategy_maximum_per_task_failures": ("Failures after which a task is not restarted.", "5"),
    "restart_strategy_maximum_total_task_failures": ("The same, for all tasks of a run.", "50"),
    "maximum_backtracks": ("Restarts of a task because of lost inputs, until a commit.", "20"),
    "maximum_conflicts": ("Restarts of a task because its inputs have changed.", "20"),
    "maximum_engine_losses": ("Restarts of a task because Spark was lost.", "30"),
    "maximum_environment_failures": ("Restarts of a task because store or ledger did not answer.", "30"),
    "largest_plan": ("Share of a run's regions that may restart without a person's approval. Default: 0.5.", "0.25"),
    "operators": (
        "Users of Airflow who may ask for a savepoint or a restore from a page, separated by commas. Default: none.",
        "anna,ben",
    ),
    "failure_enrichers": ("Functions that label failures, as module:function, separated by commas.", "tickets:owner"),
}
"""What each option of `[weir]` means, and an example."""


def provider_info() -> dict[str, Any]:
    """Return the document of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "weir",
        "name": "Weir",
        "description": "Fine-grained recovery for pipelines that Airflow schedules and Spark computes.",
        "config": {
            "weir": {
                "description": "Weir. An option may also be set as WEIR_<OPTION> in the environment.",
                "options": {name: _option(name, meaning, example) for name, (meaning, example) in OPTIONS.items()},
            }
        },
        "connection-types": [] if _has_spark_provider() else [_SPARK_CONNECT],
    }


_SPARK_CONNECT: Final = {
    "connection-type": "spark_connect",
    "hook-class-name": "weir_airflow.connections.spark_connect.SparkConnectHook",
    "hook-name": "Spark Connect",
}


def _option(name: str, meaning: str, example: str) -> dict[str, Any]:
    return {
        "description": meaning,
        "version_added": _SINCE,
        "type": "string",
        "example": example,
        "default": None,
        "sensitive": name == "ledger",
    }


def _has_spark_provider() -> bool:
    """The Spark provider has the same type: of two providers with one type, Airflow warns in every process."""
    try:
        version(_SPARK_PROVIDER)
    except PackageNotFoundError:
        return False
    return True
