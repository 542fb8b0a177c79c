"""PostgreSQL as a target: rows and marker together, whatever is lost, killed or in the way."""

# ruff: noqa: S608

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.builders.connections import connection_to
from tests.messages.kinds import of_kind

from weir.connections import Connection
from weir.dataflow import postgres as declared
from weir.errors import Misconfigured, Retryable
from weir.sinks import Outcome, TargetAway, TargetConflict, Version, VersionFile
from weir.sinks.targets import postgres, postgres_server
from weir.sinks.targets.postgres import PostgresTarget
from weir.testing.sink_contract import DAY, NEXT, LocalReach, SinkContract

LONG_AND_TEXT = (("k", "long", pa.int64()), ("s", "string", pa.string()))


@pytest.fixture(scope="module")
def database(postgres):
    """A database that the tests of this module share; each has a table of its own."""
    return connection_to(postgres.url("targets"), "target_db")


class Sink:
    """A sink, its versions, and what a foreign reader sees in its table."""

    def __init__(self, folder, connection, table):
        self.folder, self.connection, self.table = folder, connection, table
        self.made = 0

    def query(self, statement, *values):
        with closing(self._connect()) as db, db, db.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else None

    def _connect(self):
        found = self.connection
        return psycopg2.connect(
            host=found.host, port=found.port, dbname=found.database, user=found.login, password=found.password
        )

    def target(self, connection=None, **options):
        made = declared("target_db", self.table, **{"create": "if_missing", **options})
        return PostgresTarget(made.options, LocalReach(self.folder, connection or self.connection))

    def version(self, number, *rows, epoch=DAY, columns=LONG_AND_TEXT, sink="delays"):
        """A version in a new file; equal rows have equal digests."""
        self.made += 1
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind, _ in columns]
        arrays = [pa.array([row[at] for row in rows], kind) for at, (_, _, kind) in enumerate(columns)]
        path = self.folder / f"{self.made}.parquet"
        pq.write_table(pa.Table.from_arrays(arrays, names=[name for name, _, _ in columns]), path)
        return Version(
            dataflow="flow",
            sink=sink,
            epoch=epoch,
            number=number,
            attempt=f"t0001-{self.made:012}",
            digest=repr(rows),
            spark_schema=json.dumps({"type": "struct", "fields": fields}),
            files=(VersionFile(path.name, path.stat().st_size, len(rows), ""),),
        )

    def rows(self):
        return self.query(f"select k, s, _epoch from {self.table} order by k, s")

    def publish(self, target, version):
        return target.commit(version, target.prepare(version, None))


class TestContract(SinkContract):
    @pytest.fixture(autouse=True)
    def table(self, request, tmp_path, database):
        self.sink = Sink(tmp_path, database, f"c_{abs(hash(request.node.nodeid)) % 10**8}")
        self.sink.query(f"create table {self.sink.table} (k bigint, s text, _epoch text)")
        yield
        self.sink.query(f"drop table {self.sink.table}")

    def target(self, reach):
        reach = LocalReach(reach.folder, self.sink.connection)
        return PostgresTarget(declared("target_db", self.sink.table).options, reach)

    def rows(self, epoch):
        return self.sink.query(f"select k, s from {self.sink.table} where _epoch = %s order by k, s", epoch)

    def write_as_somebody_else(self):
        self.sink.query(f"insert into {self.sink.table} values (99, 'foreign', null)")
        return lambda: self.sink.query(f"select k from {self.sink.table} where _epoch is null") == [(99,)]


@pytest.fixture
def sink(request, tmp_path, database):
    name = "".join(each for each in request.node.name if each.isalnum())[:40].lower()
    made = Sink(tmp_path, database, f"t_{name}_{abs(hash(request.node.nodeid)) % 10**8}")
    yield made
    made.query(f"drop table if exists {made.table}")


def test_equal_content_makes_no_version_and_a_b_a_makes_three(sink):
    target = sink.target()
    sink.publish(target, sink.version(1, (1, "a")))
    equal = sink.version(2, (1, "a"))
    assert [sink.publish(target, equal), target.recover(equal, {})] == [Outcome.EQUAL] * 2
    sink.publish(target, sink.version(3, (2, "b")))
    assert sink.publish(target, sink.version(4, (1, "a"))) is Outcome.COMMITTED
    assert sink.rows() == [(1, "a", DAY)]
    assert sink.query("select number from weir_published where target = %s", sink.table) == [(4,)]


def test_upsert_is_last_epoch_wins(sink):
    target = sink.target(mode="upsert", key="k")
    sink.publish(target, sink.version(1, (1, "a"), (2, "a")))
    sink.publish(target, sink.version(1, (2, "b"), (3, "b"), epoch=NEXT))
    sink.publish(target, sink.version(2, (1, "c"), (2, "c")))
    assert sink.rows() == [(1, "c", DAY), (2, "b", NEXT), (3, "b", NEXT)]


@pytest.mark.parametrize("bad", [[(1, "a"), (1, "b")], [(None, "a")]])
def test_upsert_refuses_keys_that_identify_no_row(sink, bad):
    target = sink.target(mode="upsert", key="k")
    with pytest.raises(Misconfigured, match=r"key|null"):
        sink.publish(target, sink.version(1, *bad))


def test_upsert_takes_over_rows_with_equal_keys_that_were_there_before(sink):
    sink.query(f"create table {sink.table} (k bigint primary key, s text, _epoch text)")
    sink.query(f"insert into {sink.table} values (1, 'mine', null), (2, 'mine', null)")
    sink.publish(sink.target(mode="upsert", key="k"), sink.version(1, (1, "a")))
    assert sink.rows() == [(1, "a", DAY), (2, "mine", None)]


@pytest.mark.parametrize("create", ["never", "if_missing"])
@pytest.mark.parametrize("index", ["(s)", "(k, s)", "(k) where k > 0", "((k + 0))", "(lower(s))"])
def test_upsert_needs_a_unique_index_on_the_key_before_anything_is_published(sink, create, index):
    sink.query(f"create table {sink.table} (k bigint, s text, _epoch text)")
    sink.query(f"create unique index on {sink.table} {index}")
    target = sink.target(mode="upsert", key="k", create=create)
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_index_missing")):
        target.prepare(sink.version(1, (1, "a")), None)
    sink.query(f"create unique index on {sink.table} (k)")
    assert sink.publish(target, sink.version(1, (1, "a"))) is Outcome.COMMITTED


@pytest.mark.parametrize("others", ["", ", unique (k)"])
@pytest.mark.parametrize("deferrable", ["deferrable", "deferrable initially deferred"])
def test_upsert_refuses_a_deferrable_constraint_on_the_key_before_anything_is_published(sink, deferrable, others):
    """Beside another index on the key, too: PostgreSQL takes all of them for the merge."""
    constraint = f"constraint {sink.table}_key unique (k) {deferrable}"
    sink.query(f"create table {sink.table} (k bigint, s text, _epoch text, {constraint}{others})")
    target = sink.target(mode="upsert", key="k")
    with pytest.raises(
        Misconfigured, match=f"{sink.table}", check=of_kind("sinks.postgres_index_deferrable", table=sink.table)
    ):
        target.prepare(sink.version(1, (1, "a")), None)
    with pytest.raises(TargetConflict, check=of_kind("sinks.postgres_refused")):
        target.commit(sink.version(1, (1, "a")), {})
    sink.query(f"alter table {sink.table} drop constraint {sink.table}_key, add primary key (k)")
    assert sink.publish(target, sink.version(1, (1, "a"))) is Outcome.COMMITTED


def test_upsert_takes_a_deferrable_constraint_on_other_columns(sink):
    of_others = "unique (s) deferrable, unique (k, s) deferrable"
    sink.query(f"create table {sink.table} (k bigint primary key, s text, _epoch text, {of_others})")
    assert sink.publish(sink.target(mode="upsert", key="k"), sink.version(1, (1, "a"))) is Outcome.COMMITTED


def test_upsert_refuses_a_null_in_a_key_that_the_table_would_take(sink):
    sink.query(f"create table {sink.table} (k bigint unique, s text, _epoch text)")
    target = sink.target(mode="upsert", key="k")
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_key_null", name="k")):
        target.prepare(sink.version(1, (1, "a"), (None, "b")), None)


def test_append_refuses_other_content_of_an_epoch_and_takes_equal_content(sink):
    target = sink.target(mode="append")
    sink.publish(target, sink.version(1, (1, "a")))
    assert sink.publish(target, sink.version(2, (1, "a"))) is Outcome.EQUAL
    with pytest.raises(TargetConflict, check=of_kind("sinks.postgres_append_twice")):
        target.prepare(sink.version(3, (2, "b")), None)
    with pytest.raises(TargetConflict, check=of_kind("sinks.postgres_append_twice")):
        target.commit(sink.version(3, (2, "b")), {})
    assert sink.rows() == [(1, "a", DAY)]


@pytest.mark.parametrize("step", ["execute", "copy_expert", "commit", "committed"])
def test_a_process_that_is_killed_anywhere_leaves_the_version_whole_or_absent(sink, step, monkeypatch):
    """Each statement of a commit in turn is the last one, and so is COMMIT, before and behind it."""
    target = sink.target()
    sink.publish(target, sink.version(1, (1, "a")))
    second = sink.version(2, (2, "b"), (3, "b"))
    target.prepare(second, None)
    usual = psycopg2.connect
    for nth in range(1, 20):
        factories = dying(Fate(step, nth))
        monkeypatch.setattr(psycopg2, "connect", lambda factories=factories, **given: usual(**given, **factories))
        try:
            target.commit(second, {})
            is_over = True
        except KeyboardInterrupt:
            is_over = False
        monkeypatch.setattr(psycopg2, "connect", usual)
        assert sink.rows() in ([(1, "a", DAY)], [(2, "b", DAY), (3, "b", DAY)])
        assert target.recover(second, {}) is (Outcome.COMMITTED if len(sink.rows()) == 2 else Outcome.ABSENT)
        if is_over or target.recover(second, {}) is Outcome.COMMITTED:
            break
    assert target.commit(second, {}) is Outcome.COMMITTED
    assert sink.rows() == [(2, "b", DAY), (3, "b", DAY)]


class Fate:
    """Kills a process at its n-th step of a kind: its connection is gone, and whatever it was about to do."""

    def __init__(self, step, nth):
        self.step, self.left = step, nth

    def count(self, step, connection):
        if step == self.step:
            self.left -= 1
            if not self.left:
                connection.close()
                raise KeyboardInterrupt


def dying(fate):
    """The classes of a connection and of its cursors whose process `fate` kills."""

    class DyingConnection(psycopg2.extensions.connection):
        def __exit__(self, kind, *rest):
            if kind is None:
                fate.count("commit", self)
            if not self.closed:
                super().__exit__(kind, *rest)
            if kind is None:
                fate.count("committed", self)

    class DyingCursor(psycopg2.extensions.cursor):
        def execute(self, *given):
            fate.count("execute", self.connection)
            return super().execute(*given)

        def copy_expert(self, *given):
            fate.count("copy_expert", self.connection)
            return super().copy_expert(*given)

    return {"connection_factory": DyingConnection, "cursor_factory": DyingCursor}


def test_a_commit_whose_answer_is_lost_is_found(sink, monkeypatch):
    target, version = sink.target(), sink.version(1, (1, "a"))
    target.prepare(version, None)
    usual, lost = postgres.PostgresTarget._commit, []

    def losing(self, version):
        found = usual(self, version)
        if not lost:
            lost.append(found)
            raise TargetAway("the connection was closed")
        return found

    monkeypatch.setattr(postgres.PostgresTarget, "_commit", losing)
    assert target.commit(version, {}) is Outcome.COMMITTED
    assert lost == [Outcome.COMMITTED]
    assert sink.rows() == [(1, "a", DAY)]


def test_fewer_rows_than_the_version_has_change_nothing(sink):
    target, version = sink.target(), sink.version(1, (1, "a"))
    target.prepare(version, None)
    more = Version(**{name: getattr(version, name) for name in Version.__slots__} | {"files": (more_rows(version),)})
    with pytest.raises(Retryable, check=of_kind("sinks.s3_rows_differ", rows="1")):
        target.commit(more, {})
    assert sink.rows() == []
    assert target.recover(version, {}) is Outcome.ABSENT


def more_rows(version):
    (file,) = version.files
    return VersionFile(file.path, file.bytes, file.rows + 1, file.sha256)


@pytest.mark.parametrize("mode", ["replace_epoch", "append"])
def test_an_epoch_is_taken_out_until_a_newer_version_comes(sink, mode):
    target, first = sink.target(mode=mode), sink.version(1, (1, "a"))
    sink.publish(target, sink.version(1, (9, "other day"), epoch=NEXT))
    assert target.rollback(first, {}) is False
    sink.publish(target, first)
    assert [target.rollback(first, {}) for _ in range(2)] == [True, True]
    assert sink.rows() == [(9, "other day", NEXT)]
    assert target.commit(first, {}) is Outcome.ROLLED_BACK
    assert sink.rows() == [(9, "other day", NEXT)]
    assert sink.publish(target, sink.version(2, (1, "a"))) is Outcome.COMMITTED
    assert sink.rows() == [(1, "a", DAY), (9, "other day", NEXT)]


def test_what_an_upsert_has_replaced_cannot_be_given_back(sink):
    target, version = sink.target(mode="upsert", key="k"), sink.version(1, (1, "a"))
    sink.publish(target, version)
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_rollback_impossible")):
        target.rollback(version, {})
    assert sink.rows() == [(1, "a", DAY)]


def test_a_server_that_does_not_answer_is_away(sink):
    dead = Connection(id="target_db", kind="postgres", host="127.0.0.1", port=1, database="x", login="x")
    with pytest.raises(TargetAway, check=of_kind("sinks.postgres_away")):
        sink.target(dead).prepare(sink.version(1, (1, "a")), None)


def test_every_type_comes_back_equal(sink):
    zoned, plain = datetime(2013, 1, 1, 5, 6, 7, 890123, UTC), datetime(2013, 1, 1, 5, 6, 7, 890123)  # noqa: DTZ001
    kinds = [
        ("byte", pa.int8(), -7),
        ("short", pa.int16(), -300),
        ("integer", pa.int32(), 2**31 - 1),
        ("long", pa.int64(), -(2**63)),
        ("float", pa.float32(), 0.5),
        ("double", pa.float64(), 1e-300),
        ("decimal(38,10)", pa.decimal128(38, 10), Decimal("12345678901234567890.0123456789")),
        ("string", pa.string(), "ä\\N\t\r\n'\"\\."),
        ("boolean", pa.bool_(), True),
        ("date", pa.date32(), date(1900, 2, 28)),
        ("timestamp", pa.timestamp("us", "UTC"), zoned),
        ("timestamp_ntz", pa.timestamp("us"), plain),
    ]
    columns = [("k", "long", pa.int64()), *((f"c{at}", kind, arrow) for at, (kind, arrow, _) in enumerate(kinds))]
    values = [value for _, _, value in kinds]
    sink.publish(sink.target(), sink.version(1, (1, *values), (2, *[None] * len(values)), columns=columns))
    names = ", ".join(name for name, _, _ in columns)
    found = sink.query(f"select {names} from {sink.table} order by k")
    assert found == [(1, *values), (2, *[None] * len(values))]


def test_nested_values_are_json_and_bytes_are_bytes(sink):
    point = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
    columns = [
        ("k", "long", pa.int64()),
        ("b", "binary", pa.binary()),
        ("l", {"type": "array", "elementType": point, "containsNull": True}, pa.list_(pa.struct([("x", pa.int64())]))),
        ("m", {"type": "map", "keyType": "string", "valueType": "date"}, pa.map_(pa.string(), pa.date32())),
    ]
    row = (1, b"\0\xff", [{"x": 1}, None], [("a", date(2013, 1, 1))])
    sink.publish(sink.target(), sink.version(1, row, columns=columns))
    ((binary, listed, mapped),) = sink.query(f"select b, l, m from {sink.table}")
    assert (bytes(binary), listed, mapped) == (b"\0\xff", [{"x": 1}, None], {"a": "2013-01-01"})


def test_new_columns_are_added_and_missing_ones_are_null(sink):
    target = sink.target()
    sink.publish(target, sink.version(1, (1, "a")))
    wider = (*LONG_AND_TEXT, ("n", "integer", pa.int32()))
    sink.publish(target, sink.version(1, (2, "b", 5), epoch=NEXT, columns=wider))
    assert sink.query(f"select k, n from {sink.table} order by k") == [(1, None), (2, 5)]
    sink.publish(target, sink.version(2, (3, "c"), epoch=NEXT))
    assert sink.query(f"select k, n from {sink.table} order by k") == [(1, None), (3, None)]


@pytest.mark.parametrize(
    ("table", "row", "message"),
    [
        ("k integer, s text, _epoch text", (1, "a"), "k is integer, expected bigint"),
        ("k bigint, s text", (1, "a"), "has no column _epoch"),
        ("k bigint, s text, _epoch text, x int not null", (1, "a"), "x is not null, has no default"),
        ("k bigint, s varchar(3), _epoch text", (1, "abcd"), "longer than 3"),
        ("k bigint, s text not null, _epoch text", (1, None), "it is null"),
        ("k bigint, s text, _epoch text", (1, "a\0b"), "NUL"),
    ],
)
def test_what_a_table_would_refuse_is_refused_before_anything_is_published(sink, table, row, message):
    sink.query(f"create table {sink.table} ({table})")
    with pytest.raises(Misconfigured, match=message):
        sink.target(create="never").prepare(sink.version(1, row), None)
    assert sink.query(f"select * from {sink.table}") == []


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (pa.list_(pa.float64()), [0.5, float("nan")], of_kind("sinks.postgres_not_json")),
        (pa.struct([("x", pa.float64())]), {"x": float("inf")}, of_kind("sinks.postgres_not_json")),
        (pa.list_(pa.string()), ["a\0b"], of_kind("sinks.postgres_nul_in_json")),
        (pa.map_(pa.string(), pa.int64()), [("\0", 1)], of_kind("sinks.postgres_nul_in_json")),
    ],
)
def test_nested_values_that_json_cannot_have_are_refused_before_anything_is_published(sink, kind, value, message):
    columns = (("k", "long", pa.int64()), ("v", {"type": "array"}, kind))
    with pytest.raises(Misconfigured, check=message):
        sink.target().prepare(sink.version(1, (1, value), columns=columns), None)


def test_a_backslash_in_a_nested_text_is_no_nul(sink):
    columns = (("k", "long", pa.int64()), ("v", {"type": "array"}, pa.list_(pa.string())))
    sink.publish(sink.target(), sink.version(1, (1, ["\\u0000", "\\"]), columns=columns))
    assert sink.query(f"select v from {sink.table}") == [(["\\u0000", "\\"],)]


def test_an_error_while_rows_are_read_is_not_said_of_the_server(sink, monkeypatch):
    target, version = sink.target(), sink.version(1, (1, "a"))
    target.prepare(version, None)

    def failing(*_):
        raise Retryable("the store did not answer")
        yield

    monkeypatch.setattr(postgres, "batches", failing)
    with pytest.raises(Retryable, match="the store did not answer") as raised:
        target.commit(version, {})
    assert not isinstance(raised.value, TargetAway)
    assert sink.rows() == []


def test_a_table_that_is_missing_is_named_with_what_to_write(sink):
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_table_missing")):
        sink.target(create="never").prepare(sink.version(1, (1, "a")), None)


def test_a_table_belongs_to_one_sink(sink):
    sink.publish(sink.target(), sink.version(1, (1, "a")))
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_owned_by_another", other="flow.delays")):
        sink.target().prepare(sink.version(1, (1, "a"), sink="others"), None)


def test_a_constraint_that_refuses_the_rows_changes_nothing_and_needs_a_person(sink):
    target = sink.target()
    sink.publish(target, sink.version(1, (1, "a")))
    version = sink.version(2, (7, "b"))
    target.prepare(version, None)
    sink.query(f"alter table {sink.table} add check (k < 5)")
    with pytest.raises(TargetConflict, check=of_kind("sinks.postgres_refused")):
        target.commit(version, {})
    assert sink.rows() == [(1, "a", DAY)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "merge"}, of_kind("dataflow.postgres_mode_unknown")),
        ({"mode": "upsert"}, of_kind("dataflow.upsert_needs_key")),
        ({"key": "k"}, of_kind("dataflow.upsert_needs_key")),
        ({"create": "always"}, of_kind("dataflow.postgres_create_unknown")),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(given, message):
    with pytest.raises(Misconfigured, check=message):
        declared("target_db", "reports.delays", **given)


def test_readers_are_not_held_up_while_the_rows_of_a_version_are_checked(sink, monkeypatch):
    sink.publish(sink.target(), sink.version(1, (1, "a")))
    seen, batches = [], postgres.batches

    def reading(*arguments):
        seen.append(sink.query(f"set lock_timeout = '1s'; select count(*) from {sink.table}"))
        return batches(*arguments)

    monkeypatch.setattr(postgres, "batches", reading)
    wider = (*LONG_AND_TEXT, ("more", "string", pa.string()))
    sink.target().prepare(sink.version(2, (1, "b", "c"), columns=wider), None)
    assert seen == [[(1,)]]


def test_a_column_that_waits_for_a_report_keeps_no_other_reader_waiting(sink, monkeypatch):
    monkeypatch.setattr(postgres_server, "LOCKS", (600, "500ms", 0.1))
    sink.publish(sink.target(), sink.version(1, (1, "a")))
    wider = sink.version(2, (1, "b", "c"), columns=(*LONG_AND_TEXT, ("more", "string", pa.string())))
    connection = sink.target()._server.connect(sink.connection.for_libpq())
    with ThreadPoolExecutor() as threads, closing(connection) as report, report.cursor() as cursor:
        cursor.execute(f"select * from {sink.table}")
        prepared = threads.submit(sink.target().prepare, wider, None)
        while not prepared.done() and not sink.query("select 1 from pg_locks where not granted"):
            pass
        assert sink.query(f"set lock_timeout = '20s'; select count(*) from {sink.table}") == [(1,)]
        assert not prepared.done()
        report.rollback()
        prepared.result()
    assert sink.query(f"select more from {sink.table}") == [(None,)]


@pytest.mark.parametrize("mode", ["replace_epoch", "append", "upsert"])
@pytest.mark.parametrize("how", ["drop table", "delete from"])
def test_a_version_that_somebody_has_removed_comes_back(sink, mode, how):
    target, version = sink.target(mode=mode, key="k" if mode == "upsert" else ()), sink.version(1, (1, "a"))
    sink.publish(target, version)
    sink.query(f"{how} {sink.table}")
    if (mode, how) == ("upsert", "delete from"):  # a later epoch may have replaced the rows
        assert target.commit(version, {}) is Outcome.COMMITTED
        return
    assert target.recover(version, {}) is Outcome.ABSENT
    assert target.commit(version, {}) is Outcome.COMMITTED
    assert sink.rows() == [(1, "a", DAY)]


def test_of_two_sinks_that_begin_at_once_one_is_refused_before_anything_is_published(sink):
    target = sink.target()
    one, other = sink.version(1, (1, "a")), sink.version(1, (2, "b"), sink="others")
    token = target.prepare(one, None)
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_owned_by_another", other="flow.delays")):
        target.prepare(other, None)
    with pytest.raises(Misconfigured, check=of_kind("sinks.postgres_owned_by_another", other="flow.delays")):
        target.commit(other, {})
    target.commit(one, token)
    assert sink.rows() == [(1, "a", DAY)]


def test_options_of_the_connection_are_kept(sink):
    sink.query("create schema if not exists elsewhere")
    connection = replace(sink.connection, extra={"options": "-c search_path=elsewhere"})
    target = sink.target(connection)
    with closing(target._server.connect(connection.for_libpq())) as db, db.cursor() as cursor:
        cursor.execute("show search_path")
        assert cursor.fetchone() == ("elsewhere",)
