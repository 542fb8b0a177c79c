"""What a person does to a DAG by Airflow's REST API, and on Weir's pages. Invariant: requests are those of the UI."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote

import httpx


class Person:
    """Somebody with every permission, at one DAG. Task instances are named as `str(TaskInstance)` does."""

    def __init__(self, api, dag):
        self._api = api
        self.dag = dag
        self._path = f"/api/v2/dags/{quote(dag)}"

    def pause(self):
        """Let the scheduler start nothing more."""
        self._api.ask("PATCH", self._path, {"is_paused": True})

    def clear(self, run_id, *tasks, **how):
        """Clear task instances (`doubled` means all of its map indexes); `how` is as in the request."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [_task_and_index(task) for task in tasks],
            "only_failed": False,
            "reset_dag_runs": True,
            "prevent_running_task": True,
            "note": "cleared by a test",
            **how,
        }
        cleared = self._api.ask("POST", f"{self._path}/clearTaskInstances", body)["task_instances"]
        assert cleared, f"nothing of {tasks} was cleared"

    def clear_run(self, run_id, **how):
        """Clear a whole run."""
        body = {"dry_run": False, "only_failed": False, **how}
        self._api.ask("POST", f"{self._run(run_id)}/clear", body)

    def mark(self, run_id, task, state):
        """Set the state of one task instance, or of all map indexes of a task."""
        task_id, index = _task_and_index(task) if "[" in task else (task, None)
        entity = {"task_id": task_id, "map_index": index, "new_state": state}
        body = {"actions": [{"action": "update", "entities": [entity]}]}
        answer = self._api.ask("PATCH", f"{self._run(run_id)}/taskInstances", body)["update"]
        assert answer["success"], answer

    def mark_run(self, run_id, state):
        """Set the state of a DagRun."""
        self._api.ask("PATCH", self._run(run_id), {"state": state})

    def delete_run(self, run_id):
        """Delete a DagRun and all of its task instances."""
        answer = self._api.call("DELETE", self._run(run_id))
        assert answer.status_code == httpx.codes.NO_CONTENT, answer.text

    def trigger(self, day, next_day, run_id=None, **more):
        """Make a DagRun of a day by hand; answers its id. `more` is as in the request."""
        start, end = f"{day}T00:00:00Z", f"{next_day}T00:00:00Z"
        body = {"logical_date": start, "data_interval_start": start, "data_interval_end": end, **more}
        made = self._api.ask("POST", f"{self._path}/dagRuns", body | ({"dag_run_id": run_id} if run_id else {}))
        return made["dag_run_id"]

    def trigger_partition(self, key, logical_date=None):
        """Make a DagRun of a partition by hand, or of none (None); answers its id."""
        body = {"logical_date": logical_date, "partition_key": key}
        return self._api.ask("POST", f"{self._path}/dagRuns", body)["dag_run_id"]

    def backfill(self, first, last, **how):
        """Start a backfill of days; answers its id."""
        body = {"dag_id": self.dag, "from_date": f"{first}T00:00:00Z", "to_date": f"{last}T00:00:00Z", **how}
        return self._api.ask("POST", "/api/v2/backfills", body)["id"]

    def end_backfill(self, backfill):
        """Call a backfill complete, unless Airflow has (in half a minute): its runs never start again."""
        answer = self._api.call("PUT", f"/api/v2/backfills/{backfill}/cancel")
        assert answer.is_success or "already completed" in answer.text, answer.text

    def state_of(self, run_id):
        """The state of a DagRun."""
        return self._api.ask("GET", self._run(run_id))["state"]

    def press(self, run_id, verb):
        """Press a button on the run's page, after a look in the store; answers where the page is then."""
        with httpx.Client(base_url=self._api.base_url, headers={"Authorization": f"Bearer {self._api._token}"}) as page:
            shown = page.get(f"/weir/dags/{quote(self.dag)}/run", params={"run_id": run_id, "look": "true"}, timeout=60)
            forms = re.findall(r'(?s)<form [^>]*action="([^"]*)"(.*?)</form>', shown.text)
            fields = [(action, dict(re.findall(r'name="([^"]*)" value="([^"]*)"', form))) for action, form in forms]
            [(action, asked)] = [(action, form) for action, form in fields if form["verb"] == verb]
            made = page.post(
                unescape(action),
                data={name: unescape(value) for name, value in asked.items()},
                headers={"Origin": self._api.base_url},
                timeout=60,
            )
        assert made.status_code == httpx.codes.SEE_OTHER, made.text
        return made.headers["location"]

    def _run(self, run_id):
        return f"{self._path}/dagRuns/{quote(run_id)}"


def _task_and_index(task):
    task_id, _, index = task.removesuffix("]").partition("[")
    return [task_id, int(index)] if index else task_id
