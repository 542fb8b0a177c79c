"""A stack that runs one variant after the other and measures each. Invariant: one DagRun runs at a time."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
from overhead_usage import EventLogs, Usage, await_settled, left_in

from weir.execution.run_state import CLOSE
from weir.ledger.database.tables import AttemptRow, RunRow
from weir.ledger.ledger import Ledger
from weir.store.store import Store
from weir_dev.airflow_api import AirflowApi
from weir_dev.demo.evidence import published_rows
from weir_dev.stack.credentials import PERSON
from weir_dev.stack.stack import Stack
from weir_dev.stack.state import Database, StackRequest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
REPORT = """from pipelines import flight_delays


def report(ctx, carriers, routes):
    return flight_delays.report(ctx, carriers, routes).where("kind != '{word}'")
"""
PATIENCE_SECONDS = 900.0
REST_SECONDS = 15.0

BY_HAND_FOLDERS = {"by_hand_submit": "submit", "by_hand_connect": "connect", "one_application": "one"}
"""Where each variant that has nothing of Weir keeps its data; all others are dataflows."""


class OverheadStack:
    """Airflow, one Connect server, and both variants' DAGs."""

    def __init__(self, folder: Path) -> None:
        self.logs = EventLogs(folder / "events")
        self.by_hand = folder / "by hand"
        self._conf = folder / "conf"
        self._conf.mkdir()
        self.edited = folder / "edited" / "edited_report.py"
        self.edited.parent.mkdir()
        self.edit("later")
        self.stack = Stack(
            StackRequest.owned_by_this_process(
                folder=folder / "stack",
                dags=(HERE / "dags",),
                plugins=ROOT / "plugins",
                cache=ROOT / ".weir" / "cache",
                environment=self._environment(),
                database=Database.SQLITE,  # as the published figures
            )
        )

    def _environment(self):
        settings = {
            **self.logs.settings(),
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": "4",
            "spark.ui.enabled": "false",
            "spark.log.level": "WARN",
        }
        lines = [f"{key} {value}" for key, value in settings.items()]
        (self._conf / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
        return {
            "SPARK_CONF_DIR": str(self._conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join([str(HERE), str(self.edited.parent)]),
            "WEIR_BENCHMARK_FOLDER": str(self.by_hand),
            "AIRFLOW_CONN_BENCHMARK_SUBMIT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        }

    def edit(self, word):
        """Write the module of the last stage of the dataflow that reuses: it says another word each time."""
        self.edited.write_text(REPORT.format(word=word))

    def __enter__(self):
        self.stack.start()
        self.api = AirflowApi(self.stack.url, PERSON, self.stack.credentials.person_password)
        self.store, self.ledger = Store.open(self.stack.store_url), Ledger.open(self.stack.ledger_url)
        return self

    def __exit__(self, *_):
        self.stack.stop()

    def prepare(self, variants):
        """Wait for the DAGs, let them run, and see what the stack uses at rest; answers seconds a second."""
        for variant in variants:
            self._wait(lambda variant=variant: self._has_dag(variant), f"the DAG {variant}")
            self.api.unpause(variant)
        await_settled(self.stack)
        before = Usage.of(self.stack)
        time.sleep(REST_SECONDS)
        rest = Usage.of(self.stack).since(before)
        return rest.cpu_seconds / rest.at

    def run(self, variant, day: date, copies):
        """Run a variant for a day; answers what it used, all that is needed for a table."""
        await_settled(self.stack)
        self.logs.news()
        left, before = self._left(), Usage.of(self.stack)
        run_id = self._trigger(variant, day, copies)
        self._await_end(variant, run_id)
        await_settled(self.stack)
        used, stored = Usage.of(self.stack).since(before), self._left()
        run, tasks = self._dag_run(variant, run_id), self._instances(variant, run_id)
        _refuse_faults(variant, tasks)
        began, ended = min(_at(one["start_date"]) for one in tasks), max(_at(one["end_date"]) for one in tasks)
        return {
            "variant": variant,
            "run_id": run_id,
            "copies": copies,
            "day": day.isoformat(),
            "load": os.getloadavg()[0],
            "seconds": ended - began,
            "with_scheduling": _at(run["end_date"]) - _at(run["queued_at"]),
            "task_seconds": sum(_at(one["end_date"]) - _at(one["start_date"]) for one in tasks),
            "airflow_tasks": len(tasks),
            "window": used.at,
            "cpu": used.cpu,
            "others": used.machine - used.cpu_seconds,
            "process_read": used.read,
            "process_written": used.written,
            "spark": self.logs.news(),
            "left": {key: stored[key] - left[key] for key in ("files", "bytes")},
            "regions": {} if variant in BY_HAND_FOLDERS else self._steps(variant, run_id, tasks),
        }

    def again(self, variant, days, run_ids):
        """Clear whole runs, with what they can take where the dataflow reuses; answers what that used."""
        await_settled(self.stack)
        self.logs.news()
        left, before = self._left(), Usage.of(self.stack)
        if variant == "flights_reuse":
            span = ("--from", days[0].isoformat(), "--to", days[-1].isoformat())
            self._weir("clear", variant, *span, "--reuse", "--apply")
        else:
            for run_id in run_ids:
                whole = {"dry_run": False, "dag_run_id": run_id, "only_failed": False, "reset_dag_runs": True}
                self.api.ask("POST", f"/api/v2/dags/{variant}/clearTaskInstances", whole)
        self._wait(lambda: all(self._has_ended(variant, each) for each in run_ids), f"{variant} again")
        await_settled(self.stack)
        used, stored = Usage.of(self.stack).since(before), self._left()
        tasks = [one for run_id in run_ids for one in self._instances(variant, run_id)]
        assert {one["state"] for one in tasks} <= {"success", "skipped"}, variant
        return {
            "variant": variant,
            "seconds": max(_at(one["end_date"]) for one in tasks) - min(_at(one["start_date"]) for one in tasks),
            "window": used.at,
            "cpu": used.cpu,
            "others": used.machine - used.cpu_seconds,
            "spark": self.logs.news(),
            "left": {key: stored[key] - left[key] for key in ("files", "bytes")},
        }

    def _has_ended(self, variant, run_id):
        state = self._dag_run(variant, run_id)["state"]
        assert state != "failed", f"{variant} {run_id}"
        return state == "success"

    def _weir(self, *words):
        api = self.stack.url.replace("://", f"://{PERSON}:{self.stack.credentials.person_password}@")
        settings = {"WEIR_LEDGER": self.stack.ledger_url, "WEIR_STORE": self.stack.store_url, "WEIR_API": api}
        command = [sys.executable, "-m", "weir.cli.main", *words]
        done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        print(done.stdout)

    def rows(self, variant, day: date):
        """What a variant has published for a day, in a fixed order."""
        if variant not in BY_HAND_FOLDERS:
            return published_rows(self.store, variant, "delays", day)
        table = pq.read_table(self.by_hand / BY_HAND_FOLDERS[variant] / day.isoformat() / "report")
        return sorted(table.to_pylist(), key=lambda row: (row["kind"], row["name"], str(row)))

    def _left(self):
        return left_in(self.by_hand) + left_in(Path(self.stack.store_url.removeprefix("file://")))

    def _steps(self, variant, run_id, tasks):
        """The seconds of each step of each region's task, from the ledger, the store and Airflow."""
        with self.ledger.transaction() as session:
            query = session.query(AttemptRow).join(RunRow, AttemptRow.run == RunRow.id)
            rows = query.filter(RunRow.dag_id == variant, RunRow.run_id == run_id).all()
        instances = {(one["task_id"], one["map_index"]): one for one in tasks}
        return {
            f"{row.region}[{row.subtask}]": _steps_of(row, instances[row.task_id, row.map_index], self._folder(row))
            for row in rows
            if row.region != CLOSE.name
        }

    def _folder(self, row):
        root = Path(self.stack.store_url.removeprefix("file://"))
        return next(root.glob(f"*/*/_regions/{row.region}/{row.subtask}/{row.id}"))

    def _trigger(self, variant, day, copies):
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        body = {
            "logical_date": start.isoformat(),
            "data_interval_start": start.isoformat(),
            "data_interval_end": (start + timedelta(days=1)).isoformat(),
            "conf": {"copies": copies},
        }
        return self.api.ask("POST", f"/api/v2/dags/{variant}/dagRuns", body)["dag_run_id"]

    def _has_dag(self, dag):
        errors = self.api.import_errors()
        assert not errors, errors[0]
        return self.api.has_dag(dag)

    def _dag_run(self, variant, run_id):
        return self.api.ask("GET", f"/api/v2/dags/{variant}/dagRuns/{run_id}")

    def _instances(self, variant, run_id):
        path = f"/api/v2/dags/{variant}/dagRuns/{run_id}/taskInstances"
        return self.api.ask("GET", path, limit=100)["task_instances"]

    def _await_end(self, variant, run_id):
        looks = itertools.count(1)

        def has_ended():
            if next(looks) % 10 == 0:
                _refuse_faults(variant, self._instances(variant, run_id))
            return self._dag_run(variant, run_id)["state"] in {"success", "failed"}

        self._wait(has_ended, f"{variant} {run_id}")

    @staticmethod
    def _wait(condition, what, pause=1.0):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {PATIENCE_SECONDS:.0f} s for {what}")
            time.sleep(pause)


def _refuse_faults(variant, tasks):
    """A measurement of anything but first tries would be of something else."""
    faults = [one for one in tasks if one["try_number"] > 1 or one["state"] in {"failed", "up_for_retry"}]
    assert not faults, f"{variant} had faults: {[(one['task_id'], one['map_index'], one['state']) for one in faults]}"


def _at(text):
    return datetime.fromisoformat(text).timestamp()


def _steps_of(row, instance, folder):
    """The seconds of one region's task, in order; files tell by their times when they were written."""
    job, report = ((folder / name).stat().st_mtime for name in ("job.json", "report.json"))
    inside = dict.fromkeys(("prepare", "take", "plan", "compute", "write", "seal"), 0.0)
    for step, seconds in row.metrics.items():
        if step != "taken":  # the attempt whose result it has taken
            inside[step.partition(" ")[0]] += seconds
    return {
        "start of the task": row.began_at.timestamp() - _at(instance["start_date"]),
        "begin": job - row.began_at.timestamp(),
        "session": report - job - sum(inside.values()),
        **inside,
        "commit": row.ended_at.timestamp() - report,
        "end of the task": _at(instance["end_date"]) - row.ended_at.timestamp(),
    }
