"""Which runs and attempts a DagRun has made: the same for a row in Python and for a query."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from weir.ledger.attempts import Origin
from weir.ledger.database.tables import NO_DAG, AttemptRow, DataflowRow, RunRow
from weir.ledger.ledger import Ledger
from weir.ledger.runs import set_aside

AT = datetime(2013, 1, 1, tzinfo=UTC)
COMPUTED, RESTORED = "flow@20130102T000000Z", "flow@20130101T000000Z"
ROW = {
    "region": "rows", "subtask": 0, "task_id": "rows", "map_index": -1, "max_tries": 1, "ti_id": "", "lineage": 1,
    "state": "committed", "session_id": "", "session_url": "", "began_at": AT, "waits": 0,
}  # fmt: skip


@pytest.fixture
def session(tmp_path):
    """A restored run, and one that a DagRun computes with tries 1 and 2."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with ledger.transaction("flow") as session:
        session.add(DataflowRow(name="flow", lineage=1, store_id="s"))
        session.flush()
        for run, dag in ((RESTORED, NO_DAG), (COMPUTED, "dag")):
            interval = {"epoch": run.partition("@")[2], "interval_start": AT, "interval_end": AT}
            pinned = {"pinned": None, "parameters": {}, "created_at": AT}
            session.add(RunRow(id=run, dataflow="flow", dag_id=dag, run_id=run, task_prefix="", **interval, **pinned))
        session.flush()
        session.add(AttemptRow(id="t0000-a", run=RESTORED, try_number=0, origin=Origin.RESTORED.value, **ROW))
        session.add(AttemptRow(id="t0001-a", run=COMPUTED, try_number=1, origin=Origin.FIRST.value, **ROW))
        session.add(AttemptRow(id="t0002-a", run=COMPUTED, try_number=2, origin=Origin.RETRY.value, **ROW))
        session.flush()
        yield session
    ledger.close()


def test_a_restored_run_has_no_dag_run(session):
    assert list(session.scalars(select(RunRow.id).where(RunRow.has_dag_run))) == [COMPUTED]
    assert list(session.scalars(select(RunRow.id).where(~RunRow.has_dag_run))) == [RESTORED]
    assert {row.id: row.has_dag_run for row in session.scalars(select(RunRow))} == {COMPUTED: True, RESTORED: False}


def test_tries_of_a_deleted_dag_run_and_restored_attempts_are_none_of_the_dag_runs(session):
    def of_dag_run():
        query = select(AttemptRow.id).where(AttemptRow.is_of_dag_run)
        known = [row.id for row in session.scalars(select(AttemptRow).order_by(AttemptRow.id)) if row.is_of_dag_run]
        assert sorted(session.scalars(query)) == known
        return known

    assert of_dag_run() == ["t0001-a", "t0002-a"]
    set_aside(session, COMPUTED)
    session.expire_all()
    assert of_dag_run() == []
