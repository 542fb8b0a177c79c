"""Which anomalies PostgreSQL allows in transactions of a ledger, and which never happen.

A transaction that writes has READ COMMITTED and the lock of its dataflow; one that only reads has a snapshot.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, select, text

from weir.ledger.database.tables import DataflowRow, RunRow
from weir.ledger.runs import ensure_dataflow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNS = select(func.count(RunRow.id))
LINEAGES = select(DataflowRow.lineage).order_by(DataflowRow.name)


@pytest.fixture
def ledger(empty_postgres_ledger):
    """A ledger with two dataflows."""
    found = empty_postgres_ledger()
    for name in ("ladder", "river"):
        with found.transaction(name) as session:
            ensure_dataflow(session, name, "s")
    return found


def runs_of(dataflow):
    return RUNS.where(RunRow.dataflow == dataflow)


def enter_run(ledger, dataflow, day=1):
    with ledger.transaction(dataflow) as session:
        epoch = f"201301{day:02d}T000000Z"
        row = RunRow(id=f"{dataflow}@{epoch}", dataflow=dataflow, epoch=epoch, dag_id="d", run_id="r", task_prefix="")
        row.interval_start = row.interval_end = row.created_at = NOW
        row.parameters = {}
        session.add(row)


def count_up(ledger, began=None):
    if began is not None:
        began.set()
    with ledger.transaction("ladder") as session:
        session.get_one(DataflowRow, "ladder").lineage += 1


def until_blocked(ledger, future):
    """Wait until a transaction of the ledger waits for the lock of another."""
    query = text("SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0")
    while True:
        assert not future.done(), "it did not wait"
        with ledger.transaction() as session:
            if session.scalar(query):
                return


def test_no_update_is_lost(ledger):
    """The second reads what the first has written, though it asked for its lock before that was committed."""
    with ThreadPoolExecutor() as pool:
        with ledger.transaction("ladder") as session:
            row = session.get_one(DataflowRow, "ladder")
            before, other = row.lineage, pool.submit(count_up, ledger)
            until_blocked(ledger, other)
            row.lineage += 1
        other.result(timeout=60)
    with ledger.transaction() as session:
        assert session.scalar(LINEAGES.limit(1)) == before + 2


def test_a_reader_has_no_read_skew_between_two_dataflows(ledger):
    with ledger.transaction() as reader:
        assert reader.scalar(runs_of("ladder")) == 0
        for dataflow in ("ladder", "river"):
            enter_run(ledger, dataflow)
        assert (reader.scalar(runs_of("river")), reader.scalars(LINEAGES).all()) == (0, [1, 1])


def test_a_reader_that_counts_runs_sees_no_phantom(ledger):
    with ledger.transaction() as reader:
        assert reader.scalar(RUNS) == 0
        enter_run(ledger, "ladder")
        assert reader.scalar(RUNS) == 0


def test_a_writer_that_counts_the_runs_of_its_dataflow_sees_no_phantom(ledger):
    with ThreadPoolExecutor() as pool:
        with ledger.transaction("ladder") as writer:
            assert writer.scalar(runs_of("ladder")) == 0
            other = pool.submit(enter_run, ledger, "ladder")
            until_blocked(ledger, other)
            assert writer.scalar(runs_of("ladder")) == 0
        other.result(timeout=60)


def test_a_writer_sees_what_others_commit_of_other_dataflows_between_its_statements(ledger):
    """So it has to lock what has to stay as it is (`require_retained`), or tell nothing of it."""
    with ledger.transaction("ladder") as writer:
        assert writer.scalar(runs_of("river")) == 0
        enter_run(ledger, "river")
        assert writer.scalar(runs_of("river")) == 1


def test_a_writer_that_locks_a_row_of_another_dataflow_has_no_write_skew_with_its_writer(ledger):
    """Each reads what the other writes: the one that comes second waits, and sees what the first has written."""
    enter_run(ledger, "river")
    kept = select(RunRow.id).where(RunRow.dataflow == "river", RunRow.expired_at.is_(None)).with_for_update(read=True)

    def expire(began):
        with ledger.transaction("river") as session:
            began.set()
            session.scalars(select(RunRow)).one().expired_at = NOW

    with ThreadPoolExecutor() as pool:
        began = threading.Event()
        with ledger.transaction("ladder") as writer:
            assert writer.scalar(kept) is not None
            other = pool.submit(expire, began)
            began.wait(60)
            until_blocked(ledger, other)
            assert writer.scalar(kept) is not None
        other.result(timeout=60)
    with ledger.transaction("ladder") as writer:
        assert writer.scalar(kept) is None
