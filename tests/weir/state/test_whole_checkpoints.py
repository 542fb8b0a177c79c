"""A retained checkpoint can be read whole, whichever processes work at once, and whatever their clocks say."""

from contextlib import suppress
from datetime import timedelta
from random import Random

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.recovery.overtaking import next_try, overtake
from tests.weir.restoring import EPOCHS, aircraft, checkpoints, rows_of, run_days
from tests.weir.small_dataflow import Saved, World

from weir.coordination.services import Services
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink
from weir.errors import Conflict, Fault, Loss
from weir.formats.paths import checkpoints_folder, numbers_folder
from weir.ledger.database.tables import CheckpointRow, ResultRow, RunRow
from weir.ledger.leases import LEASE
from weir.ledger.results import record_losses
from weir.rebuild.rebuild import rebuild
from weir.retention.checkpoints import maintain_checkpoints
from weir.retention.deletion_rules import FolderAction, FolderDecision
from weir.retention.folder_rules import AttemptFolder, Place
from weir.retention.release import delete_released, release
from weir.retention.sweep import sweep
from weir.retention.sweep_run import without_state_in_use
from weir.snapshots.savepoint import SavepointRequest, create
from weir.snapshots.source import find_source, require_whole
from weir.state.checkpoint import subsume_checkpoints
from weir.store.store import Store
from weir.testing.fakes.engine import FakeEngine
from weir.upkeep import RESULTS, settle_everywhere

SECONDS = timedelta(seconds=20)
READS = 15
"""How often a close reads the store of two days before it takes the number of its checkpoint."""
FULL = keyed_state("history", key="k", schema="k BIGINT, n BIGINT", incremental=False)


@pytest.fixture(scope="module")
def three_days():
    """Two checkpoints are to be retained, and three are: upkeep has not come by since the third day was closed.

    The state of the first day was recomputed since, with equal content.
    """
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", aircraft(states=FULL, keep="on_consumed", retained_checkpoints=2))
        run_days(world.airflow, 1, 2)
        world.airflow.collects = False
        run_days(world.airflow, 3)
        recompute(world, 1)
        assert checkpoints(world) == {1: EPOCHS[0], 2: EPOCHS[1], 3: EPOCHS[2]}
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(three_days, tmp_path):
    return three_days.go_on(tmp_path)


def recompute(world, day):
    """A person clears the tasks that keep the state, alone."""
    for subtask in (0, 1):
        world.airflow.clear_by_hand(f"scheduled__2013-01-{day:02d}", "aircraft-known", subtask)
    world.airflow.run_until_quiet()


def require_all_whole(world):
    for number in checkpoints(world):
        require_whole(find_source(world.services, "ladder", str(number)))


def other_upkeep_goes_on(world, retained=2):
    """Another upkeep, which has looked for what to complete already, subsumes and deletes."""
    with world.ledger.transaction("ladder") as session:
        subsume_checkpoints(session, "ladder", retained, world.airflow.time)
    maintain_checkpoints(world.services, "ladder")
    release(world.services, "ladder")
    delete_released(world.services, "ladder")


def states_of_results(world, day, stage="history"):
    with world.ledger.transaction() as session:
        query = select(ResultRow.state).where(ResultRow.run == f"ladder@{EPOCHS[day - 1]}", ResultRow.stage == stage)
        return list(session.scalars(query.order_by(ResultRow.id)))


class HookedStore(Store):
    """Calls a function just before the manifest of a checkpoint is written."""

    __slots__ = ("before",)

    def __init__(self, store, before):
        super().__init__(store.files)
        self.before = before

    def create(self, path, data):
        if path.startswith(f"{checkpoints_folder('ladder')}/"):
            self.before()
        return super().create(path, data)


class OnceNow:
    """A clock that calls a function when it is first asked."""

    def __init__(self, world, work):
        self._world, self._work = world, work

    def __call__(self):
        work, self._work = self._work, lambda: None
        work()
        return self._world.airflow.time


# Two upkeeps


def test_a_checkpoint_is_not_completed_of_results_that_another_upkeep_has_released_meanwhile(days):
    clock = OnceNow(days, lambda: other_upkeep_goes_on(days))  # asked when all files were found to be there
    done = maintain_checkpoints(Services(ledger=days.ledger, store=days.store, now=clock), "ladder")
    assert "finished" not in states_of_results(days, 1)
    assert done.completed == ()
    assert checkpoints(days) == {2: EPOCHS[1], 3: EPOCHS[2]}
    require_all_whole(days)


def test_what_a_checkpoint_names_is_not_released_while_it_is_being_completed(days):
    during = []

    def other():
        other_upkeep_goes_on(days)
        during.extend(row.state for row in rows_of(days, 1))

    store = HookedStore(days.store, other)
    done = maintain_checkpoints(Services(ledger=days.ledger, store=store, now=lambda: days.airflow.time), "ladder")
    assert during == ["finished", "finished"]
    assert done.completed == (4,)
    assert checkpoints(days) == {2: EPOCHS[1], 3: EPOCHS[2]}
    require_all_whole(days)
    settle_everywhere(days.services, RESULTS)
    assert "finished" not in states_of_results(days, 1)


def test_a_checkpoint_that_is_given_up_while_it_is_being_completed_protects_nothing_and_is_not_completed(days):
    def other():
        days.airflow.time += timedelta(hours=2)
        other_upkeep_goes_on(days)

    store = HookedStore(days.store, other)
    done = maintain_checkpoints(Services(ledger=days.ledger, store=store, now=lambda: days.airflow.time), "ladder")
    assert done.completed == ()
    assert checkpoints(days) == {2: EPOCHS[1], 3: EPOCHS[2]}
    require_all_whole(days)


def test_a_checkpoint_with_a_lost_result_subsumes_none_that_is_whole(days):
    lost = rows_of(days, 3)[0]
    loss = Loss(lost.run, lost.stage, lost.subtask, lost.layout, lost.attempt, Fault.MISSING, "gone")
    with days.ledger.transaction("ladder") as session:
        record_losses(session, [loss], days.airflow.time)
    maintain_checkpoints(days.services, "ladder")
    assert sorted(checkpoints(days).values()) == list(EPOCHS[:3])


def test_a_savepoint_is_of_files_that_stay_while_it_is_made(days):
    """Its checkpoint is subsumed when the first of them is to be copied."""
    seen = []

    class Copying(Store):
        __slots__ = ()

        def read(self, path, *part):
            if "/history/" in path and not seen:
                seen.append(path)
                other_upkeep_goes_on(days, retained=1)
            return super().read(path, *part)

    services = Services(ledger=days.ledger, store=Copying(days.store.files), now=lambda: days.airflow.time)
    made = create(services, SavepointRequest("ladder", 2))
    assert seen
    assert 2 not in checkpoints(days)
    require_whole(find_source(days.services, "ladder", str(made.number)))


def test_the_files_of_a_savepoint_stay_however_long_they_are_copied(days, monkeypatch):
    """The checkpoint is subsumed, and each file takes the most of a lease."""
    monkeypatch.setattr("weir.snapshots.savepoint._BETWEEN_RENEWALS", 1)
    monkeypatch.setattr("weir.store.copying.AT_ONCE", 1)
    copied = []

    class Slow(Store):
        __slots__ = ()

        def read(self, path, *part):
            if "/history/" in path and path.endswith(".bin"):
                copied.append(path)
                days.airflow.time += LEASE * 0.9
                other_upkeep_goes_on(days, retained=1)
            return super().read(path, *part)

    services = Services(ledger=days.ledger, store=Slow(days.store.files), now=lambda: days.airflow.time)
    made = create(services, SavepointRequest("ladder", 2))
    assert len(copied) == 2
    assert 2 not in checkpoints(days)
    require_whole(find_source(days.services, "ladder", str(made.number)))


def test_checkpoints_of_later_epochs_are_completed_again_once_the_epoch_before_is_closed(world, monkeypatch):
    flow = aircraft(parallelism=1)
    report = Stage("report", "pipelines.ladder:report", [blocking("aircraft")])
    world.airflow.deploy(Dataflow("ladder", [*flow.stages[:2], report, sink("report", "known")], keep="60 days"))
    content = FakeEngine._content

    def same(engine, stage, contents):
        return "same" if stage.name == "report" else content(engine, stage, contents)

    monkeypatch.setattr(FakeEngine, "_content", same)
    run_days(world.airflow, 1, 2)
    first, second = (f"scheduled__2013-01-0{day}" for day in (1, 2))
    world.content["flights"] = "changed"
    world.airflow.clear_by_hand(first, "flights")
    order = [(first, "flights"), (first, "aircraft"), (second, "aircraft"), (second, "report-known")]
    for run_id, name in order:
        world.airflow.step(world.airflow.task(run_id, name))
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert checkpoints(world) == {3: EPOCHS[0], 4: EPOCHS[1]}


@pytest.mark.parametrize("seed", range(12))
def test_an_epoch_is_checkpointed_only_while_the_one_before_is_closed(world, seed):
    """The one before is opened again between what the closing task has looked at, and the number that it takes."""
    airflow = world.airflow
    airflow.deploy(aircraft(parallelism=1))
    run_days(airflow, 1)
    world.run = airflow.dag_run(2)
    while airflow._ready().key.task_id != "weir_close":
        airflow.step(airflow._ready())

    def open_again():
        with world.ledger.transaction("ladder") as session:
            session.get_one(RunRow, f"ladder@{EPOCHS[0]}").closed_at = None

    overtake(world, Random(seed).randint(1, READS), open_again)
    with suppress(Conflict):
        airflow.coordinator.close(next_try(world, "weir_close"), airflow)
    assert list(checkpoints(world).values()) == [EPOCHS[0]]


# Clocks


@pytest.mark.parametrize("skew", [SECONDS, -SECONDS], ids=["ahead", "behind"])
def test_a_worker_whose_clock_is_wrong_makes_no_checkpoint_lose_files(world, skew):
    world.airflow.deploy(aircraft(keep="on_consumed"))
    run_days(world.airflow, 1)
    world.airflow.time += skew
    recompute(world, 1)
    world.airflow.time += timedelta(hours=3) - skew
    settle_everywhere(world.services, RESULTS)
    require_all_whole(world)
    world.airflow.time += timedelta(days=3)
    sweep(world.services, is_full=True)
    require_all_whole(world)
    assert list(checkpoints(world).values()) == [EPOCHS[0]]


@pytest.mark.parametrize("skew", [SECONDS, -SECONDS], ids=["ahead", "behind"])
def test_upkeep_completes_a_checkpoint_of_what_was_recomputed_whatever_the_clocks_say(world, skew):
    world.airflow.deploy(aircraft(keep="on_consumed"))
    run_days(world.airflow, 1)
    world.airflow.collects = False
    world.airflow.time += skew
    recompute(world, 1)
    world.airflow.time -= skew
    maintain_checkpoints(world.services, "ladder")
    assert checkpoints(world) == {2: EPOCHS[0]}
    with world.ledger.transaction() as session:
        named = session.scalar(select(CheckpointRow.results).where(CheckpointRow.number == 2))
    assert named == sorted(row.id for stage in ("history", "offsets") for row in rows_of(world, 1, stage))


def test_a_folder_that_a_retained_checkpoint_names_is_never_swept_whatever_its_layout(world):
    world.airflow.deploy(aircraft())
    run_days(world.airflow, 1)
    row = rows_of(world, 1, "offsets")[0]
    files = tuple((name, size) for name, size in world.store.list(row.folder))
    found = AttemptFolder(
        path=row.folder,
        place=Place.RESULT,
        name=row.stage,
        subtask=str(row.subtask),
        attempt=row.attempt,
        files=files,
    )
    decided = [FolderDecision(found, FolderAction.GARBAGE, "the ledger does not know it")]
    (kept,) = without_state_in_use(world.services, "ladder", decided)
    assert (row.layout, kept.action) == ("plain", FolderAction.KEPT)


# Epochs and numbers


def correct_first_day(world):
    """The first day is computed again with other rows and is closed; the days after it have not run again."""
    world.content["flights"] = "corrected"
    world.airflow.queued |= {key.run_id for key in world.airflow.tasks} - {"scheduled__2013-01-01"}
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()


def numbers_of(world, day):
    with world.ledger.transaction() as session:
        query = select(CheckpointRow.number).where(CheckpointRow.epoch == EPOCHS[day - 1])
        return list(session.scalars(query.order_by(CheckpointRow.number)))


def test_the_checkpoint_of_an_old_epoch_never_takes_the_place_of_a_newer_ones(world):
    world.airflow.deploy(aircraft(retained_checkpoints=1))
    run_days(world.airflow, 1, 2, 3)
    correct_first_day(world)
    assert checkpoints(world) == {3: EPOCHS[2]}
    assert numbers_of(world, 1) == [1, 4]
    settle_everywhere(world.services, RESULTS)
    require_all_whole(world)
    world.airflow.queued.clear()
    world.airflow.run_until_quiet()
    assert list(checkpoints(world).values()) == [EPOCHS[2]]
    require_all_whole(world)


def test_a_rebuilt_ledger_gives_no_number_out_again_whose_checkpoint_is_gone(world):
    world.airflow.deploy(aircraft(retained_checkpoints=1))
    run_days(world.airflow, 1, 2)
    correct_first_day(world)
    assert (checkpoints(world), numbers_of(world, 1)) == ({2: EPOCHS[1]}, [1, 3])
    world.lose_ledger()
    rebuild(world.services, "ladder")
    assert list(checkpoints(world).values()) == [EPOCHS[1]]
    world.airflow.queued.clear()
    world.airflow.run_until_quiet()
    settle_everywhere(world.services, RESULTS)
    with world.ledger.transaction() as session:
        again = list(session.scalars(select(CheckpointRow.number).where(CheckpointRow.epoch != "")))
    assert min(again) == 2
    assert 3 not in again
    assert list(checkpoints(world).values()) == [EPOCHS[1]]
    kept = [name for name, _ in world.store.list(numbers_folder("ladder"))]
    assert len(kept) <= 1
