"""What an epoch reads of the one before: awaited, started, brought back, and followed when it changes."""

import shutil
from collections import Counter

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.small_dataflow import Saved, World

from weir.dataflow import Dataflow, Stage, blocking, previous, sink, source
from weir.execution.run_state import CLOSE
from weir.ledger.database.tables import AttemptRow, ConsumptionRow, ResultRow, RunRow
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.sinks import publishing
from weir.store.catalogue import published
from weir.testing.fakes.airflow import Killed

EPOCHS = ("20130101T000000Z", "20130102T000000Z", "20130103T000000Z")


def history(parallelism=2, **more):
    """A day's rows and the history so far make the history."""
    return Dataflow(
        "ladder",
        [
            source("day", "pipelines.ladder:day"),
            Stage(
                "history",
                "pipelines.ladder:history",
                {"day": blocking("day", by="k"), "before": previous("history", by="k", schema="k bigint")},
                parallelism=parallelism,
            ),
            sink("history", "known"),
        ],
        **{"keep": "60 days", **more},
    )


@pytest.fixture
def days(world):
    """A world that runs the history; `digests` tells what each epoch has published."""
    world.airflow.deploy(history())
    return world


def digests(world):
    found = [published(world.store, "ladder", "known", epoch) for epoch in EPOCHS]
    return [None if each is None else [part.digest for part in each.partitions] for each in found]


def results(world, day, stage="history"):
    with world.ledger.transaction() as session:
        rows = session.scalars(
            select(ResultRow).where(
                ResultRow.run == f"ladder@{EPOCHS[day - 1]}", ResultRow.stage == stage, ResultRow.is_current
            )
        )
        return [row.folder for row in rows]


def lose(world, day, stage="history"):
    for folder in results(world, day, stage):
        shutil.rmtree(world.folder / "store" / folder)


def executed(world, runs):
    """How many tries each task instance had; looks at what is awaited are none."""
    return Counter(
        {
            f"{key.run_id[-2:]}/{key.task_id}[{max(key.map_index, 0)}]": len(set(task.runs))
            for key, task in world.airflow.tasks.items()
            if key.run_id in runs
        }
    )


def everything_is_valid(world):
    with world.ledger.transaction() as session:
        for row in session.scalars(select(RunRow)):
            run = run_by_id(session, row.id)
            state = run_state(session, run)
            assert all(state.is_done(each) for region in state.region_ids() for each in state.outputs(region)), row.id
            assert row.closed_at is not None, row.id
    return set(world.airflow.states().values()) == {"success"}


@pytest.fixture(scope="module")
def three_days():
    """Three days, green: a world of which each test has its own copy."""
    with fast_folder() as folder:
        world = World(folder / "world", history())
        runs = [world.airflow.dag_run(day) for day in (1, 2, 3)]
        world.airflow.run_until_quiet()
        assert everything_is_valid(world)
        yield Saved(world, folder / "saved"), runs


@pytest.fixture
def three(three_days, tmp_path):
    saved, runs = three_days
    world = saved.go_on(tmp_path)
    world.runs = runs
    return world


def test_an_epoch_reads_the_one_before_and_the_first_reads_nothing(three):
    with three.ledger.transaction() as session:
        read = session.execute(
            select(ConsumptionRow.run, ConsumptionRow.attempt).where(ConsumptionRow.argument == "history.before")
        ).all()
    assert sorted({run for run, _ in read}) == [f"ladder@{epoch}" for epoch in EPOCHS[:2]]
    first, second, third = digests(three)
    assert first != second != third


def test_days_that_begin_in_any_order_read_the_day_before(days):
    runs = {day: days.airflow.dag_run(day) for day in (1, 2, 3)}
    last = days.airflow.task(runs[3], "day")
    days.airflow.step(last)
    for index in (0, 1):
        days.airflow.step(days.airflow.task(runs[3], "history-known", index))
    assert days.airflow.states()[f"{runs[3]}/history-known[0]"] == "up_for_reschedule"
    days.airflow.run_until_quiet()
    assert everything_is_valid(days)
    with days.ledger.transaction() as session:
        assert list(session.scalars(select(RunRow.predecessor).order_by(RunRow.epoch))) == [None, *EPOCHS[:2]]


def test_an_earlier_run_that_is_queued_behind_the_one_that_waits_for_it_is_started(days):
    days.airflow.dag_run(1, is_queued=True)
    days.airflow.dag_run(2)
    days.airflow.run_until_quiet()
    assert everything_is_valid(days)
    assert not days.airflow.queued


def test_a_gap_between_days_is_stepped_over(days):
    days.airflow.dag_run(1)
    days.airflow.run_until_quiet()
    days.airflow.dag_run(3)
    days.airflow.run_until_quiet()
    assert everything_is_valid(days)
    with days.ledger.transaction() as session:
        assert list(session.scalars(select(RunRow.predecessor).order_by(RunRow.epoch))) == [None, EPOCHS[0]]


def test_a_loss_in_an_earlier_run_is_made_again_there(three):
    before, published_before = executed(three, three.runs), digests(three)
    lose(three, 1)
    three.airflow.clear_by_hand(three.runs[1], "history-known", 0)
    three.airflow.run_until_quiet()
    again = executed(three, three.runs) - before
    assert again == {"01/history-known[0]": 1, "01/history-known[1]": 1, "02/history-known[0]": 2}
    assert everything_is_valid(three)
    assert digests(three) == published_before


def test_losses_in_several_earlier_runs_are_found_in_one_decision(three):
    before = executed(three, three.runs)
    for day in (1, 2):
        lose(three, day)
    three.airflow.clear_by_hand(three.runs[2], "history-known", 1)
    three.airflow.run_until_quiet()
    assert executed(three, three.runs) - before == {
        "03/history-known[1]": 2,
        **{f"{day}/history-known[{index}]": 1 for day in ("01", "02") for index in (0, 1)},
    }
    assert everything_is_valid(three)


def test_a_change_in_an_earlier_epoch_is_followed_by_all_later_ones(three):
    before = digests(three)
    three.content["day"] = "corrected"
    three.airflow.clear_by_hand(three.runs[0], "day")
    three.airflow.run_until_quiet()
    assert everything_is_valid(three)
    assert all(old != new for old, new in zip(before, digests(three), strict=True))


def test_a_change_is_followed_where_the_try_that_had_read_is_one_that_airflow_has_lost(three):
    """Its results are current until it is made anew, and its number is below 1."""
    before = digests(three)
    with three.ledger.transaction("ladder") as session:
        of_history = select(AttemptRow).where(AttemptRow.run == f"ladder@{EPOCHS[1]}", AttemptRow.region != "day")
        for row in session.scalars(of_history.where(AttemptRow.region != CLOSE.name)):
            row.try_number = 0
    three.content["day"] = "corrected"
    three.airflow.clear_by_hand(three.runs[0], "day")
    three.airflow.run_until_quiet()
    assert everything_is_valid(three)
    assert all(old != new for old, new in zip(before, digests(three), strict=True))


def test_a_change_stops_where_the_content_comes_out_equal(three):
    before, old = executed(three, three.runs), digests(three)
    three.airflow.clear_by_hand(three.runs[0], "day")
    three.airflow.run_until_quiet()
    assert executed(three, three.runs) - before == {"01/day[0]": 1}
    assert digests(three) == old


def test_an_epoch_waits_for_an_earlier_failed_epoch_until_it_is_cleared(days):
    first, second = days.airflow.dag_run(1), days.airflow.dag_run(2)
    days.airflow.step(days.airflow.task(first, "day"))
    failed = days.airflow.task(first, "history-known", 0)
    failed.state = "failed"
    for _ in range(20):
        days.airflow.step(days.airflow._ready())
    assert {days.airflow.states()[f"{second}/history-known[{index}]"] for index in (0, 1)} == {"up_for_reschedule"}
    days.airflow.clear_by_hand(first, "history-known", 0)
    days.airflow.run_until_quiet()
    assert everything_is_valid(days)


def test_an_earlier_task_that_was_marked_success_before_it_began_is_run_after_all(days):
    first = days.airflow.dag_run(1)
    days.airflow.dag_run(2)
    days.airflow.step(days.airflow.task(first, "day"))
    for index in (0, 1):
        days.airflow.task(first, "history-known", index).state = "success"
        days.airflow.task(first, "history-known", index).try_number = 1
    days.airflow.run_until_quiet()
    assert everything_is_valid(days)


def test_a_ledger_that_is_built_again_knows_what_was_read_of_earlier_epochs(three):
    before = executed(three, three.runs)
    three.lose_ledger()
    rebuilt = rebuild(three.services)
    assert [run.missing for run in rebuilt[0].runs] == [(), (), ()]
    assert everything_is_valid(three)
    lose(three, 3)
    three.airflow.clear_by_hand(three.runs[2], "weir_close")
    three.airflow.run_until_quiet()
    again = executed(three, three.runs) - before
    assert {task for task in again if not task.startswith("03")} == set()
    assert everything_is_valid(three)


def step(world, run, task, index=-1):
    world.airflow.step(world.airflow.task(run, task, index))


def test_results_of_an_earlier_epoch_that_has_changed_since_are_not_read(three):
    three.content["day"] = "corrected"
    three.airflow.clear_by_hand(three.runs[0], "day")
    step(three, three.runs[0], "day")
    for index in (0, 1):
        step(three, three.runs[0], "history-known", index)
    step(three, three.runs[0], "weir_close")  # the first day is closed, the second is to follow
    three.airflow.clear_by_hand(three.runs[2], "history-known", 0)
    step(three, three.runs[2], "history-known", 0)
    assert three.airflow.task(three.runs[2], "history-known", 0).state == "up_for_reschedule"
    three.airflow.run_until_quiet()
    assert everything_is_valid(three)


def test_where_weir_clears_nothing_what_is_stale_two_epochs_ago_is_an_error(days):
    days.airflow.deploy(history(failover="individual"))
    runs = [days.airflow.dag_run(day) for day in (1, 2, 3)]
    days.airflow.run_until_quiet()
    days.content["day"] = "corrected"
    for task, index in (("day", -1), ("history-known", 0), ("history-known", 1), ("weir_close", -1)):
        days.airflow.clear_by_hand(runs[0], task, index)
        days.airflow.run_until_quiet()
    days.airflow.clear_by_hand(runs[2], "history-known", 0)
    days.airflow.run_until_quiet()
    task = days.airflow.task(runs[2], "history-known", 0)
    assert task.state == "failed"
    assert "failover is individual" in task.notes[-1]


def test_a_change_is_followed_where_the_earlier_run_does_not_know_that_it_is_read(days):
    def flow(**more):
        return Dataflow(
            "ladder",
            [
                source("day", "pipelines.ladder:day"),
                Stage("history", "pipelines.ladder:history", {"day": blocking("day", by="k")}, parallelism=2),
                Stage(
                    "other", "pipelines.ladder:other", {"history": blocking("history", by="k"), **more}, parallelism=2
                ),
                sink("history", "known"),
                sink("other", "others"),
            ],
        )

    days.airflow.deploy(flow())
    first = days.run_first(1)
    days.airflow.deploy(flow(before=previous("history", by="k", schema="k bigint")))
    days.airflow.dag_run(2)
    days.airflow.run_until_quiet()
    days.content["day"] = "corrected"
    days.airflow.clear_by_hand(first, "day")
    days.airflow.run_until_quiet()
    assert everything_is_valid(days)


def since_yesterday(parallelism):
    """A day's rows and those of the day before."""
    before = previous("day", schema="k bigint")
    return Dataflow(
        "ladder",
        [
            source("day", "pipelines.ladder:day", parallelism=parallelism),
            Stage("changes", "pipelines.ladder:changes", {"day": blocking("day"), "before": before}),
            sink("changes", "known"),
        ],
        keep="60 days",
    )


def two_days(world, parallelism):
    world.airflow.deploy(since_yesterday(parallelism))
    return world.run_days(1, 2)


def made_anew(world, first, parallelism):
    """The first day's DagRun is deleted, and made again by a DAG file with another number of subtasks."""
    world.airflow.deploy(since_yesterday(parallelism))
    world.airflow.delete(first)
    world.airflow.dag_run(1)


def by_key(name="day", key_groups=128):
    """A day's rows by key, and those of the day before."""
    read = {"day": blocking(name, by="k"), "before": previous(name, by="k", schema="k bigint")}
    changes = Stage("changes", "pipelines.ladder:changes", read, parallelism=2, max_parallelism=key_groups)
    return Dataflow("ladder", [source(name, "pipelines.ladder:day"), changes, sink("changes", "known")], keep="60 days")


def adopt_and_clear(world, day, run):
    adopt(world.services, f"ladder@{EPOCHS[day - 1]}")
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_day_that_is_written_in_another_layout_is_followed(days, is_deleted):
    days.airflow.deploy(by_key())
    first, _ = days.run_days(1, 2)
    before = digests(days)
    days.airflow.deploy(by_key(key_groups=64))
    days.content["day"] = "corrected"
    if is_deleted:
        days.airflow.delete(first)
        days.airflow.dag_run(1)
        days.airflow.run_until_quiet()
    else:
        adopt_and_clear(days, 1, first)
    assert everything_is_valid(days)
    assert before[1] != digests(days)[1]


def is_whole(world):
    everything_is_valid(world)
    return set(world.airflow.states().values()) <= {"success", "removed"}


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_day_that_is_made_again_with_other_subtasks_is_followed_though_those_that_it_has_are_equal(days, parallelism):
    first, second = two_days(days, 3)
    made_anew(days, first, parallelism)
    days.airflow.run_until_quiet()
    assert executed(days, [second])["02/changes-known[0]"] > 1
    assert is_whole(days)


def test_a_task_that_runs_while_the_day_before_gets_more_subtasks_begins_again_with_them(days):
    first, second = two_days(days, 2)

    def while_it_runs(key):
        if key.run_id == second:
            days.airflow.during = lambda _key: None
            made_anew(days, first, 3)
            while ready := [task for task in days.airflow._runnable() if task.key.run_id == first]:
                days.airflow.step(ready[0])

    days.airflow.during = while_it_runs
    days.airflow.clear_by_hand(second, "changes-known")
    days.airflow.run_until_quiet()
    assert is_whole(days)


def killed_half_way(world):
    """The first day, of whose history one subtask is there and the other one was killed."""

    def kill(_key):
        raise Killed

    first = world.airflow.dag_run(1)
    step(world, first, "day")
    for _ in range(2):
        world.airflow.clear_by_hand(first, "history-known", 0)
        step(world, first, "history-known", 0)
    world.airflow.during = kill
    step(world, first, "history-known", 1)
    world.airflow.during = lambda _key: None
    return first


def waits_for_long(world, run):
    """Let one task look for its inputs many times; it has one try only."""
    step(world, run, "day")
    for _ in range(25):
        step(world, run, "history-known", 0)
    task = world.airflow.task(run, "history-known", 0)
    return task.state == "up_for_reschedule"


def test_an_epoch_waits_for_an_earlier_one_whose_dag_run_was_deleted_and_made_anew(days):
    days.airflow.delete(killed_half_way(days))
    anew = days.airflow.dag_run(1, kind="manual")
    step(days, anew, "day")
    second = days.airflow.dag_run(2)
    assert waits_for_long(days, second)
    assert days.airflow.task(second, "history-known", 0).try_number == 1
    days.airflow.run_until_quiet()
    assert everything_is_valid(days)


def test_an_epoch_waits_for_an_earlier_one_that_was_adopted_and_cleared(days):
    first = killed_half_way(days)
    adopt(days.services, f"ladder@{EPOCHS[0]}")
    days.airflow.task(first, "history-known", 1).state = "failed"
    days.airflow.clear_run_by_hand(first)
    step(days, first, "day")
    assert waits_for_long(days, days.airflow.dag_run(2))
    days.airflow.run_until_quiet()
    assert everything_is_valid(days)


@pytest.mark.parametrize(("parallelism", "present"), [(1, 3), (3, 1), (2, 3), (3, 2)])
def test_an_epoch_waits_for_an_adopted_one_of_another_parallelism_before_that_has_begun(days, parallelism, present):
    days.airflow.deploy(history(parallelism))
    first = days.run_first(1)
    days.airflow.deploy(history(present))
    adopt(days.services, f"ladder@{EPOCHS[0]}")
    days.airflow.clear_run_by_hand(first)
    second = days.airflow.dag_run(2)
    step(days, second, "day")
    reader = days.airflow.task(second, "history-known", 0 if present > 1 else -1)
    days.airflow.step(reader)  # no task computes what it misses: it requests that
    days.airflow.step(reader)
    assert reader.state == "up_for_reschedule"
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) <= {"success", "removed"}
    assert len(digests(days)[1]) == present


def rescaled_and_cleared(days, parallelism, present):
    """The first day is adopted with another number of subtasks and cleared, and its source is done; the next reads."""
    days.airflow.deploy(history(parallelism))
    first = days.run_first(1)
    days.airflow.deploy(history(present))
    adopt(days.services, f"ladder@{EPOCHS[0]}")
    days.airflow.clear_run_by_hand(first)
    second = days.airflow.dag_run(2)
    step(days, first, "day")
    step(days, second, "day")
    step(days, second, "history-known", 0)  # no task computes what it misses: it requests that
    return first, second


def test_an_index_that_airflow_adds_when_the_input_of_its_task_is_done_is_awaited(days):
    first, second = rescaled_and_cleared(days, 2, 3)
    reader = days.airflow.task(second, "history-known", 0)
    assert f"{first}/history-known[2]" not in days.airflow.states()
    for _ in range(3):
        days.airflow.step(reader)
        assert reader.state == "up_for_reschedule"
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) == {"success"}
    assert (len(reader.runs), reader.try_number) == (5, 2)


def test_an_index_without_which_airflow_has_expanded_its_task_is_an_error_that_names_adopt(days):
    first, second = rescaled_and_cleared(days, 2, 3)
    days.airflow.deploy(history(2))  # whoever wrote 3 takes it back: the run is pinned to 3
    reader = days.airflow.task(second, "history-known", 0)
    days.airflow.step(reader)
    assert reader.state == "up_for_reschedule"
    for index in (0, 1):
        step(days, first, "history-known", index)
    days.airflow.step(reader)
    assert reader.state == "failed"
    assert "map index 2" in reader.failed_because
    assert f"`weir run adopt ladder@{EPOCHS[0]}`" in reader.failed_because


def test_a_run_that_was_mapped_when_it_was_created_computes_the_only_subtask_by_its_first_index(days):
    days.airflow.deploy(history(2))
    first = days.airflow.dag_run(1)
    days.airflow.deploy(history(1))
    second = days.airflow.dag_run(2)
    step(days, second, "day")
    reader = days.airflow.task(second, "history-known")
    days.airflow.step(reader)
    assert reader.state == "up_for_reschedule"
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) == {"success"}
    assert f"{first}/history-known[-1]" not in days.airflow.states()


def test_a_run_of_which_something_became_stale_while_it_was_published_is_not_closed(days, monkeypatch):
    first = days.airflow.dag_run(1)
    while days.airflow.states()[f"{first}/history-known[1]"] != "success":
        days.airflow.step(days.airflow._ready())
    publish = publishing._create

    def after_a_change(services, pointer):
        days.content["day"] = "corrected"
        days.airflow.clear_by_hand(first, "day")
        step(days, first, "day")
        publish(services, pointer)

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "_create", after_a_change)
        step(days, first, "weir_close")
    with days.ledger.transaction() as session:
        assert session.get_one(RunRow, f"ladder@{EPOCHS[0]}").closed_at is None
    days.airflow.run_until_quiet()
    assert everything_is_valid(days)


def test_a_run_that_has_lost_everything_is_held_back_however_many_whole_ones_are_before_it(days):
    days.airflow.deploy(history(parallelism=4))
    runs = [days.airflow.dag_run(day) for day in (1, 2, 3)]
    days.airflow.run_until_quiet()
    for stage in ("day", "history", "known"):
        lose(days, 3, stage)
    days.airflow.clear_by_hand(runs[2], "weir_close")
    days.airflow.run_until_quiet()
    task = days.airflow.task(runs[2], "weir_close")
    assert task.state == "failed"
    assert "--apply" in task.notes[-1]


@pytest.mark.parametrize("on_reprocess", ["cascade", "mark"])
def test_no_epoch_is_made_in_part_of_one_that_was_given_up(days, on_reprocess):
    days.airflow.deploy(history(on_reprocess=on_reprocess))
    _, second, third = days.run_days(1, 2, 3)
    before = digests(days)
    days.airflow.delete(second)
    adopt(days.services, f"ladder@{EPOCHS[1]}")
    days.airflow.clear_by_hand(third, "history-known", 0)
    days.airflow.run_until_quiet()
    assert digests(days)[2] == before[1]  # the third day's rows are those of the second one, and go on from the first
    assert set(days.airflow.states().values()) == {"success"}
