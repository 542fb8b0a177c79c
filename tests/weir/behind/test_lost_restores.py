"""A restored run computes with the code that is deployed, whatever its ledger has lost of the restore."""

import errno

import pytest
from sqlalchemy import select
from tests.weir.behind.rewinding import RewindingWorld, days
from tests.weir.restoring import EPOCHS, aircraft, keep_savepoints, restore

from weir.formats.paths import record_path
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.rebuild.catching_up import catch_up
from weir.rebuild.rebuild import rebuild
from weir.testing.fakes.stores import FailingStore

DAY, RUN = "scheduled__2013-01-01", f"ladder@{EPOCHS[0]}"


@pytest.fixture
def world(tmp_path):
    """A day whose state a second code has made, as a person had wanted; a third one is deployed."""
    world = RewindingWorld(tmp_path, aircraft(parallelism=1, retained_checkpoints=3))
    world.deploy()
    days(world, 1)
    world.deploy(aircraft=1)
    clear_aircraft(world)
    world.heal()
    keep_savepoints(world, 1)
    world.before = world.ledger.present()
    world.deployed = world.deploy(aircraft=2)
    return world


def keep_all(_world):
    pass


def lose_commits(world):
    world.ledger.go_back(world.before)
    world.ledger.new_process()
    catch_up(world.services, "ladder")


def lose_ledger(world):
    world.lose_ledger()
    rebuild(world.services)


def lose_ledger_again(world):
    lose_ledger(world)
    lose_ledger(world)


LOSE = pytest.mark.parametrize("lose", [keep_all, lose_commits, lose_ledger, lose_ledger_again])


@LOSE
def test_a_run_whose_restore_has_replaced_nothing_computes_with_what_is_deployed(world, lose):
    assert not any(each.is_restored for each in restore(world, "day1").partitions)
    lose(world)
    assert computed_again(world) == world.deployed.fingerprint


@LOSE
def test_what_was_computed_after_a_restore_is_computed_again_by_its_code(world, lose):
    """That of a person's clear before the restore has the higher number of the two."""
    restore(world, "day1")
    assert computed_again(world) == world.deployed.fingerprint
    world.deploy(aircraft=3)
    lose(world)
    assert computed_again(world) == world.deployed.fingerprint


@LOSE
def test_a_restored_result_that_is_gone_is_computed_with_what_is_deployed(world, lose):
    world.content["aircraft"] = "wrong"
    clear_aircraft(world)
    world.heal()
    del world.content["aircraft"]
    world.deployed, world.before = world.deploy(aircraft=3), world.ledger.present()
    assert any(each.is_restored for each in restore(world, "day1").partitions)
    lose(world)
    assert computed_again(world) == world.deployed.fingerprint


def test_a_ledger_that_catches_up_keeps_a_restore_whose_record_is_not_written_yet(world):
    world.before, healthy = world.ledger.present(), world.store.files
    failing = FailingStore(world.store)
    failing.fail(record_path("ladder", EPOCHS[0]), OSError(errno.EIO, "no answer"))
    world.store.files = failing.files
    restore(world, "day1")
    world.store.files = healthy
    catch_up(world.services, "ladder")
    with world.ledger.transaction() as session:
        row = session.get_one(RunRow, RUN)
        assert (row.archive, row.is_record_due) == (None, True)
    assert computed_again(world) == world.deployed.fingerprint


def clear_aircraft(world):
    """A person clears the task of the state."""
    (name,) = {key.task_id for key in world.airflow.tasks if key.task_id.startswith("aircraft")}
    world.airflow.clear_by_hand(DAY, name)


def computed_again(world):
    """Lose the state of the day, have Weir compute it again, and return the archive of the code that it has run."""
    world.lose("history", 0)
    world.airflow.clear_by_hand(DAY, "weir_close")
    world.heal()
    assert set(world.airflow.states().values()) == {"success"}
    with world.ledger.transaction() as session:
        query = select(AttemptRow).join(ResultRow, ResultRow.attempt == AttemptRow.id)
        query = query.where(AttemptRow.run == RUN, ResultRow.stage == "history", ResultRow.is_current)
        return session.scalars(query).one().archive
