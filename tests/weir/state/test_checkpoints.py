"""The checkpoints of a dataflow: when they complete, what they name, which go, and what goes with them."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.weir import keeping
from tests.weir.keeping import run_days

from weir.dataflow import Dataflow, Stage, blocking, broadcast_state, keyed_state, previous, sink, source
from weir.dataflow.retention_settings import RetentionSettings
from weir.errors import Misconfigured, Retryable
from weir.formats.checkpoint import Checkpoint
from weir.formats.codec import from_json
from weir.formats.paths import checkpoint_path
from weir.integrity.states import checkpoint_inconsistencies
from weir.integrity.verify import VERIFIED, VerifyOutcome, results_to_verify, verify_results
from weir.ledger.checkpoints import checkpoints_of, retained_checkpoints
from weir.ledger.database.tables import AttemptRow, ResultRow
from weir.rebuild.rebuild import rebuild
from weir.retention.sweep import sweep
from weir.state import checkpoint as checkpoint_steps
from weir.state.files_in_use import live_state_files
from weir.store.errors import NotFound
from weir.upkeep import RESULTS, settle_everywhere

EPOCHS = tuple(f"201301{day:02d}T000000Z" for day in range(1, 12))


def aircraft(parallelism=1, ttl=None, **more):
    return keeping.aircraft(parallelism, {"ttl": ttl}, **{"keep": None, **more})


@pytest.fixture
def days(world):
    world.airflow.deploy(aircraft())
    return world


def rows(world, which=checkpoints_of):
    with world.ledger.transaction() as session:
        return which(session, "ladder")


def retained(world):
    """Which epochs' checkpoints are retained, as (number, day)."""
    return [(row.number, EPOCHS.index(row.epoch) + 1) for row in rows(world, retained_checkpoints)]


def checkpoint(world, number):
    return from_json(Checkpoint, world.store.read(checkpoint_path("ladder", number)))


def is_there(world, path):
    try:
        world.store.size(path)
    except NotFound:
        return False
    return True


def states_of_history(world):
    """The states of current results of the history, by day."""
    with world.ledger.transaction() as session:
        found = select(ResultRow).where(ResultRow.stage == "history", ResultRow.is_current).order_by(ResultRow.run)
        return [row.state for row in session.scalars(found)]


def test_each_run_ends_in_a_checkpoint_that_names_all_files_and_counts_the_new_ones(days):
    days.run_first(1, 2)
    assert set(days.airflow.states().values()) == {"success"}
    first, second = (checkpoint(days, number) for number in (1, 2))
    assert [(each.epoch, each.new_files, each.shared_files) for each in (first, second)] == [
        (EPOCHS[0], 1, 0),
        (EPOCHS[1], 1, 1),
    ]
    assert first.files.items() < second.files.items()
    assert second.full_bytes == first.full_bytes + second.incremental_bytes
    assert [(row.status, row.subsumed_at) for row in rows(days)] == [("completed", None)] * 2


def test_three_are_retained_and_the_state_of_those_that_are_subsumed_is_released(days):
    days.run_first(1, 2, 3, 4, 5)
    assert retained(days) == [(3, 3), (4, 4), (5, 5)]
    assert [(row.number, row.subsumed_by) for row in rows(days) if row.subsumed_at] == [(1, 4), (2, 5)]
    assert states_of_history(days) == ["released", "released", "finished", "finished", "finished"]
    assert not is_there(days, checkpoint_path("ladder", 2))


def test_a_released_epochs_file_stays_as_long_as_a_retained_checkpoint_names_it(days):
    days.run_first(1, 2, 3, 4, 5)
    named = checkpoint(days, 5).files
    assert {file.epoch for file in named.values()} == set(EPOCHS[:5])
    assert all(is_there(days, path) for path in named)
    assert live_state_files(days.services, "ladder") == set(named)


def test_a_file_that_is_not_named_any_more_is_deleted_with_the_checkpoint(world):
    world.airflow.deploy(aircraft(ttl="2 days"))
    run_days(world, 1)
    (first,) = checkpoint(world, 1).files
    run_days(world, 2, 3, 4)
    assert is_there(world, first)  # of the second day
    run_days(world, 5)
    assert not is_there(world, first)
    assert all(is_there(world, path) for number in (3, 4, 5) for path in checkpoint(world, number).files)


def test_a_dataflow_says_how_many_are_retained(world):
    world.airflow.deploy(aircraft(retained_checkpoints=1))
    run_days(world, 1, 2, 3)
    assert retained(world) == [(3, 3)]


def test_a_manifest_that_a_process_writes_after_it_was_deleted_is_deleted_again(world):
    world.airflow.deploy(aircraft(retained_checkpoints=1))
    run_days(world, 1)
    path = checkpoint_path("ladder", 1)
    written = world.store.read(path)
    run_days(world, 2)
    assert not is_there(world, path)
    world.store.create(path, written)  # as one does that has slept meanwhile
    settle_everywhere(world.services, RESULTS).require_whole()
    assert not is_there(world, path)
    rebuild(world.services, "ladder")
    assert retained(world) == [(2, 2)]


def test_to_close_again_with_equal_content_makes_no_checkpoint(days):
    days.run_first(1)
    days.airflow.clear_by_hand("scheduled__2013-01-01", "weir_close")
    days.airflow.run_until_quiet()
    assert [row.number for row in rows(days)] == [1]


def test_a_checkpoint_that_named_a_lost_file_is_completed_once_more(days):
    days.run_first(1, 2, 3)
    (lost,) = checkpoint(days, 1).files
    days.store.delete(lost)
    run_days(days, 4)
    assert set(days.airflow.states().values()) == {"success"}
    assert [(row.number, row.subsumed_by) for row in rows(days)[:3]] == [(1, 4), (2, 5), (3, 6)]
    assert retained(days) == [(5, 2), (6, 3), (7, 4)]
    named = [checkpoint(days, number).files for number, _ in retained(days)]
    assert all(lost not in files and all(is_there(days, path) for path in files) for files in named)


def test_epochs_that_are_computed_again_have_new_checkpoints_in_the_place_of_the_old(days):
    days.run_first(1, 2, 3, 4, 5)
    days.content["flights"] = "corrected"
    days.airflow.clear_by_hand("scheduled__2013-01-04", "flights")
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) == {"success"}
    assert retained(days) == [(3, 3), (6, 4), (7, 5)]
    assert [(row.number, row.subsumed_by) for row in rows(days)[3:5]] == [(4, 6), (5, 7)]
    assert live_state_files(days.services, "ladder") == {
        path for number, _ in retained(days) for path in checkpoint(days, number).files
    }


def test_to_compute_all_epochs_again_keeps_the_newest_to_go_on_from(days):
    days.run_first(1, 2, 3, 4, 5)
    days.content["flights"] = "corrected"
    days.airflow.clear_by_hand("scheduled__2013-01-01", "flights")
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) == {"success"}
    assert [day for _, day in retained(days)] == [3, 4, 5]
    assert all(number > 5 for number, _ in retained(days))
    assert all(is_there(days, path) for path in live_state_files(days.services, "ladder"))
    run_days(days, 6)
    assert set(days.airflow.states().values()) == {"success"}


def test_the_closing_task_waits_until_the_epoch_before_is_closed(days):
    for day in (1, 2):
        days.airflow.dag_run(day)
    first, second = (days.airflow.task(f"scheduled__2013-01-0{day}", "weir_close") for day in (1, 2))
    first.not_before = days.airflow.time + timedelta(hours=2)
    while second.state != "up_for_reschedule":
        days.airflow.step(days.airflow._ready())
    assert not rows(days)
    days.airflow.run_until_quiet()
    assert (first.state, second.state) == ("success", "success")
    assert [(row.number, row.epoch) for row in rows(days)] == [(1, EPOCHS[0]), (2, EPOCHS[1])]


def test_no_task_waits_for_an_epoch_that_no_task_will_close(days):
    for day in (1, 2):
        days.airflow.dag_run(day)
    days.airflow.task("scheduled__2013-01-01", "weir_close").state = "success"  # marked by a user
    days.airflow.run_until_quiet()
    second = days.airflow.task("scheduled__2013-01-02", "weir_close")
    assert second.state == "failed"
    assert not rows(days)
    with days.ledger.transaction() as session:
        failed = select(AttemptRow.error).where(AttemptRow.region == "weir_close", AttemptRow.state == "failed")
        assert "ladder@20130101T000000Z of the epoch before is not closed" in session.scalar(failed)


@pytest.mark.parametrize("how", ["deleted", "marked"])
def test_no_task_waits_for_a_closing_task_that_is_gone_while_it_is_to_be_tried_again(days, monkeypatch, how):
    def unanswered(*_):
        raise Retryable("the store does not answer")

    first = days.airflow.dag_run(1)
    monkeypatch.setattr(checkpoint_steps, "_create", unanswered)
    while days.airflow.task(first, "weir_close").state != "up_for_retry":
        days.airflow.step(days.airflow._ready())
    monkeypatch.undo()
    if how == "deleted":
        days.airflow.delete(first)
    else:
        days.airflow.task(first, "weir_close").state = "success"
    second = days.airflow.task(days.airflow.dag_run(2), "weir_close")
    days.airflow.run_until_quiet()
    assert second.state == "failed"
    assert "ladder@20130101T000000Z of the epoch before is not closed" in second.notes[-1]


def test_a_ledger_that_is_built_again_knows_the_checkpoints_and_goes_on_from_them(world):
    world.airflow.deploy(aircraft(ttl="2 days"))
    run_days(world, 1, 2, 3, 4, 5)
    before = [(row.number, row.epoch, row.content, row.full_bytes) for row in rows(world, retained_checkpoints)]
    live = live_state_files(world.services, "ladder")
    world.lose_ledger()
    (built,) = rebuild(world.services)
    assert not built.notes
    assert [(row.number, row.epoch, row.content, row.full_bytes) for row in rows(world)] == before
    assert live_state_files(world.services, "ladder") == live
    sweep(world.services, is_full=True)
    assert all(is_there(world, path) for path in live)
    run_days(world, 6)
    assert set(world.airflow.states().values()) == {"success"}
    assert retained(world) == [(4, 4), (5, 5), (6, 6)]
    assert states_of_history(world)[:3] == ["released"] * 3


def test_to_build_a_whole_ledger_again_changes_no_checkpoint(days):
    days.run_first(1, 2, 3, 4)

    def said():
        return [(row.number, row.status, row.subsumed_by, row.deleted_at is None) for row in rows(days)]

    before = said()
    rebuild(days.services)
    assert said() == before


def test_the_number_of_a_checkpoint_that_cannot_be_read_is_not_given_out_again(days):
    days.run_first(1, 2)
    days.store.replace(checkpoint_path("ladder", 2), b"{}")
    days.lose_ledger()
    (built,) = rebuild(days.services)
    assert any("checkpoint 2 is left out" in note for note in built.notes)
    run_days(days, 3)
    assert [number for number, day in retained(days) if day == 3] == [3]


def test_a_checkpoint_whose_manifest_is_gone_is_told_and_its_run_is_checkpointed_once_more(days):
    days.run_first(1, 2)
    days.store.delete(checkpoint_path("ladder", 1))
    runs = [f"ladder@{epoch}" for epoch in EPOCHS[:2]]
    (misfit,) = checkpoint_inconsistencies(days.services, runs)
    assert "the manifest of checkpoint 1, found no such file" in str(misfit)
    done = settle_everywhere(days.services, RESULTS)
    done.require_whole()
    assert "checkpoint(s) 1 abandoned; checkpoint(s) 3 completed once more" in done.done["ladder"]
    assert retained(days) == [(2, 2), (3, 1)]
    assert not checkpoint_inconsistencies(days.services, runs)


def test_verifying_reads_the_files_that_epochs_share_and_tells_the_checkpoints_that_miss_them(days):
    days.run_first(1, 2, 3)
    shared = next(iter(checkpoint(days, 1).files))
    data = days.store.read(shared)
    days.store.replace(shared, b"x" + data[1:])  # where no footer shows it
    with days.ledger.transaction() as session:
        results = results_to_verify(session, [f"ladder@{epoch}" for epoch in EPOCHS[:3]], VERIFIED)
    found = verify_results(days.services, [row for row in results if row.stage == "history"], "a test")
    assert [each.outcome for each in found] == [VerifyOutcome.LOST] * 3
    days.store.delete(shared)
    said = [str(each) for each in checkpoint_inconsistencies(days.services, [f"ladder@{EPOCHS[2]}"])]
    assert len(said) == 1
    assert f"checkpoint 3 names it: {shared}" in said[0]


@pytest.mark.parametrize("text", ["0", "-1", "many", "2.5"])
def test_a_number_that_cannot_be_retained_is_refused(text):
    with pytest.raises(Misconfigured, match="retained_checkpoints"):
        RetentionSettings.from_options({"retained_checkpoints": text})
    with pytest.raises(Misconfigured, match="retained_checkpoints"):
        aircraft(retained_checkpoints=text)


def test_the_deployment_says_how_many_are_retained_where_a_dataflow_does_not():
    deployed = RetentionSettings.from_options({"retained_checkpoints": "5"})
    assert deployed.of(aircraft()).retained_checkpoints == 5
    assert deployed.of(aircraft(retained_checkpoints=2)).retained_checkpoints == 2
    assert Dataflow.from_json(aircraft(retained_checkpoints=2).to_json()).retained_checkpoints == 2


def test_a_closing_task_that_was_given_up_completes_nothing(days, monkeypatch):
    run = days.airflow.dag_run(1)
    create, slept = checkpoint_steps._create, []

    def asleep(services, made):
        if not slept:
            slept.append(made.number)
            closing = days.airflow.task(run, "weir_close")
            days.airflow.clear_by_hand(run, "weir_close")
            days.airflow.step(closing)
        return create(services, made)

    monkeypatch.setattr(checkpoint_steps, "_create", asleep)
    days.airflow.run_until_quiet()
    assert slept == [1]
    assert set(days.airflow.states().values()) == {"success"}
    assert [(row.number, row.status) for row in rows(days)] == [(1, "completed")]
    assert rows(days)[0].attempt == checkpoint(days, 1).attempt


def test_state_that_is_made_again_while_it_is_checkpointed_is_checkpointed_as_it_is_then(days, monkeypatch):
    run = days.airflow.dag_run(1)
    take, done = checkpoint_steps._take_number, []

    def made_again_before(*arguments):
        if not done:
            task = next(task for key, task in days.airflow.tasks.items() if key.task_id.startswith("aircraft"))
            days.airflow.clear_by_hand(run, task.key.task_id, task.key.map_index)
            done.append(days.airflow.step(task))
        return take(*arguments)

    monkeypatch.setattr(checkpoint_steps, "_take_number", made_again_before)
    days.airflow.run_until_quiet()
    assert done
    assert set(days.airflow.states().values()) == {"success"}
    assert [number for number, _ in retained(days)] == [1]
    assert set(checkpoint(days, 1).files) == live_state_files(days.services, "ladder")


def test_what_is_retained_of_a_run_outlives_its_dag_run_and_all_policies(days):
    days.run_first(1, 2)
    live = live_state_files(days.services, "ladder")
    days.airflow.delete("scheduled__2013-01-01")
    days.airflow.delete("scheduled__2013-01-02")
    for _ in range(2):
        days.airflow.time += timedelta(days=100)
        sweep(days.services, is_full=True, is_reclaiming=True, clearer=days.airflow)
    assert retained(days) == [(1, 1), (2, 2)]
    assert live_state_files(days.services, "ladder") == live
    assert all(is_there(days, path) for path in live)


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_ledger_on_postgresql_keeps_the_same_checkpoints(days):
    days.run_first(1, 2, 3, 4)
    assert set(days.airflow.states().values()) == {"success"}
    assert retained(days) == [(2, 2), (3, 3), (4, 4)]
    assert [(row.subsumed_by, row.deleted_at is None) for row in rows(days)][:2] == [(4, False), (None, True)]


def with_lists():
    """A dataflow with a broadcast state and a plain result over `previous`, besides its history."""
    return Dataflow(
        "ladder",
        [
            source("flights", "m:flights"),
            Stage("totals", "m:totals", [blocking("flights"), previous("totals", schema="k BIGINT")]),
            Stage(
                "aircraft",
                "m:aircraft",
                [blocking("flights", by="k")],
                state=[
                    keyed_state("history", key="k", schema="k BIGINT, n BIGINT"),
                    broadcast_state("rates", schema="k BIGINT"),
                ],
            ),
            Stage("known", "m:known", [blocking("aircraft"), blocking("totals")]),
            sink("known", "all_known"),
        ],
        keep="on_consumed",
    )


def test_results_in_flight_belong_to_a_checkpoint_and_stay_as_long_as_it_is_retained(world):
    world.airflow.deploy(with_lists())
    run_days(world, 1, 2, 3, 4, 5)
    assert set(world.airflow.states().values()) == {"success"}
    newest = checkpoint(world, 5)
    assert sorted(each.stage for each in newest.results) == ["rates", "totals"]
    assert [state.state.name for state in newest.states] == ["history"]
    for number, _ in retained(world):
        for each in checkpoint(world, number).results:
            assert all(is_there(world, f"{each.folder}/{file.name}") for file in each.files)
    with world.ledger.transaction() as session:
        found = select(ResultRow).where(ResultRow.stage.in_(["rates", "totals"]), ResultRow.state == "finished")
        assert {row.run for row in session.scalars(found)} == {f"ladder@{epoch}" for epoch in EPOCHS[2:5]}
