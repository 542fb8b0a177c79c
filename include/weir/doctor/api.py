"""Findings about Airflow: its executors, and the answers of its api-server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from weir.doctor import table
from weir.doctor.examination import Finding
from weir.requests.request import REQUESTS
from weir.wording import first_few

UPKEEPS: Final = (table.UPKEEP.name, "weir_upkeep_hourly", REQUESTS)

_LISTED: Final = 5
"""The largest number of DAGs that are named."""

_ON_ONE_MACHINE: Final = frozenset({"LocalExecutor", "SequentialExecutor", "DebugExecutor", "InProcessExecutor", ""})


def ledger_findings(executors: str, ledger: str) -> Iterator[Finding]:
    """Report a ledger in SQLite that tasks on several machines would use; `executors` is Airflow's setting."""
    classes = [each.strip().split(":")[-1].split(".")[-1] for each in executors.split(",")]
    remote = [name for name in classes if name not in _ON_ONE_MACHINE]
    if remote and ledger.startswith("sqlite"):
        yield table.LEDGER_OF_WORKERS.problem(f"SQLite, and {', '.join(remote)} runs tasks on several machines")


def plugin_finding(*, is_mounted: bool) -> Finding:
    """Judge whether the api-server serves Weir's endpoint."""
    if is_mounted:
        return table.PLUGIN.ok("its endpoint answers")
    return table.PLUGIN.problem(
        "the api-server has no /weir: nothing can be cleared or started, so lost results are not recomputed"
    )


def permission_finding(account: str, may: Sequence[str], may_not: Sequence[str]) -> Finding:
    """Judge for which DAGs the account of `weir_api` may clear task instances and start runs."""
    if not may_not:
        return table.MAY_CLEAR.ok(f"{account} may edit task instances and runs of {first_few(may, _LISTED)}")
    return table.MAY_CLEAR.problem(f"{account} may not edit task instances or runs of {first_few(may_not, _LISTED)}")


def upkeep_finding(name: str, *, is_paused: bool | None) -> Finding:
    """Judge a DAG of Weir's upkeep; None if Airflow has no such DAG."""
    if is_paused is None:
        return table.NO_UPKEEP.of(name=name).problem("Airflow has no such DAG")
    upkeep = table.UPKEEP.of(name=name)
    return upkeep.problem("paused", name=name) if is_paused else upkeep.ok("unpaused")
