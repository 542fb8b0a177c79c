"""Which runs and attempts a DagRun has made, and which epochs are known: the same for a row and for a query."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from weir.execution.cadence import Cadence, KnownEpoch
from weir.ledger.attempts import Origin
from weir.ledger.database.tables import NO_DAG, AttemptRow, DataflowRow, RunRow
from weir.ledger.ledger import Ledger
from weir.ledger.runs import known_epochs, set_aside

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


EPOCHS = (  # the day, what it is pinned to, whether its DagRun was deleted, and whether it had one
    (2, {"zone": "Asia/Kolkata", "cadence": "PT86400S", "stages": []}, False, "dag"),
    (3, None, True, "dag"),
    (4, None, False, "dag"),
    (5, {"zone": "UTC"}, True, "dag"),
    (6, {"cadence": "0 0 * * *"}, False, "dag"),
    (7, {"cadence": "0 0 * * *"}, False, NO_DAG),
)


@pytest.fixture(params=["sqlite", "postgresql"])
def days(request, tmp_path):
    """Epochs of January: with a cadence, given up, not begun, without a cadence, without a zone, and restored."""
    sqlite = f"sqlite:///{tmp_path}/ledger.db"
    ledger = Ledger.open(sqlite if request.param == "sqlite" else request.getfixturevalue("new_postgres_url")())
    with ledger.transaction("flow") as session:
        session.add(DataflowRow(name="flow", lineage=1, store_id="s"))
        session.flush()
        for number, pinned, is_deleted, dag in reversed(EPOCHS):
            start, epoch = AT.replace(day=number), f"201301{number:02d}T000000Z"
            end = start if dag == NO_DAG else AT.replace(day=number + 1)
            row = RunRow(id=f"flow@{epoch}", dataflow="flow", epoch=epoch, interval_start=start, interval_end=end)
            row.dag_id, row.run_id, row.task_prefix, row.pinned, row.parameters = dag, epoch, "", pinned, {}
            row.created_at, row.deleted_at = AT, AT if is_deleted else None
            session.add(row)
        session.flush()
        yield session
    ledger.close()


def known(number, cadence=None, **facts):
    return KnownEpoch(AT.replace(day=number), AT.replace(day=number + 1), cadence, **facts)


def test_the_epochs_that_have_begun_or_were_given_up_are_known_with_their_cadences(days):
    daily = Cadence("0 0 * * *", "UTC")
    found = [
        known(2, Cadence("PT86400S", "Asia/Kolkata")),
        known(3, is_given_up=True),
        known(5),
        known(6, daily),
        known(7, daily),  # its end is that of its cadence
    ]
    assert known_epochs(days, "flow", AT.replace(day=8)) == found
    assert known_epochs(days, "flow", AT.replace(day=7)) == found[:4]  # day 7 has not ended
    assert known_epochs(days, "flow", AT.replace(day=7), most=2) == found[2:4]
    assert known_epochs(days, "flow", AT.replace(day=7), since=AT.replace(day=3)) == found[1:4]
    assert known_epochs(days, "other", AT.replace(day=8)) == []
