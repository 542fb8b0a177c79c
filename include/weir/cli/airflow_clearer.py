"""Clears task instances for the command line: through the plugin's endpoint, with the account in `WEIR_API`.

Invariant: only a task instance that has the expected try is cleared; the endpoint compares.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from weir.coordination.airflow import ClearAnswer, ClearItem
from weir.coordination.airflow_client import AirflowClient, path_of
from weir.environment import API_VARIABLE, command_environment
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ApiClearer:
    """Compares and clears through the plugin's endpoint."""

    def __init__(self, api: AirflowClient) -> None:
        self._api = api

    def clear(self, wanted: Sequence[ClearItem], note: str) -> list[ClearAnswer]:
        """Clear the task instances that match, in one request for each DAG."""
        return self._ask(wanted, note, is_dry_run=False)

    def inspect(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Answer as `clear` would, and change nothing."""
        return self._ask(wanted, "", is_dry_run=True)

    def start(self, dag_id: str, run_id: str) -> str:
        """Set a queued run running; return the state that it had."""
        return str(self._api.ask("POST", path_of("weir", "dags", dag_id, "start"), {"run_id": run_id})["state"])

    def exists(self, dag_id: str, run_id: str) -> bool | None:
        """Report whether Airflow has this DagRun; None if it does not have the DAG, either."""
        dag = ("api", "v2", "dags", dag_id)
        if self._api.call("GET", path_of(*dag, "dagRuns", run_id)).is_success:
            return True
        return False if self._api.call("GET", path_of(*dag)).is_success else None

    def _ask(self, wanted: Sequence[ClearItem], note: str, *, is_dry_run: bool) -> list[ClearAnswer]:
        answers: dict[ClearItem, ClearAnswer] = {}
        for dag_id, group in groupby(sorted(wanted, key=lambda item: item.dag_id), key=lambda item: item.dag_id):
            items = list(group)
            named = [
                {"run_id": each.run_id, "task_id": each.task_id, "map_index": each.map_index}
                | {"expected_try": each.expected_try}
                for each in items
            ]
            body = {"items": named, "note": note, "dry_run": is_dry_run}
            rows = self._api.ask("POST", path_of("weir", "dags", dag_id, "clear"), body)["items"]
            for item, row in zip(items, rows, strict=True):
                answers[item] = ClearAnswer(item, row["state"], row["try_number"], row["cleared"])
        return [answers[item] for item in wanted]


def airflow_api(environ: Mapping[str, str]) -> AirflowClient | None:
    """Return Airflow's API if its address is known: `WEIR_API`, or the local stack while it is up.

    Raises Misconfigured for an invalid address or a refused account, and Retryable if the server does not answer.
    """
    given = command_environment(environ).get(API_VARIABLE)
    if not given:
        return None
    url = urlsplit(given)
    if url.scheme not in {"http", "https"} or not url.hostname or url.username is None:
        raise Misconfigured(f"{API_VARIABLE} is no address: expected http://LOGIN:PASSWORD@HOST:PORT")
    address = f"{url.scheme}://{url.hostname}" + (f":{url.port}" if url.port else "") + url.path.rstrip("/")
    client = AirflowClient(address, unquote(url.username), unquote(url.password or ""), source=API_VARIABLE)
    client.log_in()
    return client
