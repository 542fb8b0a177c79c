"""A table while its state changes: corrections under way, ttl, keys, types, another store; other people's objects."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import psycopg2
import pyarrow as pa
import pytest
from tests.messages.kinds import of_kind
from tests.weir.command_line import use
from tests.weir.reading import state_world
from tests.weir.reading.parquet_world import ParquetEngine, ReaderWorld
from tests.weir.reading.state_world import StateEngine, epoch, group_of, keeps_state, run_days
from tests.weir.small_dataflow import ladder
from tests.weir.state_tables.test_following import (  # noqa: F401
    AWAY,
    Table,
    correct,
    database,
    run,
    settle,
    table,
    verified,
)
from tests.weir.state_tables.versioned import OWN, table_in

import weir
from weir.errors import Misconfigured
from weir.sinks.protocol import TargetAway
from weir.sinks.targets import postgres_server
from weir.state_tables import postgres as module
from weir.state_tables.versions import At, TableVersion, all_expired_until, nearest, replaced_by


def in_files(table, day):  # noqa: F811
    with weir.open("ladder", epoch(day), state="history", services=table.world.services) as state:
        return {row["tail"]: row["n"] for row in state.arrow().to_pylist()}


# What is shown while epochs are computed again


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("days", [3, 4])
def test_an_epoch_that_is_computed_again_with_equal_rows_stays(table, days, parallelism):  # noqa: F811
    plan = {epoch(1): {"J": 1, "K": 1}, epoch(2): {"A": 2}, epoch(3): {"J": 3}, epoch(4): {"B": 4}}
    table.world.airflow.engine.plan = plan
    for day in range(1, days + 1):
        run(table, day, parallelism=parallelism)
    correct(table, 1, {"J": 5, "K": 1})
    settle(table)
    assert table.days() == [epoch(day) for day in range(1, days + 1)]
    assert [table.at(day) for day in range(1, days + 1)] == [table.expected(day) for day in range(1, days + 1)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_upkeep_in_the_middle_of_a_correction_shows_no_older_epoch(table, parallelism):  # noqa: F811
    keys = [f"N{number}" for number in range(8)]
    table.world.airflow.engine.plan = {epoch(day): dict.fromkeys(keys, day) for day in (1, 2)}
    for day in (1, 2):
        run(table, day, parallelism=parallelism)
    shown = []

    def upkeep(*_):
        settle(table)
        shown.append(table.rows())

    table.world.airflow.after_commit = upkeep
    correct(table, 2, dict.fromkeys(keys, 20))
    upkeep()
    values = [set(rows.values()) for rows in shown]
    assert [each for at, each in enumerate(values) if values[at - 1 : at] != [each]] == [{2}, {20}]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_only_what_has_changed_is_read(table, monkeypatch, parallelism):  # noqa: F811
    taken = []
    usual = module.OpenTable.add_changes
    monkeypatch.setattr(module.OpenTable, "add_changes", lambda *given: taken.append(given) or usual(*given))
    for day in (1, 2, 3):
        run(table, day, parallelism=parallelism)
    assert len(taken) == 2
    assert [table.at(day) for day in (1, 2, 3)] == [table.expected(day) for day in (1, 2, 3)]


# Expired rows


class WholeAsSparkDoes(StateEngine):
    """Writes all of the state where its job says so, as Spark does where a time to live is changed."""

    def _state(self, job, stage, output, contents):
        keeper = next(each for each in job.stages if each.name == stage.keeps_state_of)
        read = next(each.state for each in keeper.inputs if each.argument == stage.name)
        report = super()._state(job, stage, output, contents)
        return replace(report, state=replace(report.state, is_whole=True)) if read.is_full else report

    def _write_file(self, folder, rows, read):
        if read.is_full:
            alive = sorted(self.rows_at(read.epoch, (0, 127), read), key=lambda row: (group_of(row[0]), row[0]))
            rows = [(group_of(k), k, n) for k, (n, _) in alive]
        super()._write_file(folder, rows, read)


@pytest.mark.parametrize(
    "plan",
    [
        [{"N1": 1, "N2": 2}, {}, {"N9": 9}, {}],
        [{"N1": 1}, {"N2": 2}, {"N3": "deleted"}, {"N9": 9}],
        [{"N1": 1}, {"N2": 2}, {"N2": 3}, {"N9": 9}],
    ],
)
def test_what_has_expired_does_not_come_back_where_rows_live_longer(table, plan):  # noqa: F811
    world = table.world
    days = {epoch(day): changes for day, changes in enumerate(plan, 1)}
    world.airflow.engine = WholeAsSparkDoes(ParquetEngine(world.store, world.content), world.store, days)
    for day, ttl in enumerate(("1 day", "1 day", "9 days", "9 days"), 1):
        run(table, day, ttl=ttl, parallelism=1)
        assert table.rows() == in_files(table, day)
        assert "N1" not in table.rows() or day == 1


COLUMNS = [("k", "string"), ("x", "double")]
ARROW = pa.schema([("k", pa.string()), ("x", pa.float64()), *OWN])


def schema(*fields):
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
    return json.dumps({"type": "struct", "fields": fields})


def put(table, at, rows, until=None, onto=None, keys=("k",)):  # noqa: F811
    """Add a checkpoint of (key, x, update): what it has changed of `onto`, or all of its rows."""
    found = [{"k": k, "x": x, "_weir_deleted": False, "_weir_updated": time} for k, x, time in rows]
    tables = [pa.Table.from_pylist(found, schema=ARROW)]
    with table.open() as opened:
        is_new = opened.prepare(schema(*COLUMNS), keys)
        versions = {} if is_new else {each: version for each, (version, _) in opened.versions().items()}
        if onto is None:
            segments = opened.add_all(schema(*COLUMNS), tables, nearest(at, list(versions.values())))
        else:
            segments = opened.add_changes(schema(*COLUMNS), tables, versions[onto])
        opened.enter(TableVersion(at, segments, until), {}, replaced_by(at, list(versions.values())))
        if is_new:
            opened.index()


def asked(url, statement):
    with closing(psycopg2.connect(url)) as db, db, db.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else None


def test_a_row_that_hides_one_of_a_later_update_does_not_expire_before_it(database):  # noqa: F811
    first, second, third, again = (At(f"2013010{day}T000000Z", n) for day, n in ((1, 1), (2, 2), (3, 3), (2, 4)))
    made = table_in(database, "hidden")
    put(made, first, [("J", 1.0, 10)], until=-10)
    put(made, second, [("J", 2.0, 20)], until=0, onto=first)
    put(made, third, [("A", 3.0, 30)], until=10, onto=second)
    put(made, again, [("J", 1.0, 10), ("C", 5.0, 20)], until=0)
    put(made, At(third.epoch, 5), [("A", 3.0, 30)], until=10, onto=again)
    with made.open() as opened:
        opened.forget([first, again])
        assert all_expired_until([version for version, _ in opened.versions().values()]) == 10
        opened.expire_page(10)
    assert asked(database, "select k from hidden order by k") == [("A",), ("C",)]


def test_a_number_that_an_account_would_show_like_another_is_written(database):  # noqa: F811
    (user,) = asked(database, "select current_user")[0]
    made, days = table_in(database, "digits"), [At(f"2013010{day}T000000Z", day) for day in (1, 2)]
    asked(database, f'alter role "{user}" set extra_float_digits = 0')
    try:
        put(made, days[0], [("J", 0.3, None)])
        put(made, days[1], [("J", 0.1 + 0.2, None)])
    finally:
        asked(database, f'alter role "{user}" reset extra_float_digits')
    assert asked(database, "select x from digits") == [(0.1 + 0.2,)]


# Other columns, keys and stores


def written(monkeypatch, *fields):
    monkeypatch.setattr(state_world, "SCHEMA", schema(*fields))


OLD = (("tail", "string"), ("n", "long"))


def test_a_column_that_comes_again_with_another_type(table, monkeypatch):  # noqa: F811
    world = table.world
    world.airflow.engine.plan = {epoch(day): {"J": day} for day in (1, 2, 3)}
    written(monkeypatch, *OLD, ("x", "string"))
    run_days(world, table.flow(parallelism=1, schema="tail STRING, n BIGINT, x STRING"), 1)
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", AWAY)
    written(monkeypatch, *OLD)
    run_days(world, table.flow(parallelism=1, schema="tail STRING, n BIGINT"), 2)
    written(monkeypatch, ("x", "long"), *OLD)
    run_days(world, table.flow(parallelism=1, schema="x BIGINT, tail STRING, n BIGINT"), 3)
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", table.url)
    assert settle(table).failed == {}
    assert [table.at(day) for day in (1, 2, 3)] == [{"J": 1}, {"J": 2}, {"J": 3}]
    assert table.query("select pg_typeof(x)::text from {t}") == [("bigint",)]


def test_a_table_that_is_verified_before_it_has_a_new_column_gets_it(table, monkeypatch):  # noqa: F811
    table.world.airflow.engine.plan = {epoch(day): {"J": day} for day in (1, 2)}
    run(table, 1, parallelism=1)
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", AWAY)
    written(monkeypatch, *OLD, ("x", "long"))
    run_days(table.world, table.flow(parallelism=1, schema="tail STRING, n BIGINT, x BIGINT"), 2)
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", table.url)
    table.query("update {t}_rows set n = 7; commit")
    assert len(verified(table)) == 1
    assert table.rows() == {"J": 1}
    assert settle(table).failed == {}
    assert table.query("select * from {t}") == [("J", 2, None)]


def test_columns_are_added_widened_and_removed_and_a_view_on_them_is_named(table, monkeypatch):  # noqa: F811
    world = table.world
    world.airflow.engine.plan = {epoch(day): {"J": day} for day in (1, 2, 3, 4)}
    written(monkeypatch, ("tail", "string"), ("n", "long"), ("x", "integer"))
    run_days(world, table.flow(parallelism=1, schema="tail STRING, n BIGINT, x INT"), 1)
    table.query("create view {t}_mine as select tail, n from {t}; commit")
    written(monkeypatch, ("y", "string"), *OLD, ("x", "integer"))
    run_days(world, table.flow(parallelism=1, schema="y STRING, tail STRING, n BIGINT, x INT"), 2)
    assert table.query("select * from {t}") == [("J", 2, None, None)]
    written(monkeypatch, ("y", "string"), *OLD, ("x", "long"))
    run_days(world, table.flow(parallelism=1, schema="y STRING, tail STRING, n BIGINT, x BIGINT"), 3)
    (error,) = settle(table).failed.values()
    assert of_kind("state_tables.view_needed")(error)
    assert f"{table.name}_mine" in str(error)
    assert table.rows() == {"J": 2}
    table.query("drop view {t}_mine; commit")
    assert settle(table).failed == {}
    written(monkeypatch, ("tail", "string"), ("n", "long"))
    run_days(world, table.flow(parallelism=1, schema="tail STRING, n BIGINT"), 4)
    assert [table.at(day) for day in (1, 2, 3, 4)] == [{"J": day} for day in (1, 2, 3, 4)]
    assert table.query("select * from {t}") == [("J", 4)]


def test_a_table_of_another_key_is_made_anew(database):  # noqa: F811
    made, days = table_in(database, "keyed"), [At(f"2013010{day}T000000Z", day) for day in (1, 2)]
    put(made, days[0], [("J", 1.0, None), ("J", 2.0, None)], keys=("k", "x"))
    put(made, days[1], [("J", 3.0, None)])
    assert asked(database, "select k, x from keyed") == [("J", 3.0)]
    assert asked(database, "select _epoch, k, x from keyed_at") == [(days[1].epoch, "J", 3.0)]


@pytest.mark.parametrize("first", [1, 5])
def test_a_store_that_is_made_anew_counts_its_checkpoints_from_one(table, tmp_path, monkeypatch, first):  # noqa: F811
    for day in (1, 2):
        run(table, day)
    (tmp_path / "new").mkdir()
    use(monkeypatch, tmp_path / "new")
    other = Table(keeps_state(ReaderWorld(tmp_path / "new", ladder())), table.url, table.name)
    other.world.airflow.engine.plan = {epoch(first): {"X": 5}, epoch(first + 1): {"Y": 6}}
    run(table, 3)
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", AWAY)
    run(other, first)
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", table.url)
    (said,) = settle(other).lines()
    assert said.endswith("; it had those of another deployment)") is (first == 1)
    for day in (first, first + 1):
        run(other, day)
        assert settle(other).failed == {}
        assert other.rows() == other.expected(day)
    assert other.days() == [epoch(first), epoch(first + 1)]


# Other people's objects


def test_the_table_of_versions_alone_is_lost(table):  # noqa: F811
    run(table, 1)
    table.query("drop table weir_state_versions cascade; commit")
    run(table, 2)
    assert settle(table).failed == {}
    assert [table.at(day) for day in (1, 2)] == [table.expected(day) for day in (1, 2)]
    assert table.rows() == table.expected(2)


def test_a_long_load_keeps_no_other_table_waiting(database):  # noqa: F811
    one, other, day = table_in(database, "one"), table_in(database, "other"), At("20130101T000000Z", 1)
    for each in (one, other):
        put(each, day, [("J", 1.0, None)])
    with one.open() as opened:
        opened.prepare(schema(*COLUMNS), ("k",))
        thread = threading.Thread(target=put, args=(other, At("20130102T000000Z", 2), [("J", 2.0, None)]))
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    assert asked(database, "select x from other") == [(2.0,)]


def test_a_column_that_waits_for_a_report_keeps_no_other_reader_waiting(database, monkeypatch):  # noqa: F811
    monkeypatch.setattr(postgres_server, "LOCKS", (2, "500ms", 0.1))

    def widen():
        with made.open() as opened:
            opened.prepare(schema(*COLUMNS, ("y", "long")), ("k",))

    made = table_in(database, "reported")
    put(made, At("20130101T000000Z", 1), [("J", 1.0, None)])
    with closing(psycopg2.connect(database)) as report, report.cursor() as cursor:
        cursor.execute("select * from reported")
        with ThreadPoolExecutor() as threads:
            tried = threads.submit(widen)
            while not tried.done() and not asked(database, "select 1 from pg_locks where not granted"):
                pass
            assert asked(database, "set lock_timeout = '20s'; select x from reported") == [(1.0,)]
            assert isinstance(tried.exception(), TargetAway)
    widen()
    assert asked(database, "select x, y from reported") == [(1.0, None)]


def test_a_name_that_somebody_has_is_refused(database):  # noqa: F811
    asked(database, "create table taken_at (k text)")
    with pytest.raises(Misconfigured, check=of_kind("state_tables.name_taken")):
        put(table_in(database, "taken"), At("20130101T000000Z", 1), [("J", 1.0, None)])
