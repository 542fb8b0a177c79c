"""Clears task instances for the command line: through the plugin's endpoint, with the account in `WEIR_API`.

Invariant: nothing is cleared here that has another try than the expected one; the endpoint compares.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from weir.cli.airflow_api import AirflowApi
from weir.coordination.airflow import ClearAnswer, ClearItem
from weir.environment import API_VARIABLE, command_environment
from weir.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ApiClearer:
    """Compares and clears through the plugin's endpoint."""

    def __init__(self, api: AirflowApi) -> None:
        self._api = api

    def clear(self, wanted: Sequence[ClearItem], note: str) -> list[ClearAnswer]:
        """Clear what matches, in one request a DAG."""
        return self._ask(wanted, note, is_dry_run=False)

    def inspect(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Answer as `clear` would, and change nothing."""
        return self._ask(wanted, "", is_dry_run=True)

    def start(self, dag_id: str, run_id: str) -> str:
        """Set a queued run running; answer the state that it was found in."""
        return self._api.start_run(dag_id, run_id)

    def exists(self, dag_id: str, run_id: str) -> bool | None:
        """Whether Airflow has this DagRun; None where it does not know the DAG, either."""
        return self._api.has_run(dag_id, run_id)

    def _ask(self, wanted: Sequence[ClearItem], note: str, *, is_dry_run: bool) -> list[ClearAnswer]:
        answers: dict[ClearItem, ClearAnswer] = {}
        for dag_id, group in groupby(sorted(wanted, key=lambda item: item.dag_id), key=lambda item: item.dag_id):
            items = list(group)
            named = [
                {"run_id": each.run_id, "task_id": each.task_id, "map_index": each.map_index}
                | {"expected_try": each.expected_try}
                for each in items
            ]
            rows = self._api.compare_and_clear(dag_id, named, note, is_dry_run=is_dry_run)
            for item, row in zip(items, rows, strict=True):
                answers[item] = ClearAnswer(item, row["state"], row["try_number"], row["cleared"])
        return [answers[item] for item in wanted]


def airflow_api(environ: Mapping[str, str]) -> AirflowApi | None:
    """Return Airflow's API, if its address is known: `WEIR_API`, or the local stack while it is up.

    Raises Misconfigured for an address that is none, and Retryable if it does not answer.
    """
    given = command_environment(environ).get(API_VARIABLE)
    if not given:
        return None
    url = urlsplit(given)
    if url.scheme not in {"http", "https"} or not url.hostname or url.username is None:
        raise Misconfigured(f"{API_VARIABLE} is no address: expected http://LOGIN:PASSWORD@HOST:PORT")
    address = f"{url.scheme}://{url.hostname}" + (f":{url.port}" if url.port else "") + url.path.rstrip("/")
    return AirflowApi(address, unquote(url.username), unquote(url.password or ""))
