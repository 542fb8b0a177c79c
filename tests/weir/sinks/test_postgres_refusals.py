"""What PostgreSQL would refuse, or change, is refused before a version is published; what passes is waited for."""

# ruff: noqa: S608

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime

import psycopg2
import pyarrow as pa
import pytest
from tests.messages.kinds import of_kind
from tests.weir.sinks.test_postgres_target import LONG_AND_TEXT, Sink, database  # noqa: F401  a fixture

from weir.dataflow import Dataflow, pipelined, postgres, source  # noqa: F401
from weir.dataflow import sink as published
from weir.dataflow.ranges import DAY as MICROS
from weir.dataflow.ranges import Form, range_of
from weir.errors import Misconfigured
from weir.refusals import is_passing
from weir.sinks import Outcome, TargetAway, TargetConflict
from weir.testing.sink_contract import DAY, NEXT

NARROW = "k bigint, s text, _epoch text"


@pytest.fixture
def sink(request, tmp_path, database):  # noqa: F811
    made = Sink(tmp_path, database, f"r_{abs(hash(request.node.nodeid)) % 10**8}")
    yield made
    for kind in ("view", "materialized view", "foreign table", "table"):
        try:
            made.query(f"drop {kind} if exists {made.table} cascade")
        except psycopg2.errors.WrongObjectType:
            continue


PLAIN = "create table {t} (k bigint, s text, _epoch text)"
REFUSED = {
    "generated": "create table {t} (k bigint, a bigint, s text generated always as (a::text) stored, _epoch text)",
    "view": "create table {t}_of (k bigint, s text, _epoch text); create view {t} as select * from {t}_of",
    "snapshot": f"{PLAIN.replace('{t}', '{t}_of')}; create materialized view {{t}} as select * from {{t}}_of",
    "partition": f"{PLAIN} partition by list (k); create table {{t}}_1 partition of {{t}} for values in (2)",
    "domain": "create domain {t}_d as text check (value <> 'a'); create table {t} (k bigint, s {t}_d, _epoch text)",
    "numbers": "create domain {t}_d as bigint check (value > 1); create table {t} (k {t}_d, s text, _epoch text)",
    "check": "create table {t} (k bigint, s text check (length(s) > 1), _epoch text)",
    "check of a partition": (
        f"{PLAIN} partition by list (k); create table {{t}}_1 partition of {{t}} default; "
        "alter table {t}_1 add check (k > 1)"
    ),
    "trigger": (
        f"{PLAIN}; create function {{t}}_f() returns trigger language plpgsql as $$ begin raise 'not today'; end $$; "
        "create trigger no before insert on {t} for each row execute function {t}_f()"
    ),
    "unique": "create table {t} (k bigint, s text unique, _epoch text); insert into {t} values (9, 'a', null)",
    "deferred": "create table {t} (k bigint, s text unique deferrable initially deferred, _epoch text);"
    " insert into {t} values (9, 'a', null)",
    "unique default": (
        "create table {t} (k bigint, s text, d int default 1 unique, _epoch text); insert into {t} default values"
    ),
    "unique in a partition": (
        f"{PLAIN} partition by list (k); create table {{t}}_1 partition of {{t}} default; "
        "create unique index on {t}_1 (s); insert into {t} values (9, 'a', null)"
    ),
    "exclusion": f"{PLAIN[:-1]}, exclude (s with =)); insert into {{t}} values (9, 'a', null)",
    "expression": f"{PLAIN}; create index on {{t}} ((1 / (k - 1)))",
    "epoch": "create table {t} (k bigint, s text, _epoch varchar(3) check (_epoch <> '2'))",
    "a short epoch": "create table {t} (k bigint, s text, _epoch varchar(10))",
    "another generated column": "create table {t} (k bigint, s text, g bigint generated always as (1 / (k - 1)) stored,"
    " _epoch text)",
    "a default": "create table {t} (k bigint, s text, d int default length('a') / 0, _epoch text)",
    "an exhausted sequence": (
        "create sequence {t}_s maxvalue 2; select nextval('{t}_s'), nextval('{t}_s');"
        " create table {t} (k bigint, s text, n bigint default nextval('{t}_s'), _epoch text)"
    ),
    "replicated without identity": f"{PLAIN}; create publication {{t}}_p for table {{t}}",
    "a partition without nulls": (
        "create table {t} (k bigint, s text, n int, _epoch text) partition by list (k);"
        " create table {t}_1 partition of {t} default; alter table {t}_1 alter n set not null"
    ),
    "a rule": f"{PLAIN}; create rule r as on delete to {{t}} do instead nothing",
    "a trigger that leaves out": (
        f"{PLAIN}; create function {{t}}_f() returns trigger language plpgsql as $$ begin return null; end $$; "
        "create trigger no before insert on {t} for each row execute function {t}_f()"
    ),
    "case": 'create table {t} (k bigint, "S" text, _epoch text)',
    "case of the epoch": 'create table {t} (k bigint, s text, "_Epoch" text)',
    "foreign table": (
        "create foreign data wrapper {t}_w; create server {t}_server foreign data wrapper {t}_w; "
        "create foreign table {t} (k bigint, s text, _epoch text) server {t}_server"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_would_refuse_the_rows_is_refused_before_anything_is_published(sink, name):
    sink.query(REFUSED[name].replace("{t}", sink.table))
    for create in ("never", "if_missing"):
        with pytest.raises(Misconfigured):
            sink.target(create=create).prepare(sink.version(1, (1, "a")), None)
    if name != "foreign table":
        assert sink.query(f"select * from {sink.table} where k = 1") == []


def test_an_identity_that_a_merge_cannot_write_is_refused_before_anything_is_published(sink):
    sink.query(f"create table {sink.table} (k bigint primary key generated always as identity, s text, _epoch text)")
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_identity")):
        sink.target(mode="upsert", key="k").prepare(sink.version(1, (1, "a")), None)


def test_a_trigger_that_leaves_rows_out_of_a_merge_is_refused_before_anything_is_published(sink):
    sink.query(
        f"create table {sink.table} (k bigint primary key, s text, _epoch text); create function {sink.table}_f()"
        " returns trigger language plpgsql as $$ begin if new.k = 1 then return null; end if; return new; end $$;"
        f" create trigger no before insert on {sink.table} for each row execute function {sink.table}_f()"
    )
    target = sink.target(mode="upsert", key="k")
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_row_left_out")):
        target.prepare(sink.version(1, (1, "a"), (2, "a")), None)
    assert sink.publish(target, sink.version(1, (2, "a"), (3, "a"))) is Outcome.COMMITTED
    assert sink.publish(target, sink.version(1, (2, "b"), (4, "a"), epoch=NEXT)) is Outcome.COMMITTED
    assert sink.publish(target, sink.version(2, (2, "c"))) is Outcome.COMMITTED  # an older epoch changes no row
    assert sink.query(f"select k, s from {sink.table} order by k") == [(2, "b"), (3, "a"), (4, "a")]


TAKEN = {
    "identity": "create table {t} (k bigint generated always as identity, s text, _epoch text)",
    "default partition": f"{PLAIN} partition by list (k); create table {{t}}_1 partition of {{t}} default",
    "a trigger of a view": (
        f"{PLAIN.replace('{t}', '{t}_of')}; create view {{t}} as select * from {{t}}_of; "
        "create function {t}_f() returns trigger language plpgsql as "
        "$$ begin insert into {t}_of values (new.k, new.s, new._epoch); return new; end $$; "
        "create trigger into_of instead of insert on {t} for each row execute function {t}_f()"
    ),
    "constraints": f"{PLAIN[:-1]}, unique (k), check (k < 5)); create index on {{t}} (s)",
    "a unique index with the epoch": f"{PLAIN[:-1]}, unique (k, _epoch)); insert into {{t}} values (1, 'b', null)",
    "a unique index without its nulls": f"{PLAIN[:-1]}, n int unique); insert into {{t}} values (2, 'b', null, null)",
    "a foreign key that another sink serves": (
        f"create table {{t}}_of (k bigint primary key); {PLAIN[:-1]}, foreign key (k) references {{t}}_of)"
    ),
    "replicated": f"{PLAIN}; alter table {{t}} replica identity full; create publication {{t}}_p for table {{t}}",
    "ordinary": (
        "create table {t} (id serial primary key, k bigint not null, s varchar(20), at timestamptz not null default"
        " now(), tags text[] default '{}'::text[], _epoch varchar(16)); create index on {t} (lower(s))"
    ),
    "a name in two cases": f'{PLAIN[:-1]}, "K" bigint)',
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_table_takes_is_published_and_its_trial_leaves_nothing(sink, name):
    sink.query(TAKEN[name].replace("{t}", sink.table))
    target, version = sink.target(create="never"), sink.version(1, (1, "a"))
    token = target.prepare(version, None)
    assert sink.query(f"select count(*) from {sink.table} where _epoch is not null") == [(0,)]
    if "foreign key" in name:
        sink.query(f"insert into {sink.table}_of values (1)")
    assert target.commit(version, token) is Outcome.COMMITTED
    assert sink.query(f"select k, s from {sink.table} where _epoch = '{DAY}'") == [(1, "a")]


def test_values_of_a_unique_column_are_compared_with_those_of_other_epochs_and_each_other(sink):
    sink.query(f"create table {sink.table} (k bigint primary key, s text, _epoch text)")
    target = sink.target()
    sink.publish(target, sink.version(1, (1, "a")))
    for number, rows in enumerate([((1, "b"),), ((2, "b"), (2, "c"))], 1):
        with pytest.raises(TargetConflict, check=of_kind("sinks.postgres_not_unique", unique=["k"])):
            target.prepare(sink.version(number, *rows, epoch=NEXT), None)
    assert sink.publish(target, sink.version(2, (1, "b"), (2, "b"))) is Outcome.COMMITTED
    assert sink.publish(target, sink.version(1, (3, "b"), epoch=NEXT)) is Outcome.COMMITTED


@pytest.mark.parametrize("index", ["primary key (s)", "", "(s)", "(k) include (s)"])
def test_a_value_that_is_too_long_for_an_index_is_refused_before_anything_is_published(sink, index):
    upsert = {"mode": "upsert", "key": "s"} if not index.startswith("(") else {}
    if index:
        sink.query(f"create table {sink.table} ({NARROW}{', ' + index if upsert else ''})")
    if index and not upsert:
        sink.query(f"create index on {sink.table} {index}")
    long = os.urandom(4800).hex()
    with pytest.raises(TargetConflict):
        sink.target(**upsert).prepare(sink.version(1, (1, long)), None)
    short = sink.version(1, (1, "a" * 9600))  # it is compressed
    assert sink.publish(sink.target(**upsert), short) is Outcome.COMMITTED


def test_more_columns_and_longer_names_than_a_table_has_are_refused(sink):
    many = [(f"c{at}", "long", pa.int64()) for at in range(1700)]
    with pytest.raises(Misconfigured):
        sink.target().prepare(sink.version(1, tuple(range(1700)), columns=many), None)
    wide = [(f"c{at}", "string", pa.string()) for at in range(1200)]
    with pytest.raises(TargetConflict):
        sink.target().prepare(sink.version(1, ("x" * 40,) * 1200, columns=wide), None)
    for table in ("a" * 64, f"{'ä' * 32}.t", '"orders"', 'public."orders"'):
        with pytest.raises(Misconfigured):
            postgres("db", table)


def test_texts_are_the_same_in_a_database_of_another_encoding_or_refused(sink):
    db = sink._connect()
    db.autocommit = True
    with closing(db), db.cursor() as cursor:
        cursor.execute("create database latin encoding 'LATIN1' template template0 locale 'C'")
    there = Sink(sink.folder, replace(sink.connection, database="latin"), "texts")
    there.publish(there.target(), there.version(1, (1, "ä")))
    assert there.query("select s = U&'\\00e4' from texts") == [(True,)]
    with pytest.raises(TargetConflict):
        there.target().prepare(there.version(2, (1, "€")), None)


def test_the_marker_is_read_after_the_lock_whatever_isolation_the_account_has(sink):
    strict = replace(sink.connection, extra={"options": "-c default_transaction_isolation=serializable"})
    with sink.target(strict)._transaction(sink.version(1, (1, "a"))) as cursor:
        cursor.execute("show transaction_isolation")
        assert cursor.fetchone() == ("read committed",)


def test_one_table_under_two_spellings_has_one_owner(sink):
    plain, schema = sink.target(), Sink(sink.folder, sink.connection, f"public.{sink.table}").target()
    sink.publish(plain, sink.version(1, (1, "a")))
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_owned_by_another", other="flow.delays")):
        schema.prepare(sink.version(1, (2, "b"), sink="others"), None)
    assert schema.recover(sink.version(1, (1, "a")), {}) is Outcome.COMMITTED
    assert sink.publish(schema, sink.version(2, (1, "a"))) is Outcome.EQUAL
    assert sink.publish(schema, sink.version(3, (3, "c"))) is Outcome.COMMITTED
    assert plain.recover(sink.version(2, (1, "a")), {}) is Outcome.SUPERSEDED
    assert schema.rollback(sink.version(3, (3, "c")), {})
    assert plain.recover(sink.version(3, (3, "c")), {}) is Outcome.ROLLED_BACK
    assert sink.rows() == []


def test_a_table_is_the_one_that_the_search_path_leads_to(sink):
    sink.query(f"create schema if not exists aside; create table {sink.table} ({NARROW})")
    aside = replace(sink.connection, extra={"options": "-c search_path=aside,public"})
    sink.publish(sink.target(aside), sink.version(1, (1, "a")))
    assert sink.rows() == [(1, "a", DAY)]
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_owned_by_another", other="flow.delays")):
        sink.target().prepare(sink.version(1, (2, "b"), sink="others"), None)
    nowhere = replace(sink.connection, extra={"options": "-c search_path=nowhere"})
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_schema_missing")):
        sink.target(nowhere).prepare(sink.version(1, (1, "a")), None)


def test_a_new_table_is_not_made_beside_one_that_differs_in_capitals(sink):
    sink.publish(sink.target(), sink.version(1, (1, "a")))
    other = Sink(sink.folder, sink.connection, sink.table.upper())
    with pytest.raises(Misconfigured, match=sink.table):
        other.target().prepare(sink.version(1, (1, "a"), sink="others"), None)


def test_a_column_of_another_case_is_no_second_column(sink):
    sink.publish(sink.target(), sink.version(1, (1, "a")))
    columns = (("k", "long", pa.int64()), ("S", "string", pa.string()))
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_column_case", column="s", name="S")):
        sink.target().prepare(sink.version(1, (2, "b"), epoch=NEXT, columns=columns), None)
    with pytest.raises(Misconfigured):
        sink.target(mode="upsert", key="K").prepare(sink.version(1, (1, "a")), None)
    assert sink.rows() == [(1, "a", DAY)]


def test_sinks_whose_tables_may_be_one_are_refused_when_the_dag_is_parsed():
    made = source("a", "p:a")

    def declared(one, other, conn_id="db"):
        to = (postgres("db", one), postgres(conn_id, other))
        return Dataflow("flow", [made, *(published("a", name, to=to) for name, to in zip("xy", to, strict=True))])

    for one, other in (("orders", "orders"), ("orders", "public.orders"), ("sales.orders", "orders")):
        with pytest.raises(Misconfigured, check=of_kind("dataflow.targets_shared")):
            declared(one, other)
    for one, other in (("orders", "prices"), ("sales.orders", "public.orders"), ("orders", "Orders")):
        declared(one, other)
    declared("orders", "public.orders", "other_db")


TIMES = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("is_required", [False, True])
def test_days_and_moments_at_the_edges_come_back_or_are_refused(sink, kind, is_required):
    """By the footers alone, and where all values are read."""
    columns = (("k", "long", pa.int64()), ("v", kind, TIMES[kind]))
    held = range_of(Form.ARROW_TEXT, kind)
    day = MICROS if kind != "date" else 1
    if is_required:
        created = {"date": "date", "timestamp": "timestamptz"}.get(kind, "timestamp")
        sink.query(f"create table {sink.table} (k bigint, v {created} not null, _epoch text)")

    def versions(*numbers):
        return sink.version(1, *enumerate(numbers), columns=columns)

    for number in (held.low - 1, held.high + 1, held.high * 8, held.low - day * 1_000_000):
        with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_value_unfit", column="v")):
            sink.target().prepare(versions(0, number), None)
    edges = [held.low, held.high, 0, range_of(Form.PYTHON, kind).high, -1]
    sink.publish(sink.target(), versions(*edges))
    since = "v - date '1970-01-01'" if kind == "date" else "round(extract(epoch from v) * 1000000)"
    found = sink.query(f"select {since} from {sink.table} order by k")
    assert [int(each) for (each,) in found] == edges


def test_a_moment_that_a_column_would_round_is_refused(sink):
    columns = (("k", "long", pa.int64()), ("v", "timestamp_ntz", pa.timestamp("us")))
    sink.query(f"create table {sink.table} (k bigint, v timestamp(3), _epoch text)")
    fine, coarse = datetime(2013, 1, 1, 0, 0, 0, 1), datetime(1913, 1, 1, 0, 0, 0, 999_000)  # noqa: DTZ001
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_value_unfit", column="v")):
        sink.target().prepare(sink.version(1, (1, fine), columns=columns), None)
    sink.publish(sink.target(), sink.version(1, (1, coarse), columns=columns))
    assert sink.query(f"select v from {sink.table}") == [(coarse,)]


def test_a_float_is_the_same_number_in_a_wider_column(sink):
    columns = (("k", "long", pa.int64()), ("v", "float", pa.float32()), ("w", "float", pa.float32()))
    sink.query(f"create table {sink.table} (k bigint, v double precision, w real, _epoch text)")
    value = pa.scalar(0.1, pa.float32()).as_py()
    sink.publish(sink.target(), sink.version(1, (1, 0.1, 0.1), columns=columns))
    assert sink.query(f"select v = %s, w = real '0.1' from {sink.table}", value) == [(True, True)]


def test_rows_that_the_account_may_not_write_are_refused_before_anything_is_published(sink):
    sink.query(f"create table {sink.table} ({NARROW})")
    sink.publish(sink.target(), sink.version(1, (1, "a")))
    account = f"{sink.table}_user"
    sink.query(f"create role {account} login password 'x'; grant create, usage on schema public to {account}")
    sink.query(f"grant all on weir_published to {account}; grant select, insert on {sink.table} to {account}")
    limited = replace(sink.connection, login=account, password="x")
    try:
        version = sink.version(2, (2, "b"))
        with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_right_missing", table=sink.table)):
            sink.target(limited, create="never").prepare(version, None)
        sink.query(f"grant delete on {sink.table} to {account}")
        sink.query(f"alter table {sink.table} enable row level security")
        with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_row_security")):
            sink.target(limited, create="never").prepare(version, None)
        sink.query(f"alter table {sink.table} disable row level security")
        assert sink.publish(sink.target(limited, create="never"), version) is Outcome.COMMITTED
    finally:
        sink.query(f"drop owned by {account}; drop role {account}")


def test_a_time_out_of_a_statement_is_refused_and_no_silence(sink):
    sink.query(f"create table {sink.table} ({NARROW})")
    sink.query(
        f"create function {sink.table}_slow() returns trigger language plpgsql as"
        " $$ begin perform pg_sleep(9); return new; end $$"
    )
    target, version = sink.target(), sink.version(1, (1, "a"))
    token = target.prepare(version, None)
    sink.query(f"create trigger slow before insert on {sink.table} execute function {sink.table}_slow()")
    hasty = sink.target(replace(sink.connection, extra={"options": "-c statement_timeout=200"}))
    with pytest.raises(TargetConflict, match="statement_timeout"):
        hasty.commit(version, token)
    with pytest.raises(TargetConflict, match="statement_timeout"):
        hasty.prepare(version, None)
    sink.query(f"drop function {sink.table}_slow cascade")


@pytest.mark.parametrize("wrong", [{"password": "wrong"}, {"login": "nobody"}, {"database": "none"}])
def test_a_login_that_is_refused_is_no_silence(sink, wrong):
    with pytest.raises(Misconfigured, check=of_kind("connections.postgres_login_refused", conn_id="target_db")):
        sink.target(replace(sink.connection, **wrong)).prepare(sink.version(1, (1, "a")), None)


@pytest.mark.parametrize(
    "code", [None, "08006", "40001", "40P01", "53100", "53300", "55P03", "57P01", "57P03", "25P03"]
)
def test_what_passes_by_itself_is_waited_for(code):
    assert is_passing(code)


@pytest.mark.parametrize("code", ["54000", "57014", "22003", "23505", "42P01", "0A000", "P0001", "55000", "428C9"])
def test_what_a_server_refuses_is_no_silence(code):
    assert not is_passing(code)


def test_a_server_that_shuts_down_a_session_is_away(sink):
    sink.query(f"create table {sink.table} ({NARROW})")
    version, target = sink.version(1, (1, "a")), sink.target()
    target.prepare(version, None)
    with pytest.raises(TargetAway), target._transaction(version) as cursor:
        cursor.execute("select pg_terminate_backend(pg_backend_pid())")


def test_the_first_and_the_last_day_of_python_come_back(sink):
    columns = (("k", "long", pa.int64()), ("v", "date", pa.date32()))
    sink.publish(sink.target(), sink.version(1, (1, date.min), (2, date.max), (3, None), columns=columns))
    assert sink.query(f"select v from {sink.table} order by k") == [(date.min,), (date.max,), (None,)]
