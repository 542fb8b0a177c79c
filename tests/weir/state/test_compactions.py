"""Compactions in the ledger."""

from datetime import UTC, datetime

import pytest
from tests.builders.ledgers import new_ledger

from weir.formats.manifest import DataFile, Segment, StateFile
from weir.ledger.database.tables import RunRow
from weir.ledger.runs import ensure_dataflow
from weir.state.compactions import Compacted, NewCompaction, compaction_rows, compactions_of, enter_compaction

NOW = datetime(2013, 1, 2, tzinfo=UTC)
RUN = "flow@20130101T000000Z"
OF = Compacted("t0001-a", "history", 3)
FILES = (
    StateFile("flow/m0", DataFile("part-0", 7, 2**40, "abc", (Segment(0, 9, "def", key_groups=(0, 4)),)), "e", (0, 4)),
    StateFile("flow/m0", DataFile("part-0", 7, 2**40, "abc", ()), "e", (8, 9)),
)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request, tmp_path):
    if request.param == "sqlite":
        opened = new_ledger(tmp_path / "ledger.db")
    else:
        opened = request.getfixturevalue("empty_postgres_ledger")()
    with opened.transaction("flow") as session:
        ensure_dataflow(session, "flow", "store")
        session.flush()
        session.add(
            RunRow(
                id=RUN,
                dataflow="flow",
                epoch="20130101T000000Z",
                interval_start=NOW,
                interval_end=NOW,
                dag_id="d",
                run_id="r",
                task_prefix="",
                parameters={},
                created_at=NOW,
                pinned=None,
                predecessor=None,
            )
        )
    yield opened
    opened.close()


def new(attempt, files=FILES):
    return NewCompaction(
        of=OF, dataflow="flow", run=RUN, attempt=attempt, files=files, read_bytes=2**41, written_bytes=2**40
    )


def test_what_was_entered_reads_back_as_it_was(ledger):
    with ledger.transaction("flow") as session:
        assert enter_compaction(session, new("c1"), NOW)
    with ledger.transaction() as session:
        assert compactions_of(session, ["t0001-a", "t0001-b"]) == {OF: FILES}
        (row,) = compaction_rows(session, RUN)
        assert (row.read_bytes, row.written_bytes, row.made_at) == (2**41, 2**40, NOW)


def test_the_first_compaction_of_a_partition_stays(ledger):
    with ledger.transaction("flow") as session:
        assert enter_compaction(session, new("c1"), NOW)
        assert not enter_compaction(session, new("c2", FILES[:1]), NOW)
    with ledger.transaction() as session:
        assert compactions_of(session, ["t0001-a"]) == {OF: FILES}


def test_to_enter_one_again_whose_connection_broke_is_to_have_entered_it(ledger):
    for _ in range(2):
        with ledger.transaction("flow") as session:
            assert enter_compaction(session, new("c1"), NOW)
    with ledger.transaction() as session:
        assert len(compaction_rows(session, RUN)) == 1


def test_compactions_of_no_attempts_are_not_looked_up(ledger):
    with ledger.transaction() as session:
        assert compactions_of(session, []) == {}
