"""Results that the ledger has lost, of an older pin of their run, or of splits that were resolved before."""

import json

import pytest
from sqlalchemy import select
from tests.weir.behind.rewinding import RewindingWorld
from tests.weir.restoring import aircraft
from tests.weir.small_dataflow import World

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import Retryable
from weir.formats.codec import from_json
from weir.formats.manifest import Manifest
from weir.ledger.database.tables import ResultRow, RunRow
from weir.rebuild.catching_up import catch_up
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_results_of_an_older_pin_that_the_ledger_has_lost_are_not_taken_for_those_of_the_newer_one(
    tmp_path, is_rebuilt
):
    """Of more subtasks, a partition of the same name has fewer rows."""
    world = RewindingWorld(tmp_path, aircraft(parallelism=2))
    run = world.airflow.dag_run(1)
    world.airflow.step(world.airflow.task(run, "flights"))
    before = world.ledger.present()
    world.airflow.run_until_quiet()
    older = makers(world, "history") | makers(world, "known")
    world.ledger.go_back(before)
    world.ledger.new_process()
    adopt(world.services, f"ladder@{first_epoch(world)}")
    world.airflow.deploy(aircraft(parallelism=3))
    world.airflow.clear_run_by_hand(run)
    world.airflow.step(world.airflow.task(run, "flights"))
    rebuild(world.services) if is_rebuilt else catch_up(world.services, "ladder")
    assert older.isdisjoint(makers(world, "history") | makers(world, "known"))
    world.airflow.clear_run_by_hand(run)
    world.heal()
    assert set(world.airflow.states().values()) == {"success"}
    assert older.isdisjoint(makers(world, "history") | makers(world, "known"))
    assert len(makers(world, "known")) == 3


@pytest.fixture
def splits(tmp_path, monkeypatch):
    """A resolver gives the splits of what is there: more after a call of what this returns."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "listing.py").write_text(
        "import os\n"
        "def splits(ctx):\n"
        "    listed = os.environ['LISTED'].split()\n"
        "    return [listed[i :: ctx.parallelism] for i in range(ctx.parallelism)]\n"
    )
    monkeypatch.setenv("LISTED", "b c")
    return lambda listed="a b c": monkeypatch.setenv("LISTED", listed)


def of_files():
    return Dataflow(
        "ladder",
        [
            source("raw", "pipelines.x:raw", parallelism=2, resolve="listing:splits"),
            Stage("all", "pipelines.x:all", [blocking("raw")]),
            sink("all", "known"),
        ],
    )


def test_a_result_of_splits_that_the_ledger_has_lost_is_not_taken_beside_those_of_other_ones(tmp_path, splits):
    """A file would be read twice."""
    world = RewindingWorld(tmp_path, of_files())
    run = world.airflow.dag_run(1)
    before_it_was_resolved(world, run, 0)
    splits()
    world.airflow.step(world.airflow.task(run, "raw", 1))
    assert read(world) == [["b"]]
    world.heal()
    assert world.wrong() == []
    assert read(world) == [["a", "c"], ["b"]]


def test_a_rebuilt_ledger_takes_no_parts_of_two_listings(tmp_path, splits):
    """Each subtask has read one thing only: a ledger that had lost the first listing has resolved another one."""
    world = RewindingWorld(tmp_path, of_files())
    run = world.airflow.dag_run(1)
    before_it_was_resolved(world, run, 1)
    splits()
    world.airflow.step(world.airflow.task(run, "raw", 0))
    assert read(world) == [["a", "c"]]
    world.lose_ledger()
    rebuild(world.services)
    assert read(world) == []
    world.airflow.clear_run_by_hand(run)
    world.airflow.run_until_quiet()
    assert read(world) == [["a", "c"], ["b"]]


def test_a_rebuilt_ledger_takes_no_part_of_what_a_source_has_read(tmp_path, splits):
    world = World(tmp_path, of_files())
    run = world.airflow.dag_run(1)
    world.airflow.step(world.airflow.task(run, "raw", 0))
    world.lose_ledger()
    rebuild(world.services)
    splits()
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    assert read(world) == [["a", "c"], ["b"]]


def test_splits_that_nobody_has_read_do_not_count_where_the_store_has_results_of_later_ones(tmp_path, splits):
    """The first try has failed; what the next one has read is published, and the ledger has lost that."""
    world = RewindingWorld(tmp_path, of_files())
    run = world.airflow.dag_run(1)
    world.airflow.during = fails
    world.airflow.step(world.airflow.task(run, "raw", 0))
    world.airflow.during = lambda _key: None
    before = world.ledger.present()
    splits("a b c")
    world.airflow.run_until_quiet()
    published = world.published()
    world.ledger.go_back(before)
    world.ledger.new_process()
    splits("a b c d")
    world.heal()
    assert read(world) == [["a", "c"], ["b"]]
    assert (world.wrong(), world.published()) == ([], published)


def fails(_key):
    raise Retryable("the file is being written")


@pytest.mark.parametrize("enters", [lambda services: catch_up(services, "ladder"), rebuild])
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_run_that_was_pinned_to_the_same_anew_reads_what_was_there_then(tmp_path, splits, enters, is_begun):
    """The ledger has lost that it was adopted, and would publish what was read before."""
    world = RewindingWorld(tmp_path, of_files())
    run = world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    before = world.ledger.present()
    splits()
    adopt(world.services, f"ladder@{first_epoch(world)}")
    if is_begun:
        world.airflow.clear_run_by_hand(run)
        world.airflow.run_until_quiet()
    published = world.published()
    world.ledger.go_back(before)
    world.ledger.new_process()
    enters(world.services)
    if not is_begun:
        world.airflow.clear_run_by_hand(run)
    world.heal()
    assert read(world) == [["a", "c"], ["b"]]
    assert len(world.published()) == 2
    assert not is_begun or world.published() == published


def before_it_was_resolved(world, run, subtask):
    """Run a subtask of the source; then the ledger has lost all but that the run is pinned, and nobody knows that."""
    world.ledger.moments = []
    world.airflow.step(world.airflow.task(run, "raw", subtask))
    for moment in world.ledger.moments:
        world.ledger.go_back(moment)
        if first_epoch(world) is not None:
            break
    world.ledger.new_process()


def read(world):
    """The splits that the current results of the source are made of."""
    with world.ledger.transaction() as session:
        rows = session.scalars(select(ResultRow).where(ResultRow.stage == "raw", ResultRow.is_current))
        found = [from_json(Manifest, world.store.read(f"{row.folder}/manifest.json")).source for row in rows]
    return sorted((each["raw"] for each in found), key=json.dumps)


def makers(world, stage):
    """The attempts of the current results of a stage."""
    with world.ledger.transaction() as session:
        return set(session.scalars(select(ResultRow.attempt).where(ResultRow.stage == stage, ResultRow.is_current)))


def first_epoch(world):
    with world.ledger.transaction() as session:
        return session.scalar(select(RunRow.epoch).where(RunRow.is_pinned).order_by(RunRow.epoch))
