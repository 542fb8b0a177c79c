"""Compactions stay in the ledger while they are needed, and the bytes of state are counted by them."""

from random import Random

import pytest
from sqlalchemy import select
from tests.builders.ledgers import fast_folder
from tests.weir.keeping import aircraft, run_days
from tests.weir.small_dataflow import Saved, World

from weir.ledger.database.tables import CompactionRow, ResultRow
from weir.ledger.runs import epoch_of_run
from weir.retention.checkpoints import forget_compactions
from weir.retention.sizes import bytes_at_rest, published_bytes, shared_state
from weir.retention.space import PUBLISHED, SHARED, held_by
from weir.retention.sweep import sweep
from weir.state.files_in_use import live_state_files, paths_of
from weir.upkeep import RESULTS, settle_everywhere

FLOW = aircraft(history={"runs": 2}, keep="on_consumed")


@pytest.fixture(scope="module")
def nine_days():
    """So many that the files which the first compactions have written are in use no more."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", FLOW)
        run_days(world, *range(1, 10))
        assert set(world.airflow.states().values()) == {"success"}
        settle_everywhere(world.services, RESULTS)
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(nine_days, tmp_path, copied):
    return nine_days.go_on(tmp_path, copied)


def compactions(world):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(CompactionRow).order_by(CompactionRow.run)))


def on_disk(world, *stages):
    """The sizes of the data files below the folders of these stages, by path."""
    found = {}
    for stage in stages:
        for path in (world.folder / "store" / "ladder").glob(f"*/{stage}/**/part-*"):
            found[str(path.relative_to(world.folder / "store"))] = path.stat().st_size
    return found


def test_a_compaction_is_known_as_long_as_its_result_counts_or_a_file_of_it_is_in_use(days):
    in_use = live_state_files(days.services, "ladder")
    known = compactions(days)
    merged = [path for path in on_disk(days, "history") if "/m" in path]
    assert {row.attempt for row in known} == {path.split("/")[5] for path in merged}
    assert "20130103T000000Z" not in {epoch_of_run(row.run) for row in known}
    with days.ledger.transaction() as session:
        counting = set(session.scalars(select(ResultRow.attempt).where(ResultRow.state == "finished")))
    released = [row for row in known if row.of_attempt not in counting]
    assert all(any(path in in_use for path in paths_of(row) if row.attempt in path) for row in released)
    assert forget_compactions(days.services, "ladder") == 0
    assert [row.id for row in compactions(days)] == [row.id for row in known]


@pytest.mark.parametrize("seed", range(2))
def test_the_files_of_a_compaction_are_in_use_as_soon_as_it_is_entered(world, seed):
    """The checkpoint that will name them is completed later."""
    random, airflow = Random(seed), world.airflow
    airflow.deploy(FLOW)
    for day in range(1, 6):
        airflow.dag_run(day)
    while runnable := airflow._runnable():
        airflow.step(random.choice(runnable))
        with world.ledger.transaction() as session:
            counting = set(session.scalars(select(ResultRow.attempt).where(ResultRow.state == "finished")))
        named = {path for row in compactions(world) if row.of_attempt in counting for path in paths_of(row)}
        assert named <= live_state_files(world.services, "ladder")
    assert compactions(world)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_compaction_of_a_state_that_was_recomputed_is_forgotten(days):
    """Its bytes are the sweep's, as all that nobody knows."""
    newest = compactions(days)[-1]
    days.airflow.clear_run_by_hand("scheduled__2013-01-09")
    days.airflow.run_until_quiet()
    settle_everywhere(days.services, RESULTS)
    sweep(days.services, "ladder", is_full=True)
    assert newest.attempt not in {row.attempt for row in compactions(days)}
    assert newest.run in {row.run for row in compactions(days)}


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_bytes_of_state_are_counted_once_as_long_as_they_are_there(days):
    files = on_disk(days, "flights", "aircraft", "history", "known")
    with days.ledger.transaction() as session:
        assert bytes_at_rest(session, "ladder") == bytes_at_rest(session) == sum(files.values())
        shared, published = shared_state(session, ["ladder"]), published_bytes(session, ["ladder"])
        finished = {row.folder for row in session.scalars(select(ResultRow).where(ResultRow.state == "finished"))}
    of_others = [path for path in on_disk(days, "history") if path.rpartition("/")[0] not in finished]
    assert shared == {"ladder": sum(files[path] for path in of_others)}
    holders = held_by([], {PUBLISHED: published, SHARED: shared})
    assert [(each.reason, each.bytes) for each in holders if each.reason == SHARED] == [(SHARED, shared["ladder"])]
    assert sum(each.bytes for each in holders if each.reason == PUBLISHED) == published["ladder"]
