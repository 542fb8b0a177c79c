"""A result's state changes at one place, which refuses what cannot be and writes down what has been."""

import re
from datetime import UTC, datetime, timedelta
from itertools import count, product
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.builders.ledgers import new_ledger

from weir.execution.partition_state import TRANSITIONS, IllegalTransition, PartitionState
from weir.ledger.database.tables import AttemptRow, ResultEventRow, ResultRow, RunRow
from weir.ledger.ledger import Ledger
from weir.ledger.results import history_of, transition
from weir.ledger.runs import ensure_dataflow

AT = datetime(2026, 1, 1, tzinfo=UTC)
_S = PartitionState
STORED = (_S.FINISHED, _S.LOST, _S.QUARANTINED, _S.RELEASED, _S.SUPERSEDED)
"""The states that the ledger writes down."""

WAY = {_S.FINISHED: (), _S.SUPERSEDED: (_S.RELEASED, _S.SUPERSEDED)}
"""How a result comes to a state; to the others in one step."""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def ledger(request, tmp_path_factory):
    if request.param == "sqlite":
        ledger = new_ledger(tmp_path_factory.mktemp("moves") / "ledger.db")
    else:
        ledger = Ledger.open(request.getfixturevalue("postgres").url("moves"))
    with ledger.transaction("ladder") as session:
        ensure_dataflow(session, "ladder", "s")
        run = RunRow(id="r", dataflow="ladder", epoch="e", interval_start=AT, interval_end=AT, dag_id="d", run_id="r")
        run.task_prefix, run.parameters, run.created_at = "", {}, AT
        session.add(run)
    yield ledger
    ledger.close()
    if request.param == "postgresql":
        request.getfixturevalue("postgres").drop_database("moves")


numbers = count(1)


def result(session):
    """A result that a try has just committed."""
    number = next(numbers)
    name = f"t{number:04d}"
    own = {"run": "r", "region": "clean", "subtask": 0, "task_id": "clean", "map_index": -1, "try_number": number}
    more = {"max_tries": 1, "ti_id": "i", "lineage": 1, "origin": "first", "state": "committed"}
    session.add(AttemptRow(id=name, **own, **more, session_id="", session_url="", began_at=AT, ended_at=AT))
    session.flush()
    row = ResultRow(run="r", stage="clean", subtask=0, layout="plain", attempt=name, is_current=False)
    row.state, row.state_at = _S.FINISHED.value, AT
    row.folder, row.manifest_sha256, row.digest, row.rows, row.bytes, row.versions = name, "", "d", 1, 10, []
    session.add(row)
    session.flush()
    return row


def moved(session, *states):
    row = result(session)
    for minute, state in enumerate(states, 1):
        transition(session, row, state, f"reason {minute}", AT + timedelta(minutes=minute))
    return row


@pytest.mark.parametrize(("now", "to"), product(STORED, PartitionState), ids=lambda state: state.value)
def test_each_pair_of_states_is_moved_or_refused(ledger, now, to):
    with ledger.transaction("ladder") as session:
        row = moved(session, *WAY.get(now, (now,)))
        if to in TRANSITIONS[now]:
            transition(session, row, to, "why", AT + timedelta(hours=1))
            assert (row.state, row.state_reason, row.state_at) == (to.value, "why", AT + timedelta(hours=1))
        else:
            with pytest.raises(IllegalTransition):
                transition(session, row, to, "why", AT + timedelta(hours=1))
            assert row.state == now.value


def test_what_has_become_of_a_result_is_told_in_order(ledger):
    with ledger.transaction("ladder") as session:
        number = moved(session, _S.LOST, _S.FINISHED, _S.RELEASED, _S.SUPERSEDED).id
    with ledger.transaction() as session:
        row = session.get_one(ResultRow, number)
        states = [(each.state, each.at - AT, each.reason) for each in history_of(session, row)]
    assert states == [
        (_S.WRITING, timedelta(0), f"by {row.attempt}"),
        (_S.FINISHED, timedelta(0), "committed"),
        (_S.LOST, timedelta(minutes=1), "reason 1"),
        (_S.FINISHED, timedelta(minutes=2), "reason 2"),
        (_S.RELEASED, timedelta(minutes=3), "reason 3"),
        (_S.SUPERSEDED, timedelta(minutes=4), "reason 4"),
    ]


def test_an_illegal_move_tells_the_whole_story(ledger):
    with ledger.transaction("ladder") as session:
        row = moved(session, _S.LOST, _S.FINISHED, _S.RELEASED)
        with pytest.raises(IllegalTransition) as refused:
            transition(session, row, _S.LOST, "a probe", AT)
    said = str(refused.value)
    assert said.startswith(f"clean[0] (plain) of {row.attempt} in r cannot become lost. Its history: writing since")
    places = [said.index(each) for each in ("writing", "finished", "reason 1", "reason 2", "reason 3")]
    assert places == sorted(places)


def test_a_refused_move_leaves_nothing_behind(ledger):
    with ledger.transaction("ladder") as session:
        row = moved(session, _S.RELEASED)
        with pytest.raises(IllegalTransition):
            transition(session, row, _S.FINISHED, "no", AT)
        number = row.id
    with ledger.transaction() as session:
        assert session.get_one(ResultRow, number).state == _S.RELEASED.value
        events = session.scalars(select(ResultEventRow.state).where(ResultEventRow.result == number)).all()
    assert events == ["released"]


def test_a_move_of_a_transaction_that_is_rolled_back_was_none(ledger):
    with ledger.transaction("ladder") as session:
        number = result(session).id

    def move_and_fail():
        with ledger.transaction("ladder") as session:
            transition(session, session.get_one(ResultRow, number), _S.RELEASED, "why", AT)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        move_and_fail()
    with ledger.transaction() as session:
        assert [each.state for each in history_of(session, session.get_one(ResultRow, number))] == [
            _S.WRITING,
            _S.FINISHED,
        ]


def test_a_reason_may_be_any_text(ledger):
    with ledger.transaction("ladder") as session:
        row = result(session)
        transition(session, row, _S.LOST, "x" * 100_000 + "\0", AT)
        number = row.id
    with ledger.transaction() as session:
        assert len(session.get_one(ResultRow, number).state_reason) == 100_001


def test_nobody_else_changes_a_state():
    """Except where documents of the store become rows, whose histories begin again."""
    root = Path(__file__).parents[3] / "include/weir"
    found = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        for line in file.read_text().splitlines()
        if re.search(r"\b(row|result|old|each)\.state(, \w+\.state_at.*)? = .*PartitionState", line)
    }
    assert found <= {"coordination/importing.py"}
