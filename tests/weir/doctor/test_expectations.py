"""Looking for the suites that dataflows name."""

from datetime import UTC, datetime, timedelta

import pytest

from weir.dataflow import Dataflow, Stage, blocking, expectations, keyed_state, sink, source
from weir.doctor.examination import Status, examine
from weir.doctor.expectations import expectation_checks
from weir.doctor.ledger import LedgerExam
from weir.ledger.database.tables import DataflowRow, RunRow
from weir.testing.fakes.ledgers import new_ledger

SUITE = '{"name": "%s", "expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "k"}}]}'


def looked_at(folder, exam):
    (found,) = examine([expectation_checks(str(folder), exam.suites)])
    return found.status, found.found


def flow(*suites):
    state = keyed_state("known", key="k", schema="k BIGINT", quality=expectations("of_state"))
    stage = Stage("seen", "m:seen", [blocking("raw", by="k")], state=state, quality=[expectations(s) for s in suites])
    return Dataflow("gated", [source("raw", "m:raw"), stage, sink("seen", "rows")])


@pytest.fixture
def exam(tmp_path):
    """A ledger with two runs; the newer one names other suites than the older."""
    ledger, day = new_ledger(tmp_path / "ledger.db"), datetime(2013, 1, 1, tzinfo=UTC)
    with ledger.transaction("gated") as session:
        session.add(DataflowRow(name="gated", lineage=1, store_id="s"))
        session.flush()
        for number, declared in enumerate((flow("old"), flow("rows", "more"))):
            at = day + number * timedelta(days=1)
            more = {"dag_id": "d", "task_prefix": "", "parameters": {}, "created_at": at}
            epoch = {"epoch": f"2013010{number + 1}T000000Z", "interval_start": at, "interval_end": at}
            pinned = declared.to_json()
            session.add(
                RunRow(id=f"gated@{number}", dataflow="gated", run_id=f"r{number}", pinned=pinned, **epoch, **more)
            )
    ledger.close()
    return LedgerExam(f"sqlite:///{tmp_path}/ledger.db")


def test_suites_of_the_newest_run_and_of_its_states_are_looked_for(exam, tmp_path):
    for name in ("rows", "more", "of_state"):
        (tmp_path / f"{name}.json").write_text(SUITE % name)
    assert looked_at(tmp_path, exam) == (Status.OK, f"more, of_state, rows, in {tmp_path}")


def test_one_that_is_missing_or_bad_is_a_problem_and_named(exam, tmp_path):
    (tmp_path / "rows.json").write_text(SUITE % "rows")
    (tmp_path / "more.json").write_text("{}")
    status, said = looked_at(tmp_path, exam)
    assert status is Status.PROBLEM
    assert f"{tmp_path}/of_state.json is not there" in said
    assert "the suite more cannot be used" in said


def test_where_nothing_is_named_nothing_need_be_there(tmp_path):
    exam = LedgerExam(f"sqlite:///{tmp_path}/none.db")
    assert looked_at(tmp_path / "none", exam) == (Status.OK, "no dataflow names one")
    new_ledger(tmp_path / "none.db").close()
    assert looked_at(tmp_path / "none", exam) == (Status.OK, "no dataflow names one")


def test_a_ledger_that_does_not_answer_is_no_fault_of_the_suites(tmp_path):
    (tmp_path / "broken.db").write_bytes(b"no database" * 100)
    assert looked_at(tmp_path, LedgerExam(f"sqlite:///{tmp_path}/broken.db"))[0] is Status.UNKNOWN
