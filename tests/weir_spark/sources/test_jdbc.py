"""A table or query by a JDBC driver: Derby's, which Spark has, and PostgreSQL's, which it lacks."""

import pytest
from tests.messages.kinds import of_kind
from tests.weir_spark.sources.conftest import resolved

from weir.connections import Connection
from weir.dataflow import jdbc_source
from weir.errors import Misconfigured

DERBY = "org.apache.derby.jdbc.EmbeddedDriver"
URL = "jdbc:derby:memory:sources;create=true"
EXTRA = {"driver_class": DERBY}
SHOP = Connection(id="shop", kind="jdbc", host=URL, login="me", password="hunter22", extra=EXTRA)


def test_the_bounds_are_in_the_query_and_the_account_is_nowhere():
    query = "select * from t where at >= '{start:%Y-%m-%d}' and at < '{end:%Y-%m-%d %H:%M}'"
    (split,) = resolved(jdbc_source("orders", "shop", query, driver=DERBY))
    assert split["query"] == "select * from t where at >= '2013-01-01' and at < '2013-01-02 00:00'"
    assert set(split) == {"reads", "conn_id", "query", "driver"}


@pytest.mark.spark
def test_a_table_and_a_query_are_read_by_the_driver_that_spark_has(attempt, capsys):
    rows = attempt.spark.createDataFrame(
        [(1, "2013-01-01"), (2, "2013-01-02"), (3, "2013-01-03")], "ID INT, DAY STRING"
    )
    rows.write.format("jdbc").options(
        url=URL, dbtable="ORDERS", driver=DERBY, user="me", createTableColumnTypes="DAY VARCHAR(10)"
    ).mode("overwrite").save()
    query = jdbc_source("orders", "shop", "-- one day\nselect ID, DAY from ORDERS where DAY = '{start:%Y-%m-%d}'; -- ;")
    assert attempt.rows(query, resolved(query), SHOP) == [(1, "2013-01-01")]
    parts = {"partitionColumn": "ID", "lowerBound": "1", "upperBound": "4", "numPartitions": "3"}
    table = jdbc_source("orders", "shop", "ORDERS", reader=parts)
    assert attempt.rows(table, resolved(table), SHOP) == [(1, "2013-01-01"), (2, "2013-01-02"), (3, "2013-01-03")]
    attempt.read(table, resolved(table)[0], SHOP).explain(extended=True)
    assert "hunter22" not in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        (
            "org.postgresql.Driver",
            r"no JDBC driver org\.postgresql\.Driver .*put postgresql-<version>\.jar where Spark",
        ),
        ("", r"no JDBC driver org\.postgresql\.Driver .*declare driver='org\.postgresql\.Driver'"),
    ],
)
def test_a_driver_that_spark_lacks_is_named_with_its_jar(attempt, driver, problem):
    stage = jdbc_source("orders", "shop", "orders", driver=driver)
    shop = Connection(id="shop", kind="jdbc", host="jdbc:postgresql://db/shop", login="me", password="hunter22")
    with pytest.raises(Misconfigured, match=problem) as raised:
        attempt.read(stage, resolved(stage)[0], shop)
    assert "hunter22" not in str(raised.value)


@pytest.mark.spark
def test_a_database_that_does_not_exist_is_refused_by_its_name(attempt):
    shop = Connection(id="shop", kind="jdbc", host="jdbc:derby:memory:none", login="me", password="hunter22")
    stage = jdbc_source("orders", "shop", "orders", driver=DERBY)
    with pytest.raises(Misconfigured, check=of_kind("sources.jdbc_refused", connection_id="shop")):
        attempt.read(stage, resolved(stage)[0], shop)


@pytest.mark.parametrize(
    ("is_refused", "trace"),
    [
        (True, 'org.postgresql.util.PSQLException: FATAL: password authentication failed for user "me"'),
        (True, 'org.postgresql.util.PSQLException: FATAL: database "none" does not exist'),
        (True, "org.postgresql.util.PSQLException: ERROR: permission denied for table orders"),
        (True, "java.sql.SQLException: Access denied for user 'me'@'h' (using password: YES)"),
        (True, "java.sql.SQLSyntaxErrorException: Unknown database 'none'"),
        (True, "com.microsoft.sqlserver.jdbc.SQLServerException: Login failed for user 'me'."),
        (True, "java.sql.SQLException: ORA-01017: invalid username/password; logon denied"),
        (True, "net.snowflake.client.jdbc.SnowflakeSQLException: Incorrect username or password was specified."),
        (False, "org.postgresql.util.PSQLException: Connection to db:5432 refused. Check that the hostname is correct"),
        (False, "org.postgresql.util.PSQLException: FATAL: the database system is starting up"),
        (False, "com.mysql.cj.jdbc.exceptions.CommunicationsException: Communications link failure"),
        (False, "java.lang.SecurityException: Access denied"),
    ],
)
def test_what_a_driver_says_of_a_login_a_right_or_a_name_is_known(is_refused, trace):
    from weir_spark.sources.jdbc import _REFUSED

    assert bool(_REFUSED.search(f"x\nCaused by: {trace}\n\tat y")) is is_refused


def test_a_connection_without_a_url_is_refused():
    stage = jdbc_source("orders", "shop", "orders")
    from weir_spark.sources.jdbc import _url

    with pytest.raises(Misconfigured, check=of_kind("sources.jdbc_url_missing")):
        _url(Connection(id="shop", kind="postgres", host="db"))
    assert stage.parallelism == 1
