"""Airflow as its tasks reach it: over HTTP, or by its database in process.

Invariant: neither clears a task instance that is running or has another try than the expected one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from weir.attempts.ports import Airflow
from weir.coordination.airflow import ClearAnswer, ClearItem, OpenRun, SeenDag, SeenRun, UserRights, by_dag
from weir.coordination.clearing import HEALTHY, EndpointClearer
from weir.errors import Misconfigured
from weir_airflow.api.client import client_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Connection

    from weir.coordination.values import TaskKey


class AirflowApi(Airflow, Protocol):
    """Airflow as a task of it reaches it."""

    def can_defer(self, pool: str) -> bool:
        """Report whether a triggerer runs, and deferred tasks hold no slot of a pool.

        Raises Retryable or Misconfigured.
        """
        ...

    def rights(self, dag_id: str, user: str) -> UserRights:
        """Return what a user, by name, may do with the task instances of a DAG. Raises Retryable or Misconfigured."""
        ...


def clearer_for(connection: Connection) -> AirflowApi:
    """Choose by the connection: with type `weir-db` or host `db`, Airflow's database in process (`dag.test()`)."""
    if connection.conn_type in {"weir-db", "weir_db"} or connection.host == "db":
        return DbClearer()
    if connection.conn_type not in {"http", "https", "generic", None, ""}:
        raise Misconfigured.of("api.connection_not_http", conn_id=connection.conn_id, conn_type=connection.conn_type)
    return EndpointClearer(client_of(connection))


class DbClearer:
    """Clears in Airflow's database, in this process: under `dag.test()`, which allows it, and in tests."""

    def clear(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Clear what matches, in one transaction a DAG."""
        return self._compare(wanted, is_dry_run=False)

    def inspect(self, wanted: Sequence[ClearItem]) -> list[ClearAnswer]:
        """Answer as `clear` would, and change nothing."""
        return self._compare(wanted, is_dry_run=True)

    def start(self, dag_id: str, run_id: str) -> str:
        """Set a queued run running; answer the state found."""
        from airflow.utils.session import create_session  # noqa: PLC0415  no database in a worker's task process

        from weir_airflow.api.compare_and_clear import start_queued  # noqa: PLC0415

        with create_session(scoped=False) as session:
            return start_queued(session, dag_id, run_id)[0]

    def exists(self, dag_id: str, run_id: str) -> bool | None:
        """Ask whether Airflow has this DagRun; None where it does not know the DAG, either."""
        from airflow.utils.session import create_session  # noqa: PLC0415

        from weir_airflow.api.compare_and_clear import has_run  # noqa: PLC0415

        with create_session(scoped=False) as session:
            return has_run(session, dag_id, run_id)

    def note(self, key: TaskKey) -> str:
        """Read the task instance's note."""
        from airflow.utils.session import create_session  # noqa: PLC0415

        from weir_airflow.api.compare_and_clear import note_of  # noqa: PLC0415

        with create_session(scoped=False) as session:
            return note_of(session, ClearItem(key.dag_id, key.run_id, key.task_id, key.map_index, None))

    def annotate(self, key: TaskKey, note: str) -> None:
        """Set the task instance's note."""
        from airflow.utils.session import create_session  # noqa: PLC0415

        from weir_airflow.api.compare_and_clear import annotate  # noqa: PLC0415

        with create_session(scoped=False) as session:
            annotate(session, ClearItem(key.dag_id, key.run_id, key.task_id, key.map_index, None), note)

    def seen_run(self, dag_id: str, run_id: str) -> SeenRun | None:
        """Look at a DagRun."""
        from airflow.utils.session import create_session  # noqa: PLC0415

        from weir_airflow.api.compare_and_clear import seen_run  # noqa: PLC0415

        with create_session(scoped=False) as session:
            found = seen_run(session, dag_id, run_id)
            return None if found is None else SeenRun(*found)

    def seen_dag(self, dag_id: str) -> SeenDag | None:
        """Look at a DAG and at the scheduler, in Airflow's database."""
        from airflow.api.common.airflow_health import get_airflow_health  # noqa: PLC0415
        from airflow.models.dag import DagModel  # noqa: PLC0415
        from airflow.utils.session import create_session  # noqa: PLC0415

        with create_session(scoped=False) as session:
            found = session.get(DagModel, dag_id)
            told = None if found is None else (bool(found.is_paused), bool(found.has_import_errors))
        if told is None:
            return None
        is_paused, has_import_errors = told
        return SeenDag(is_paused, get_airflow_health()["scheduler"]["status"] == HEALTHY, has_import_errors)

    def open_runs(self, dag_id: str) -> list[OpenRun]:
        """Return the newest DagRuns that are no success, from Airflow's database."""
        from airflow.utils.session import create_session  # noqa: PLC0415

        from weir_airflow.api.compare_and_clear import open_runs  # noqa: PLC0415

        with create_session(scoped=False) as session:
            return open_runs(session, dag_id)

    def annotate_run(self, dag_id: str, run_id: str, note: str) -> None:
        """Set a DagRun's note."""
        from airflow.utils.session import create_session  # noqa: PLC0415

        from weir_airflow.api.compare_and_clear import annotate_run  # noqa: PLC0415

        with create_session(scoped=False) as session:
            annotate_run(session, dag_id, run_id, note)

    def rights(self, dag_id: str, user: str) -> UserRights:
        """Ask the auth manager of Airflow's configuration."""
        from airflow.api_fastapi.app import create_auth_manager  # noqa: PLC0415

        from weir_airflow.api.users import rights_named  # noqa: PLC0415

        return rights_named(create_auth_manager(), user, dag_id)

    def can_defer(self, pool: str) -> bool:
        """Ask Airflow's database."""
        from airflow.api.common.airflow_health import get_airflow_health  # noqa: PLC0415
        from airflow.models.pool import Pool  # noqa: PLC0415

        found = Pool.get_pool(pool)
        is_counted = found is None or found.include_deferred
        return not is_counted and get_airflow_health()["triggerer"]["status"] == HEALTHY

    def _compare(self, wanted: Sequence[ClearItem], *, is_dry_run: bool) -> list[ClearAnswer]:
        from airflow.utils.session import create_session  # noqa: PLC0415

        from weir_airflow.api.compare_and_clear import compare_and_clear  # noqa: PLC0415

        answers: dict[ClearItem, ClearAnswer] = {}
        for dag_id, items in by_dag(wanted):
            with create_session(scoped=False) as session:
                found = compare_and_clear(session, dag_id, items, dry_run=is_dry_run)
            answers.update((answer.item, answer) for answer in found)
        return [answers[item] for item in wanted]
