"""Checkpoints under kills: whatever step was the last, a later process completes or undoes it."""

from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.small_dataflow import Saved
from tests.weir.state.test_checkpoints import EPOCHS, aircraft, checkpoint, is_there, retained, rows, run_days

from weir.coordination.services import Services
from weir.ledger.database.tables import ResultRow
from weir.retention import checkpoints as checkpoint_keeping
from weir.retention.checkpoints import maintain_checkpoints
from weir.retention.release import release
from weir.retention.sweep import sweep
from weir.state.files_in_use import live_state_files
from weir.store.catalogue import published
from weir.store.store import Store
from weir.store.walk import files_below
from weir.testing.fakes.airflow import FakeAirflow, Killed
from weir.testing.fakes.engine import FakeEngine
from weir.upkeep import RESULTS, settle_everywhere

FIFTH = "scheduled__2013-01-05"


class Fate:
    """Counts the changes of store and ledger, and kills the process of the n-th: just before it, or just after."""

    def __init__(self, nth):
        self.left = nth

    def step(self):
        self.left -= 1
        if self.left == 0:
            raise Killed


class DyingStore(Store):
    __slots__ = ("fate",)

    def __init__(self, store, fate):
        super().__init__(store.files)
        self.fate = fate

    def create(self, path, data):
        self.fate.step()
        super().create(path, data)
        self.fate.step()

    def delete(self, path):
        self.fate.step()
        super().delete(path)
        self.fate.step()


class DyingLedger:
    """The ledger, of which a transaction that changes something may be the last thing that a process does."""

    def __init__(self, ledger, fate):
        self._ledger, self._fate = ledger, fate

    def __getattr__(self, name):
        return getattr(self._ledger, name)

    @contextmanager
    def transaction(self, dataflow=None):
        with self._ledger.transaction(dataflow) as session:
            yield session
            if dataflow is not None:
                self._fate.step()
        if dataflow is not None:
            self._fate.step()


def dying(world, nth):
    """The world as a process sees it that is killed at its n-th change."""
    fate = Fate(nth)
    services = Services(
        ledger=DyingLedger(world.ledger, fate), store=DyingStore(world.store, fate), now=lambda: world.airflow.time
    )
    airflow = FakeAirflow(services, FakeEngine(services.store, world.content), world.airflow.flow)
    for name in Saved.STATE:
        setattr(airflow, name, getattr(world.airflow, name))
    return airflow, fate


@pytest.fixture(scope="module")
def before_the_fifth_closes(tmp_path_factory):
    """Four days of a history that forgets, and a fifth of which only the closing task is left."""
    from tests.weir.small_dataflow import World, ladder

    folder = tmp_path_factory.mktemp("checkpoints")
    (folder / "world" / "store").mkdir(parents=True)
    world = World(folder / "world", ladder())
    world.airflow.deploy(aircraft(ttl="2 days"))
    run_days(world, 1, 2, 3, 4)
    world.airflow.dag_run(5)
    while (ready := world.airflow._ready()).key.task_id != "weir_close":
        world.airflow.step(ready)
    return Saved(world, folder / "saved")


def lying(world):
    """All files below the dataflow, but notes of what was released, which tell of times."""
    return {each.path for each in files_below(world.store, ["ladder"]) if "released" not in each.path}


def state_files(world):
    return {path for path in lying(world) if "/history/" in path and path.endswith(".bin")}


def finish(world):
    world.airflow.run_until_quiet()
    settle_everywhere(world.services, RESULTS).require_whole()


def assert_all_that_is_named_is_there(world):
    """No retained checkpoint, and no result that counts, misses a file."""
    for number, _ in retained(world):
        if is_there(world, f"ladder/_checkpoints/{number:08d}.json"):
            assert all(is_there(world, path) for path in checkpoint(world, number).files)
        else:
            raise AssertionError(f"checkpoint {number} is retained without its manifest")
    assert all(is_there(world, path) for path in live_state_files(world.services, "ladder"))


def assert_what_is_published_is_checkpointed(world):
    """Nothing of the fifth day is published whose checkpoint is not complete."""
    status = {row.epoch: row.status for row in rows(world)}
    if published(world.store, "ladder", "known", EPOCHS[4]) is not None:
        assert status[EPOCHS[4]] == "completed"


def test_the_closing_task_may_be_killed_at_any_step(before_the_fifth_closes):
    with fast_folder() as folder:
        world = before_the_fifth_closes.go_on(folder / "whole")
        finish(world)
        expected, kept = state_files(world), [day for _, day in retained(world)]
    assert kept == [3, 4, 5]
    killed = 0
    for nth in range(1, 200, 2):  # before each change: a kill after it is a kill before the next
        with fast_folder() as folder:
            world = before_the_fifth_closes.go_on(folder / "killed")
            airflow, fate = dying(world, nth)
            airflow.step(airflow.task(FIFTH, "weir_close"))
            if fate.left > 0:
                break
            killed = nth
            world.airflow.time = airflow.time
            assert_all_that_is_named_is_there(world)
            assert_what_is_published_is_checkpointed(world)
            finish(world)
            assert set(world.airflow.states().values()) == {"success"}
            assert [day for _, day in retained(world)] == kept
            assert state_files(world) == expected
            assert_all_that_is_named_is_there(world)
            # The number of a try that was killed is completed by the next.
            assert [row.number for row in rows(world)] == [1, 2, 3, 4, 5]
            if nth % 10 == 1:
                assert not sweep(world.services, is_full=True).unknown
    assert killed > 20


def test_upkeep_alone_goes_on_where_the_closing_task_was_killed_behind_its_commit(before_the_fifth_closes):
    with fast_folder() as folder:
        world = before_the_fifth_closes.go_on(folder / "killed")
        world.airflow.collects = False
        world.airflow.run_until_quiet()
        assert [day for _, day in retained(world)] == [2, 3, 4, 5]
        kept = maintain_checkpoints(world.services, "ladder")
        assert (kept.subsumed, kept.deleted) != ((), ())
        assert [day for _, day in retained(world)] == [3, 4, 5]
        assert not maintain_checkpoints(world.services, "ladder").subsumed


def test_a_pending_number_of_a_run_that_is_closed_is_given_up_and_its_manifest_goes(before_the_fifth_closes):
    with fast_folder() as folder:
        world = before_the_fifth_closes.go_on(folder / "world")
        finish(world)
        newest = rows(world)[-1]
        with world.ledger.transaction("ladder") as session:
            row = session.merge(newest)
            row.status = "pending"
        assert not maintain_checkpoints(world.services, "ladder").abandoned  # its attempt may still complete it
        world.airflow.time += timedelta(hours=2)
        assert maintain_checkpoints(world.services, "ladder").abandoned == (newest.number,)
        assert not is_there(world, f"ladder/_checkpoints/{newest.number:08d}.json")
        with world.ledger.transaction() as session:
            named = select(ResultRow).where(ResultRow.stage == "history", ResultRow.state == "finished")
            assert f"ladder@{newest.epoch}" in {row.run for row in session.scalars(named)}


def give_up_lost(world, number):
    """The manifest of a checkpoint is lost, and upkeep is killed after having given it up."""
    world.store.delete(f"ladder/_checkpoints/{number:08d}.json")
    assert checkpoint_keeping._abandon_lost(world.services, "ladder") == (number,)


def test_a_run_whose_lost_checkpoint_was_given_up_is_checkpointed_by_the_next_process(before_the_fifth_closes):
    with fast_folder() as folder:
        world = before_the_fifth_closes.go_on(folder / "world")
        finish(world)
        give_up_lost(world, 4)
        release(world.services, "ladder")  # its state is not taken for subsumed
        assert maintain_checkpoints(world.services, "ladder").completed == (6,)
        assert retained(world) == [(3, 3), (5, 5), (6, 4)]
        assert_all_that_is_named_is_there(world)
        assert not maintain_checkpoints(world.services, "ladder", is_thorough=True).completed


def test_one_that_would_not_be_retained_is_not_completed_once_more(before_the_fifth_closes):
    with fast_folder() as folder:
        world = before_the_fifth_closes.go_on(folder / "world")
        finish(world)
        give_up_lost(world, 3)
        world.airflow.collects = False
        run_days(world, 6)
        kept = maintain_checkpoints(world.services, "ladder")
        assert (kept.completed, retained(world)) == ((), [(4, 4), (5, 5), (6, 6)])
        with world.ledger.transaction() as session:
            third = select(ResultRow.state).where(
                ResultRow.run == "ladder@20130103T000000Z", ResultRow.stage == "history"
            )
            assert list(session.scalars(third)) == ["released"]
