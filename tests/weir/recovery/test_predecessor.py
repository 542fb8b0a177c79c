"""An epoch before that never was: its DagRun was deleted in Airflow, and nothing of it had been committed."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.restoring import EPOCHS, aircraft, states_of

from weir.errors import Conflict, Misconfigured, Retryable
from weir.formats.codec import from_json
from weir.formats.paths import record_path
from weir.formats.run_record import RunRecord
from weir.ledger.database.tables import RunRow
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.adopt import adopt
from weir.testing.fakes.airflow import Killed

AIRCRAFT = "aircraft-known"


@pytest.fixture
def days(world):
    """Days of a dataflow with state, and Airflow's queued runs that no scheduler starts, as while a DAG is paused."""
    world.airflow.deploy(aircraft())
    world.airflow.start = lambda _dag, run: "queued" if run in world.airflow.queued else "running"
    return world


LOOKS = 8
"""So often in a row tasks that wait have looked in vain: they only wait, then."""


def rest(days):
    """Run until all tasks only wait: for minutes, with nothing else in between."""
    looks = 0
    while looks < LOOKS and (ready := days.airflow._ready()) is not None:
        days.airflow.time = max(days.airflow.time, ready.not_before or days.airflow.time)
        days.airflow.step(ready)
        looks = looks + 1 if ready.state == "up_for_reschedule" else 0


def predecessors(days):
    with days.ledger.transaction() as session:
        return dict(session.execute(select(RunRow.epoch, RunRow.predecessor)).all())


def is_green(days, run):
    return {task.state for key, task in days.airflow.tasks.items() if key.run_id == run} == {"success"}


@pytest.fixture
def waiting(days):
    """The third day waits for the second, which is queued and has never begun; answers both runs."""
    days.airflow.dag_run(1)
    rest(days)
    second, third = days.airflow.dag_run(2, is_queued=True), days.airflow.dag_run(3)
    rest(days)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[1]
    assert days.airflow.task(third, AIRCRAFT, 0).state == "up_for_reschedule"
    return second, third


def test_an_epoch_goes_on_from_the_one_before_a_run_that_never_began_and_was_deleted(days, waiting):
    second, third = waiting
    days.airflow.delete(second)
    rest(days)
    assert is_green(days, third)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[0]
    assert set(days.airflow.executed(third).values()) != {1}  # it waited before


def test_later_epochs_look_no_further_back_because_of_a_run_that_was_given_up(days, waiting):
    second, _ = waiting
    days.airflow.delete(second)
    rest(days)
    for day in (4, 5):
        newest = days.airflow.dag_run(day)
        rest(days)
    assert is_green(days, newest)
    with days.ledger.transaction() as session:
        assert set(run_state(session, run_by_id(session, f"ladder@{EPOCHS[4]}")).earlier) == {f"ladder@{EPOCHS[3]}"}


def test_as_long_as_airflow_has_the_run_that_never_began_it_is_awaited(days, waiting):
    _, third = waiting
    rest(days)
    assert not is_green(days, third)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[1]


def test_where_airflow_does_not_say_whether_it_has_the_run_nothing_is_given_up(days, waiting):
    second, _ = waiting
    days.airflow.delete(second)
    days.airflow.exists = lambda _dag, _run: None
    rest(days)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[1]


def test_the_days_after_it_go_on_too_and_keep_what_was_known(days, waiting):
    second, third = waiting
    days.airflow.delete(second)
    rest(days)
    fourth = days.airflow.dag_run(4)
    rest(days)
    assert is_green(days, fourth)
    assert predecessors(days)[EPOCHS[3]] == EPOCHS[2]
    assert states_of(days, 3).keys() == states_of(days, 1).keys()


def test_several_deleted_runs_in_a_row_are_given_up(days):
    days.airflow.dag_run(1)
    rest(days)
    runs = [days.airflow.dag_run(day, is_queued=True) for day in (2, 3)]
    fourth = days.airflow.dag_run(4)
    days.airflow.queued.discard(runs[1])
    rest(days)  # the third began, so that the ledger knows the second; nothing of it was committed but its source
    for run in runs:
        days.airflow.delete(run)
    adopt(days.services, f"ladder@{EPOCHS[2]}")
    rest(days)
    assert is_green(days, fourth)
    assert predecessors(days)[EPOCHS[3]] == EPOCHS[0]


def begun_and_killed(days):
    """The second day's source begins, and its process is killed before it commits; answers the run."""

    def dies(_key):
        raise Killed

    second = days.airflow.dag_run(2)
    days.airflow.during = dies
    days.airflow.step(days.airflow.task(second, "flights"))
    days.airflow.during = lambda _key: None
    return second


def test_a_run_that_began_and_committed_nothing_before_it_was_deleted_is_given_up(days):
    days.airflow.dag_run(1)
    rest(days)
    second = begun_and_killed(days)
    third = days.airflow.dag_run(3)
    days.airflow.queued.add(second)
    rest(days)
    days.airflow.delete(second)
    rest(days)
    assert is_green(days, third)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[0]


def committed_and_deleted(days):
    """The second day has committed its source when its DagRun is deleted; the third awaits it."""
    days.airflow.dag_run(1)
    rest(days)
    second = days.airflow.dag_run(2)
    days.airflow.step(days.airflow.task(second, "flights"))
    days.airflow.queued.add(second)
    third = days.airflow.dag_run(3)
    rest(days)
    days.airflow.delete(second)
    rest(days)
    return third


def test_a_run_that_has_committed_results_is_not_given_up_and_the_error_names_the_command(days):
    third = committed_and_deleted(days)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[1]
    task = days.airflow.task(third, AIRCRAFT, 0)
    assert task.state == "failed"
    commands = re.findall("`weir (.+?)`", task.notes[-1])
    day = "2013-01-02T00:00:00+00:00"
    assert commands == [
        f"airflow backfill create --dag-id dag --from-date {day} --to-date {day}",
        f"run adopt ladder@{EPOCHS[1]}",
    ]


def test_a_day_whose_dagrun_was_deleted_and_came_again_is_in_the_state_of_later_ones(days):
    """The first command of the error loses nothing."""
    third = committed_and_deleted(days)
    again = days.airflow.dag_run(2, kind="backfill")
    days.airflow._previous = lambda run_id: previous_of(days, run_id)
    rest(days)
    days.airflow.clear_run_by_hand(third)
    rest(days)
    assert is_green(days, again)
    assert is_green(days, third)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[1]


def test_adopting_a_deleted_run_gives_it_up_and_the_next_epoch_goes_on_from_the_one_before(days):
    third = committed_and_deleted(days)
    adopt(days.services, f"ladder@{EPOCHS[1]}")
    days.airflow.clear_run_by_hand(third)
    rest(days)
    assert is_green(days, third)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[0]


def test_later_epochs_await_one_that_has_failed_for_good_and_go_on_once_a_person_has_helped_it(days):
    third = committed_and_deleted(days)
    fourth = days.airflow.dag_run(4)
    rest(days)
    failed, waiting = (days.airflow.task(run, AIRCRAFT, 0) for run in (third, fourth))
    tries = len(failed.runs)
    assert (failed.state, waiting.state, waiting.try_number) == ("failed", "up_for_reschedule", 1)
    both = ", ".join(f"{AIRCRAFT}[{subtask}] of ladder@{EPOCHS[2]}" for subtask in (0, 1))
    assert (
        waiting.waits_on == f"waiting for {both}: {both} failed for good; look at the log, correct the cause, clear it"
    )
    adopt(days.services, f"ladder@{EPOCHS[1]}")
    days.airflow.clear_run_by_hand(third)
    rest(days)
    assert is_green(days, third)
    assert is_green(days, fourth)
    assert (len(failed.runs), waiting.try_number) == (tries + 1, 1)


def test_adopting_the_run_that_waits_helps(days, waiting):
    second, third = waiting
    days.airflow.delete(second)
    adopt(days.services, f"ladder@{EPOCHS[2]}")
    days.airflow.clear_run_by_hand(third)
    rest(days)
    assert is_green(days, third)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[0]


def test_a_run_that_was_created_again_is_awaited_under_its_new_id(days, waiting):
    second, third = waiting
    days.airflow.delete(second)
    again = days.airflow.dag_run(2, is_queued=True, kind="manual")
    days.airflow._previous = lambda run_id: previous_of(days, run_id)
    rest(days)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[1]
    days.airflow.queued.discard(again)
    rest(days)
    assert is_green(days, again)
    assert is_green(days, third)


def begun_and_deleted(days):
    """The second day is pinned and has committed nothing when its DagRun is deleted; the third knows it.

    A run with other parameters is created in its place. Answers both runs.
    """
    days.airflow.deploy(aircraft(parameters={"p": "old"}))
    days.airflow.dag_run(1)
    rest(days)
    second = begun_and_killed(days)
    days.airflow.queued.add(second)
    third = days.airflow.dag_run(3)
    days.airflow.step(days.airflow.task(third, "flights"))
    days.airflow.delete(second)
    days.airflow.deploy(aircraft(parameters={"p": "new"}))
    return days.airflow.dag_run(2, is_queued=True, kind="manual"), third


def test_a_run_that_was_created_again_is_pinned_with_its_own_parameters(days):
    again, third = begun_and_deleted(days)
    days.airflow._previous = lambda run_id: previous_of(days, run_id)
    rest(days)
    assert run_row(days, 2).run_id == again
    assert run_row(days, 2).pinned is None  # it was handed over before the new run began
    days.airflow.queued.discard(again)
    rest(days)
    assert is_green(days, again)
    assert is_green(days, third)
    assert run_row(days, 2).parameters == {"p": "new"}
    assert set(days.airflow.executed(again).values()) == {1}  # no try of the deleted run stood in the way


def test_a_run_that_was_created_again_has_the_interval_and_the_tasks_of_the_new_one(days):
    again, third = begun_and_deleted(days)
    days.airflow._previous = lambda run_id: shorter(previous_of(days, run_id))
    days.airflow.step(days.airflow.task(third, AIRCRAFT, 0))
    row = run_row(days, 2)
    assert row.run_id == again
    assert row.interval_end - row.interval_start == timedelta(hours=12)


def test_a_run_that_was_given_up_and_created_again_is_handed_over_where_a_later_run_is_pinned(days, waiting):
    second, third = waiting
    days.airflow.delete(second)
    days.airflow.delete(third)
    days.airflow._previous = lambda run_id: shorter(previous_of(days, run_id))
    adopt(days.services, f"ladder@{EPOCHS[2]}")
    third = days.airflow.dag_run(3)
    days.airflow.step(days.airflow.task(third, "flights"))
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[0]
    again = days.airflow.dag_run(2, is_queued=True, kind="manual")
    days.airflow.delete(third)
    adopt(days.services, f"ladder@{EPOCHS[2]}")
    third = days.airflow.dag_run(3)
    days.airflow.step(days.airflow.task(third, "flights"))
    row = run_row(days, 2)
    assert (predecessors(days)[EPOCHS[2]], row.run_id) == (EPOCHS[1], again)
    assert row.interval_end - row.interval_start == timedelta(hours=12)


def shorter(previous):
    """The run before, which lasts half a day: a person has created it by hand."""
    if previous is None:
        return None
    return replace(previous, interval=(previous.interval[0], previous.interval[0] + timedelta(hours=12)))


def run_row(days, day):
    with days.ledger.transaction() as session:
        return session.get_one(RunRow, f"ladder@{EPOCHS[day - 1]}")


def previous_of(days, run_id):
    """Airflow's answer where runs of several kinds are mixed: the newest earlier one by its day."""
    from weir.ledger.runs import PreviousRun
    from weir.testing.fakes.dag import interval_of

    start = interval_of(run_id)[0]
    runs = {key.run_id for key in days.airflow.tasks}
    earlier = [each for each in runs if interval_of(each)[0] < start]
    newest = max(earlier, key=interval_of, default=None)
    return None if newest is None else PreviousRun("dag", newest, interval_of(newest))


def test_a_run_of_a_dag_that_was_renamed_is_given_up_where_airflow_knows_that_dag_no_more(days, waiting):
    second, third = waiting
    with days.ledger.transaction("ladder") as session:
        session.get_one(RunRow, f"ladder@{EPOCHS[1]}").dag_id = "former"
    days.airflow.delete(second)
    exists = days.airflow.exists
    days.airflow.exists = lambda dag, run: None if dag == "former" else exists(dag, run)
    rest(days)
    assert is_green(days, third)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[0]


def test_a_run_of_a_dag_that_was_renamed_is_awaited_under_the_new_name_where_its_run_has_the_same_id(days, waiting):
    second, third = waiting
    with days.ledger.transaction("ladder") as session:
        session.get_one(RunRow, f"ladder@{EPOCHS[1]}").dag_id = "former"
    exists = days.airflow.exists
    days.airflow.exists = lambda dag, run: None if dag == "former" else exists(dag, run)
    rest(days)
    assert run_row(days, 2).dag_id == "dag"
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[1]
    days.airflow.queued.discard(second)
    rest(days)
    assert is_green(days, second)
    assert is_green(days, third)


@pytest.fixture(params=[Misconfigured, Retryable])
def unanswered(days, request):
    """The third day knows the second, which is queued, and Airflow does not say whether it exists; answers both."""
    second, third = days.airflow.dag_run(2, is_queued=True), days.airflow.dag_run(3)
    days.airflow.step(days.airflow.task(third, "flights"))

    def refuses(_dag, _run):
        raise request.param("403: the account may not see the DAG, or no answer at all")

    days.airflow.exists = refuses
    return second, third


def test_a_begin_goes_on_and_waits_where_airflow_does_not_answer_about_the_run_before(days, unanswered):
    second, third = unanswered
    days.airflow.step(days.airflow.task(third, AIRCRAFT, 0))
    assert days.airflow.task(third, AIRCRAFT, 0).state == "up_for_reschedule"
    assert (run_row(days, 2).run_id, run_row(days, 2).deleted_at) == (second, None)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[1]


def test_a_run_of_a_renamed_dag_is_not_given_up_where_airflow_does_not_answer_about_it(days, unanswered):
    _, third = unanswered
    with days.ledger.transaction("ladder") as session:
        session.get_one(RunRow, f"ladder@{EPOCHS[1]}").dag_id = "former"
    days.airflow.step(days.airflow.task(third, AIRCRAFT, 0))
    assert (run_row(days, 2).dag_id, run_row(days, 2).deleted_at) == ("former", None)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[1]


def test_a_process_that_has_seen_the_run_before_it_was_deleted_begins_anew(days, waiting):
    second, third = waiting
    request = days.airflow.request(days.airflow.task(third, AIRCRAFT, 0))
    days.airflow.delete(second)
    with pytest.raises(Conflict, check=of_kind("recovery.dag_run_deleted")):
        days.airflow.coordinator.begin(request, days.airflow)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[1]


def test_the_record_in_the_store_names_the_new_epoch_before_and_abandons_no_attempt(days, waiting):
    second, _ = waiting
    days.airflow.delete(second)
    rest(days)
    record = from_json(RunRecord, days.store.read(record_path("ladder", EPOCHS[2])))
    assert (record.predecessor, record.abandoned) == (EPOCHS[0], ())


def test_a_run_that_comes_after_all_once_a_later_epoch_has_gone_on_is_refused(days, waiting):
    second, _ = waiting
    days.airflow.delete(second)
    rest(days)
    late = days.airflow.dag_run(2, kind="manual")
    request = days.airflow.request(days.airflow.task(late, "flights"))
    with pytest.raises(Misconfigured, match="comes too late"):
        days.airflow.coordinator.begin(request, days.airflow)


def test_a_first_epoch_never_takes_a_missing_state_for_an_empty_one(days):
    first = days.airflow.dag_run(1, is_queued=True)
    second, third = days.airflow.dag_run(2, is_queued=True), days.airflow.dag_run(3)
    rest(days)
    days.airflow.delete(second)  # the ledger knows no first day yet, but Airflow does
    rest(days)
    assert predecessors(days)[EPOCHS[2]] == EPOCHS[0]
    days.airflow.queued.discard(first)
    rest(days)
    assert is_green(days, third)
