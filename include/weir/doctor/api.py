"""Findings about Airflow: its executors, and the answers of its api-server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from weir.doctor.examination import Finding, ok, problem

AREA: Final = "airflow"
SETTINGS: Final = "settings"
UPKEEP: Final = "weir_upkeep"
UPKEEPS: Final = (UPKEEP, "weir_upkeep_hourly")

_ON_ONE_MACHINE: Final = frozenset({"LocalExecutor", "SequentialExecutor", "DebugExecutor", "InProcessExecutor", ""})


def ledger_findings(executors: str, ledger: str) -> Iterator[Finding]:
    """Report a ledger in SQLite that tasks on several machines would use; `executors` is Airflow's setting."""
    classes = [each.strip().split(":")[-1].split(".")[-1] for each in executors.split(",")]
    remote = [name for name in classes if name not in _ON_ONE_MACHINE]
    if remote and ledger.startswith("sqlite"):
        yield problem(
            SETTINGS,
            "ledger of all workers",
            f"SQLite, and {', '.join(remote)} runs tasks on several machines",
            expected="one ledger for all of them",
            mend="set WEIR_LEDGER=postgresql+psycopg2://USER:PASSWORD@HOST/weir or the connection weir_ledger",
        )


def plugin_finding(*, is_mounted: bool) -> Finding:
    """Judge whether the api-server serves Weir's endpoint."""
    if is_mounted:
        return ok(AREA, "plugin", "its endpoint answers")
    return problem(
        AREA,
        "plugin",
        "the api-server has no /weir: finished runs cannot be recovered, queued ones not started, and clears may race",
        expected="Weir's plugin, loaded by the api-server",
        mend="at the api-server: pip install weir, the version of the workers, and restart it; `airflow plugins` there "
        "lists the plugin weir, or the error of its import",
    )


def permission_finding(account: str, may: Sequence[str], may_not: Sequence[str]) -> Finding:
    """Judge for which DAGs the account of `weir_api` may clear task instances and start runs."""
    if not may_not:
        return ok(AREA, "may clear", f"{account} may edit task instances and runs of {_listed(may)}")
    return problem(
        AREA,
        "may clear",
        f"{account} may not edit task instances or runs of {_listed(may_not)}",
        expected="the permission for every DAG of Weir: lost results are recomputed by clearing their producers",
        mend="give the account PUT on task instances and on runs (the role `user` of the simple auth manager; can_edit "
        "on Task Instances, on DAG Runs and on these DAGs with FAB)",
    )


def upkeep_finding(name: str, *, is_paused: bool | None) -> Finding:
    """Judge a DAG of Weir's upkeep; None if Airflow has no such DAG."""
    if is_paused is False:
        return ok(AREA, name, "unpaused")
    expected = "an unpaused DAG: it delivers pending clears, reclaims space and scrubs"
    if is_paused is None:
        mend = "put a file into the DAGs folder with the line: from weir_airflow.upkeep.upkeep import dag, hourly_dag"
        return problem(AREA, name, "Airflow has no such DAG", expected=expected, mend=mend)
    mend = f"airflow dags unpause {name}   (or the switch in Airflow's UI)"
    return problem(AREA, name, "paused", expected=expected, mend=mend)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
