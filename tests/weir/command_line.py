"""The command line as a person types it, at the ledger and the store of a test."""

from functools import cache

import httpx
from typer import testing
from typer.main import get_command
from typer.testing import CliRunner

from weir.cli import airflow_api
from weir.cli.main import app
from weir.coordination.airflow import ClearItem

WIDE = "250"

testing._get_command = cache(get_command)  # built from all signatures, which takes longer than most commands


def invoked(*words, **more):
    """Run a command; an error that is no exit code is raised, as it is in a process of its own."""
    done = CliRunner().invoke(app, words, **more)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def typed(*words):
    """What a command prints for its reader."""
    return invoked(*words).stdout


def use(monkeypatch, folder, columns=WIDE):
    """Let the commands of this test use the ledger and the store in `folder`, on a terminal of this width."""
    monkeypatch.setenv("WEIR_STORE", str(folder / "store"))
    monkeypatch.setenv("WEIR_LEDGER", f"sqlite:///{folder}/ledger.db")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("WEIR_API", raising=False)


class Api:
    """Airflow's API with the plugin's endpoint, in front of the fake Airflow."""

    def __init__(self, airflow):
        self.airflow, self.is_closed = airflow, False

    def call(self, method, path, body=None, **query):
        if method == "GET":
            return self.runs_in(query["state"]) if "state" in query else self.state_of(path)
        if (method, path, query) == ("PATCH", "/api/v2/dags/dag", {"update_mask": "is_paused"}):
            self.airflow.pause("dag", **body)
            return httpx.Response(200, json=body)
        if path == "/weir/dags/dag/start":
            return httpx.Response(200, json={"state": self.airflow.start("dag", body["run_id"])})
        if path == "/api/v2/dags/dag/clearTaskInstances":
            return httpx.Response(200, json={"total_entries": self.airflow.clear_run("dag", body["dag_run_id"])})
        assert (method, path) == ("POST", "/weir/dags/dag/clear")
        wanted = [ClearItem("dag", **each) for each in body["items"]]
        answers = self.airflow.inspect(wanted) if body["dry_run"] else self.airflow.clear(wanted)
        rows = [
            {"state": each.state, "try_number": each.try_number, "cleared": each.cleared, "ti_id": ""}
            for each in answers
        ]
        return httpx.Response(200, json={"items": rows})

    def runs_in(self, state):
        there = [run for run in self.airflow.open_runs("dag") if run.state == state]
        named = [dict(zip(("data_interval_start", "data_interval_end"), run.interval, strict=True)) for run in there]
        rows = [
            {"dag_run_id": run.run_id, "state": run.state, **{key: at.isoformat() for key, at in each.items()}}
            for run, each in zip(there, named, strict=True)
        ]
        return httpx.Response(200, json={"dag_runs": rows})

    def ask(self, *request, **query):
        return self.call(*request, **query).json()

    def state_of(self, path):
        dag = self.airflow.seen_dag("dag")
        if path == "/api/v2/monitor/health":
            return httpx.Response(200, json={"scheduler": {"status": "healthy" if dag.has_scheduler else "unhealthy"}})
        if path == "/api/v2/dags/dag":
            return httpx.Response(200, json={"is_paused": dag.is_paused, "has_import_errors": dag.has_import_errors})
        run = self.airflow.seen_run("dag", path.removeprefix("/api/v2/dags/dag/dagRuns/"))
        found = None if run is None else {"state": run.state, "note": run.note}
        return httpx.Response(404 if run is None else 200, json=found)

    def close(self):
        self.is_closed = True


def reach(monkeypatch, airflow):
    """Let the commands of this test reach the fake Airflow."""
    api = Api(airflow)
    monkeypatch.setattr(airflow_api, "airflow_api", lambda environ: api)
    return api
