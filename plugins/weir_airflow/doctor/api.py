"""The checks of Airflow's api-server, with the account of the connection `weir_api`.

Invariant: nothing is cleared; permissions are tested by dry runs without items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import httpx

from weir.coordination.airflow_client import AirflowClient, path_of
from weir.coordination.clearing import NO_ROUTE
from weir.doctor import table
from weir.doctor.examination import Check, Enough, Finding
from weir.errors import Misconfigured
from weir.requests.request import REQUESTS
from weir.wording import first_few
from weir_airflow.api.clearing import base_urls_of, clearer_for, client_of

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from weir.doctor.ledger import Publisher


_SECONDS: Final = 10.0
_MOST_DAGS: Final = 100
"""The permission is checked for at most this number of DAGs: a page of Airflow's API."""
_LISTED: Final = 5
"""The largest number of DAGs that are named."""

UPKEEPS: Final = (table.UPKEEP.name, "weir_upkeep_hourly", REQUESTS)


class ApiExam:
    """Checks the api-server. `dag_ids` and `publishers` return those in the ledger."""

    def __init__(
        self,
        connection: Callable[[], Connection],
        dag_ids: Callable[[], tuple[str, ...]],
        publishers: Callable[[], tuple[Publisher, ...]] = tuple,
    ) -> None:
        self._find_connection = connection
        self._dag_ids = dag_ids
        self._publishers = publishers

    def checks(self) -> list[Check]:
        """Return the checks, in order."""
        return [
            table.CONNECTION.check(self.check_connection),
            table.API_SERVER.check(self.check_server),
            table.LOG_IN.check(self.check_login),
            table.PLUGIN.check(self.check_plugin),
            table.UPKEEP.check(self.check_upkeep),
            table.PUBLISHERS.check(self.check_publishers),
        ]

    def check_connection(self) -> Iterator[Finding]:
        """Check that the connection exists and has a known type."""
        found = self._connection
        clearer_for(found)  # raises for an unknown type
        if found.conn_type in {"weir-db", "weir_db"} or found.host == "db":
            yield table.CONNECTION.ok("Airflow's database in this process, as under dag.test()")
            raise Enough
        yield table.CONNECTION.ok(f"{found.login or 'a token'} at {', '.join(base_urls_of(found))}")

    def check_server(self) -> Iterator[Finding]:
        """Check that each api-server answers, and its version."""
        for base_url in base_urls_of(self._connection):
            yield self._answer_of(f"{base_url}/api/v2/version")

    def check_login(self) -> Iterator[Finding]:
        """Check that Airflow accepts the account."""
        try:
            self._api.ask("GET", path_of("api", "v2", "dags"), limit=1)
        except Misconfigured as error:
            yield table.LOG_IN.problem(str(error))
            return
        yield table.LOG_IN.ok(f"as {self._account}")

    def check_plugin(self) -> Iterator[Finding]:
        """Check that the endpoint is served, and for which DAGs the account may clear."""
        answer = self._api.ask("GET", path_of("api", "v2", "dags"), tags="weir", limit=_MOST_DAGS, order_by="dag_id")
        names = sorted({*(str(each["dag_id"]) for each in answer["dags"]), *self._known_dag_ids()})[:_MOST_DAGS]
        names = names or [table.UPKEEP.name]
        if not self._is_mounted(names[0]):
            found = "the api-server has no /weir: nothing can be cleared or started, so lost results are not recomputed"
            yield table.PLUGIN.problem(found)
            return
        yield table.PLUGIN.ok("its endpoint answers")
        may_not = [name for name in names if not self._may_clear(name)]
        if may_not:
            found = f"{self._account} may not edit task instances or runs of {first_few(may_not, _LISTED)}"
            yield table.MAY_CLEAR.problem(found)
        else:
            found = f"{self._account} may edit task instances and runs of {first_few(names, _LISTED)}"
            yield table.MAY_CLEAR.ok(found)

    def check_upkeep(self) -> Iterator[Finding]:
        """Check that Airflow has the DAGs of Weir's upkeep, unpaused."""
        for name in UPKEEPS:
            response = self._api.call("GET", path_of("api", "v2", "dags", name))
            upkeep = table.UPKEEP.of(name=name)
            if response.status_code == HTTPStatus.NOT_FOUND:
                yield table.NO_UPKEEP.of(name=name).problem("Airflow has no such DAG")
            else:
                yield upkeep.problem("paused", name=name) if response.json()["is_paused"] else upkeep.ok("unpaused")

    def check_publishers(self) -> Iterator[Finding]:
        """Check that Airflow still has the DAGs of the dataflows that others read."""
        publishers = self._publishers()
        gone = [(each, [name for name, dags in each.readers.items() if self._has_any(dags)]) for each in publishers]
        gone = [(each, readers) for each, readers in gone if readers and not self._has_any(each.dag_ids)]
        for each, readers in gone:
            found = f"Airflow has no DAG of {each.dataflow} any more, which {first_few(readers, _LISTED)} reads"
            yield table.PUBLISHERS.problem(found)
        if not gone:
            yield table.PUBLISHERS.ok(f"of {first_few([each.dataflow for each in publishers], _LISTED) or 'none'}")

    def _has_any(self, dag_ids: Iterable[str]) -> bool:
        return any(map(self._has, dag_ids))

    def _has(self, dag_id: str) -> bool:
        try:
            response = self._api.call("GET", path_of("api", "v2", "dags", dag_id))
        except Misconfigured:
            return True  # one that this account may not see
        return response.status_code != HTTPStatus.NOT_FOUND and not response.json()["is_stale"]

    def _answer_of(self, url: str) -> Finding:
        try:
            found = str(httpx.get(url, timeout=_SECONDS).raise_for_status().json()["version"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            return table.API_SERVER.problem(f"no answer from {url}: {error or type(error).__name__}")
        return table.API_SERVER.ok(f"Airflow {found}")

    @cached_property
    def _connection(self) -> Connection:
        return self._find_connection()

    @cached_property
    def _api(self) -> AirflowClient:
        return client_of(self._connection)

    @property
    def _account(self) -> str:
        return self._connection.login or "the token"

    def _known_dag_ids(self) -> tuple[str, ...]:
        try:
            return self._dag_ids()
        except Exception:  # noqa: BLE001  the ledger's own checks report it
            return ()

    def _is_mounted(self, dag_id: str) -> bool:
        try:
            return self._dry_run(dag_id).status_code not in NO_ROUTE
        except Misconfigured:
            return True  # the endpoint answered that this account may not

    def _may_clear(self, dag_id: str) -> bool:
        try:
            self._dry_run(dag_id)
            # A run that there is not: nothing is started.
            self._api.call("POST", path_of("weir", "dags", dag_id, "start"), {"run_id": "weir-doctor"})
        except Misconfigured:
            return False
        return True

    def _dry_run(self, dag_id: str) -> httpx.Response:
        return self._api.call("POST", path_of("weir", "dags", dag_id, "clear"), {"items": [], "dry_run": True})
