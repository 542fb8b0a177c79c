"""Airflow's api-server as `weir doctor` asks it, by the account of the connection `weir_api`.

Invariant: nothing is cleared: where a clear is asked for it is a dry run of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import httpx

from weir.coordination.airflow_client import AirflowClient, path_of
from weir.doctor.api import (
    AREA,
    RHYTHMS,
    UPKEEP,
    Dag,
    LastRun,
    judge_active_runs,
    judge_health,
    judge_import_errors,
    judge_paused,
    judge_permission,
    judge_plugin,
    judge_pool,
    judge_upkeep,
    judge_version,
)
from weir.doctor.clock import clock_difference, judge_clock
from weir.doctor.examination import Check, Enough, Finding, ok, problem, unknown
from weir.errors import Misconfigured, WeirError
from weir_airflow.api.client import base_url_of, client_of
from weir_airflow.recovery.clearing import NO_ROUTE, clearer_for

if TYPE_CHECKING:
    from airflow.sdk import Connection


_SECONDS: Final = 10.0
_PAGE: Final = 100

_MOST_DAGS: Final = 200
"""So many DAGs are asked about at most."""


class ApiExam:
    """Asks the api-server. `dag_ids` are those in the ledger; `check_folder` looks at the plugins folder from here."""

    def __init__(
        self,
        connection: Callable[[], Connection],
        dag_ids: Callable[[], tuple[str, ...]],
        check_folder: Callable[[], Finding],
        parallelism: int | None,
    ) -> None:
        self._ask_connection = connection
        self._dag_ids = dag_ids
        self._check_folder = check_folder
        self._parallelism = parallelism

    def checks(self) -> list[Check]:
        """The checks, in order."""
        return [
            Check(AREA, "connection weir_api", self.check_connection, is_gate=True),
            Check(AREA, "api-server", self.check_server, is_gate=True),
            Check(AREA, "components", self.check_components),
            Check(AREA, "log in", self.check_login, seconds=40.0, is_gate=True),
            Check(AREA, "plugin", self.check_plugin, seconds=60.0),
            Check(AREA, "DAG files", self.check_import_errors, seconds=40.0),
            Check(AREA, UPKEEP, self.check_upkeep, seconds=40.0),
            Check(AREA, "default_pool", self.check_pool, seconds=40.0),
        ]

    def check_connection(self) -> Iterator[Finding]:
        """Whether there is one that can be used."""
        found = self._connection
        clearer_for(found)  # refuses a type that it does not know
        if found.conn_type in {"weir-db", "weir_db"} or found.host == "db":
            yield ok(AREA, "connection weir_api", "Airflow's database in this process, as under dag.test()")
            raise Enough
        yield ok(AREA, "connection weir_api", f"{found.login or 'a token'} at {base_url_of(found)}")

    def check_server(self) -> Iterator[Finding]:
        """Whether it answers, with which version, and by which clock."""
        url = base_url_of(self._connection)
        before = datetime.now(UTC)
        try:
            answer = httpx.get(f"{url}/api/v2/version", timeout=_SECONDS)
            found = str(answer.raise_for_status().json()["version"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            yield problem(
                AREA,
                "api-server",
                f"no answer from {url}/api/v2/version: {error or type(error).__name__}",
                expected="Airflow's api-server, reachable from every worker",
                mend="start it (`airflow api-server`), or correct host and port of the connection weir_api",
            )
            return
        yield judge_version(version("apache-airflow-core"), found)
        if said := answer.headers.get("date"):
            there = parsedate_to_datetime(said)
            yield judge_clock(AREA, "the api-server's times", clock_difference(before, there, datetime.now(UTC)))

    def check_components(self) -> Iterator[Finding]:
        """Whether scheduler and DAG processor are alive."""
        answer = httpx.get(f"{base_url_of(self._connection)}/api/v2/monitor/health", timeout=_SECONDS)
        yield from judge_health(answer.json())

    def check_login(self) -> Iterator[Finding]:
        """Whether the account is let in."""
        try:
            self._api.call("GET", path_of("api", "v2", "dags"), limit="1")
        except Misconfigured as error:
            yield problem(
                AREA,
                "log in",
                str(error),
                expected="an account of this Airflow that may see and edit Weir's DAGs",
                mend="correct login and password of the connection weir_api; a password without login is a token",
            )
            return
        yield ok(AREA, "log in", f"as {self._account}")

    def check_plugin(self) -> Iterator[Finding]:
        """Whether the endpoint is there, and for which DAGs the account may clear."""
        dags = self._dags
        yield from judge_paused(list(dags.values()))
        names = sorted({*dags, *self._known_dag_ids()})[:_MOST_DAGS] or [UPKEEP]
        is_mounted = self._is_mounted(names[0])
        yield judge_plugin(is_mounted=is_mounted, dags=list(dags.values()))
        if not is_mounted:
            yield self._check_folder()
        may = [name for name in names if self._may_clear(name, is_mounted=is_mounted)]
        yield judge_permission(self._account, may, [name for name in names if name not in may])
        yield judge_active_runs(list(dags.values()), is_mounted=is_mounted)

    def check_import_errors(self) -> Iterator[Finding]:
        """Whether all DAG files can be imported."""
        try:
            answer = self._api.call("GET", path_of("api", "v2", "importErrors"), limit=str(_PAGE)).json()
        except Misconfigured:
            yield unknown(AREA, "DAG files", f"{self._account} may not see import errors", mend="look in Airflow's UI")
            return
        yield judge_import_errors(answer["import_errors"])

    def check_upkeep(self) -> Iterator[Finding]:
        """Whether Weir's housekeeping is done."""
        for name in RHYTHMS:
            response = self._api.call("GET", path_of("api", "v2", "dags", name))
            dag = None if response.status_code == HTTPStatus.NOT_FOUND else _dag(response.json())
            yield judge_upkeep(name, dag, self._last_run(name) if dag else None, datetime.now(UTC))

    def check_pool(self) -> Iterator[Finding]:
        """Whether tasks that wait leave room for those they wait for."""
        try:
            response = self._api.call("GET", path_of("api", "v2", "pools", "default_pool"))
        except Misconfigured:
            yield judge_pool(None, self._parallelism)
            return
        if response.status_code == HTTPStatus.NOT_FOUND:
            yield judge_pool(0, self._parallelism)
            return
        yield judge_pool(int(response.json()["slots"]), self._parallelism)

    @cached_property
    def _connection(self) -> Connection:
        return self._ask_connection()

    @cached_property
    def _api(self) -> AirflowClient:
        return client_of(self._connection)

    @property
    def _account(self) -> str:
        return self._connection.login or "the token"

    @cached_property
    def _dags(self) -> Mapping[str, Dag]:
        """The DAGs that are tagged as Weir's."""
        found: dict[str, Dag] = {}
        while len(found) < _MOST_DAGS:
            query = {"tags": "weir", "limit": str(_PAGE), "offset": str(len(found)), "order_by": "dag_id"}
            answer = self._api.call("GET", path_of("api", "v2", "dags"), None, **query)
            page = [_dag(each) for each in answer.json()["dags"]]
            found |= {dag.dag_id: dag for dag in page}
            if len(page) < _PAGE:
                break
        return found

    def _known_dag_ids(self) -> tuple[str, ...]:
        try:
            return self._dag_ids()
        except Exception:  # noqa: BLE001  what is wrong with the ledger is told there
            return ()

    def _is_mounted(self, dag_id: str) -> bool:
        try:
            return self._dry_run(dag_id).status_code not in NO_ROUTE
        except Misconfigured:
            return True  # it answered that this account may not

    def _may_clear(self, dag_id: str, *, is_mounted: bool) -> bool:
        try:
            if is_mounted:
                self._dry_run(dag_id)
            else:
                body = {"dry_run": True, "dag_run_id": "weir-doctor"}  # 404, once the permission is given
                self._api.call("POST", path_of("api", "v2", "dags", dag_id, "clearTaskInstances"), body)
        except Misconfigured:
            return False
        return True

    def _dry_run(self, dag_id: str) -> httpx.Response:
        return self._api.call("POST", path_of("weir", "dags", dag_id, "clear"), {"items": [], "dry_run": True})

    def _last_run(self, dag_id: str) -> LastRun | None:
        try:
            path = path_of("api", "v2", "dags", dag_id, "dagRuns")
            runs = self._api.call("GET", path, limit="2", order_by="-run_after").json()["dag_runs"]
        except (WeirError, KeyError):
            return None
        # The newest one may just have been made.
        ended = [run for run in runs if run["state"] in {"success", "failed"}] or runs
        return _last_run(ended[0]) if ended else None


def _dag(said: Mapping[str, Any]) -> Dag:
    return Dag(str(said["dag_id"]), bool(said["is_paused"]), int(said.get("max_active_runs") or 16))


def _last_run(said: Mapping[str, Any]) -> LastRun:
    return LastRun(str(said["state"]), datetime.fromisoformat(str(said["run_after"])))
