"""Airflow's components as programs, and how their health is asked.

Invariant: each is started by itself; `airflow standalone` would leave its children behind.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

from weir_dev.ports import LOOPBACK, accepts_connections
from weir_dev.stack.airflow_environment import API, API_SERVERS, airflow_home
from weir_dev.stack.processes import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from weir_dev.stack.state import StackRequest


API_SERVER = API_SERVERS[0]
SCHEDULER = "scheduler"
DAG_PROCESSOR = "dag-processor"
TRIGGERER = "triggerer"
COMPONENTS = (API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER)

SECOND = "-2"
"""The end of the names of the second scheduler and the second api-server of a stack that is redundant."""

BALANCER = "balancer"
SCHEDULERS = (SCHEDULER, SCHEDULER + SECOND)

_ARGUMENTS = {SCHEDULER: ("--skip-serve-logs",), TRIGGERER: ("--skip-serve-logs",)}
_HEALTH_KEYS = {
    API_SERVER: "metadatabase",
    SCHEDULER: "scheduler",
    DAG_PROCESSOR: "dag_processor",
    TRIGGERER: "triggerer",
}


def airflow_programs(
    request: StackRequest, logs: Path, ports: Mapping[str, int], environment: Mapping[str, str]
) -> tuple[Program, ...]:
    """All components of Airflow, in the order in which they are started."""

    def program(name: str, command: tuple[str, ...], is_ready: Callable[[], bool]) -> Program:
        return Program(
            name=name,
            command=(sys.executable, *command),
            environment=environment,
            folder=airflow_home(request.folder),
            log=logs / f"{name}.log",
            grace_seconds=5.0,
            is_ready=is_ready,
        )

    def component(name: str, port: int, *more: str) -> Program:
        verb = name.removesuffix(SECOND)
        return program(name, ("-m", "airflow", verb, *_ARGUMENTS.get(verb, ()), *more), _check(verb, port))

    others = [name for name in COMPONENTS if name != API_SERVER and (name != TRIGGERER or request.has_triggerer)]
    if request.balancer is None:
        return tuple(component(name, ports[API]) for name in (API_SERVER, *others))
    balancer = ("-P", str(request.balancer), *(str(ports[name]) for name in (API, *API_SERVERS)))
    return (
        *(component(name, ports[name], "--port", str(ports[name])) for name in API_SERVERS),
        program(BALANCER, balancer, lambda: accepts_connections(ports[API])),
        *(component(name, ports[API]) for name in (SCHEDULER + SECOND, *others)),
    )


def health(port: int) -> dict[str, Any]:
    """Return the health of all components from the api-server; empty if it does not answer."""
    return _answer(port, "/api/v2/monitor/health")


def _answer(port: int, path: str) -> dict[str, Any]:
    # Without a handler for proxies, which the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{LOOPBACK}:{port}{path}", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return {}
    return found


def _check(name: str, port: int) -> Callable[[], bool]:
    def is_healthy() -> bool:
        answer = health(port).get(_HEALTH_KEYS[name]) or {}
        # The first request of a task costs the server 3 s of a core, in which it makes an API for each of its versions.
        return answer.get("status") == "healthy" and (name != API_SERVER or bool(_answer(port, "/execution/health")))

    return is_healthy
