"""Older ledgers are brought to the present form without losing what they know."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import MetaData, Table, create_engine, select, text

from weir.execution.failure_class import FailureCause
from weir.execution.run_state import ReadResult
from weir.ledger.code import archives_of, equal_versions, generations_of
from weir.ledger.database.migrate import upgrade
from weir.ledger.database.tables import AttemptRow, ConsumptionRow, FailoverRow, ReadSetRow, ResultRow, RunRow
from weir.ledger.housekeeping import is_due, reached
from weir.ledger.ledger import Ledger
from weir.ledger.reads import reads_of
from weir.retention.release_queries import runs_to_release
from weir.topology.regions import PartitionId

RUN = "flow@20130101T000000Z"
NOON = datetime(2013, 1, 2, 12)  # noqa: DTZ001 - in UTC, as SQLite keeps it
READER = {
    "run": RUN, "region": "totals", "task_id": "totals", "try_number": 1, "max_tries": 999, "clear_number": 0,
    "ti_id": "ti", "lineage": 1, "origin": "first", "state": "committed", "session_id": "s", "session_url": "u",
    "began_at": NOON, "waits": 0,
}  # fmt: skip


def insert(connection, table, **values):
    """A row of a table as it is at the present revision."""
    connection.execute(Table(table, MetaData(), autoload_with=connection).insert().values(**values))


@pytest.fixture
def old_ledger(tmp_path):
    """A ledger of revision 0002 in which two subtasks have read the same three partitions."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    engine = create_engine(url)
    upgrade(engine, "0002")
    with engine.begin() as connection:
        insert(connection, "dataflow", name="flow", lineage=1, store_id="store")
        owner = {"dag_id": "dag", "run_id": "run", "task_prefix": "", "parameters": {}, "created_at": NOON}
        interval = {"epoch": "20130101T000000Z", "interval_start": NOON, "interval_end": NOON}
        insert(connection, "run", id=RUN, dataflow="flow", **interval, **owner)
        for subtask in (0, 1):
            attempt = f"t0001-reader{subtask}"
            insert(connection, "attempt", id=attempt, subtask=subtask, map_index=subtask, **READER)
            for read in (2, 0, 1):
                what = {"run": RUN, "stage": "rows", "subtask": read, "layout": "plain"}
                found = {"input_attempt": f"t0001-rows{read}", "digest": f"digest{read}"}
                insert(connection, "consumption", attempt=attempt, argument="totals.rows", **what, **found)
    engine.dispose()
    return url


def test_what_was_read_edge_by_edge_is_kept_by_sets(old_ledger):
    ledger = Ledger.open(old_ledger)
    with ledger.transaction() as session:
        assert session.query(ReadSetRow).count() == 1
        assert session.query(ConsumptionRow).count() == 2
        for subtask in (0, 1):
            assert reads_of(session, f"t0001-reader{subtask}", RUN) == tuple(
                ReadResult(PartitionId("rows", read, "plain"), f"t0001-rows{read}", f"digest{read}")
                for read in (0, 1, 2)
            )
    ledger.close()


def test_what_is_new_is_empty_in_an_old_ledger(old_ledger):
    ledger = Ledger.open(old_ledger)
    with ledger.transaction() as session:
        assert list(session.scalars(select(AttemptRow.labels))) == [None, None]
        new = (ResultRow.made_from, ResultRow.fault, FailoverRow.incident, FailoverRow.labels, FailoverRow.kind)
        assert session.execute(select(*new)).all() == []
    ledger.close()


@pytest.mark.parametrize(
    ("error", "labels", "cause"),
    [
        ("QualityFailed: rows of totals violate 2 expectations", {"type": "fatal"}, FailureCause.REFUSED),
        ("StoreFull: no room", {"type": "environment", "exception": "StoreFull"}, FailureCause.STORE_FULL),
        ("ValueError: not a QualityFailed", {"type": "application", "exception": "ValueError"}, None),
        (None, None, None),
    ],
)
def test_the_cause_of_an_old_failure_is_told_by_its_text_and_label(tmp_path, error, labels, cause):
    url = f"sqlite:///{tmp_path}/ledger.db"
    engine = create_engine(url)
    upgrade(engine, "0006")
    failed = READER | {"state": "failed", "error": error, "labels": labels}
    with engine.begin() as connection:
        insert(connection, "dataflow", name="flow", lineage=1, store_id="store")
        owner = {"dag_id": "dag", "run_id": "run", "task_prefix": "", "parameters": {}, "created_at": NOON}
        interval = {"epoch": "20130101T000000Z", "interval_start": NOON, "interval_end": NOON}
        insert(connection, "run", id=RUN, dataflow="flow", **interval, **owner)
        insert(connection, "attempt", id="t0001-reader", subtask=0, map_index=0, **failed)
    engine.dispose()
    ledger = Ledger.open(url)
    with ledger.transaction() as session:
        assert session.scalar(select(AttemptRow.failure_cause)) == (None if cause is None else cause.value)
    ledger.close()


def test_of_the_code_of_old_runs_nothing_is_known(tmp_path):
    """Their results count as made by one code, and the next task that begins pins the run."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    engine = create_engine(url)
    upgrade(engine, "0010")
    with engine.begin() as connection:
        insert(connection, "dataflow", name="flow", lineage=1, store_id="store")
        owner = {"dag_id": "dag", "run_id": "run", "task_prefix": "", "parameters": {}, "created_at": NOON}
        interval = {"epoch": "20130101T000000Z", "interval_start": NOON, "interval_end": NOON}
        insert(connection, "run", id=RUN, dataflow="flow", **interval, **owner)
        insert(connection, "attempt", id="t0001-reader", subtask=0, map_index=0, **READER)
        found = {"folder": "f", "manifest_sha256": "00", "digest": "d", "rows": 1, "bytes": 1, "state_reason": ""}
        what = {"stage": "totals", "subtask": 0, "layout": "plain", "state": "finished", "state_at": NOON}
        insert(connection, "result", run=RUN, attempt="t0001-reader", is_current=True, **what, **found)
    engine.dispose()
    ledger = Ledger.open(url)
    with ledger.transaction() as session:
        assert session.get_one(RunRow, RUN).archive is None
        attempt = session.get_one(AttemptRow, "t0001-reader")
        assert (attempt.code, attempt.archive, attempt.generation) == (None, None, None)
        assert session.scalars(select(ResultRow.versions)).all() == [None]
        assert generations_of(session, RUN, {"totals"}) == []
        assert archives_of(session, "flow") == equal_versions(session, "flow", "totals") == []
    ledger.close()


def test_a_sweep_of_an_old_ledger_begins_with_the_first_epoch(tmp_path):
    """And its partial indexes hold the rows that were there before."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    engine = create_engine(url)
    upgrade(engine, "0012")
    with engine.begin() as connection:
        insert(connection, "dataflow", name="flow", lineage=1, store_id="store", revision=1, is_behind=False)
        insert(connection, "housekeeping", job="full sweep", scope="flow", done_at=NOON)
        owner = {"dag_id": "dag", "run_id": "run", "task_prefix": "", "parameters": {}, "created_at": NOON}
        interval = {"epoch": "20130101T000000Z", "interval_start": NOON, "interval_end": NOON, "is_record_due": False}
        insert(connection, "run", id=RUN, dataflow="flow", **interval, **owner)
    engine.dispose()
    ledger = Ledger.open(url)
    with ledger.transaction() as session:
        assert reached(session, "full sweep", "flow") is None
        assert not is_due(session, "full sweep", "flow", timedelta(days=1), NOON.replace(tzinfo=UTC))
        assert runs_to_release(session, "flow") == [RUN]
        query = "SELECT id FROM run INDEXED BY runs_to_release WHERE dataflow = 'flow' AND released_at IS NULL"
        assert session.execute(text(query)).scalars().all() == [RUN]
    ledger.close()


def columns_of(engine):
    found = MetaData()
    found.reflect(engine)
    engine.dispose()
    return {table.name: set(table.columns.keys()) for table in found.tables.values()}


def test_a_ledger_of_the_first_revision_gets_the_tables_of_a_new_one(tmp_path):
    """All migrations are one chain: a ledger of any later revision has a part of it before it."""
    old, new = (create_engine(f"sqlite:///{tmp_path}/{name}.db") for name in ("old", "new"))
    upgrade(old, "0001")
    Ledger.open(str(old.url)).close()
    upgrade(new)
    assert columns_of(old) == columns_of(new)
