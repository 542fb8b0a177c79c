"""A query of PostgreSQL as a source: bounds, types and streaming, against a real server."""

import io
import struct
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messages.kinds import of_kind
from tests.weir_spark.sources.conftest import resolved, resolved_range

from weir.connections import Connection
from weir.dataflow import postgres_source
from weir.dataflow.ranges import fits_decimal
from weir.errors import Misconfigured, Retryable
from weir_spark.sources import loading
from weir_spark.sources import postgres as reading


@pytest.fixture(scope="module")
def shop(postgres):
    """A database that the tests of this module share."""
    url = postgres.url("sources")
    return Connection(
        id="shop",
        kind="postgres",
        host="127.0.0.1",
        port=postgres.port,
        database="sources",
        login=psycopg2.extensions.parse_dsn(url.replace("+psycopg2", ""))["user"],
        password=postgres.password,
    )


@pytest.fixture
def loaded(shop):
    """Load a query; return its rows, the number of files, and its columns."""

    def load(query, connection=shop, zone="UTC"):
        (split,) = resolved(postgres_source("orders", "shop", query), zone=zone)
        files = []
        columns, _ = reading.load(connection, split, lambda _name, data: files.append(data))
        rows = [tuple(row.values()) for data in files for row in pq.read_table(io.BytesIO(data)).to_pylist()]
        return rows, len(files), columns

    return load


def test_the_bounds_are_those_of_the_interval_and_the_account_is_nowhere():
    (split,) = resolved(postgres_source("orders", "shop", "select 1 where now() < %(end)s"))
    assert (split["start"], split["end"]) == ("2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00")
    assert split["conn_id"] == "shop"
    assert "PostgreSQL has no versions" in split["reads"]


def test_bounds_are_literals_in_utc_whatever_the_servers_zone(loaded):
    hours = "select h from generate_series('2012-12-31 22:00+00'::timestamptz, '2013-01-02 02:00+00', '1 hour') h"
    inside, _, _ = loaded(f"select count(*) from ({hours}) t where h >= %(start)s and h < %(end)s;")  # noqa: S608
    assert inside == [(24,)]
    assert loaded("select 'a%%' || %(start)s::text")[0] == [("a%2013-01-01 00:00:00+00",)]
    for day, rows in (("2013-01-01", [(1,)]), ("2013-01-02", [])):  # a table that only one epoch reads
        assert loaded(f"select 1 where %(start)s::date = '{day}'")[0] == rows


def test_local_bounds_are_what_clocks_show_where_the_schedule_is(loaded):
    days = "%(start_local)s::text a, %(end_local)s::date::text b, %(start)s::date::text c"
    for zone, local in (("Asia/Kolkata", "05:30:00"), ("UTC", "00:00:00")):
        (row,), _, _ = loaded(f"select {days}, pg_typeof(%(end_local)s)::text d", zone=zone)
        assert row == (f"2013-01-01 {local}", "2013-01-02", "2013-01-01", "timestamp without time zone")
    (row,), _, _ = loaded("select (%(start_local)s::date - 1)::text", zone="America/New_York")
    assert row == ("2012-12-30",)


def test_null_and_empty_texts_and_lines_come_back_right(loaded):
    assert loaded("select * from (values (null), (''), (E'a\\nb,\"c'), ('\\N')) t(s)")[0] == [
        (None,),
        ("",),
        ('a\nb,"c',),
        ("\\N",),
    ]


def test_no_rows_are_one_file_with_the_columns(loaded):
    rows, files, columns = loaded("select 1::smallint a, 'x' b where false")
    assert (rows, files, [each.spark_type for each in columns]) == ([], 1, ["short", "string"])


def test_many_rows_are_streamed_into_several_files(loaded, monkeypatch):
    monkeypatch.setattr(loading, "_FILE_BYTES", 2**20)
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 2**18)
    rows, files, _ = loaded("select n, md5(n::text) s from generate_series(1, 100000) n")
    assert (len(rows), sum(n for n, _ in rows)) == (100_000, 5_000_050_000)
    assert files > 2


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("select 1 a, 2 a", "gives two columns the name 'a'"),
        ("select nothing", 'refuses the query by connection shop: column "nothing" does not exist'),
        ("select 1.5::numeric(50, 2) a", r"numeric\(50,2\), and Spark has at most 38 digits"),
        ("select 1; select 2", "several statements"),
        *(
            (f"select 1 k, {value} a", "a value of the query of the column a cannot be read")
            for value in (
                *("'infinity'::timestamptz", "'-infinity'::timestamp", "'infinity'::date", "'0001-01-01 BC'::date"),
                *("'10000-01-01'::date", "'294276-12-31'::timestamp", "'10000-01-01 00:00+00'::timestamptz"),
                *("'NaN'::numeric", "'Infinity'::numeric", "'NaN'::numeric(5, 2)", "12345678901234567890123"),
                *("0.1234567890123456789", "-1e20", "10::numeric ^ 60", "1e-19"),
            )
        ),
        ("select 1 / (2 - n) a from generate_series(1, 3) n", "refuses the query by connection shop: division by zero"),
        ("delete from pg_class returning 1", "refuses the query"),
    ],
)
def test_a_query_that_cannot_be_read_says_why(loaded, query, problem):
    with pytest.raises(Misconfigured, match=problem):
        loaded(query)


@pytest.mark.parametrize("end", [";", "; -- the end", " -- the end", ";\n/* the ; end */ ;", " /* end */"])
def test_a_semicolon_and_comments_are_taken_as_psql_does(loaded, end):
    assert loaded(f"-- first\nselect 1 a, ';--' b{end}")[0] == [(1, ";--")]


def test_a_numeric_without_precision_is_the_same_number(loaded):
    values = [
        "12345678901234567890.123456789012345678",
        "-99999999999999999999",
        "0.000000000000000001",
        "1.50000",
        "0",
    ]
    found, _, _ = loaded(f"select v::numeric from unnest(array{values}) v")  # noqa: S608
    assert [value for (value,) in found] == [Decimal(each) for each in values]


@given(st.integers(-(10**40), 10**40), st.integers(0, 40), st.integers(0, 3))
def test_a_numeric_at_the_edges_is_the_same_number_or_refused(unscaled, scale, zeros):
    text = f"{Decimal(f'{unscaled}E-{scale}'):f}"
    text += ("" if "." in text else ".") + "0" * zeros if zeros else ""
    column = reading.Column("n", 1700, "decimal(38,18)")
    batch = pa.RecordBatch.from_arrays([pa.array([text, None])], names=["n"])
    if fits_decimal(Decimal(text), 38, 18):
        assert reading._exact(batch, [column]).column(0).to_pylist() == [Decimal(text), None]
    else:
        with pytest.raises(Misconfigured, match="column n"):
            reading._exact(batch, [column])


def test_values_at_the_edges_of_their_types_come_back(loaded):
    ((found),), _, _ = loaded(
        "select (-2)::smallint ^ 15 > 0 z, 9223372036854775807 a, '-9223372036854775808'::bigint b, 0.1::real c, "
        "5e-324::float8 d, 'Infinity'::float8 e, '-Infinity'::real f, '0001-01-01'::date g, '9999-12-31'::date h, "
        "timestamp '9999-12-31 23:59:59.999999' i, timestamp '0001-01-01' j, 99999999999999999999.999::numeric(38, 3) k"
    )
    real = struct.unpack("f", struct.pack("f", 0.1))[0]
    assert found[1:7] == (2**63 - 1, -(2**63), real, 5e-324, float("inf"), float("-inf"))
    assert found[7:9] == (date.min, date.max)
    assert found[9:11] == (datetime.max, datetime.min)  # noqa: DTZ901
    assert found[11] == Decimal("99999999999999999999.999")


PRINTED = {
    "interval '1 mon 2 days 3.5 s'": "P1M2DT3.5S",
    "time '24:00:00'": "24:00:00",
    "timetz '01:02:03+05:45'": "01:02:03+05:45",
    "'[0:1]={1,2}'::int[]": "[0:1]={1,2}",
    "array[[1], [2]]": "{{1},{2}}",
    "4294967295::oid": "4294967295",
    "'18446744073709551615'::xid8": "18446744073709551615",
    """'{"b": 1, "a": 12345678901234567890.5}'::jsonb""": '{"a": 12345678901234567890.5, "b": 1}',
    "'ab'::char(4)": "ab",
    "b'101'": "101",
    "'10.0.0.0/8'::cidr": "10.0.0.0/8",
    "int4range(1, 5)": "[1,5)",
    "1.5::money": "$1.50",
    "array[0.1::numeric, 'NaN']": "{0.1,NaN}",
}


def test_other_types_are_the_text_that_postgresql_prints(loaded):
    listed = ", ".join(f"{value} c{at}" for at, value in enumerate(PRINTED))
    ((found),), _, columns = loaded(f"select {listed}")
    assert {each.spark_type for each in columns} == {"string"}
    assert found == tuple(PRINTED.values())


def test_a_domain_is_what_it_is_made_of(loaded):
    assert [each.spark_type for each in loaded("select 1::information_schema.cardinal_number a")[2]] == ["integer"]


def test_a_time_out_of_a_statement_is_no_silence(loaded, shop):
    hasty = replace(shop, extra={"options": "-c statement_timeout=100"})
    with pytest.raises(Misconfigured, check=of_kind("sources.postgres_query_refused")):
        loaded("select pg_sleep(9)", hasty)
    with pytest.raises(Misconfigured, check=of_kind("connections.postgres_login_refused", conn_id="shop")):
        loaded("select 1", replace(shop, password="wrong"))


def test_a_server_that_does_not_answer_is_asked_again(loaded):
    away = Connection(id="shop", kind="postgres", host="127.0.0.1", port=1, login="me", password="hunter22")
    with pytest.raises(Retryable, check=of_kind("sources.postgres_silent", connection_id="shop")) as raised:
        loaded("select 1", away)
    assert "hunter22" not in str(raised.value)
    with pytest.raises(Misconfigured, check=of_kind("connections.not_postgres", kind="http")):
        loaded("select 1", Connection(id="shop", kind="http"))


TYPES = """
select true b, 1::smallint s, 2::int i, 3::bigint l, 1.5::real f, 'NaN'::float8 d, 1.25::numeric(9, 2) n,
       sum(1.5::numeric) over () m, date '0044-03-15' as day, timestamp '2013-01-01 02:03:04.000005' as local,
       timestamptz '2013-01-01 02:03:04+05:45' as at, '\\x00ff'::bytea y, 'x'::varchar(3) v, '{"a": 1}'::jsonb j,
       '9c5b94b1-35ad-49bb-b118-8e8fc24abf80'::uuid u, array[1, 2] "odd ""name`"
"""


@pytest.mark.spark
def test_spark_reads_the_rows_with_the_types_of_the_query(attempt, shop):
    stage = postgres_source("orders", "shop", TYPES)
    (split,) = resolved(stage)
    read = attempt.read(stage, split, shop)
    (row,) = read.selectExpr("*", "string(at) text").collect()
    assert [field.dataType.simpleString() for field in read.schema] == [
        *("boolean", "smallint", "int", "bigint", "float", "double", "decimal(9,2)", "decimal(38,18)", "date"),
        *("timestamp_ntz", "timestamp", "binary", "string", "string", "string", "string"),
    ]
    assert row[:5] == (True, 1, 2, 3, 1.5)
    assert row.d != row.d
    local = datetime(2013, 1, 1, 2, 3, 4, 5)  # noqa: DTZ001  timestamp without time zone
    assert row[6:10] == (Decimal("1.25"), Decimal("1.5"), date(44, 3, 15), local)
    assert (row.text, bytes(row.y)) == ("2012-12-31 20:18:04", b"\x00\xff")
    assert row[12:16] == ("x", '{"a": 1}', "9c5b94b1-35ad-49bb-b118-8e8fc24abf80", "{1,2}")
    assert [name for name, _ in attempt.files] == ["00000.parquet"]


@pytest.fixture
def connected(shop):
    """Opens sessions of a writer."""
    sessions = []

    def connect():
        sessions.append(psycopg2.connect(**shop.for_libpq()))
        return sessions[-1]

    yield connect
    for each in sessions:
        each.close()


@pytest.fixture
def added(connected):
    """A table whose rows have the mark of their transaction; adds rows in a session, which commits them by itself."""
    with connected() as session, session.cursor() as cursor:
        cursor.execute("drop table if exists added")
        cursor.execute("create table added (v int, mark xid8 not null default pg_current_xact_id(), at timestamptz)")

    def add(session, *values):
        with session.cursor() as cursor:
            cursor.executemany("insert into added (v, at) values (%s, now())", [(each,) for each in values])

    return add


MARKED = postgres_source("orders", "shop", "select v, mark from added", mark="mark")


def rows_of(shop, found):
    (split,) = found.splits
    files = []
    reading.load(shop, split, lambda _name, data: files.append(data))
    return sorted(row["v"] for data in files for row in pq.read_table(io.BytesIO(data)).to_pylist())


def test_an_open_transaction_delays_its_rows_and_loses_none(shop, connected, added):
    slow, quick = connected(), connected()
    added(slow, 1)
    added(quick, 2)
    quick.commit()
    first = resolved_range(MARKED, shop)
    added(quick, 3)
    quick.commit()
    second = resolved_range(MARKED, shop, previous=first)
    assert [rows_of(shop, each) for each in (first, second)] == [[], []]
    slow.commit()
    third = resolved_range(MARKED, shop, previous=second)
    added(quick, 4)
    quick.commit()
    fourth = resolved_range(MARKED, shop, previous=third)
    assert [rows_of(shop, each) for each in (first, second, third, fourth)] == [[], [], [1, 2, 3], [4]]


def test_rows_of_a_transaction_that_was_rolled_back_are_none(shop, connected, added):
    session = connected()
    added(session, 1)
    session.rollback()
    added(session, 2)
    session.commit()
    assert rows_of(shop, resolved_range(MARKED, shop)) == [2]


def test_a_recorded_range_of_marks_is_that_of_the_first_try(shop, connected, added):
    session = connected()
    added(session, 1)
    session.commit()
    first = resolved_range(MARKED, shop)
    added(session, 2)
    session.commit()
    again = resolved_range(MARKED, shop, recorded=first)
    assert (again.position, rows_of(shop, again)) == (first.position, [1])


@pytest.mark.parametrize("mark", ["v", "at", "nothing"])
def test_a_mark_of_another_type_is_refused(shop, added, mark):
    stage = postgres_source("orders", "shop", "select * from added", mark=mark)
    with pytest.raises(Misconfigured, check=of_kind("sources.postgres_mark_unfit", mark=mark)):
        resolved_range(stage, shop)


def test_rows_without_a_mark_are_refused(shop):
    stage = postgres_source("orders", "shop", "select 1 v, null::xid8 mark", mark="mark")
    with pytest.raises(Misconfigured, check=of_kind("sources.postgres_mark_null")):
        resolved_range(stage, shop)


def test_a_server_that_counts_from_below_is_another_one(shop, added):
    found = resolved_range(MARKED, shop)
    later = replace(found, position={"xid": str(int(found.position["xid"]) + 10**9)})
    with pytest.raises(Misconfigured, check=of_kind("sources.postgres_other_server")):
        resolved_range(MARKED, shop, previous=later)


def test_a_mark_and_an_interval_contradict_each_other():
    with pytest.raises(Misconfigured, check=of_kind("dataflow.mark_and_interval", bound="end")):
        postgres_source("orders", "shop", "select 1 where now() < %(end)s", mark="mark")
