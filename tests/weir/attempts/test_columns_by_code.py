"""Other columns by other code: one clear has the whole stage computed anew, and no reader finds two schemas."""

import pytest
from sqlalchemy import select

from weir.attempts import commit
from weir.errors import Misconfigured
from weir.formats.manifest import digest_schema
from weir.ledger.database.code_tables import SameCodeRow
from weir.ledger.database.tables import AttemptRow, PendingClearRow, ResultRow
from weir.testing.fakes.code import archive_of_edits


def deploy(world, **edits):
    world.airflow.deployed = archive_of_edits(world.airflow.flow, edits)


@pytest.fixture
def green(world):
    """A run that has gone through with the first code."""
    deploy(world)
    world.run = world.run_first(1)
    return world


def with_other_columns(world, stage, **edits):
    world.content[f"schema of {stage}"] = "other"
    deploy(world, **edits)


def current(world, stage):
    with world.ledger.transaction() as session:
        query = select(ResultRow.digest, ResultRow.versions).where(ResultRow.stage == stage, ResultRow.is_current)
        return [(digest_schema(digest), tuple(versions)) for digest, versions in session.execute(query)]


def test_one_clear_with_code_of_other_columns_has_the_whole_stage_computed_with_it(green):
    before = green.airflow.executed(green.run)
    with_other_columns(green, "totals", totals=1)
    green.airflow.clear_by_hand(green.run, "totals", 1)
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}
    after = green.airflow.executed(green.run)
    assert {each for each in after if after[each] > before[each]} >= {"totals[0]", "totals[1]", "report-delays[0]"}
    [columns] = set(current(green, "totals"))
    assert columns[0] == "other"


def test_a_reader_that_runs_before_the_siblings_waits_for_them(green):
    with_other_columns(green, "totals", totals=1)
    green.airflow.clear_by_hand(green.run, "totals", 1)
    green.airflow.step(green.airflow.task(green.run, "totals", 1))
    assert {columns for columns, _ in current(green, "totals")} == {"other", "k"}
    reader = green.airflow.task(green.run, "report-delays")
    green.airflow.clear_by_hand(green.run, "report-delays")
    green.airflow.step(reader)
    assert reader.state == "up_for_reschedule"
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}


def test_the_clears_of_the_siblings_are_owed_in_the_transaction_of_the_commit(green):
    with_other_columns(green, "totals", totals=1)
    green.airflow.clear_by_hand(green.run, "totals", 1)
    green.airflow.after_commit = lambda _key: setattr(green.airflow, "reachable", False)
    green.airflow.step(green.airflow.task(green.run, "totals", 1))
    with green.ledger.transaction() as session:
        owed = select(PendingClearRow.region, PendingClearRow.subtask).where(PendingClearRow.settled_at.is_(None))
        assert ("totals", 0) in session.execute(owed).all()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_fixed_function_finishes_a_stage_that_had_failed_with_one_clear(world):
    deploy(world)
    run = world.airflow.dag_run()

    def broken(key):
        if key.task_id == "totals" and key.map_index == 1:
            raise Misconfigured("a bug")

    world.airflow.during = broken
    world.airflow.run_until_quiet()
    assert world.airflow.task(run, "totals", 1).state == "failed"
    world.airflow.during = lambda _key: None
    with_other_columns(world, "totals", totals=1)
    world.airflow.clear_by_hand(run, "totals", 1)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert {columns for columns, _ in current(world, "totals")} == {"other"}


def refused(world):
    task = world.airflow.task(world.run, "totals", 1)
    assert task.state == "failed"
    assert "Clear the whole stage totals" in task.notes[-1]
    assert {columns for columns, _ in current(world, "totals")} == {"k"}


def test_other_columns_by_the_same_code_are_refused(green):
    green.content["schema of totals"] = "other"
    green.airflow.clear_by_hand(green.run, "totals", 1)
    green.airflow.run_until_quiet()
    refused(green)


def test_other_columns_by_code_that_was_declared_equal_are_refused(green):
    [(_, (old,))] = set(current(green, "totals"))
    before = green.airflow.deployed
    with_other_columns(green, "totals", totals=1)
    green.airflow.clear_by_hand(green.run, "totals", 1)

    def declare(key):
        with green.ledger.transaction("ladder") as session:
            [new] = session.scalars(
                select(AttemptRow.code).where(AttemptRow.code != old, AttemptRow.region == "totals")
            )
            now = green.airflow.now()
            session.add(SameCodeRow(dataflow="ladder", stage="totals", one=old, other=new, declared_at=now))
        green.airflow.during = lambda _key: None

    assert before != green.airflow.deployed
    green.airflow.during = declare
    green.airflow.run_until_quiet()
    refused(green)


def test_code_that_is_older_by_the_time_of_its_commit_begins_again(green, monkeypatch):
    """Its sibling has other columns by newer code: that is no reason to fail for good."""
    green.airflow.clear_by_hand(green.run, "totals", 1)
    compare = commit.require_equal_schemas

    def and_newer_code_is_faster(*arguments):
        monkeypatch.setattr(commit, "require_equal_schemas", compare)
        with_other_columns(green, "totals", totals=1)
        green.airflow.clear_by_hand(green.run, "totals", 0)
        green.airflow.step(green.airflow.task(green.run, "totals", 0))
        return compare(*arguments)

    monkeypatch.setattr(commit, "require_equal_schemas", and_newer_code_is_faster)
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}
    assert {columns for columns, _ in current(green, "totals")} == {"other"}
