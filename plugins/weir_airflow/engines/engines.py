"""The engine that computes regions, chosen by the type of the Airflow connection.

Invariant: other engines are added here, and no other module that a task runs imports the Spark side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote

from weir.connections import FROM_ENVIRONMENT
from weir.errors import Misconfigured
from weir.extras import needed_for
from weir.formats.region_job import application_of
from weir_airflow.engines.spark_submit import SUBMITTED, SubmitEngine, master_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from airflow.sdk import Connection

    from weir.connections import LookUps
    from weir.coordination.values import SparkWork
    from weir.formats.region_job import SparkJob
    from weir.store.store import Store
    from weir_spark.transport.connect import ConnectEngine


SPARK_CONNECT: Final = "spark_connect"
_CONNECT_SCHEME: Final = "sc://"


class Engine(Protocol):
    """Runs region jobs. The job's report is in the store when `run` returns."""

    def run(self, job: SparkJob, session_id: str, on_progress: Callable[[str], None]) -> None:
        """Compute the job in the session of that id. Raises Retryable, Misconfigured, Fenced, or the user's error."""
        ...

    def interrupt(self, work: SparkWork) -> None:
        """Stop an earlier attempt's work, from any process; work that is not there is fine."""
        ...

    def stop(self) -> None:
        """Stop what `run` is doing, from another thread."""
        ...


def engine_for(
    connection: Connection, store: Store, options: Mapping[str, Any], look_ups: LookUps = FROM_ENVIRONMENT
) -> Engine:
    """Return the engine of a connection; `options` are those of the store's file system.

    `look_ups` finds the connections and variables that functions ask for.
    """
    return engine_at(engine_address(connection), connection, store, options, look_ups)


def engine_at(
    address: str,
    connection: Connection,
    store: Store,
    options: Mapping[str, Any],
    look_ups: LookUps = FROM_ENVIRONMENT,
) -> Engine:
    """Return the engine at an address that the ledger recorded, with the account of the connection where it has one.

    An earlier attempt may have used another type of connection than the present one.
    """
    if address.startswith(_CONNECT_SCHEME):
        with needed_for(f"Spark at {address}"):
            from weir_spark.transport.connect import ConnectEngine  # noqa: PLC0415  imports pyspark
        return _ConnectServer(ConnectEngine(connect_url(connection, address), options, look_ups=look_ups))
    from weir_spark.transport.bundle import write_bundle  # noqa: PLC0415  not in DAG files

    return SubmitEngine(connection, store, options, write_bundle, look_ups)


def is_of_kind(connection: Connection, address: str) -> bool:
    """Report whether a connection leads to an address of this kind."""
    leads_to_server: bool = connection.conn_type == SPARK_CONNECT
    return address.startswith(_CONNECT_SCHEME) is leads_to_server


def prepare_imports() -> None:
    """Make Spark Connect's UDFs the ones that users' modules create when this process imports them (resolvers do).

    Also where regions are submitted: this process has no Spark with which to create others.
    """
    from weir_spark.region.context import prepare_for_connect  # noqa: PLC0415  not in DAG files

    prepare_for_connect()


def engine_address(connection: Connection) -> str:
    """Return the address of the connection, without its account, for the ledger. Raises Misconfigured."""
    if connection.conn_type in SUBMITTED:
        return f"spark-submit:{master_of(connection)}"
    if connection.conn_type != SPARK_CONNECT:
        raise Misconfigured.of(
            "engines.connection_of_other_type",
            conn_id=connection.conn_id,
            conn_type=connection.conn_type,
            spark_connect=SPARK_CONNECT,
        )
    if not connection.host:
        raise Misconfigured.of("engines.connect_host_missing", conn_id=connection.conn_id)
    host = connection.host.removeprefix(_CONNECT_SCHEME).rstrip("/")
    return f"{_CONNECT_SCHEME}{host}:{connection.port}" if connection.port else f"{_CONNECT_SCHEME}{host}"


class _ConnectServer:
    """Runs regions on a Spark Connect server, each attempt in a session of its own, which `interrupt` ends."""

    def __init__(self, engine: ConnectEngine) -> None:
        self._engine = engine
        self.url = engine.url

    def run(self, job: SparkJob, session_id: str, on_progress: Callable[[str], None]) -> None:
        stage = application_of(job)
        if stage is not None:
            raise Misconfigured.of(
                "engines.application_on_connect",
                stage=stage.name,
                function=stage.function,
                partition=self.url.partition("/;")[0],
            )
        self._engine.run(job, session_id, on_progress)

    def interrupt(self, work: SparkWork) -> None:
        self._engine.interrupt(work.session_id)

    def stop(self) -> None:
        self._engine.stop()


def connect_url(connection: Connection, address: str) -> str:
    """Return the address with the parameters that the Spark provider's hook reads: login, password, extra `use_ssl`."""
    is_for_connect = connection.conn_type == SPARK_CONNECT
    use_ssl = connection.extra_dejson.get("use_ssl") if is_for_connect else None
    parameters = {
        # A session belongs to a user: without a name in common, one worker could not interrupt another one's session.
        "user_id": (is_for_connect and connection.login) or "weir",
        "token": connection.password if is_for_connect else None,
        "use_ssl": None if use_ssl is None else str(use_ssl).lower(),
    }
    return f"{address}/" + "".join(f";{name}={quote(value, safe='')}" for name, value in parameters.items() if value)
