"""A table or query by a JDBC driver of the user's Spark. Invariant: the account is only in the options of the reader.

Spark hides these where it prints a plan. Weir brings no driver: jars have to be where Spark starts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from weir.code.query_rules import single_query
from weir.connections import Connection
from weir.dataflow.sources import filled, when_it_reads
from weir.errors import Misconfigured
from weir.intervals import shown
from weir.secrecy import without_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from weir.dataflow.resolving import ResolveContext
    from weir_spark.region.context import StageContext


_URL: Final = "jdbc:"
_QUERY: Final = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_NO_DRIVER: Final = re.compile(r"ClassNotFoundException(?:\)|:) (?P<driver>[\w.$]+)|No suitable driver")
"""As a session of its own says it, and Spark Connect."""

_REFUSED: Final = re.compile(
    r"\w*(?:SQL|Sql|Jdbc)\w*Exception\w*: (?P<said>[^\n]*(?:[Aa]uthentication failed|[Aa]ccess denied|"
    r"Unknown database|pg_hba\.conf|[Pp]ermission(?: was)? denied|"
    r"[Dd]atabase ['\"].*['\"] (?:does not exist|not found)|(?:role|user) \".*\" does not exist|Login failed|"
    r"Cannot open database|Incorrect username or password|PKIX path|[Ii]nvalid authori[sz]ation|"
    r"ORA-(?:01017|01031|01045|12505|12514|28000|28001))[^\n]*)"
)
"""What drivers say of a login, a right, a database or a certificate, in the trace of Java."""

_KNOWN: Final = {
    "postgresql": ("org.postgresql.Driver", "postgresql-<version>.jar"),
    "mysql": ("com.mysql.cj.jdbc.Driver", "mysql-connector-j-<version>.jar"),
    "mariadb": ("org.mariadb.jdbc.Driver", "mariadb-java-client-<version>.jar"),
    "sqlserver": ("com.microsoft.sqlserver.jdbc.SQLServerDriver", "mssql-jdbc-<version>.jar"),
    "oracle": ("oracle.jdbc.OracleDriver", "ojdbc11.jar"),
    "snowflake": ("net.snowflake.client.jdbc.SnowflakeDriver", "snowflake-jdbc-<version>.jar"),
}
"""By the second word of a URL: the class of the driver and the jar that has it, for the error that one is missing."""


def resolve(ctx: ResolveContext) -> list[dict[str, Any]]:
    """Return the query with the bounds of the interval: the rows are those that are there when an attempt reads."""
    given = ctx.options
    query = filled("jdbc_source", str(given["query"]), ctx.interval, ctx.zone)
    what = f"what {given['conn_id']} has for {shown(ctx.interval)} {when_it_reads(given, 'JDBC')}"
    more = {key: given[key] for key in ("driver", "reader") if key in given}
    return [{"reads": what, "conn_id": given["conn_id"], "query": query, **more}]


def read(ctx: StageContext, split: dict[str, Any]) -> DataFrame:
    """Have Spark read the table or query. Raises Misconfigured where its driver is missing, or access is refused."""
    from weir_spark.files.failures import trace_of  # noqa: PLC0415  resolvers of this package need no Spark

    connection = ctx.connection(split["conn_id"])
    query = single_query("jdbc_source", split["query"], is_any_dialect=True)
    driver = split.get("driver") or str(connection.extra.get("driver_class") or "")
    options = {
        "url": _url(connection),
        "query" if _QUERY.match(query) else "dbtable": query,
        "user": connection.login,
        "password": connection.password,
        "driver": driver,
        **split.get("reader", {}),
    }
    rows = ctx.spark.read.format("jdbc").options(**{key: each for key, each in options.items() if each})
    try:
        found = rows.load()
        found.schema  # noqa: B018  Spark looks for the driver now
    except Exception as error:
        if refused := _REFUSED.search(trace_of(error)):
            said = without_secrets(refused["said"].strip())
            raise Misconfigured.of("sources.jdbc_refused", connection_id=connection.id, said=said) from None
        missing = _NO_DRIVER.search(str(error))
        if missing is None:
            raise
        # Not chained: Java's trace says no more, and other drivers' traces may show a URL.
        raise Misconfigured(_advice(connection, missing["driver"] or driver)) from None
    return found


def _url(connection: Connection) -> str:
    """Return the URL of a connection, which Airflow's JDBC provider has in its host."""
    if not connection.host.startswith(_URL):
        raise Misconfigured.of("sources.jdbc_url_missing", connection_id=connection.id)
    return connection.host


def _advice(connection: Connection, driver: str) -> str:
    kind = connection.host.removeprefix(_URL).partition(":")[0]
    known, jar = _KNOWN.get(kind, ("", "the jar of the database's vendor"))
    named = driver or known or "of this URL"
    hint = "" if driver or not known else f" (and declare driver={known!r})"
    return (
        f"Spark has no JDBC driver {named} for connection {connection.id} (jdbc:{kind}:...): put {jar} where Spark "
        f"starts{hint}, by spark.jars or spark.jars.packages in its spark-defaults.conf, or into its folder jars, and "
        "start the Connect server again. Where regions are submitted, spark={'spark.jars': ...} of the stage does it"
    )
