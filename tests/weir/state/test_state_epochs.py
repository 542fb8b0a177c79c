"""The epochs of a dataflow with state: their order, several in flight, and what follows when one is recomputed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.restoring import files_of, keep_savepoints, restore, second_airflow
from tests.weir.small_dataflow import Saved, World

from weir.attempts.waiting import WaitingAttempts
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.errors import Misconfigured
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.ledger.runs import epoch_of
from weir.recovery import predecessor
from weir.recovery.adopt import adopt
from weir.recovery.questions import Question, apply_answer, ask
from weir.recovery.rules.plan import StepKind
from weir.recovery.rules.standing import Stand
from weir.recovery.standing import Asked, standing_of

EPOCHS = tuple(f"201301{day:02d}T000000Z" for day in range(1, 8))
STATE = keyed_state("history", key="k", schema="k BIGINT, n BIGINT")


def aircraft(parallelism=1, state=STATE, **more):
    """Each day's flights change the history of the aircraft."""
    aircraft = Stage(
        "aircraft", "p:aircraft", [blocking("flights", by="k")], parallelism=parallelism, state=state or ()
    )
    stages = [source("flights", "p:flights"), aircraft, sink("aircraft", "known")]
    return Dataflow("ladder", stages, **{"keep": "60 days", "retained_checkpoints": 9, **more})


@pytest.fixture
def days(world):
    world.airflow.deploy(aircraft())
    return world


FLOWS = {
    "cascades": (aircraft(), {f"history in {EPOCHS[2]}": "nothing is left of the days before"}),
    "marks": (aircraft(on_reprocess="mark"), {}),
    "forgets": (aircraft(retained_checkpoints=2), {}),
}


@pytest.fixture(scope="module")
def five_days():
    """Five days of each dataflow, computed once; of the one that marks the second was corrected since."""
    with fast_folder() as folder:
        saved = {name: of_five_days(folder / name, *made) for name, made in FLOWS.items()}
        yield lambda name, to: going_on(saved[name], to)


def of_five_days(folder, flow, content):
    (folder / "world" / "store").mkdir(parents=True)
    world = World(folder / "world", flow)
    world.content.update(content)
    runs = run_days(world, 1, 2, 3, 4, 5)
    told = runs, executed(world), digests(world)
    if flow.on_reprocess.value == "mark":
        world.content["flights"] = "corrected"
        world.airflow.clear_by_hand(runs[1], "flights")
        world.airflow.run_until_quiet()
    return Saved(world, folder / "saved"), told


def going_on(saved, folder):
    found, told = saved
    world = found.go_on(folder)
    world.runs, world.before, world.old = told
    return world


def run_days(world, *days):
    return world.run_days(*days)


def digests(world, stage="history"):
    """By epoch, the digests of what is current, and whether all of it is there and valid."""
    with world.ledger.transaction() as session:
        rows = session.scalars(
            select(ResultRow).where(ResultRow.stage == stage, ResultRow.is_current).order_by(ResultRow.folder)
        )
        return {row.folder.split("/")[1]: row.digest for row in rows}


def state_of(world, day, subtask=0):
    with world.ledger.transaction() as session:
        row = session.scalar(
            select(ResultRow).where(
                ResultRow.run == f"ladder@{EPOCHS[day - 1]}",
                ResultRow.stage == "history",
                ResultRow.subtask == subtask,
                ResultRow.is_current,
            )
        )
        folder = row.folder
    return from_json(Manifest, world.store.read(f"{folder}/manifest.json"))


def executed(world):
    return {
        f"{key.run_id[-2:]}/{key.task_id}": len(set(task.runs))
        for key, task in world.airflow.tasks.items()
        if key.task_id != "weir_close"
    }


def since(world, before):
    now = executed(world)
    return {task: now[task] - before.get(task, 0) for task in now if now[task] != before.get(task, 0)}


def is_whole(world):
    with world.ledger.transaction() as session:
        closed = [row.closed_at is not None for row in session.scalars(select(RunRow))]
    return all(closed) and set(world.airflow.states().values()) == {"success"}


def step(world, run, task):
    world.airflow.step(world.airflow.task(run, task))


def error_of(world, run, task):
    found = world.airflow.task(run, task)
    return found.notes[-1] if found.state == "failed" else f"not failed, but {found.state}"


# The order of epochs


def test_days_that_are_in_flight_together_go_on_from_the_state_of_the_day_before(days):
    runs = {day: days.airflow.dag_run(day) for day in (1, 2, 3)}
    for day in (3, 1, 2):
        step(days, runs[day], "flights")
    step(days, runs[3], "aircraft-known")
    step(days, runs[2], "aircraft-known")
    assert {days.airflow.task(runs[day], "aircraft-known").state for day in (2, 3)} == {"up_for_reschedule"}
    days.airflow.run_until_quiet()
    assert is_whole(days)
    assert [file.epoch for file in state_of(days, 3).state.files] == list(EPOCHS[:3])


def test_the_state_of_an_epoch_is_awaited_and_not_its_end(days):
    first, second = days.airflow.dag_run(1), days.airflow.dag_run(2)
    for run in (first, second):
        step(days, run, "flights")
        step(days, run, "aircraft-known")
    assert days.airflow.task(first, "weir_close").state is None
    assert days.airflow.task(second, "aircraft-known").state == "success"


def test_a_close_waits_for_a_day_before_of_which_a_task_is_cleared_and_has_not_begun(days):
    (first,) = run_days(days, 1)
    second = days.airflow.dag_run(2)
    for task in ("flights", "aircraft-known"):
        step(days, second, task)
    days.content["flights"] = "corrected"
    days.airflow.clear_by_hand(first, "flights")
    step(days, first, "flights")
    assert days.airflow.task(first, "aircraft-known").state is None
    assert days.airflow.task(first, "weir_close").state == "success"
    step(days, second, "weir_close")
    assert days.airflow.task(second, "weir_close").state == "up_for_reschedule"
    days.airflow.run_until_quiet()
    assert is_whole(days)


def test_a_day_that_later_ones_have_gone_on_without_is_refused(days):
    run_days(days, 1, 3)
    before = digests(days)
    late = days.airflow.dag_run(2)
    days.airflow.run_until_quiet()
    told = error_of(days, late, "flights")
    assert f"epoch {EPOCHS[1]} of dataflow ladder comes too late" in told
    assert f"epoch {EPOCHS[2]} (run scheduled__2013-01-03) has gone on from the state of epoch {EPOCHS[0]}" in told
    assert digests(days) == before


def test_a_day_before_the_first_is_refused(days):
    run_days(days, 3)
    early = days.airflow.dag_run(1)
    days.airflow.run_until_quiet()
    assert f"epoch {EPOCHS[2]} (run scheduled__2013-01-03) is the first of all" in error_of(days, early, "flights")
    with days.ledger.transaction() as session:
        assert list(session.scalars(select(RunRow.epoch))) == [EPOCHS[2]]


def test_a_day_that_was_left_out_is_put_in_by_adopting_the_next_one(days):
    one, three = run_days(days, 1, 3)
    late = days.airflow.dag_run(2)
    days.airflow.run_until_quiet()
    adopt(days.services, three)
    days.airflow.clear_run_by_hand(late)
    days.airflow.clear_run_by_hand(three)
    days.airflow.run_until_quiet()
    assert is_whole(days)
    assert [file.epoch for file in state_of(days, 3).state.files] == list(EPOCHS[:3])
    assert one


def test_a_later_day_that_was_deleted_does_not_hinder_earlier_days(days):
    (third,) = run_days(days, 3)
    days.airflow.delete(third)
    with days.ledger.transaction("ladder") as session:
        session.get_one(RunRow, f"ladder@{EPOCHS[2]}").deleted_at = days.services.now()
    run_days(days, 1, 2)
    assert is_whole(days) or set(days.airflow.states().values()) == {"success"}
    days.airflow.dag_run(3, kind="manual")
    days.airflow.run_until_quiet()
    assert is_whole(days)
    assert [file.epoch for file in state_of(days, 3).state.files] == list(EPOCHS[:3])


def test_a_day_that_is_created_again_while_it_is_given_up_is_not_left_out(days, monkeypatch):
    def begin_first():
        task = days.airflow.task(days.airflow.dag_run(1), "flights")
        task.state, task.try_number = "running", 1
        return days.airflow.coordinator.begin(days.airflow.request(task), days.airflow)

    begin_first()
    days.airflow.delete("scheduled__2013-01-01")
    give_up, begun = predecessor._give_up, []

    def asleep(*args):
        monkeypatch.setattr(predecessor, "_give_up", give_up)
        begun.append(begin_first())
        give_up(*args)

    monkeypatch.setattr(predecessor, "_give_up", asleep)
    step(days, days.airflow.dag_run(2), "flights")
    days.airflow.coordinator.commit(begun[0], days.airflow.engine.run(begun[0].job), days.airflow)
    days.airflow.task("scheduled__2013-01-01", "flights").state = "success"
    days.airflow.run_until_quiet()
    assert is_whole(days)
    assert [file.epoch for file in state_of(days, 2).state.files] == list(EPOCHS[:2])


def test_a_backfill_that_runs_backwards_is_refused_and_one_that_runs_forwards_is_not(days):
    first = days.airflow.dag_run(1, is_queued=True, kind="backfill")
    second = days.airflow.dag_run(2, kind="backfill")
    step(days, second, "flights")
    told = error_of(days, second, "flights")
    assert f"run {second} of DAG dag is of a backfill that runs backwards ({first} is queued after it)" in told
    for run in (first, second):
        days.airflow.delete(run)
    days.airflow.queued.clear()
    days.airflow.dag_run(1, kind="backfill")
    days.airflow.dag_run(2, kind="backfill", is_queued=True)
    days.airflow.run_until_quiet()
    days.airflow.queued.clear()
    days.airflow.run_until_quiet()
    assert is_whole(days)


def test_a_backfill_that_runs_backwards_is_nothing_to_a_dataflow_without_state(days):
    days.airflow.deploy(aircraft(state=None))
    days.airflow.dag_run(1, is_queued=True, kind="backfill")
    days.airflow.dag_run(2, kind="backfill")
    days.airflow.run_until_quiet()
    days.airflow.queued.clear()
    days.airflow.run_until_quiet()
    assert is_whole(days)


def test_a_run_whose_interval_has_no_length_is_refused_only_where_there_is_state(days):
    run = days.airflow.dag_run(1)
    task = days.airflow.task(run, "flights")
    task.try_number = 1
    request = days.airflow.request(task)
    at = request.interval[0] + timedelta(hours=7)
    moment = replace(request, interval=(at, at))
    with pytest.raises(Misconfigured, check=of_kind("ledger.interval_empty", at="2013-01-01 07:00")):
        days.airflow.coordinator.begin(moment, days.airflow)
    with days.ledger.transaction() as session:
        assert session.scalars(select(RunRow)).all() == []
    stateless = replace(moment, dataflow=aircraft(state=None))
    with pytest.raises(
        Misconfigured, check=of_kind("ledger.interval_wrong")
    ):  # a timetable that has promised intervals
        days.airflow.coordinator.begin(replace(stateless, schedule="OfEvents"), days.airflow)
    begun = days.airflow.coordinator.begin(stateless, days.airflow)
    assert begun.run.epoch == "20130101T070000Z"


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        (datetime(2013, 1, 2, tzinfo=UTC), datetime(2013, 1, 1, tzinfo=UTC), of_kind("ledger.interval_wrong")),
        (datetime(2013, 1, 1), datetime(2013, 1, 2), of_kind("ledger.interval_without_zone")),  # noqa: DTZ001
        (
            datetime(1, 1, 1, tzinfo=ZoneInfo("Asia/Kolkata")),
            datetime(1, 1, 3, tzinfo=UTC),
            of_kind("ledger.interval_out_of_range"),
        ),
        (
            datetime(9999, 12, 31, tzinfo=UTC),
            datetime.max.replace(tzinfo=timezone(-timedelta(hours=9))),
            of_kind("ledger.interval_out_of_range"),
        ),
    ],
)
def test_a_data_interval_that_is_none_is_refused_before_anything_is_registered(days, start, end, says):
    task = days.airflow.task(days.airflow.dag_run(1), "flights")
    task.try_number = 1
    request = replace(days.airflow.request(task), interval=(start, end), dataflow=aircraft(state=None))
    with pytest.raises(Misconfigured, check=says):
        days.airflow.coordinator.begin(request, days.airflow)
    with days.ledger.transaction() as session:
        assert session.scalars(select(RunRow)).all() == []


def test_keys_of_epochs_are_in_the_order_of_time_as_texts():
    days = [datetime(year, 1, 1, tzinfo=UTC) for year in (1, 999, 1000, 2013, 9999)]
    keys = [epoch_of(day) for day in days]
    assert keys == sorted(keys)
    assert {len(key) for key in keys} == {16}


# Recomputed


@pytest.fixture
def cascading(five_days, tmp_path):
    """Five days of a dataflow that cascades; what the third leaves does not depend on the days before."""
    return five_days("cascades", tmp_path)


def test_an_epoch_that_is_made_again_goes_on_from_the_state_of_the_one_before(cascading):
    cascading.airflow.clear_by_hand(cascading.runs[1], "aircraft-known")
    cascading.airflow.run_until_quiet()
    assert since(cascading, cascading.before) == {"02/aircraft-known": 1}
    assert digests(cascading) == cascading.old
    assert is_whole(cascading)


def test_a_changed_state_is_followed_by_all_later_epochs_in_order(cascading):
    cascading.content["flights"] = "corrected"
    cascading.airflow.clear_by_hand(cascading.runs[2], "flights")
    cascading.content.pop(f"history in {EPOCHS[2]}")
    cascading.airflow.run_until_quiet()
    days = {f"{day}/aircraft-known": 1 for day in ("03", "04", "05")}
    assert since(cascading, cascading.before) == {"03/flights": 1, **days}
    new = digests(cascading)
    assert {epoch for epoch in new if new[epoch] != cascading.old[epoch]} == set(EPOCHS[2:5])
    assert is_whole(cascading)


def test_a_cascade_stops_at_the_first_epoch_whose_state_comes_out_equal(cascading):
    cascading.content["flights"] = "corrected"
    cascading.airflow.clear_by_hand(cascading.runs[1], "flights")
    cascading.airflow.run_until_quiet()
    assert since(cascading, cascading.before) == {"02/flights": 1, "02/aircraft-known": 1, "03/aircraft-known": 1}
    new = digests(cascading)
    assert {epoch for epoch in new if new[epoch] != cascading.old[epoch]} == {EPOCHS[1]}
    assert is_whole(cascading)


# Only marked


@pytest.fixture
def marked(five_days, tmp_path):
    """Five days of a dataflow that marks; the second was corrected since."""
    return five_days("marks", tmp_path)


def test_where_later_epochs_are_only_marked_nothing_of_them_runs(marked):
    assert since(marked, marked.before) == {"02/flights": 1, "02/aircraft-known": 1}
    assert digests(marked)[EPOCHS[1]] != marked.old[EPOCHS[1]]
    with marked.ledger.transaction() as session:
        closed = {row.epoch: row.closed_at is not None for row in session.scalars(select(RunRow))}
    assert closed == {epoch: epoch != EPOCHS[2] for epoch in EPOCHS[:5]}


def test_the_plan_of_a_marked_run_says_what_runs_again_and_does_it(marked):
    answer = ask(marked.services, Question(f"ladder@{EPOCHS[2]}"))
    assert [str(step.region) for step in answer.plan.of(StepKind.RERUN)] == ["aircraft-known[0]"]
    assert "an input of its producer has changed since" in answer.plan.of(StepKind.RERUN)[0].reason
    assert apply_answer(marked.services, answer) == 1
    marked.airflow.deliver_clears("ladder")
    marked.airflow.run_until_quiet()
    assert since(marked, marked.before) == {"02/flights": 1, "02/aircraft-known": 1, "03/aircraft-known": 1}


def test_the_next_epoch_has_the_marked_ones_made_again_since_it_needs_them(marked):
    run_days(marked, 6)
    days_again = {f"{day}/aircraft-known": 1 for day in ("02", "03", "04", "05")}
    assert {k: v for k, v in since(marked, marked.before).items() if k[:2] < "06"} == {"02/flights": 1, **days_again}
    assert [file.epoch for file in state_of(marked, 6).state.files] == list(EPOCHS[:6])
    assert set(marked.airflow.states().values()) == {"success"}


def test_a_plan_names_later_epochs_only_where_they_would_run(marked):
    def named(question):
        plan = ask(marked.services, question).plan
        return {str(each.region) for each in plan.steps if each.region.run > f"ladder@{EPOCHS[0]}"}

    question = Question(f"ladder@{EPOCHS[0]}", lost=("history[0]",))
    assert named(question) == set()


# Of what is not kept any more


@pytest.fixture
def forgetful(five_days, tmp_path):
    """Five days, of which the last two checkpoints are kept, and with them the states of these days."""
    return five_days("forgets", tmp_path)


def told_once_cleared(world, place):
    """What the task that keeps the state says when it is cleared in the run at this place."""
    world.airflow.clear_by_hand(world.runs[place], "aircraft-known")
    world.airflow.run_until_quiet()
    return error_of(world, world.runs[place], "aircraft-known")


def test_an_epoch_whose_predecessor_is_not_kept_fails_at_once_and_says_what_is(forgetful):
    told = told_once_cleared(forgetful, 2)
    assert f"history[0] (by-k-128-128657) of ladder@{EPOCHS[1]}: missing, it was released" in told
    assert f"The oldest kept checkpoint is 4, of epoch {EPOCHS[3]}; there is no savepoint" in told
    assert f"None is of epoch {EPOCHS[1]} or before, so no restore helps" in told
    assert f"`weir replay ladder --from {EPOCHS[0]} --to {EPOCHS[2]}` shows what it costs" in told
    assert since(forgetful, forgetful.before) == {"03/aircraft-known": 1}
    assert digests(forgetful) == forgetful.old


def test_epochs_that_a_person_clears_at_once_wait_for_those_before_though_the_last_begins_first(forgetful):
    airflow = forgetful.airflow
    for run in forgetful.runs:
        airflow.clear_by_hand(run, "aircraft-known")
    for run in reversed(forgetful.runs[1:4]):
        step(forgetful, run, "aircraft-known")
        assert airflow.task(run, "aircraft-known").state == "up_for_reschedule"
    airflow.run_until_quiet()
    assert is_whole(forgetful)
    assert digests(forgetful) == forgetful.old


def test_the_wait_for_a_task_that_a_person_has_cleared_is_named_and_lasts_until_it_has_run(forgetful):
    first, second, airflow = *forgetful.runs[:2], forgetful.airflow
    for run in (first, second):
        airflow.clear_by_hand(run, "aircraft-known")
    step(forgetful, second, "aircraft-known")
    with forgetful.ledger.transaction() as session:
        waiting = session.scalars(select(AttemptRow.id).where(AttemptRow.state == "waiting")).one()
    asked = WaitingAttempts(forgetful.ledger)
    assert asked.over([waiting]) == frozenset()
    assert f"aircraft-known[0] of ladder@{EPOCHS[0]}" in airflow.task(second, "aircraft-known").waits_on
    step(forgetful, first, "aircraft-known")
    assert asked.over([waiting]) == {waiting}


def test_a_plan_joins_the_task_of_an_expired_state_that_a_person_has_cleared(forgetful):
    airflow, question = forgetful.airflow, Question(f"ladder@{EPOCHS[1]}", lost=("known[0]",))
    assert ask(forgetful.services, question, lambda: airflow).plan.impossible
    airflow.clear_by_hand(forgetful.runs[0], "aircraft-known")
    plan = ask(forgetful.services, question, lambda: airflow).plan
    assert plan.impossible == ""
    assert [str(each.region) for each in plan.of(StepKind.JOINED)] == [f"aircraft-known[0] of ladder@{EPOCHS[0]}"]
    assert [str(each.region) for each in plan.of(StepKind.RERUN)] == ["aircraft-known[0]", "weir_close[0]"]


def test_a_close_that_misses_what_such_a_task_will_bring_back_does_not_fail_for_good(forgetful):
    airflow, run = forgetful.airflow, forgetful.runs[1]
    airflow.clear_by_hand(forgetful.runs[0], "aircraft-known")
    airflow.clear_by_hand(run, "weir_close")
    with forgetful.ledger.transaction() as session:
        is_it = (ResultRow.run == f"ladder@{EPOCHS[1]}") & (ResultRow.stage == "known") & ResultRow.is_current
        folder = session.scalars(select(ResultRow.folder).where(is_it)).one()
    forgetful.store.delete_folder(folder)
    step(forgetful, run, "weir_close")
    assert airflow.task(run, "weir_close").state == "up_for_retry"
    for task in ("aircraft-known", "weir_close"):
        step(forgetful, run, task)
    found = standing_of(forgetful.services, f"ladder@{EPOCHS[1]}", Asked(airflow=airflow))
    assert (found.stand, found.command) == (Stand.WAITING, "")
    assert f"aircraft-known[0] of ladder@{EPOCHS[0]}" in found.reason
    airflow.run_until_quiet()
    assert is_whole(forgetful)
    assert digests(forgetful) == forgetful.old


def test_what_it_had_is_valid_and_stays_if_its_task_is_marked_success(forgetful):
    run = forgetful.runs[2]
    forgetful.airflow.clear_run_by_hand(run)
    forgetful.airflow.run_until_quiet()
    told = error_of(forgetful, run, "aircraft-known")
    assert (
        "What it had is valid, and stays: to keep it, mark this task a success in Airflow, and clear weir_close" in told
    )
    forgetful.airflow.task(run, "aircraft-known").state = "success"
    forgetful.airflow.clear_by_hand(run, "weir_close")
    forgetful.airflow.run_until_quiet()
    assert {task.state for key, task in forgetful.airflow.tasks.items() if key.run_id == run} == {"success"}
    assert digests(forgetful) == forgetful.old


def computed_again(world, *places):
    for each in places:
        adopt(world.services, f"ladder@{EPOCHS[each]}")
    for each in places:
        world.airflow.clear_run_by_hand(world.runs[each])
        world.airflow.run_until_quiet()
        assert world.airflow.task(world.runs[each], "aircraft-known").state == "success"


def test_where_no_snapshot_helps_the_epochs_are_computed_again_as_the_error_says(forgetful):
    forgetful.airflow.clear_by_hand(forgetful.runs[2], "aircraft-known")
    forgetful.airflow.run_until_quiet()
    computed_again(forgetful, 0, 1, 2)
    assert digests(forgetful) == forgetful.old


@pytest.fixture
def saved(world):
    """Five days, of which the last two states are kept, and a savepoint of the first and of the second."""
    world.airflow.deploy(aircraft(retained_checkpoints=2))
    world.runs = run_days(world, 1, 2)
    keep_savepoints(world, 1, 2)
    world.runs += run_days(world, 3, 4, 5)
    world.old = digests(world)
    return world


def test_a_savepoint_that_helps_is_named_with_what_is_to_be_cleared_then(saved):
    told = told_once_cleared(saved, 2)
    assert f"`weir restore ladder 4` (epoch {EPOCHS[1]}; --dry-run shows what changes) brings it back" in told
    assert f"Then clear in run ladder@{EPOCHS[2]} what has failed" in told
    restore(saved, 4)
    saved.airflow.clear_by_hand(saved.runs[2], "aircraft-known")
    saved.airflow.run_until_quiet()
    assert digests(saved) == saved.old


def test_after_a_savepoint_of_an_earlier_epoch_the_epochs_between_are_computed_again(saved):
    told = told_once_cleared(saved, 3)
    assert "`weir restore ladder 4` " in told
    assert f"Then `weir replay ladder --from {EPOCHS[2]} --to {EPOCHS[3]}` shows what it costs" in told
    restore(saved, 4)
    computed_again(saved, 2, 3)


def test_the_newest_epochs_are_made_again_whatever_was_released(forgetful):
    forgetful.content["flights"] = "corrected"
    forgetful.airflow.clear_by_hand(forgetful.runs[4], "flights")
    forgetful.airflow.run_until_quiet()
    assert since(forgetful, forgetful.before) == {"05/flights": 1, "05/aircraft-known": 1}
    assert is_whole(forgetful)


def test_the_plan_says_beforehand_that_an_epoch_cannot_be_made_again(forgetful):
    run = f"ladder@{EPOCHS[2]}"
    plan = ask(forgetful.services, Question(run, fail="aircraft")).plan
    assert "history[0]" in plan.impossible
    assert f"The oldest kept checkpoint is 4, of epoch {EPOCHS[3]}" in plan.impossible
    assert plan.of(StepKind.RERUN) == ()
    perhaps = ask(forgetful.services, Question(run, fail="flights")).plan
    assert perhaps.impossible == ""
    assert "but could not: history[0]" in perhaps.of(StepKind.IF_CHANGED)[0].reason


def test_a_plan_that_cannot_be_carried_out_is_not(forgetful):
    answer = ask(forgetful.services, Question(f"ladder@{EPOCHS[2]}", lost=("history[0]",)))
    assert answer.plan.impossible
    with pytest.raises(Misconfigured, check=of_kind("recovery.input_is_lost_for_good")):
        apply_answer(forgetful.services, answer)
    assert since(forgetful, forgetful.before) == {}


def test_what_a_fork_has_begun_with_is_not_made_again_once_it_is_lost(cascading):
    keep_savepoints(cascading, 2)
    restore(cascading, "day2", fork="forked")
    fork = second_airflow(cascading, replace(cascading.airflow.flow, name="forked"))
    (lost,) = {file.path for file in files_of(cascading, 2, dataflow="forked")[-1:]}
    cascading.store.delete(lost)
    run = fork.dag_run(3)
    fork.run_until_quiet()
    told = fork.task(run, "aircraft-known").notes[-1]
    assert f"history[0] (by-k-128-128657) of forked@{EPOCHS[1]}: missing" in told
    assert "nor is one that a dataflow has begun with. No checkpoint is kept" in told


def test_an_epoch_of_which_nothing_is_missed_is_whole_although_its_predecessor_is_not_kept(forgetful):
    plan = ask(forgetful.services, Question(f"ladder@{EPOCHS[2]}")).plan
    assert (plan.impossible, plan.of(StepKind.RERUN)) == ("", ())
