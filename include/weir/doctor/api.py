"""What Airflow's api-server answers, judged.

Invariant: an answer that only lacks a permission is unknown, never a problem of what was asked about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from weir.doctor.examination import Finding, ok, problem, unknown, warning

AREA = "airflow"
UPKEEP = "weir_upkeep"
UPKEEP_HOURLY = "weir_upkeep_hourly"


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often a DAG of Weir's housekeeping runs, what it does, and when its runs are late: several may have been."""

    every: str
    does: str
    late: timedelta


RHYTHMS = {
    UPKEEP: Rhythm("every three minutes", "it carries out what others left owed", timedelta(minutes=15)),
    UPKEEP_HOURLY: Rhythm("every hour", "it removes what dead attempts left, and scrubs", timedelta(hours=3)),
}
"""All of Weir's housekeeping."""

NEEDED = ("metadatabase", "scheduler", "dag_processor")
"""The components that Weir cannot do without; it has no use for the triggerer."""


@dataclass(frozen=True, slots=True)
class Dag:
    """A DAG of Weir, as the API describes it."""

    dag_id: str
    is_paused: bool
    max_active_runs: int
    has_import_errors: bool = False


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of a DAG."""

    state: str
    run_after: datetime


def judge_version(here: str | None, there: str) -> Finding:
    """Compare the Airflow of this environment with the api-server's."""
    if here == there:
        return ok(AREA, "api-server", f"Airflow {there}, as here")
    return warning(
        AREA,
        "api-server",
        f"Airflow {there}; here it is {here or 'not installed'}",
        expected="one version everywhere",
        mend="install the same Airflow at workers, scheduler and api-server",
    )


def judge_health(answer: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the answer of /api/v2/monitor/health."""
    sick = [name for name in NEEDED if (answer.get(name) or {}).get("status") != "healthy"]
    if not sick:
        yield ok(AREA, "components", "scheduler, DAG processor and database are healthy")
        return
    yield problem(
        AREA,
        "components",
        ", ".join(f"{name}: {(answer.get(name) or {}).get('status') or 'nothing heard'}" for name in sick),
        expected="a healthy scheduler, DAG processor and database",
        mend="start them, and read their logs: `airflow scheduler`, `airflow dag-processor`",
    )


def judge_plugin(*, is_mounted: bool, dags: Sequence[Dag] = ()) -> Finding:
    """Judge whether Weir's endpoint answers at the api-server."""
    if is_mounted:
        return ok(AREA, "plugin", "its endpoint answers")
    single = [dag.dag_id for dag in dags if dag.max_active_runs == 1]
    stuck = f"; {', '.join(single)} would wait for ever, having max_active_runs=1" if single else ""
    return problem(
        AREA,
        "plugin",
        f"the api-server has no /weir: finished runs cannot be repaired, and clears may race{stuck}",
        expected="Weir's plugin, loaded by the api-server",
        mend="at the api-server: pip install Weir, let AIRFLOW__CORE__PLUGINS_FOLDER be the folder of weir_plugin.py, "
        "start it again; `airflow plugins` there names what it could not import",
    )


def judge_permission(account: str, may: Sequence[str], may_not: Sequence[str]) -> Finding:
    """Judge for which DAGs the account of `weir_api` may clear task instances."""
    name = "may clear"
    if not may_not:
        return ok(AREA, name, f"{account} may edit task instances of {_listed(may)}")
    return problem(
        AREA,
        name,
        f"{account} may not edit task instances of {_listed(may_not)}",
        expected="the permission for every DAG of Weir: lost results are healed by clearing their producers",
        mend="give the account PUT on task instances (the role `user` of the simple auth manager; can_edit on Task "
        "Instances and on these DAGs with FAB)",
    )


def judge_import_errors(errors: Sequence[Mapping[str, Any]]) -> Finding:
    """Judge the answer of /api/v2/importErrors."""
    if not errors:
        return ok(AREA, "DAG files", "all can be imported")
    shown = "; ".join(
        f"{each.get('filename')}: {_last_line(str(each.get('stack_trace') or ''))}" for each in errors[:3]
    )
    return problem(
        AREA,
        "DAG files",
        f"{len(errors)} cannot be imported: {shown}",
        expected="no import error: a dataflow whose file is broken neither runs nor heals",
        mend="mend the file, and look with `python THE_FILE`; `weir` and the pipelines have to be installed at the DAG "
        "processor, too",
    )


def judge_upkeep(name: str, dag: Dag | None, last: LastRun | None, now: datetime) -> Finding:
    """Judge a DAG of Weir's housekeeping, None if Airflow knows no such DAG, and its newest run."""
    rhythm = RHYTHMS[name]
    if dag is None:
        mend = f"put dags/{UPKEEP}.py into the DAGs folder"
        return problem(AREA, name, "Airflow has no such DAG", expected=f"it runs {rhythm.every}", mend=mend)
    if dag.is_paused:
        mend = f"airflow dags unpause {name}   (or its switch in Airflow's UI)"
        return problem(AREA, name, "paused", expected=f"unpaused: {rhythm.does}", mend=mend)
    if last is None:
        return ok(AREA, name, "unpaused; it has not run yet")
    if last.state == "failed":
        mend = f"read the log of its tasks in Airflow's UI, DAG {name}"
        return problem(AREA, name, "its last run failed", expected="runs that succeed", mend=mend)
    age = now - last.run_after
    if age > rhythm.late:
        return warning(
            AREA,
            name,
            f"its last run was due {age.total_seconds() / 60:.0f} minutes ago",
            expected=f"a run {rhythm.every}",
            mend="see whether the scheduler runs and has free slots",
        )
    return ok(AREA, name, f"unpaused; its last run: {last.state}")


def judge_active_runs(dags: Sequence[Dag], *, is_mounted: bool) -> Finding:
    """Judge how many runs of a dataflow Airflow lets be active: repairs of older runs come on top."""
    name = "max_active_runs"
    single = [dag.dag_id for dag in dags if dag.max_active_runs == 1 and dag.dag_id not in RHYTHMS]
    if not single or is_mounted:
        return ok(AREA, name, f"{len(dags)} DAG(s); a run that waits for an older one has it started by the plugin")
    return problem(
        AREA,
        name,
        f"1, of {_listed(single)}, and there is no plugin",
        expected="at least 2: a run that waits for the repair of an older one holds the only place for ever",
        mend="max_active_runs=4 in the DAG file, or load the plugin",
    )


def judge_paused(dags: Sequence[Dag]) -> Iterator[Finding]:
    """Name the dataflows that are paused: what is owed in them is done only when they are unpaused."""
    paused = [dag.dag_id for dag in dags if dag.is_paused and dag.dag_id not in RHYTHMS]
    yield ok(AREA, "dataflows", f"{len(dags)} DAG(s) of Weir" + (f"; paused: {_listed(paused)}" if paused else ""))


def judge_pool(slots: int | None, parallelism: int | None) -> Finding:
    """Judge the slots of Airflow's default pool, -1 for no limit, None if it may not be asked."""
    if slots is None:
        return unknown(AREA, "default_pool", "the account may not look at pools")
    if slots < 0 or slots >= min(parallelism or 2, 2):
        return ok(AREA, "default_pool", "without limit" if slots < 0 else f"{slots} slots")
    return warning(
        AREA,
        "default_pool",
        f"{slots} slot(s)",
        expected="at least 2: a task that waits for a repair may hold a slot for a few seconds",
        mend="airflow pools set default_pool 128 'Default pool'",
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _last_line(trace: str) -> str:
    lines = [line for line in trace.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"
