"""Automatic savepoints: as many as are declared, whoever is killed, and none of a person is dropped."""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import delete
from tests.builders.ledgers import fast_folder
from tests.weir.restoring import (
    EPOCHS,
    aircraft,
    checkpoints,
    go_on,
    restore,
    run_days,
    second_airflow,
    spoil,
    states_of,
)
from tests.weir.small_dataflow import Saved, World
from tests.weir.snapshots.test_savepoint import Dead, Refusing, Watched, lying

from weir.errors import LedgerBehind
from weir.ledger.database.tables import CheckpointRow
from weir.rebuild.rebuild import rebuild
from weir.retention.sweep import sweep
from weir.snapshots.automatic import maintain_savepoints
from weir.snapshots.savepoint import SavepointRequest, create, displaced, drop, savepoints, show
from weir.upkeep import RESULTS, maintain_savepoints_everywhere, settle_everywhere

SAVED = "ladder/_savepoints"


@pytest.fixture(scope="module")
def two_days():
    """Two days of state, of which an automatic savepoint is due, and none is there."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", aircraft(savepoint_every=2, retained_savepoints=1))
        run_days(world.airflow, 1, 2)
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(two_days, tmp_path):
    return two_days.go_on(tmp_path / "world")


def keep(world):
    """Do what upkeep does."""
    return maintain_savepoints(world.services, "ladder")


def made(world):
    """The epochs of the savepoints that are complete, oldest first, and of which kind they are."""
    found = savepoints(world.services, "ladder")
    return [(each.epoch, each.kind) for each in found if each.status == "completed"]


def days_of(world):
    """The days of the automatic savepoints that are complete."""
    return [EPOCHS.index(epoch) + 1 for epoch, kind in made(world) if kind == "automatic"]


def test_one_is_created_each_time_that_enough_epochs_were_closed(days):
    days.airflow.deploy(aircraft(savepoint_every=2, retained_savepoints=9))
    run_days(days.airflow, 3)
    assert keep(days).startswith("automatic: Savepoint 4 of ladder")
    assert days_of(days) == [3]
    run_days(days.airflow, 4)
    assert keep(days) == f"no automatic savepoint of ladder is due: 1 of 2 epoch(s) were closed since {EPOCHS[2]}"
    run_days(days.airflow, 5)
    keep(days)
    assert keep(days).endswith(f"0 of 2 epoch(s) were closed since {EPOCHS[4]}")
    assert days_of(days) == [3, 5]


def test_upkeep_creates_them_and_says_so(days):
    settled = maintain_savepoints_everywhere(days.services)
    settled.require_whole()
    assert "automatic: Savepoint 3 of ladder, the state at the end of epoch" in settled.done["ladder"]
    assert days_of(days) == [2]


def test_none_is_created_unless_the_newest_run_declares_it(days):
    days.airflow.deploy(aircraft())
    run_days(days.airflow, 3)
    assert keep(days) == "no automatic savepoints"
    assert made(days) == []


def test_the_newest_are_kept_and_those_of_a_person_whatever_their_age(days):
    create(days.services, SavepointRequest("ladder", checkpoint=1))
    keep(days)
    assert made(days) == [(EPOCHS[0], "savepoint"), (EPOCHS[1], "automatic")]
    run_days(days.airflow, 3, 4)
    said = keep(days)
    assert "automatic: Savepoint 7" in said
    assert "dropped: Savepoint 4" in said
    assert made(days) == [(EPOCHS[0], "savepoint"), (EPOCHS[3], "automatic")]
    folders = {path.split("/")[2] for path in lying(days.store, SAVED)}
    assert folders == {"_numbers", "00000003", "00000007"}


def test_they_leave_as_many_checkpoints_as_there_would_be_without_them(days):
    days.airflow.deploy(aircraft(savepoint_every=1, retained_savepoints=3))
    for day in (3, 4, 5):
        run_days(days.airflow, day)
        keep(days)
        settle_everywhere(days.services, RESULTS).require_whole()
    assert days_of(days) == [3, 4, 5]
    assert list(checkpoints(days).values()) == [*EPOCHS[2:5]]
    means = displaced(days.services, "ladder")
    assert (means.beside, means.going) == (3, ())


@pytest.mark.parametrize("steps", range(14))
def test_one_whose_creation_was_killed_is_completed_or_created_by_later_upkeep(days, steps):
    before = lying(days.store, "ladder")
    whole, days.store.files = days.store.files, Refusing(days.store.files, steps, Dead(), is_dead=True)
    with suppress(Dead):
        keep(days)
    days.store.files = whole
    for _ in range(3):
        keep(days)
        days.airflow.time += timedelta(hours=1)
    assert made(days) == [(EPOCHS[1], "automatic")]
    days.airflow.time += timedelta(days=30)
    keep(days)
    (only,) = savepoints(days.services, "ladder")
    new = lying(days.store, "ladder") - before
    assert {path.split("/")[2] for path in new} == {"_numbers", only.name}
    run_days(days.airflow, 3, 4)
    keep(days)
    assert days_of(days) == [4]


@pytest.mark.parametrize("steps", range(6))
def test_one_whose_drop_was_killed_is_dropped_by_later_upkeep(days, steps):
    days.airflow.deploy(aircraft(savepoint_every=2, retained_savepoints=2))
    keep(days)
    run_days(days.airflow, 3, 4)
    keep(days)
    assert days_of(days) == [2, 4]
    days.airflow.deploy(aircraft(savepoint_every=2, retained_savepoints=1))
    run_days(days.airflow, 5)
    whole, days.store.files = days.store.files, Refusing(days.store.files, steps, Dead(), is_dead=True)
    with suppress(Dead):
        keep(days)
    days.store.files = whole
    keep(days)
    (only,) = savepoints(days.services, "ladder")
    assert only.epoch == EPOCHS[3]
    assert {path.split("/")[2] for path in lying(days.store, SAVED)} == {"_numbers", only.name}
    assert show(days.services, "ladder", only.name).checkpoint.epoch == EPOCHS[3]


def test_a_copy_that_fails_is_reported_and_harms_no_run(days):
    whole, days.store.files = days.store.files, Refusing(days.store.files, 2, OSError("no"), is_dead=True)
    assert [*maintain_savepoints_everywhere(days.services).failed] == ["ladder"]
    days.store.files = whole
    run_days(days.airflow, 3)
    assert set(days.airflow.states().values()) == {"success"}
    days.airflow.time += timedelta(hours=2)
    keep(days)
    assert days_of(days) == [3]


@pytest.mark.parametrize("nth", range(12))
def test_of_two_that_come_at_once_one_creates_it(days, nth):
    said, told = [], []

    def come(path):
        told.append(path)
        if len(told) == nth + 1:
            said.append(keep(days))

    said.append(maintain_savepoints(replace(days.services, store=Watched(days.store, come)), "ladder"))
    assert len(said) == 2
    assert days_of(days) == [2]
    assert sorted(each.partition(" of ladder")[0].partition(":")[0] for each in said) == [
        "automatic",
        "no automatic savepoint",
    ]


def test_one_that_a_person_has_dropped_is_not_created_again(days):
    keep(days)
    drop(days.services, "ladder", "3")
    assert keep(days).endswith(f"0 of 2 epoch(s) were closed since {EPOCHS[1]}")
    run_days(days.airflow, 3, 4)
    keep(days)
    assert days_of(days) == [4]


def test_a_rebuilt_ledger_knows_them_and_how_many_epochs_were_closed_since(days):
    keep(days)
    run_days(days.airflow, 3)
    before = savepoints(days.services, "ladder")
    days.lose_ledger()
    rebuild(days.services)
    assert [(each.number, each.kind, each.epoch) for each in savepoints(days.services)] == [
        (each.number, each.kind, each.epoch) for each in before
    ]
    assert keep(days).endswith(f"1 of 2 epoch(s) were closed since {EPOCHS[1]}")
    run_days(days.airflow, 4)
    keep(days)
    assert days_of(days) == [4]


def test_a_rebuilt_ledger_counts_epochs_whose_checkpoints_are_gone(days):
    days.airflow.deploy(aircraft(savepoint_every=4, retained_checkpoints=1))
    run_days(days.airflow, 3, 4)
    settle_everywhere(days.services, RESULTS).require_whole()
    assert list(checkpoints(days).values()) == [EPOCHS[3]]
    days.lose_ledger()
    rebuild(days.services)
    keep(days)
    assert days_of(days) == [4]


def test_none_is_dropped_while_the_ledger_has_lost_commits(days):
    days.airflow.deploy(aircraft(savepoint_every=2, retained_savepoints=2))
    keep(days)
    run_days(days.airflow, 3, 4)
    keep(days)
    days.airflow.deploy(aircraft(savepoint_every=2, retained_savepoints=1))
    run_days(days.airflow, 5)
    with days.ledger.transaction("ladder") as session:
        session.execute(delete(CheckpointRow).where(CheckpointRow.epoch == EPOCHS[4]))
    with pytest.raises(LedgerBehind):
        keep(days)
    assert days_of(days) == [2, 4]
    maintain_savepoints_everywhere(days.services).require_whole()  # it catches up first
    assert days_of(days) == [4]


def test_one_brings_back_a_state_whose_checkpoint_is_gone_and_can_be_forked(days):
    keep(days)
    right = states_of(days, 2)
    days.airflow.deploy(aircraft(savepoint_every=9, retained_checkpoints=1))
    run_days(days.airflow, 3, 4)
    days.airflow.release("ladder")
    restore(days, "3", fork="forked")
    restore(days, "3")
    assert states_of(days, 2) == states_of(days, 2, "forked") == right
    days.airflow.clear_run_by_hand("scheduled__2013-01-03")
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) == {"success"}
    fork = second_airflow(days, aircraft("forked", savepoint_every=1))
    run_days(fork, 3)
    maintain_savepoints(days.services, "forked")
    assert [each.epoch for each in savepoints(days.services, "forked")] == [EPOCHS[2]]


def test_a_fork_counts_its_own_epochs(days):
    keep(days)
    restore(days, "3", fork="forked")
    fork = second_airflow(days, aircraft("forked", savepoint_every=2))
    run_days(fork, 3)
    assert maintain_savepoints(days.services, "forked").endswith("1 of 2 epoch(s) were closed")
    run_days(fork, 4)
    maintain_savepoints(days.services, "forked")
    assert [each.epoch for each in savepoints(days.services, "forked")] == [EPOCHS[3]]


def test_an_epoch_that_is_closed_again_counts_once(days):
    keep(days)
    spoil(days, 1)
    go_on(days)
    assert keep(days).endswith(f"0 of 2 epoch(s) were closed since {EPOCHS[1]}")
    run_days(days.airflow, 3)
    assert keep(days).endswith(f"1 of 2 epoch(s) were closed since {EPOCHS[1]}")


def test_a_sweep_leaves_them(days):
    keep(days)
    before = lying(days.store, SAVED)
    days.airflow.time += timedelta(days=200)
    sweep(days.services, "ladder", older_than=timedelta(), is_full=True, is_reclaiming=True)
    assert lying(days.store, SAVED) == before
    assert days_of(days) == [2]
