"""Weir's settings and Airflow connections, as a task finds them.

Invariant: a missing one is named, with how to set it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

from weir.errors import Misconfigured, Retryable
from weir.settings import Settings, read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

_API_EXAMPLE = '\'{"conn_type": "http", "host": "http://airflow:8080", "login": "weir", "password": "..."}\''
_SPARK_EXAMPLE = '\'{"conn_type": "spark_connect", "host": "spark", "port": 15002}\''


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Weir's settings: the environment, then the section [weir] of Airflow's configuration."""
    from airflow.sdk.configuration import conf  # noqa: PLC0415  configuration is read when it is used

    return read_settings(environ, lambda key: conf.get("weir", key, fallback=None))


def api_connection(found: Settings) -> Connection:
    """The connection by which a task asks Airflow to clear task instances."""
    return _connection(
        found.api_conn_id,
        "Weir needs it to clear the producers of lost results. Use an account that may edit task instances of Weir's "
        f"DAGs. For example AIRFLOW_CONN_{found.api_conn_id.upper()}={_API_EXAMPLE}",
    )


def spark_connection(found: Settings) -> Connection:
    """The connection to the engine that computes the regions."""
    return _connection(
        found.spark_conn_id,
        f"Weir needs it to compute. For example AIRFLOW_CONN_{found.spark_conn_id.upper()}={_SPARK_EXAMPLE}",
    )


def _connection(conn_id: str, advice: str) -> Connection:
    try:
        connection: Connection = Connection.get(conn_id)
    except AirflowNotFoundException as error:
        raise Misconfigured(f"Airflow has no connection {conn_id!r}. {advice}") from error
    except AirflowRuntimeError as error:
        raise Retryable(f"Airflow did not answer when asked for the connection {conn_id!r}: {error}") from error
    return connection
