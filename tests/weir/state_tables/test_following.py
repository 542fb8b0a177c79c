"""Tables of PostgreSQL that follow the checkpoints of a state: by days, corrections, restores, kills."""

# ruff: noqa: S608

from contextlib import closing

import psycopg2
import pytest
from tests.weir.command_line import use
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import PLAN, epoch, history, keeps_state, run_days
from tests.weir.small_dataflow import ladder

from weir.dataflow import postgres as in_postgres


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
    made.query("drop table if exists {t}_rows cascade")


def test_a_table_has_the_rows_of_each_retained_checkpoint(table):
    for day in (1, 2, 3):
        run_days(table.world, table.flow(retained_checkpoints=2), day)
        assert table.rows() == table.expected(day)
    assert table.days() == [epoch(2), epoch(3)]
    assert [table.at(day) for day in (1, 2, 3)] == [{}, table.expected(2), table.expected(3)]
