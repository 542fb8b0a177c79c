"""Tables of PostgreSQL that follow the checkpoints of a state: by days, corrections, restores, kills."""

# ruff: noqa: S608

import io
import random
from contextlib import closing, contextmanager

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import use
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days
from tests.weir.small_dataflow import ladder

from weir.coordination.settled import Due
from weir.dataflow import files
from weir.dataflow import postgres as in_postgres
from weir.errors import Misconfigured, Retryable
from weir.formats.manifest import StateFile
from weir.integrity.tables import table_inconsistencies
from weir.ledger.checkpoints import retained_checkpoints
from weir.ledger.database.tables import ResultRow, RunRow
from weir.settling import Settling
from weir.snapshots.restore import RestoreRequest, restore
from weir.state.compactions import Compacted, NewCompaction, enter_compaction
from weir.state.file_rules import epoch_seconds
from weir.state.state_files import Shape, newest, read_rows
from weir.state_tables import postgres as module
from weir.store.probe import read_manifest
from weir.store.seal import seal

STORED = pa.schema(
    [("tail", pa.string()), ("n", pa.int64()), ("_weir_key_group", pa.int32()), ("_weir_deleted", pa.bool_())]
)


@pytest.fixture(scope="module")
def database(postgres):
    return postgres.url("tables").replace("+psycopg2", "")


class Table:
    """The world that keeps a state, and its table as somebody else reads it."""

    def __init__(self, world, url, name):
        self.world, self.url, self.name = world, url, name

    def flow(self, *given, **more):
        return history(*given, table=in_postgres("tables", self.name), **more)

    def query(self, statement):
        with closing(psycopg2.connect(self.url)) as db, db, db.cursor() as cursor:
            cursor.execute(statement.replace("{t}", self.name))
            return cursor.fetchall() if cursor.description else None

    def rows(self):
        return dict(self.query("select tail, n from {t}"))

    def at(self, day):
        return dict(self.query(f"select tail, n from {{t}}_at where _epoch = '{epoch(day)}'"))

    def days(self):
        return sorted(day for (day,) in self.query("select distinct _epoch from {t}_at"))

    def segments(self):
        found = self.query(f"select epoch, segments from weir_state_versions where name = '{self.name}' order by epoch")
        return {day: tuple(segments) for day, segments in found}

    def expected(self, day):
        return {k: n for k, (n, _) in self.world.airflow.engine.rows_at(epoch(day))}


@pytest.fixture
def table(request, tmp_path, monkeypatch, database):
    use(monkeypatch, tmp_path)
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", database)
    name = f"s_{abs(hash(request.node.nodeid)) % 10**8}"
    made = Table(keeps_state(ReaderWorld(tmp_path, ladder())), database, name)
    yield made
    assert verified(made) == []
    made.query("drop table if exists {t}_rows cascade")


KEYS = [f"N{number}" for number in range(8)]


def settle(table):
    return Settling(table.world.services, lambda: table.world.airflow).settle("ladder", Due(tables=True))


def run(table, day, **more):
    run_days(table.world, table.flow(**more), day)


def verified(table, *days):
    """What is wrong with the rows of the table; `days` are compared, otherwise all."""
    with table.world.ledger.transaction() as session:
        runs = list(session.scalars(select(RunRow.id).where(RunRow.dataflow == "ladder")))
    runs = [each for each in runs if not days or each.endswith(tuple(map(epoch, days)))]
    return [(each.detail, each.mend) for each in table_inconsistencies(table.world.services, runs)]


def correct(table, day, changes):
    """Have a person change what a day says, and clear its run."""
    table.world.airflow.engine.plan[epoch(day)] = changes
    table.world.airflow.clear_run_by_hand(f"scheduled__2013-01-{day:02d}")
    table.world.airflow.run_until_quiet()


def test_a_table_has_the_rows_of_each_retained_checkpoint(table):
    for day in (1, 2, 3):
        run(table, day, retained_checkpoints=2)
        assert table.rows() == table.expected(day)
    assert table.days() == [epoch(2), epoch(3)]
    assert [table.at(day) for day in (1, 2, 3)] == [{}, table.expected(2), table.expected(3)]


def test_an_epoch_writes_what_it_has_changed_and_what_is_hidden_goes_with_its_checkpoint(table):
    for day in (1, 2, 3):
        run(table, day)
    assert table.query("select _weir_segment, count(*) from {t}_rows group by 1 order by 1") == [(1, 6), (2, 3), (3, 2)]
    assert table.segments() == {epoch(1): (1,), epoch(2): (1, 2), epoch(3): (1, 2, 3)}
    run(table, 4, retained_checkpoints=1)
    assert table.segments() == {epoch(4): (1,)}
    assert table.query("select count(*) from {t}_rows") == [(len(table.expected(4)),)]
    assert table.rows() == table.expected(4)


@pytest.mark.parametrize("retained", [2, 9])
def test_no_reader_sees_two_epochs_or_half_a_correction(table, monkeypatch, retained):
    answers, days = [], range(1, 5)

    def poll(*_):
        if table.query("select to_regclass('{t}') is not null") == [(True,)]:
            answers.append(tuple(sorted(table.rows().items())))

    def executing(opened, statement, **values):
        usual(opened, statement, **values)
        poll()

    usual = module.OpenTable._execute
    monkeypatch.setattr(module.OpenTable, "_execute", executing)
    table.world.airflow.during = table.world.airflow.after_commit = poll
    table.world.airflow.engine.plan = {epoch(day): dict.fromkeys(KEYS, 10 * day) for day in days}
    for day in days:
        run(table, day, retained_checkpoints=retained)
    for day in range(max(days) - min(retained, 3) + 1, max(days) + 1):
        correct(table, day, dict.fromkeys(KEYS, 10 * day + 1))
    seen = []
    for rows in answers:
        (number,) = {n for _, n in rows}
        assert [k for k, _ in rows] == KEYS
        if number not in seen[-1:]:
            seen.append(number)
    assert seen == [10, 20, 30, 40, 41]


class Killed(BaseException):
    """The process ends here."""


AWAY = "postgresql://nobody@127.0.0.1:9/nothing"


@pytest.mark.parametrize("where", ["statement", "commit"])
def test_a_process_that_is_killed_anywhere_leaves_whole_epochs_and_any_other_goes_on(table, monkeypatch, where):
    """Before each statement, and after each commit."""
    for day in (1, 2):
        run(table, day, retained_checkpoints=1)
    table.world.airflow.engine.plan[epoch(3)] = {"N1": "deleted", "N9": 9}
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", AWAY)
    run(table, 3, retained_checkpoints=1)
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", table.url)
    execute, opened_by, counted = module.OpenTable._execute, module.PostgresStateTable.open, []
    before, after, most = table.rows(), table.expected(3), [0]

    def count():
        counted.append(where)
        if len(counted) > most[0]:
            raise Killed

    def executing(opened, statement, **values):
        if where == "statement":
            count()
        execute(opened, statement, **values)

    @contextmanager
    def opening(table):
        with opened_by(table) as opened:
            yield opened
        if where == "commit":
            count()

    is_through = False
    while not is_through:
        counted.clear()
        with monkeypatch.context() as patched:
            patched.setattr(module.OpenTable, "_execute", executing)
            patched.setattr(module.PostgresStateTable, "open", opening)
            try:
                settle(table)
                is_through = True
            except Killed:
                assert table.rows() in (before, after)
                most[0] += 1
    assert most[0] > {"statement": 15, "commit": 0}[where]
    assert table.rows() == after
    assert table.query("select count(*) from {t}_rows") == [(len(after),)]


def test_a_database_that_is_away_keeps_no_run_from_its_end_and_upkeep_says_so(table, monkeypatch):
    run(table, 1)
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", AWAY)
    run(table, 2)
    run(table, 3)
    assert table.world.airflow.state_of("scheduled__2013-01-03") == "success"
    (error,) = settle(table).failed.values()
    assert isinstance(error, Retryable)
    assert table.rows() == table.expected(1)
    monkeypatch.setenv("AIRFLOW_CONN_TABLES", table.url)
    assert settle(table).lines() == [
        f"ladder.history, its table: {table.name} has checkpoint 3 of {epoch(3)} now (2 applied)"
    ]
    assert [table.at(day) for day in (1, 2, 3)] == [table.expected(day) for day in (1, 2, 3)]
    assert settle(table).lines() == []


def test_rows_expire_by_the_time_of_epochs_and_are_deleted_at_last(table):
    for day in (1, 2, 3):
        run(table, day, ttl="2 days")
    engine = table.world.airflow.engine
    until = {day: epoch_seconds(epoch(day)) - 2 * 86_400 for day in (1, 2, 3)}

    def left(day):
        return {k: n for k, (n, updated) in engine.rows_at(epoch(day)) if epoch_seconds(epoch_of(k, day)) > until[day]}

    def epoch_of(key, day):
        return max(each for each in engine.plan if each <= epoch(day) and key in engine.plan[each])

    assert [table.at(day) for day in (1, 2, 3)] == [left(day) for day in (1, 2, 3)]
    assert set(table.at(3)) == {"N1", "N3", "N7"}
    engine.plan |= {epoch(day): {} for day in (4, 5, 6)}
    for day in (4, 5, 6):
        run(table, day, ttl="2 days", retained_checkpoints=1)
    assert table.rows() == {}
    assert table.query("select count(*) from {t}_rows") == [(0,)]


def test_a_change_of_parallelism_and_a_state_that_is_written_whole_add_what_differs(table):
    run(table, 1)
    run(table, 2, parallelism=3)
    assert table.query("select _weir_segment, count(*) from {t}_rows group by 1 order by 1") == [(1, 6), (2, 3)]
    assert [table.at(day) for day in (1, 2)] == [table.expected(day) for day in (1, 2)]


def test_changes_are_found_behind_a_compaction(table):
    run(table, 1)
    run(table, 2)
    compact(table.world, 2)
    run(table, 3)
    assert table.query("select _weir_segment, count(*) from {t}_rows group by 1 order by 1") == [(1, 6), (2, 3), (3, 2)]
    assert [table.at(day) for day in (1, 2, 3)] == [table.expected(day) for day in (1, 2, 3)]


def compact(world, day):
    """Merge the files of a day's partitions into one each, as the task of the compaction does."""
    services = world.services
    with services.ledger.transaction() as session:
        rows = [row for row in session.scalars(select(ResultRow)) if row.run == f"ladder@{epoch(day)}"]
        states = [(row, read_manifest(services.store, row.folder)) for row in rows if row.stage == "history"]
    attempt = services.compaction_attempt_id()
    for row, manifest in states:
        folder = f"{row.folder.rpartition('/')[0]}/{attempt}"
        own = [read_rows(services.store, each, STORED, each.key_groups) for each in manifest.state.files]
        merged = newest(own, Shape(pa.schema(list(STORED)[:2]), ("tail",), None))
        buffer = io.BytesIO()
        pq.write_table(merged, buffer, row_group_size=2, write_page_checksum=True)
        services.store.create(f"{folder}/part-0.zstd.parquet", buffer.getvalue())
        groups = manifest.state.files[0].key_groups
        (file,) = seal(services.store, folder)
        new = NewCompaction(
            of=Compacted(row.attempt, "history", row.subtask),
            dataflow="ladder",
            run=row.run,
            attempt=attempt,
            files=(StateFile(folder, file, epoch(day), groups),),
            read_bytes=1,
            written_bytes=1,
        )
        with services.ledger.transaction("ladder") as session:
            assert enter_compaction(session, new, services.now())


def test_a_restore_opens_a_branch_and_later_epochs_follow_it(table):
    for day in (1, 2, 3):
        run(table, day)
    restore(table.world.services, RestoreRequest("ladder", "1"))
    table.world.airflow.engine.plan[epoch(2)] = {"N1": 100}
    table.world.airflow.deliver_clears("ladder")
    correct(table, 2, {"N1": 100})
    assert [table.at(day) for day in (1, 2, 3)] == [table.expected(day) for day in (1, 2, 3)]
    assert table.rows() == table.expected(3)


def test_a_lost_file_that_is_made_again_changes_no_row(table):
    for day in (1, 2):
        run(table, day)
    before = table.segments()
    with table.world.ledger.transaction() as session:
        rows = [row for row in session.scalars(select(ResultRow)) if row.run.endswith(epoch(2))]
        folder = next(row.folder for row in rows if row.stage == "history" and row.subtask == 1)
    (own,) = [each for each in read_manifest(table.world.store, folder).state.files if each.epoch == epoch(2)]
    table.world.store.delete(own.path)
    table.world.run(3)
    table.world.airflow.release("ladder")
    settle(table)
    with table.world.ledger.transaction() as session:
        made_again = [row.number for row in retained_checkpoints(session, "ladder") if row.epoch == epoch(2)]
    assert made_again != [2]
    assert [table.at(day) for day in (1, 2, 3)] == [table.expected(day) for day in (1, 2, 3)]
    assert table.segments().keys() == {*before, epoch(3)}


def test_a_table_that_somebody_has_dropped_is_made_again(table):
    run(table, 1)
    table.query("drop table {t}_rows cascade; create view {t} as select 1 as one; commit")
    (error,) = settle(table).failed.values()
    assert of_kind("state_tables.name_taken")(error)
    table.query("drop view {t}; commit")
    assert settle(table).failed == {}
    run(table, 2)
    assert [table.at(day) for day in (1, 2)] == [table.expected(day) for day in (1, 2)]
    table.query("drop view {t}; commit")
    run(table, 3)
    assert table.rows() == table.expected(3)


UNFIT = {
    "sinks.postgres_value_unfit": "a\0b",
    "sinks.postgres_refused": random.Random(1).randbytes(4000).hex(),
}


@pytest.mark.parametrize(("kind", "key"), UNFIT.items(), ids=["NUL", "long"])
def test_a_row_that_postgresql_cannot_hold_keeps_the_table_at_the_checkpoint_before(table, key, kind):
    run(table, 1)
    table.world.airflow.engine.plan[epoch(2)] = {key: 2}
    run(table, 2)
    (error,) = settle(table).failed.values()
    assert of_kind(kind)(error)
    assert table.rows() == table.expected(1)
    table.world.airflow.engine.plan[epoch(3)] = {key: "deleted"}
    run(table, 3, retained_checkpoints=1)
    assert table.rows() == table.expected(3)


def test_a_table_has_one_state(table):
    run(table, 1)
    table.query("update weir_state_tables set owner = 'other.state' where name = '{t}'; commit")
    run(table, 2)
    (error,) = settle(table).failed.values()
    assert of_kind("state_tables.owned_by_another", other="other.state")(error)
    assert table.rows() == table.expected(1)
    table.query("update weir_state_tables set owner = 'ladder.history' where name = '{t}'; commit")
    settle(table)


def test_the_table_of_a_state_is_one_of_postgresql_and_nothing_else():
    for given in (in_postgres("a", "b", mode="append"), files("/lake/a"), in_postgres("a", "b", create="if_missing")):
        with pytest.raises(Misconfigured, check=of_kind("dataflow.state_table_unfit")):
            history(table=given)
    with pytest.raises(Misconfigured, check=of_kind("dataflow.state_table_name_too_long")):
        history(table=in_postgres("a", "b" * 60))
