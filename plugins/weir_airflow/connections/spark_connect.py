"""The form of connections to a Spark Connect server, where the Spark provider, which has the same, is not installed."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook


class SparkConnectHook(BaseHook):  # type: ignore[misc]  # Airflow's classes are not followed
    """Names the fields of the type `spark_connect` in Airflow's UI; the extra `use_ssl` chooses TLS."""

    conn_name_attr = "conn_id"
    default_conn_name = "spark_connect_weir"
    conn_type = "spark_connect"
    hook_name = "Spark Connect"

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return the labels of the form."""
        return {
            "hidden_fields": ["schema"],
            "relabeling": {"password": "Token", "login": "User ID"},
            "placeholders": {"extra": '{"use_ssl": true}'},
        }
