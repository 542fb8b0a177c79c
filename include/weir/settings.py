"""Where Weir's own things are: the environment, then Airflow's `[weir]` section; read when used, never at import."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Settings:
    """The store's URL, the ledger's URL, and the ids of the Airflow connections to Spark and to Airflow's API."""

    store: str
    ledger: str
    spark_conn_id: str
    api_conn_id: str


def read_settings(
    environ: Mapping[str, str] | None = None, option: Callable[[str], str | None] | None = None
) -> Settings:
    """Read the settings; `option` looks a key up in Airflow's `[weir]` section, where there is an Airflow.

    Raises Misconfigured if the store or the ledger is not set.
    """
    found = os.environ if environ is None else environ

    def value(key: str, default: str | None = None) -> str:
        text = found.get(f"WEIR_{key.upper()}") or (option(key) if option else None) or default
        if text is None:
            raise Misconfigured(
                f"Weir does not know its {key}: set WEIR_{key.upper()} in the environment of every worker, "
                f"or `{key}` in the section [weir] of airflow.cfg"
            )
        return text

    return Settings(
        store=value("store"),
        ledger=value("ledger"),
        spark_conn_id=value("spark_conn_id", "spark_connect_weir"),
        api_conn_id=value("api_conn_id", "weir_api"),
    )
