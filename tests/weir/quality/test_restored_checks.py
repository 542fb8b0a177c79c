"""A restored result is checked by its first reader: nothing is computed from rows that differ from the record."""

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.checking import NOT_NULL, with_suites, write_suite
from tests.weir.restoring import (
    EPOCHS,
    aircraft,
    attempts_of_day,
    checkpoints,
    go_on,
    keep_savepoints,
    record_other_rows,
    restore,
    rows_of,
    run_days,
    second_airflow,
    spoil,
    states_of,
)
from tests.weir.small_dataflow import Saved, World

from weir.dataflow import expectations, keyed_state, list_state
from weir.formats.checks import CheckReason, CheckReport, ExpectationResult
from weir.formats.paths import checkpoint_path
from weir.formats.suite import Severity
from weir.ledger.database.tables import QualityCheckRow
from weir.quality.check_queries import enter_checks
from weir.snapshots.savepoint import SavepointRequest, create, drop
from weir.testing.fakes.engine import FakeEngine


@pytest.fixture(scope="module")
def three_days():
    """Three days, and savepoints of two; the third is computed wrongly since. Each test has a copy of that world."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", aircraft(retained_checkpoints=9))
        run_days(world.airflow, 1, 2, 3)
        keep_savepoints(world, 2, 3)
        world.right = states_of(world, 3)
        spoil(world, 3)
        yield Saved(world, folder / "saved"), world.right


@pytest.fixture
def days(three_days, tmp_path, copied):
    saved, right = three_days
    world = saved.go_on(tmp_path, copied)
    world.right = right
    return world


class Watched(FakeEngine):
    """Keeps the jobs that it was given, by region and subtask, the newest of each run."""

    def __init__(self, engine):
        super().__init__(engine._store, engine._world)
        self.jobs = {}

    def run(self, job, during=lambda: None):
        self.jobs[job.dataflow, job.epoch, job.region, job.subtask] = job
        return super().run(job, during)


def watched(airflow):
    airflow.engine = Watched(airflow.engine)
    return airflow.engine


def restored_in(engine, day, subtask=0, dataflow="ladder"):
    """What the newest attempt of a day was to check, by stage and subtask."""
    job = engine.jobs[dataflow, EPOCHS[day - 1], "aircraft-known", subtask]
    return {(each.stage, each.subtask): each for stage in job.stages for read in stage.inputs for each in read.restored}


def checks(world, **where):
    with world.ledger.transaction() as session:
        query = select(QualityCheckRow).filter_by(**where).order_by(QualityCheckRow.id)
        return list(session.scalars(query))


def told(airflow, day):
    return "\n".join(
        note for task in airflow.tasks.values() if task.key.run_id.endswith(f"-{day:02d}") for note in task.notes
    )


def test_what_was_restored_is_checked_whole_when_it_is_first_read_and_only_then(days):
    engine = watched(days.airflow)
    restore(days, "day3")
    run_days(days.airflow, 4)
    for subtask in (0, 1):
        found = restored_in(engine, 4, subtask)
        (history,) = [each for each in found.values() if each.stage == "history"]
        assert (history.digest, history.subtask) == (days.right["history", subtask], subtask)
        assert history.key_groups == ((0, 63), (64, 127))[subtask]
        assert [file.key_groups for file in history.state.files] == [history.key_groups] * 3
    assert {(row.why, row.outcome) for row in checks(days, suite="weir")} == {("restored", "passed")}
    days.airflow.clear_run_by_hand("scheduled__2013-01-04")
    days.airflow.run_until_quiet()
    assert restored_in(engine, 4) == restored_in(engine, 4, 1) == {}
    assert set(days.airflow.states().values()) == {"success"}


def test_after_a_change_of_parallelism_the_whole_old_partitions_are_checked(days):
    restore(days, "day3")
    days.airflow.flow = aircraft(parallelism=3, retained_checkpoints=9)
    engine = watched(days.airflow)
    run_days(days.airflow, 4)
    old = {(0, 63), (64, 127)}
    asked = [restored_in(engine, 4, subtask) for subtask in range(3)]
    assert {each.key_groups for found in asked for each in found.values() if each.stage == "history"} <= old
    (middle,) = [[each for each in found.values() if each.stage == "history"] for found in asked[1:2]]
    assert {each.key_groups for each in middle} <= old
    assert set(days.airflow.states().values()) == {"success"}


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_restored_result_that_differs_is_not_read_and_another_checkpoint_is_requested(days):
    record_other_rows(days, 3)
    restore(days, "day3")
    before = len(attempts_of_day(days, 3))
    run_days(days.airflow, 4)
    said = told(days.airflow, 4)
    assert "weir_digest_as_recorded" in said
    assert "it was restored from the savepoint" in said
    assert "nothing was restarted: running these tasks again cannot bring the input back, because" in said
    assert f"newer checkpoints are {', '.join(str(number) for number in sorted(checkpoints(days))[1:])}" in said
    assert "savepoints are 4 of epoch" in said
    kept = {epoch: number for number, epoch in checkpoints(days).items()}
    assert f"`weir restore ladder {kept[EPOCHS[2]]}` (epoch {EPOCHS[2]}; --dry-run shows" in said  # not savepoint 4
    assert rows_of(days, 3)[0].state == "quarantined"
    assert len(attempts_of_day(days, 3)) == before  # what a person has restored is not recomputed by itself
    failed = checks(days, outcome="failed")
    assert {(row.stage, row.why, row.suite) for row in failed} == {("history", "restored", "weir")}


def test_runs_continue_from_another_snapshot_that_is_restored(days):
    recorded = record_other_rows(days, 3)
    restore(days, "day3")
    run_days(days.airflow, 4)
    record_other_rows(days, 3, digest=recorded)
    restore(days, "day3")
    days.airflow.clear_run_by_hand("scheduled__2013-01-04")
    go_on(days)
    assert set(days.airflow.states().values()) == {"success"}
    assert states_of(days, 3) == days.right


def test_of_a_checkpoint_that_is_gone_by_now_its_restored_manifest_is_believed(days):
    number = {epoch: number for number, epoch in checkpoints(days).items()}[EPOCHS[1]]
    restore(days, number, fork="new")
    days.store.delete(checkpoint_path("ladder", number))
    other = second_airflow(days, aircraft("new", retained_checkpoints=9))
    engine = watched(other)
    run_days(other, 3)
    found = restored_in(engine, 3, dataflow="new")
    assert sorted(found) == [("history", 0), ("offsets", 0), ("offsets", 1)]  # a list is read whole
    assert found["history", 0].digest == states_of(days, 2)["history", 0]
    assert set(other.states().values()) == {"success"}


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_savepoint_of_the_same_name_is_not_the_one_that_was_restored(days):
    numbers = {epoch: number for number, epoch in checkpoints(days).items()}
    create(days.services, SavepointRequest("ladder", numbers[EPOCHS[2]], name="latest"))
    wanted = states_of(days, 3)
    restore(days, "latest", fork="new")
    drop(days.services, "ladder", "latest")
    create(days.services, SavepointRequest("ladder", numbers[EPOCHS[1]], name="latest"))
    other = second_airflow(days, aircraft("new", retained_checkpoints=9))
    engine = watched(other)
    run_days(other, 4)
    assert restored_in(engine, 4, dataflow="new")["history", 0].digest == wanted["history", 0]


def test_a_restored_result_that_was_verified_is_checked_by_its_first_reader_all_the_same(days):
    restore(days, "day3")
    found = ExpectationResult("weir_rows_as_recorded", {}, Severity.FAIL, success=True)
    with days.ledger.transaction("ladder") as session:
        reports = [
            CheckReport.built_in(
                row.stage,
                row.subtask,
                CheckReason.ASKED,
                row.digest,
                row.rows,
                found,
                run=row.run,
                layout=row.layout,
                attempt=row.attempt,
            )
            for row in rows_of(days, 3)
        ]
        enter_checks(session, "ladder", {reports[0].run: EPOCHS[2]}, "", reports, days.services.now())
    engine = watched(days.airflow)
    run_days(days.airflow, 4)
    assert ("history", 0) in restored_in(engine, 4)


@pytest.fixture
def gated_days(days):
    """The same, but from day 4 on all rows of the state are checked, and the state itself is blamed."""
    write_suite(with_suites(days), "whole", (NOT_NULL, {"meta": {"blames": ["history"]}}))
    gate = expectations("whole", policy="backtrack")
    history = keyed_state("history", key="k", schema="k BIGINT, n BIGINT", quality=gate)
    restore(days, "day3")
    days.airflow.deploy(aircraft(states=(history, list_state("offsets")), retained_checkpoints=9))
    return days


def test_a_gate_that_was_declared_since_is_for_what_was_restored_too(gated_days):
    engine = watched(gated_days.airflow)
    run_days(gated_days.airflow, 4)
    found = restored_in(engine, 4)["history", 0]
    assert [each.suite.name for each in found.checks] == ["whole"]


def test_a_restored_input_is_not_suspected_since_no_attempt_recomputes_it(gated_days):
    gated_days.airflow.engine.violated["history"] = [NOT_NULL]
    run_days(gated_days.airflow, 4)
    assert "the suspected input was restored, and cannot be recomputed" in told(gated_days.airflow, 4)
    assert {row.state for row in rows_of(gated_days, 3)} == {"finished"}
    gated_days.airflow.engine.violated.clear()
    gated_days.airflow.clear_run_by_hand("scheduled__2013-01-04")
    gated_days.airflow.run_until_quiet()
    assert set(gated_days.airflow.states().values()) == {"success"}


def test_a_fork_that_fails_its_checks_names_what_its_origin_keeps(days):
    record_other_rows(days, 3, rows=2)
    restore(days, "day3", fork="new")
    other = second_airflow(days, aircraft("new", retained_checkpoints=9))
    run_days(other, 4)
    said = told(other, 4)
    assert "weir_rows_as_recorded" in said
    assert "restore another one, as another fork" in said
    assert "`weir restore ladder NUMBER --as NAME`" in said
