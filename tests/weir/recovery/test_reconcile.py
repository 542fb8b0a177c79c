"""What follows from a commit: whose results it makes stale, what is said of it, and what it may not commit at all."""

from collections import Counter

import pytest
from sqlalchemy import select
from tests.weir.restoring import EPOCHS, aircraft, run_days
from tests.weir.small_dataflow import World

from weir.attempts import commit
from weir.errors import Fault, Loss
from weir.formats.manifest import digest_schema
from weir.ledger.database.tables import PendingClearRow, ReadSetRow, ResultRow, RunRow
from weir.ledger.results import record_losses
from weir.recovery.rules.staleness import USUAL_CAUSES
from weir.restarts.strategy import NoRestart


@pytest.fixture
def green(world):
    """A run that has gone through without a fault."""
    world.run = world.run_first(1)
    return world


def rerun_of(world, before):
    return dict(Counter(world.airflow.executed(world.run)) - Counter(before))


def rows_of(world, stage):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(ResultRow).where(ResultRow.stage == stage, ResultRow.is_current)))


def notes(world):
    with world.ledger.transaction() as session:
        return [row.reason for row in session.scalars(select(PendingClearRow))]


def test_content_that_changes_and_changes_back_leaves_everything_valid_over_three_re_runs(green):
    for content in ("new", "newer", None):
        green.content["weather"] = content
        green.airflow.clear_by_hand(green.run, "weather")
        green.airflow.run_until_quiet()
        assert set(green.airflow.states().values()) == {"success"}
    assert all(row.state == "finished" for row in rows_of(green, "delays"))
    with green.ledger.transaction() as session:
        digests = [row.digest for row in session.scalars(select(ResultRow).where(ResultRow.stage == "delays"))]
    assert digests[0] == digests[-1] != digests[1]


def test_a_stage_that_gives_other_content_of_equal_inputs_is_called_not_deterministic(green):
    (first,) = rows_of(green, "weather")
    green.content["weather"] = "by chance"  # the fake engine's code and inputs are the same all the same
    green.airflow.clear_by_hand(green.run, "weather")
    green.airflow.run_until_quiet()
    (second,) = rows_of(green, "weather")
    assert second.differs_from == first.attempt
    assert second.made_from == first.made_from
    said = [note for note in notes(green) if "not deterministic" in note]
    assert said
    assert USUAL_CAUSES in said[0]


def test_what_all_subtasks_read_is_written_down_once(green):
    with green.ledger.transaction() as session:
        sets = [row.members for row in session.scalars(select(ReadSetRow))]
    # joined reads clean and weather, totals and routes read joined, report reads totals and routes; then close.
    assert len(sets) == len({str(members) for members in sets}) == 6


def test_a_subtask_with_other_columns_than_its_siblings_commits_nothing(green):
    green.content["schema of totals"] = "other"
    before = [row.attempt for row in rows_of(green, "totals")]
    green.airflow.clear_by_hand(green.run, "totals", 1)
    green.airflow.run_until_quiet()
    task = green.airflow.task(green.run, "totals", 1)
    assert task.state == "failed"
    assert "Clear the whole stage totals" in task.notes[-1]
    assert [row.attempt for row in rows_of(green, "totals")] == before


def test_other_columns_are_changed_content_where_the_whole_stage_runs_again(green):
    green.content["schema of totals"] = "other"
    before = green.airflow.executed(green.run)
    for index in (0, 1):
        green.airflow.clear_by_hand(green.run, "totals", index)
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}
    # Its reader was finished when the first of the two committed, and both have changed.
    assert set(rerun_of(green, before)) >= {"totals[0]", "totals[1]", "report-delays[0]"}
    assert {digest_schema(row.digest) for row in rows_of(green, "totals")} == {"other"}


def damaged(world, stage, subtask):
    (row,) = [row for row in rows_of(world, stage) if row.subtask == subtask]
    return Loss(row.run, stage, subtask, row.layout, row.attempt, Fault.DAMAGED, "a flipped bit")


@pytest.mark.parametrize(("fault", "tries"), [(Fault.DAMAGED, 2), (Fault.MISSING, 1)])
def test_what_was_read_of_damaged_bytes_is_not_committed_and_what_only_went_away_is(green, fault, tries):
    """Another consumer finds the fault while this one computes."""
    before = green.airflow.executed(green.run)

    def strike(key):
        green.airflow.during = lambda _key: None
        with green.ledger.transaction("ladder") as session:
            loss = damaged(green, "joined", 0)
            record_losses(session, [Loss(*_fields(loss), fault, "found by another")], green.airflow.time)

    green.airflow.during = strike
    green.airflow.clear_by_hand(green.run, "routes")
    green.airflow.run_until_quiet()
    assert set(green.airflow.states().values()) == {"success"}
    assert rerun_of(green, before)["routes[0]"] >= tries
    with green.ledger.transaction() as session:
        read = session.scalars(select(ResultRow).where(ResultRow.stage == "joined", ResultRow.subtask == 0)).all()
    assert len(read) == tries


def _fields(loss):
    return loss.run, loss.stage, loss.subtask, loss.layout, loss.attempt


def test_a_subtask_whose_process_is_about_to_end_has_its_columns(world):
    run = world.airflow.dag_run()

    def another_version_meanwhile(key):
        world.airflow.after_commit = lambda _key: None
        world.content["schema of clean"] = "other"
        world.airflow.step(world.airflow.task(run, key.task_id, 1))

    world.airflow.after_commit = another_version_meanwhile
    world.airflow.step(world.airflow.task(run, "raw-clean", 0))
    late = world.airflow.task(run, "raw-clean", 1)
    assert late.state == "failed"
    assert "Clear the whole stage clean" in late.notes[-1]


def test_of_two_subtasks_that_commit_other_columns_at_once_one_begins_anew(world, monkeypatch):
    run = world.airflow.dag_run()
    compare = commit.require_equal_schemas

    def and_the_other_one_is_faster(*arguments):
        unlike = compare(*arguments)
        monkeypatch.setattr(commit, "require_equal_schemas", compare)
        world.content["schema of clean"] = "other"
        world.airflow.step(world.airflow.task(run, "raw-clean", 1))
        del world.content["schema of clean"]
        return unlike

    monkeypatch.setattr(commit, "require_equal_schemas", and_the_other_one_is_faster)
    late = world.airflow.task(run, "raw-clean", 0)
    world.airflow.step(late)
    assert late.state == "up_for_retry"
    world.airflow.step(late)
    assert "Clear the whole stage clean" in late.notes[-1]


def test_a_day_is_closed_again_once_the_day_before_is_as_it_was_read(tmp_path):
    """A task of it had committed while the day before was repaired."""
    (tmp_path / "store").mkdir()
    days = World(tmp_path, aircraft())
    run_days(days.airflow, 1, 2, 3)
    days.content["flights"] = "other"
    compute(days, 2, "flights")
    del days.content["flights"]
    compute(days, 3, "flights")
    assert not is_closed(days, 3)
    compute(days, 2, "flights")
    days.airflow.run_until_quiet()
    assert all(is_closed(days, day) for day in (1, 2, 3))
    assert days.airflow.task("scheduled__2013-01-03", "aircraft-known", 0).try_number == 1


@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_day_that_is_open_since_the_repair_of_the_day_before_has_failed_is_no_success(tmp_path, opened):
    """It waits for nothing that Weir would clear in it but its closing task, which waits, and closes it in the end."""
    days = three_days(tmp_path)
    days.airflow.during = lambda key: fail_in(key, SECOND, "aircraft-known")
    days.content["flights"] = "other"
    compute(days, 2, "flights")
    del days.content["flights"]
    if opened == "before":
        compute(days, 3, "flights")
        assert (is_closed(days, 3), days.airflow.state_of(THIRD)) == (False, "success")
    else:
        days.airflow.run_until_quiet()
        assert (is_closed(days, 3), days.airflow.state_of(THIRD)) == (True, "success")
        compute(days, 3, "flights")
    run_until_waiting(days)
    require_waiting(days, f"aircraft-known[0] of {SECOND_ID} has failed for good")

    days.airflow.during = lambda _key: None
    days.airflow.clear_by_hand(SECOND, "aircraft-known")
    days.airflow.run_until_quiet()
    assert all(is_closed(days, day) for day in (1, 2, 3))
    assert set(days.airflow.states().values()) == {"success"}


def test_a_day_whose_input_was_given_up_is_no_success_where_what_makes_it_has_not_begun(tmp_path):
    """The DagRun of the day before was deleted, and created again; what has failed in it is not what is read."""
    days = three_days(tmp_path)
    days.airflow.during = lambda key: fail_in(key, SECOND, "flights")
    days.airflow.delete(SECOND)
    days.airflow.dag_run(2)
    days.airflow.run_until_quiet()
    assert (is_closed(days, 3), days.airflow.state_of(THIRD)) == (True, "success")
    compute(days, 3, "flights")
    run_until_waiting(days)
    require_waiting(days, f"flights[0] of {SECOND_ID} has failed for good")


def test_a_day_that_is_only_marked_is_left_to_a_person_where_the_day_before_fails(tmp_path):
    days = three_days(tmp_path, on_reprocess="mark")
    days.airflow.during = lambda key: fail_in(key, SECOND, "aircraft-known")
    days.content["flights"] = "other"
    compute(days, 2, "flights")
    del days.content["flights"]
    compute(days, 3, "flights")
    days.airflow.run_until_quiet()
    assert (is_closed(days, 3), days.airflow.state_of(THIRD)) == (False, "success")


SECOND, THIRD, SECOND_ID = "scheduled__2013-01-02", "scheduled__2013-01-03", f"ladder@{EPOCHS[1]}"


def three_days(folder, **more):
    (folder / "store").mkdir()
    days = World(folder, aircraft(parallelism=1, **more))
    run_days(days.airflow, 1, 2, 3)
    days.airflow.strategy = NoRestart()
    return days


def fail_in(key, run, task):
    if (key.run_id, key.task_id) == (run, task):
        raise ValueError("the function raises")


def run_until_waiting(world):
    with pytest.raises(AssertionError, match="no end after 20 tries"):
        world.airflow.run_until_quiet(20)


def require_waiting(world, why):
    """Require that the third day waits for the second, which has failed, and that its closing task was cleared once."""
    assert [world.airflow.state_of(run) for run in (SECOND, THIRD)] == ["failed", "running"]
    assert not is_closed(world, 3)
    closing = world.airflow.task(THIRD, "weir_close")
    assert (closing.state, closing.try_number) == ("up_for_reschedule", 2)
    assert [note for note in notes(world) if why in note] == [f"weir: {why}, and this run is no longer closed"]


def compute(world, day, task):
    """Compute one task again, and nothing else."""
    run = f"scheduled__2013-01-{day:02d}"
    world.airflow.clear_by_hand(run, task)
    world.airflow.step(world.airflow.task(run, task))


def is_closed(world, day):
    with world.ledger.transaction() as session:
        return session.get_one(RunRow, f"ladder@{EPOCHS[day - 1]}").closed_at is not None
