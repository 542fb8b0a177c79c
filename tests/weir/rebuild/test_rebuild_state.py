"""The rebuilt ledger of a dataflow that keeps state: its checkpoints, and the pins of its forks."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.weir.restoring import (
    EPOCHS,
    aircraft,
    checkpoints,
    files_of,
    keep_savepoints,
    restore,
    rows_of,
    run_days,
    second_airflow,
)

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, source
from weir.formats.codec import from_json
from weir.formats.paths import checkpoint_path, record_path
from weir.formats.run_record import RunRecord
from weir.ledger.database.tables import CheckpointRow, RunRow
from weir.rebuild.catching_up import catch_up
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.retention.sweep import sweep
from weir.state.files_in_use import live_state_files
from weir.store.errors import NotFound
from weir.upkeep import RESULTS, settle_everywhere

HISTORY = keyed_state("history", key="k", schema="k BIGINT, n BIGINT")


def sinkless():
    """Nothing of it is ever published."""
    kept = Stage("aircraft", "pipelines.ladder:aircraft", [blocking("flights", by="k")], state=HISTORY)
    return Dataflow("ladder", [source("flights", "pipelines.ladder:flights"), kept])


def deploy_unpublished(world, kind):
    """A dataflow of four days, of which the store has no pointers any more, or never had."""
    if kind == "has no sink":
        world.airflow.deploy(sinkless())
    else:
        states = (HISTORY,)
        world.airflow.deploy(aircraft(parallelism=1, states=states, keep="on_consumed", keep_published="1 day"))
    run_days(world.airflow, 1, 2, 3, 4)
    if kind != "has no sink":
        world.airflow.time += timedelta(days=5)
        sweep(world.services, "ladder", is_full=True)
    assert not list(world.folder.glob("store/_sinks/**/*.json"))


def keep_up(world):
    settle_everywhere(world.services, RESULTS).require_whole()
    sweep(world.services, is_full=True)


def closed(world):
    """The days whose run is closed."""
    with world.ledger.transaction() as session:
        query = select(RunRow.epoch).where(RunRow.dataflow == "ladder", RunRow.closed_at.is_not(None))
        return [EPOCHS.index(epoch) + 1 for epoch in sorted(session.scalars(query))]


def is_there(world, path):
    try:
        world.store.size(path)
    except NotFound:
        return False
    return True


@pytest.mark.parametrize("kind", ["has no sink", "has expired versions"])
def test_checkpoints_need_no_published_versions(world, kind):
    deploy_unpublished(world, kind)
    before, live = checkpoints(world), live_state_files(world.services, "ladder")
    world.lose_ledger()
    rebuild(world.services)
    keep_up(world)
    assert checkpoints(world) == before == {2: EPOCHS[1], 3: EPOCHS[2], 4: EPOCHS[3]}
    assert closed(world) == [1, 2, 3, 4]
    assert live_state_files(world.services, "ladder") == live
    assert all(is_there(world, path) for path in live)
    run_days(world.airflow, 5)
    assert set(world.airflow.states().values()) == {"success"}
    assert checkpoints(world) == {3: EPOCHS[2], 4: EPOCHS[3], 5: EPOCHS[4]}
    world.airflow.time += timedelta(days=30)  # longer than a run is waited for that was never closed
    keep_up(world)
    assert [rows_of(world, day)[0].state for day in (3, 4, 5)] == ["finished"] * 3


def test_a_checkpoint_stays_whose_run_has_other_results_by_now(world):
    """Its run is to be closed again; those before it were closed when theirs were complete."""
    world.airflow.deploy(sinkless())
    run_days(world.airflow, 1, 2, 3)
    (newest,) = rows_of(world, 3)
    world.store.delete(f"{newest.folder}/manifest.json")
    world.lose_ledger()
    rebuild(world.services)
    keep_up(world)
    assert checkpoints(world) == {1: EPOCHS[0], 2: EPOCHS[1], 3: EPOCHS[2]}
    assert closed(world) == [1, 2]
    world.airflow.clear_by_hand("scheduled__2013-01-03", "weir_close")
    world.airflow.run_until_quiet()
    run_days(world.airflow, 4)
    assert set(world.airflow.states().values()) == {"success"}
    assert closed(world) == [1, 2, 3, 4]


def test_a_run_without_versions_is_open_once_its_state_is_made_again_until_its_closing_task_is_cleared(world):
    world.airflow.deploy(sinkless())
    run_days(world.airflow, 1, 2)
    world.lose_ledger()
    rebuild(world.services)
    keep_up(world)
    assert closed(world) == [1, 2]
    world.content["flights"] = "corrected"
    world.airflow.clear_by_hand("scheduled__2013-01-02", "flights")
    world.airflow.run_until_quiet()
    keep_up(world)
    assert closed(world) == [1]
    assert checkpoints(world) == {1: EPOCHS[0], 2: EPOCHS[1]}
    world.airflow.clear_by_hand("scheduled__2013-01-02", "weir_close")
    world.airflow.run_until_quiet()
    assert closed(world) == [1, 2]
    assert checkpoints(world) == {1: EPOCHS[0], 3: EPOCHS[1]}
    assert set(world.airflow.states().values()) == {"success"}


def test_what_a_fork_began_with_stays_although_its_origin_is_built_again_first(world):
    states = (keyed_state("history", key="k", schema="k BIGINT, n BIGINT", incremental=False),)
    world.airflow.deploy(aircraft(states=states, retained_checkpoints=1))
    run_days(world.airflow, 1, 2)
    (number,) = checkpoints(world)
    restore(world, number, fork="forked")
    run_days(world.airflow, 3, 4)
    files = {file.path for subtask in (0, 1) for file in files_of(world, 2, subtask, dataflow="forked")}
    assert {path.partition("/")[0] for path in files} == {"ladder"}
    world.lose_ledger()
    (built,) = rebuild(world.services, "ladder")
    assert any("`weir ledger rebuild forked`" in note for note in built.notes)
    keep_up(world)
    assert all(is_there(world, path) for path in files)
    (built,) = rebuild(world.services, "forked")
    assert not built.notes
    keep_up(world)
    assert all(is_there(world, path) for path in files)
    fork = second_airflow(world, aircraft("forked", states=states, retained_checkpoints=1))
    run_days(fork, 3)
    assert set(fork.states().values()) == {"success"}
    keep_up(world)
    assert not any(is_there(world, path) for path in files)


@pytest.mark.parametrize("status", ["pending", "failed"])
@pytest.mark.parametrize("by", ["a person", "upkeep"])
@pytest.mark.parametrize("attempt", ["t0002-another", None])
def test_a_number_that_was_given_again_is_that_of_the_manifest_in_the_store(world, status, by, attempt):
    """A ledger that had lost checkpoint 2 has given its number to another one, whose manifest was never written.

    It may be for the same closing task, whose run is checkpointed again when its state was computed again.
    """
    world.airflow.deploy(sinkless())
    run_days(world.airflow, 1, 2)
    with world.ledger.transaction("ladder") as session:
        row = session.scalar(select(CheckpointRow).where(CheckpointRow.number == 2))
        row.content, row.status, row.completed_at = "another", status, None
        if attempt is not None:
            row.run, row.epoch, row.attempt = f"ladder@{EPOCHS[0]}", EPOCHS[0], attempt
    assert checkpoints(world) == {1: EPOCHS[0]}
    if by == "a person":
        rebuild(world.services)
    for _ in range(2):
        keep_up(world)
    world.airflow.run_until_quiet()
    assert checkpoints(world) == {1: EPOCHS[0], 2: EPOCHS[1]}
    assert is_there(world, checkpoint_path("ladder", 2))
    run_days(world.airflow, 3)
    assert checkpoints(world) == {1: EPOCHS[0], 2: EPOCHS[1], 3: EPOCHS[2]}


@pytest.mark.parametrize("catches_up", [True, False])
def test_results_of_an_older_pin_than_the_record_in_the_store_are_given_up(world, catches_up):
    """The ledger has lost the newer pin. Of more subtasks, a partition of the same name has fewer rows."""
    world.airflow.deploy(aircraft(parallelism=2))
    run_days(world.airflow, 1)
    path, run = record_path("ladder", EPOCHS[0]), f"ladder@{EPOCHS[0]}"
    newer = world.store.read(path)
    adopt(world.services, run)
    world.airflow.deploy(aircraft(parallelism=3))
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    before = {row.attempt for row in rows_of(world, 1, "known")}
    assert len(before) == 3
    world.store.replace(path, newer)
    catch_up(world.services, "ladder") if catches_up else rebuild(world.services)
    assert before.isdisjoint(row.attempt for row in rows_of(world, 1, "known"))
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    found = rows_of(world, 1, "known")
    assert (len(found), before.isdisjoint(row.attempt for row in found), closed(world)) == (2, True, [1])
    assert before <= set(from_json(RunRecord, world.store.read(path)).abandoned)


def test_an_epoch_that_had_not_begun_is_awaited_by_the_next_one_as_before(world):
    """It has no record: a ledger has it from the day that comes after it."""
    world.airflow.deploy(aircraft())
    run_days(world.airflow, 1)
    queued, later = world.airflow.dag_run(2, is_queued=True), world.airflow.dag_run(3)
    world.airflow.step(world.airflow.task(later, "flights"))
    world.lose_ledger()
    rebuild(world.services)
    world.airflow.start("dag", queued)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert closed(world) == [1, 2, 3]
    assert list(checkpoints(world).values()) == list(EPOCHS[:3])


@pytest.mark.parametrize(("is_deleted", "begins"), [(False, False), (False, True), (True, True)])
def test_a_run_that_is_made_again_when_the_ledger_is_lost_is_not_closed(world, is_deleted, begins):
    """What it had published is in the store, and a checkpoint of a later day."""
    world.airflow.deploy(aircraft(parallelism=1, states=(HISTORY,)))
    run_days(world.airflow, 1, 2, 3)
    second = "scheduled__2013-01-02"
    if is_deleted:
        world.airflow.delete(second)
        world.airflow.dag_run(2)
    else:
        adopt(world.services, f"ladder@{EPOCHS[1]}")
        world.airflow.clear_run_by_hand(second)
    if begins:
        world.airflow.step(world.airflow.task(second, "flights"))
    world.lose_ledger()
    rebuild(world.services)
    assert closed(world) == [1, 3]
    world.airflow.run_until_quiet()
    assert closed(world) == [1, 2, 3]


def test_a_run_that_was_restored_in_another_form_stays_closed(world):
    world.airflow.deploy(aircraft(parallelism=2, states=(HISTORY,)))
    run_days(world.airflow, 1, 2)
    keep_savepoints(world, 2)
    world.airflow.deploy(aircraft(parallelism=3, states=(HISTORY,)))
    adopt(world.services, f"ladder@{EPOCHS[1]}")
    world.airflow.clear_run_by_hand("scheduled__2013-01-02")
    world.airflow.run_until_quiet()
    assert restore(world, "day2").is_repinned
    assert closed(world) == [1, 2]
    world.lose_ledger()
    rebuild(world.services)
    assert closed(world) == [1, 2]
