"""The process of `weir doctor` that imports Airflow: `python -m weir_airflow.doctor.doctor`.

It writes findings as lines of JSON to its standard output; what libraries print goes to its standard error.
Invariant: a finding is written at once and without secrets; a check that hangs does not keep the process alive.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from weir.doctor import table
from weir.doctor.examination import Check, Finding, cleaned, examine
from weir.doctor.ledger import LedgerExam
from weir.doctor.store import ledgers_check, store_checks
from weir.doctor.versions import package_findings
from weir.errors import Misconfigured, Retryable, WeirError
from weir.secrecy import secrets_of_account
from weir.store.store import Store

if TYPE_CHECKING:
    from weir.settings import Settings


_ON_ONE_MACHINE: Final = frozenset({"LocalExecutor", "SequentialExecutor", "DebugExecutor", "InProcessExecutor", ""})


def main(arguments: Sequence[str]) -> None:
    """Examine this environment and exit, also while checks hang in threads."""
    parser = argparse.ArgumentParser(prog="python -m weir_airflow.doctor.doctor", description=__doc__)
    parser.add_argument("--offline", action="store_true", help="Airflow and Spark do not run: skip their checks")
    parser.add_argument("--connection", action="append", default=[], help="another connection to Spark to check")
    parser.add_argument("--without-databases", action="store_true", help="nor do those of ledger and Airflow")
    given = parser.parse_args(arguments)
    findings = reserve_standard_output()
    if not given.without_databases:
        enable_connections_in_database()

    def write(finding: Finding) -> None:
        findings.write(json.dumps(finding.to_json()) + "\n")
        findings.flush()

    Doctor(write, is_offline=given.offline, has_ledger=not given.without_databases).examine(given.connection)
    sys.stderr.flush()
    os._exit(0)


class Doctor:
    """Checks the settings, then everything that they name."""

    def __init__(self, write: Callable[[Finding], None], *, is_offline: bool, has_ledger: bool = True) -> None:
        self._write = write
        self._is_offline = is_offline
        self._has_ledger = has_ledger
        self._settings: Settings | None = None

    def examine(self, connections: Sequence[str]) -> None:
        """Run all checks; `connections` are ids of connections to Spark besides that of the settings."""
        self._run([[table.SETTINGS.check(self.check_settings)]])
        if self._settings is not None:
            self._run(list(self._areas(self._settings, connections)))

    def check_settings(self) -> Iterator[Finding]:
        """Check Weir's settings, and Airflow's settings that they depend on."""
        from airflow.configuration import conf  # noqa: PLC0415  slow to import

        from weir_airflow.connections.connections import hide_everywhere, settings  # noqa: PLC0415

        hide_everywhere(secrets_of_account("", "", os.environ.get("WEIR_LEDGER")))
        try:
            found = settings()
        except Misconfigured as error:
            yield table.SETTINGS.problem(str(error))
            return
        lacking = list(package_findings(found.store, found.ledger))
        yield from lacking
        self._settings = None if lacking else found
        yield table.SETTINGS.ok(f"store by {_origin('store')}, ledger by {_origin('ledger')}")
        yield from ledger_findings(str(conf.get("core", "executor")), found.ledger)

    def _run(self, areas: Sequence[Sequence[Check]]) -> None:
        for finding in examine(areas):
            self._write(cleaned(finding))

    def _areas(self, found: Settings, connections: Sequence[str]) -> Iterator[list[Check]]:
        ledger = LedgerExam(found.ledger, is_served=not self._is_offline)
        store = Store.open(found.store, found.store_options)
        if self._has_ledger:
            yield ledger.checks()
            yield [*store_checks(store, ledger.store_ids), ledgers_check(store, ledger.epochs)]
        else:
            yield store_checks(store, _no_ledger)
        if self._is_offline:
            return
        yield self._api_checks(found, ledger)
        for conn_id in dict.fromkeys((found.spark_conn_id, *connections)):
            yield self._spark_checks(found, conn_id, store)

    def _api_checks(self, found: Settings, ledger: LedgerExam) -> list[Check]:
        from weir_airflow.connections.connections import api_connection  # noqa: PLC0415
        from weir_airflow.doctor.api import ApiExam  # noqa: PLC0415

        return ApiExam(lambda: api_connection(found), ledger.dag_ids, ledger.publishers).checks()

    def _spark_checks(self, found: Settings, conn_id: str, store: Store) -> list[Check]:
        from weir_airflow.connections.connections import spark_connection  # noqa: PLC0415
        from weir_airflow.doctor.connect import connect_checks  # noqa: PLC0415
        from weir_airflow.doctor.submit import submit_checks  # noqa: PLC0415
        from weir_airflow.engines.engines import SPARK_CONNECT  # noqa: PLC0415

        area = f"spark: {conn_id}"
        try:
            connection = spark_connection(found, conn_id)
            if connection.conn_type == SPARK_CONNECT:
                return connect_checks(area, connection, store)
            return submit_checks(area, connection)
        except WeirError as error:
            item = table.SPARK_CONNECTION.of(area)
            finding = item.problem(str(error))
            return [item.check(lambda: [finding])]


def ledger_findings(executors: str, ledger: str) -> Iterator[Finding]:
    """Report a ledger in SQLite that tasks on several machines would use; `executors` is Airflow's setting."""
    classes = [each.strip().split(":")[-1].split(".")[-1] for each in executors.split(",")]
    remote = [name for name in classes if name not in _ON_ONE_MACHINE]
    if remote and ledger.startswith("sqlite"):
        yield table.LEDGER_OF_WORKERS.problem(f"SQLite, and {', '.join(remote)} runs tasks on several machines")


def reserve_standard_output() -> IO[str]:
    """Return the standard output, and redirect what libraries print to the standard error."""
    kept = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return kept


def _no_ledger() -> tuple[str, ...]:
    raise Retryable.of("doctor.ledger_server_down")


def enable_connections_in_database() -> None:
    """Let Airflow look up connections in its own database, where there is one: by default only its servers do."""
    from airflow.configuration import conf  # noqa: PLC0415  slow to import

    url = str(conf.get("database", "sql_alchemy_conn", fallback=""))
    path = Path(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite") or path.exists():  # or SQLite would create the file
        os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")


def _origin(key: str) -> str:
    """Return the first setting that has the place of the store or the ledger."""
    from airflow.configuration import conf  # noqa: PLC0415

    if os.environ.get(f"WEIR_{key.upper()}"):
        return f"WEIR_{key.upper()}"
    return f"[weir] {key}" if conf.get("weir", key, fallback=None) else f"the connection weir_{key}"


if __name__ == "__main__":
    main(sys.argv[1:])
