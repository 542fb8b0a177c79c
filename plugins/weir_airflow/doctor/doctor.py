"""Airflow's part of `weir doctor`, as a process of its own: `python -m weir_airflow.doctor.doctor`.

It writes one finding a line, as JSON, to its standard output, and whatever libraries say to its standard error.
Invariant: a finding is written as soon as it is known, and without secrets; what hangs does not keep the process alive.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from weir.doctor.airflow_settings import (
    AREA,
    EXECUTOR,
    JWT_SECRET,
    PARALLELISM,
    PLUGINS_FOLDER,
    SECRET,
    SHOWN,
    judge_plugins_folder,
    judge_reach,
    judge_settings,
)
from weir.doctor.examination import Check, Finding, Secrecy, examine, ok, problem
from weir.doctor.expectations import expectation_checks
from weir.doctor.ledger import LedgerExam
from weir.doctor.store import store_checks
from weir.errors import Misconfigured, WeirError
from weir.store.store import Store

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from weir.settings import Settings


OFFLINE: Final = "--offline"
CONNECTION: Final = "--connection"

_SETTINGS_SECONDS: Final = 60.0
"""Airflow is imported meanwhile, and a secrets backend may be asked."""


class Doctor:
    """Finds the settings, then asks all that they name."""

    def __init__(self, write: Callable[[Finding], None], secrecy: Secrecy, *, is_offline: bool) -> None:
        self._write = write
        self._secrecy = secrecy
        self._is_offline = is_offline
        self._settings: Settings | None = None
        self._connections: dict[str, Connection] = {}

    def examine(self, connections: Sequence[str]) -> None:
        """Ask everything; `connections` are ids of connections to Spark besides the one in the settings."""
        first = [Check(AREA, "Weir's settings", self.check_settings, seconds=_SETTINGS_SECONDS)]
        for finding in examine([first]):
            self._write(self._secrecy.cleaned(finding))
        for finding in examine([area for area in self._areas(connections) if area]):
            self._write(self._secrecy.cleaned(finding))

    def check_settings(self) -> Iterator[Finding]:
        """Where Weir's own things are."""
        from weir_airflow.connections.connections import settings  # noqa: PLC0415  imports Airflow

        self._secrecy.learn_url(os.environ.get("WEIR_LEDGER"))
        try:
            found = settings()
        except Misconfigured as error:
            mend = "as the message says; it has to be alike at every worker"
            yield problem(
                AREA,
                "Weir's settings",
                str(error),
                expected="store and ledger are known, and each option of [weir]",
                mend=mend,
            )
            return
        self._secrecy.learn_url(found.ledger)
        self._secrecy.learn_all(found.store_options)
        self._settings = found
        yield ok(AREA, "Weir's settings", f"store by {_origin('store')}, ledger by {_origin('ledger')}")

    def check_airflow_settings(self) -> Iterator[Finding]:
        """Airflow's settings."""
        values = _airflow_settings()
        yield from judge_settings(values)
        if self._settings is not None:
            yield from judge_reach(values[EXECUTOR], self._settings.ledger, self._settings.store)
        if self._is_offline:
            yield _plugins_folder()

    def _areas(self, connections: Sequence[str]) -> Iterator[list[Check]]:
        yield [Check(AREA, "Airflow's settings", self.check_airflow_settings)]
        found = self._settings
        if found is None:
            return
        parallelism = _parallelism()
        ledger = LedgerExam(found.ledger, parallelism=parallelism, is_served=not self._is_offline)
        store = Store.open(found.store, found.store_options)
        yield ledger.checks()
        yield store_checks(store, ledger.store_ids)
        yield expectation_checks(found.expectations, ledger.suites)
        if self._is_offline:
            return
        yield self._api_checks(found, ledger, parallelism)
        for conn_id in dict.fromkeys((found.spark_conn_id, *connections)):
            yield self._spark_checks(found, conn_id, store)

    def _api_checks(self, found: Settings, ledger: LedgerExam, parallelism: int | None) -> list[Check]:
        from weir_airflow.connections.connections import api_connection  # noqa: PLC0415
        from weir_airflow.doctor.api import ApiExam  # noqa: PLC0415

        return ApiExam(
            lambda: self._known(api_connection(found)), ledger.dag_ids, _plugins_folder, parallelism
        ).checks()

    def _spark_checks(self, found: Settings, conn_id: str, store: Store) -> list[Check]:
        from weir_airflow.connections.connections import spark_connection  # noqa: PLC0415
        from weir_airflow.doctor.submit import SubmitExam  # noqa: PLC0415
        from weir_airflow.engines.engines import SPARK_CONNECT, connect_checks  # noqa: PLC0415

        area = f"spark: {conn_id}"
        try:
            connection = self._known(spark_connection(found, conn_id))
            if connection.conn_type == SPARK_CONNECT:
                checks: list[Check] = connect_checks(area, connection, store)
                return checks
            return SubmitExam(area, connection, store.spark_url("")).checks()
        except WeirError as error:
            told = problem(area, "connection", str(error), expected="a connection to Spark", mend="as the message says")
            return [Check(area, "connection", lambda: [told])]

    def _known(self, connection: Connection) -> Connection:
        """The connection, whose secrets are hidden from now on."""
        self._secrecy.learn(connection.password)
        self._secrecy.learn_all(connection.extra_dejson)
        return connection


def main(arguments: Sequence[str]) -> None:
    """Examine this environment; the process ends here, whatever still hangs in its threads."""
    parser = argparse.ArgumentParser(prog="python -m weir_airflow.doctor.doctor", description=__doc__)
    parser.add_argument(OFFLINE, action="store_true", help="ask no server: none is meant to run")
    parser.add_argument(CONNECTION, action="append", default=[], help="a connection to Spark to look at, too")
    given = parser.parse_args(arguments)
    findings = _own_standard_output()
    _see_all_connections()

    def write(finding: Finding) -> None:
        findings.write(json.dumps(finding.to_json()) + "\n")
        findings.flush()

    Doctor(write, Secrecy(), is_offline=given.offline).examine(given.connection)
    sys.stderr.flush()
    os._exit(0)


def _own_standard_output() -> IO[str]:
    """The standard output, out of reach of libraries that print."""
    kept = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return kept


def _see_all_connections() -> None:
    """Let Airflow look into its own database, too, where there is one: a process that is no task would not."""
    from airflow.configuration import conf  # noqa: PLC0415  slow to import

    url = str(conf.get("database", "sql_alchemy_conn", fallback=""))
    path = Path(url.removeprefix("sqlite:///"))
    if not url.startswith("sqlite") or path.exists():  # or SQLite would make the file
        os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")


def _airflow_settings() -> dict[tuple[str, str], str]:
    from airflow.configuration import conf  # noqa: PLC0415

    found = {key: str(conf.get(*key, fallback="") or "") for key in SHOWN}
    secrets = {key: "set" if conf.get(*key, fallback="") else "" for key in SECRET}
    if conf.get(*JWT_SECRET, fallback="") == conf.get_default_value(*JWT_SECRET):
        secrets[JWT_SECRET] = ""  # made up by this process, for itself
    return found | secrets


def _origin(key: str) -> str:
    """What says where the store or the ledger is; the first that does counts."""
    from airflow.configuration import conf  # noqa: PLC0415

    if os.environ.get(f"WEIR_{key.upper()}"):
        return f"WEIR_{key.upper()}"
    if conf.get("weir", key, fallback=None):
        return f"[weir] {key}"
    return f"the connection weir_{key}"


def _parallelism() -> int | None:
    from airflow.configuration import conf  # noqa: PLC0415

    found: Any = conf.getint(*PARALLELISM, fallback=None)
    return found if isinstance(found, int) and found > 0 else None


def _plugins_folder() -> Finding:
    from airflow.configuration import conf  # noqa: PLC0415

    folder = Path(str(conf.get(*PLUGINS_FOLDER)))
    names = tuple(path.name for path in folder.iterdir()) if folder.is_dir() else None
    own = Path(__file__).parents[2]
    return judge_plugins_folder(str(folder), names, str(own) if (own / "weir_plugin.py").exists() else None)


if __name__ == "__main__":
    main(sys.argv[1:])
