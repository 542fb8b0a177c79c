"""Findings about Airflow: its plugins folder, its executors, and the answers of its api-server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from weir.doctor.examination import Finding, ok, problem, warning

AREA: Final = "airflow"
SETTINGS: Final = "settings"
PLUGIN_FILE: Final = "weir_plugin.py"
UPKEEP: Final = "weir_upkeep"
UPKEEP_HOURLY: Final = "weir_upkeep_hourly"
LATE: Final = {UPKEEP: timedelta(minutes=15), UPKEEP_HOURLY: timedelta(hours=3)}
"""After how long without a run each DAG of Weir's upkeep is late: several runs are missing."""

_ON_ONE_MACHINE: Final = frozenset({"LocalExecutor", "SequentialExecutor", "DebugExecutor", "InProcessExecutor", ""})


@dataclass(frozen=True, slots=True)
class Dag:
    """A DAG of Weir as the API describes it."""

    dag_id: str
    is_paused: bool
    max_active_runs: int


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of a DAG."""

    state: str
    run_after: datetime


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


def plugins_folder_finding(folder: str, names: tuple[str, ...] | None, checkout: str | None) -> Finding:
    """Judge the names in Airflow's plugins folder, None if there is no such folder; `checkout` is Weir's own folder."""
    name = "plugins folder"
    if names is not None and PLUGIN_FILE in names:
        return ok(SETTINGS, name, f"{folder} has {PLUGIN_FILE}")
    mend = f"AIRFLOW__CORE__PLUGINS_FOLDER={checkout}" if checkout else f"put Weir's plugins/{PLUGIN_FILE} there"
    return problem(
        SETTINGS,
        name,
        f"{folder} {'does not exist' if names is None else f'has no {PLUGIN_FILE}'}",
        expected=f"the folder with {PLUGIN_FILE}, above all at the api-server",
        mend=f"{mend}, and restart the api-server; the package weir_airflow must be installed there, too",
    )


def version_finding(here: str, there: str) -> Finding:
    """Compare the Airflow of this environment with that of the api-server."""
    if here == there:
        return ok(AREA, "api-server", f"Airflow {there}, as here")
    return warning(
        AREA,
        "api-server",
        f"Airflow {there}; here it is {here}",
        expected="one version everywhere",
        mend="install the same Airflow at workers, scheduler and api-server",
    )


def plugin_finding(*, is_mounted: bool, dags: Sequence[Dag] = ()) -> Finding:
    """Judge whether the api-server serves Weir's endpoint."""
    if is_mounted:
        return ok(AREA, "plugin", "its endpoint answers")
    single = [dag.dag_id for dag in dags if dag.max_active_runs == 1 and dag.dag_id not in LATE]
    stuck = f"; {_listed(single)} would wait forever, with max_active_runs=1" if single else ""
    return problem(
        AREA,
        "plugin",
        f"the api-server has no /weir: finished runs cannot be recovered, and clears may race{stuck}",
        expected="Weir's plugin, loaded by the api-server",
        mend="at the api-server: pip install Weir, set AIRFLOW__CORE__PLUGINS_FOLDER to the folder of "
        f"{PLUGIN_FILE}, restart it; `airflow plugins` there shows import errors",
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


def upkeep_finding(name: str, dag: Dag | None, last: LastRun | None, now: datetime) -> Finding:
    """Judge a DAG of Weir's upkeep, None if Airflow has no such DAG, and its newest run."""
    expected = "an unpaused DAG: it delivers pending clears, reclaims space and scrubs"
    if dag is None:
        mend = f"put dags/{UPKEEP}.py into the DAGs folder"
        return problem(AREA, name, "Airflow has no such DAG", expected=expected, mend=mend)
    if dag.is_paused:
        mend = f"airflow dags unpause {name}   (or the switch in Airflow's UI)"
        return problem(AREA, name, "paused", expected=expected, mend=mend)
    if last is None:
        return ok(AREA, name, "unpaused; it has not run yet")
    if last.state == "failed":
        mend = f"read the log of its tasks in Airflow's UI, DAG {name}"
        return problem(AREA, name, "its last run failed", expected="runs that succeed", mend=mend)
    minutes = (now - last.run_after).total_seconds() / 60
    if now - last.run_after > LATE[name]:
        mend = "see whether the scheduler runs and has free slots"
        return warning(
            AREA, name, f"its last run was due {minutes:.0f} minutes ago", expected="regular runs", mend=mend
        )
    return ok(AREA, name, f"unpaused; its last run: {last.state}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
