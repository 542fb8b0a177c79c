"""Airflow's components as programs, and how their health is asked.

Invariant: each is started by itself; `airflow standalone` would leave its children behind.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

from weir_dev.ports import LOOPBACK
from weir_dev.stack.airflow_environment import API, airflow_home
from weir_dev.stack.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


API_SERVER = "api-server"
SCHEDULER = "scheduler"
DAG_PROCESSOR = "dag-processor"
TRIGGERER = "triggerer"
COMPONENTS = (API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER)
_ARGUMENTS = {SCHEDULER: ("--skip-serve-logs",), TRIGGERER: ("--skip-serve-logs",)}
_HEALTH_KEYS = {
    API_SERVER: "metadatabase",
    SCHEDULER: "scheduler",
    DAG_PROCESSOR: "dag_processor",
    TRIGGERER: "triggerer",
}


def airflow_programs(
    folder: Path, logs: Path, ports: Mapping[str, int], environment: Mapping[str, str]
) -> tuple[Program, ...]:
    """All components of Airflow, in the order in which they are started."""
    return tuple(
        Program(
            name=name,
            command=(sys.executable, "-m", "airflow", name, *_ARGUMENTS.get(name, ())),
            environment=environment,
            folder=airflow_home(folder),
            log=logs / f"{name}.log",
            grace_seconds=5.0,
            is_ready=_check(name, ports[API]),
        )
        for name in COMPONENTS
    )


def health(port: int) -> dict[str, Any]:
    """Return the health of all components from the api-server; empty if it does not answer."""
    # Without a handler for proxies, which the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{LOOPBACK}:{port}/api/v2/monitor/health", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return {}
    return found


def _check(name: str, port: int) -> Callable[[], bool]:
    def is_healthy() -> bool:
        answer = health(port).get(_HEALTH_KEYS[name]) or {}
        return answer.get("status") == "healthy"

    return is_healthy
