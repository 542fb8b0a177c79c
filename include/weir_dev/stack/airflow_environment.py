"""The environment of the local stack's components: Airflow's settings, Weir's, Spark's.

Invariant: it does not depend on the Airflow or Spark that the person may have set up elsewhere.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from weir_dev.files import write_atomically
from weir_dev.ports import LOCALHOST, LOOPBACK
from weir_dev.stack import postgres
from weir_dev.stack.credentials import PERSON, SERVICE, Credentials
from weir_dev.stack.spark_cluster import master_url, port_names
from weir_dev.stack.state import Database

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weir_dev.stack.state import StackRequest


CONNECTION = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
"""Airflow's setting; in a request's environment it names a database elsewhere, of which we know nothing."""

REPORTS = "reports_db"
"""The Airflow connection to the database of reports that the example publishes."""

SQLITE_LEDGER = "ledger.db"
SQLITE_AIRFLOW = "airflow.db"

API = "api"
SPARK = "spark"
SPARK_UI = "spark-ui"
API_SERVERS = ("api-server", "api-server-2")
"""The servers behind a balancer; `API` is then its port."""

WORKER_LOGS = "worker-logs"
TRIGGER_LOGS = "trigger-logs"
_PORT_NAMES = (API, SPARK, SPARK_UI, WORKER_LOGS, TRIGGER_LOGS)
_FOREIGN_PREFIXES = ("AIRFLOW__", "AIRFLOW_HOME", "AIRFLOW_CONFIG", "SPARK_", "PYSPARK_", "PYTHONPATH", "PYTHONHOME")


def store_url(folder: Path) -> str:
    """Where a stack keeps results."""
    return str(folder / "store")


def ledger_url(folder: Path, database: Database, ports: Mapping[str, int]) -> str:
    """Where a stack keeps the ledger; while it is down, `ports` are those of its last start."""
    if database is Database.SQLITE:
        return f"sqlite:///{folder / SQLITE_LEDGER}"
    return postgres.database_url(postgres_folder(folder), ports.get(postgres.NAME, 0), postgres.LEDGER)


def postgres_folder(folder: Path) -> Path:
    """Where a stack's PostgreSQL server keeps its files."""
    return folder / "postgres"


def database_of(folder: Path) -> Database | None:
    """The kind of database that a stack in this folder has; None if it has none yet."""
    if postgres_folder(folder).exists():
        return Database.POSTGRES
    files = (folder / SQLITE_LEDGER, airflow_home(folder) / SQLITE_AIRFLOW)
    return Database.SQLITE if any(file.exists() for file in files) else None


def needs_postgres(request: StackRequest) -> bool:
    """Report whether a stack has a PostgreSQL server: not if both of its databases are elsewhere."""
    elsewhere = {CONNECTION, "WEIR_LEDGER"} <= request.environment.keys()
    return request.database is Database.POSTGRES and not elsewhere


def spark_conf_folder(folder: Path) -> Path:
    """Where a stack keeps the settings of jobs that its tasks submit, and what their drivers write."""
    return folder / "spark-submit"


def stack_ports(request: StackRequest) -> tuple[str, ...]:
    """The names of the ports that a stack needs."""
    database = (postgres.NAME,) if needs_postgres(request) else ()
    behind_balancer = API_SERVERS if request.balancer else ()
    return (*_PORT_NAMES, *behind_balancer, *database, *port_names(request.spark_workers))


def airflow_home(folder: Path) -> Path:
    """Where a stack's Airflow keeps its database and its task logs."""
    return folder / "airflow"


def base_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without what would change Airflow or Spark, and with the loopback off any proxy."""
    kept = {key: value for key, value in environ.items() if not key.startswith(_FOREIGN_PREFIXES)}
    spared = ",".join(filter(None, [environ.get("no_proxy") or environ.get("NO_PROXY"), LOOPBACK, "localhost"]))
    path = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, "NO_PROXY": spared, "no_proxy": spared, "PYTHONUNBUFFERED": "1"}


def component_environment(
    request: StackRequest, ports: Mapping[str, int], credentials: Credentials, environ: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of each of Airflow's components, and so of each task."""
    return {
        **base_environment(environ),
        **_weir(request, ports, credentials),
        **_spark(request, ports, credentials),
        **_paths(request, ports),
        **_servers(ports, credentials),
        **_tempo(request.parallelism),
        "GX_ANALYTICS_ENABLED": "false",
        **request.environment,
    }


def write_passwords(folder: Path, credentials: Credentials) -> None:
    """Give Airflow's simple auth manager the accounts, or it would make and print passwords of its own."""
    write_atomically(airflow_home(folder) / "passwords.json", json.dumps(credentials.passwords()) + "\n")


def write_local_settings(folder: Path) -> None:
    """Have the scheduler import what tasks need, before it forks them."""
    path = airflow_home(folder) / "config" / "airflow_local_settings.py"
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, "from weir.preloading import preload\n\npreload()\n")


def _weir(request: StackRequest, ports: Mapping[str, int], credentials: Credentials) -> dict[str, str]:
    servers = API_SERVERS if request.balancer else (API,)
    api = {
        "conn_type": "http",
        "host": ",".join(f"http://{LOOPBACK}:{ports[name]}" for name in servers),
        "login": SERVICE,
        "password": credentials.service_password,
    }
    return {
        "WEIR_STORE": store_url(request.folder),
        "WEIR_LEDGER": ledger_url(request.folder, request.database, ports),
        "AIRFLOW_CONN_WEIR_API": json.dumps(api),
        **_targets(request, ports),
    }


def lake_folder(folder: Path) -> Path:
    """Where the example publishes its report as files."""
    return folder / "lake" / "delays"


def _targets(request: StackRequest, ports: Mapping[str, int]) -> dict[str, str]:
    """Where the example publishes its report besides the store."""
    found = {"WEIR_FLIGHTS_LAKE": str(lake_folder(request.folder))}
    if needs_postgres(request):
        found["WEIR_FLIGHTS_DATABASE"] = REPORTS
        place = postgres.connection_to_reports(postgres_folder(request.folder), ports[postgres.NAME])
        renamed = {"schema": place.pop("dbname"), "login": place.pop("user")}
        found[f"AIRFLOW_CONN_{REPORTS.upper()}"] = json.dumps({"conn_type": "postgres", **place, **renamed})
    return found


def _spark(request: StackRequest, ports: Mapping[str, int], credentials: Credentials) -> dict[str, str]:
    """Both ways to Spark: the Connect server, and jobs that a task submits."""
    master = master_url(ports) if request.spark_workers else f"local[{request.spark_cores}]"
    server = {
        "conn_type": "spark_connect",
        "host": LOCALHOST,
        "port": ports[SPARK],
        "password": credentials.spark_token,
    }
    return {
        "AIRFLOW_CONN_SPARK_CONNECT_WEIR": json.dumps(server),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": master}),
        "SPARK_CONF_DIR": str(spark_conf_folder(request.folder)),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
    }


def _paths(request: StackRequest, ports: Mapping[str, int]) -> dict[str, str]:
    home = airflow_home(request.folder)
    bundles = [
        {
            "name": path.name if position == 0 else f"{path.name}-{position}",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(path)},
        }
        for position, path in enumerate(request.dags)
    ]
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(request.dags[0]),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(request.plugins),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        CONNECTION: _airflow_url(request, ports),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__LOGGING__COLORED_CONSOLE_LOG": "False",
    }


def _airflow_url(request: StackRequest, ports: Mapping[str, int]) -> str:
    if request.database is Database.SQLITE:
        return f"sqlite:///{airflow_home(request.folder) / SQLITE_AIRFLOW}"
    return postgres.database_url(postgres_folder(request.folder), ports.get(postgres.NAME, 0), postgres.AIRFLOW)


def _servers(ports: Mapping[str, int], credentials: Credentials) -> dict[str, str]:
    url = f"http://{LOOPBACK}:{ports[API]}"
    return {
        "AIRFLOW__API__HOST": LOOPBACK,
        "AIRFLOW__API__PORT": str(ports[API]),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__SECRET_KEY": credentials.api_secret_key,
        "AIRFLOW__API_AUTH__JWT_SECRET": credentials.jwt_secret,
        "AIRFLOW__CORE__FERNET_KEY": credentials.fernet_key,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{PERSON}:admin,{SERVICE}:user",
        # Airflow's log servers listen on all interfaces: they are not started, and logs are read as files.
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(ports[WORKER_LOGS]),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(ports[TRIGGER_LOGS]),
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
    }


def _tempo(parallelism: int) -> dict[str, str]:
    """Settings for short tasks: by Airflow's defaults a chain of twenty empty ones takes 23 seconds.

    It takes 4 if the scheduler looks for work each 0.1 s, which costs a seventh of a core while sixteen runs are open.
    Shares of a core that an idle stack saves, of 0.42: 0.2 by the executor, which pauses the scheduler and so its
    database while nothing runs; 0.1 by files that are parsed again after 30 seconds instead of 5.
    """
    return {
        "AIRFLOW__CORE__EXECUTOR": "weir_dev.stack.local_executor.LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(parallelism),
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.25",
        # A busy machine keeps a task from answering for half a minute; one that was killed is noticed after two.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "120",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
        # A file that is new or was changed is parsed at the next refresh, whatever the interval of all others.
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
    }
