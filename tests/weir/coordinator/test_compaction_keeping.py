"""How long compactions are known, and that the bytes of state are counted as they lie about."""

import pytest
from sqlalchemy import select
from tests.weir.coordinator.conftest import Saved, World

from weir.coordinator.compaction_keeping import forget_compactions
from weir.coordinator.room_holders import PUBLISHED, SHARED, held_by
from weir.coordinator.state_files import live_state_files, paths_of
from weir.coordinator.sweep import sweep
from weir.coordinator.upkeep import release_everywhere
from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.ledger.models import ResultRow
from weir.ledger.runs import epoch_of_run
from weir.ledger.sizes import bytes_at_rest, kept_for_good, shared_state
from weir.ledger.state_models import CompactionRow
from weir.testing.ledgers import fast_folder

FLOW = Dataflow(
    "ladder",
    [
        source("flights", "pipelines.ladder:flights"),
        Stage(
            "aircraft",
            "pipelines.ladder:aircraft",
            [blocking("flights", by="k")],
            state=keyed_state("history", key="k", schema="k BIGINT, n BIGINT", runs=2),
        ),
        sink("aircraft", "known"),
    ],
    keep="on_consumed",
)


@pytest.fixture(scope="module")
def nine_days():
    """So many that the files which the first compactions have written are in use no more."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", FLOW)
        for day in range(1, 10):
            world.airflow.dag_run(day)
            world.airflow.run_until_quiet()
        assert set(world.airflow.states().values()) == {"success"}
        release_everywhere(world.services)
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(nine_days, tmp_path):
    return nine_days.go_on(tmp_path)


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


def test_what_a_state_was_compacted_to_that_was_made_again_is_forgotten(days):
    """Its bytes are the sweep's, as all that nobody knows."""
    newest = compactions(days)[-1]
    days.airflow.clear_run_by_hand("scheduled__2013-01-09")
    days.airflow.run_until_quiet()
    release_everywhere(days.services)
    sweep(days.services, "ladder", is_full=True)
    assert newest.attempt not in {row.attempt for row in compactions(days)}
    assert newest.run in {row.run for row in compactions(days)}


def test_the_bytes_of_state_are_counted_once_as_long_as_they_are_there(days):
    files = on_disk(days, "flights", "aircraft", "history", "known")
    with days.ledger.transaction() as session:
        assert bytes_at_rest(session, "ladder") == bytes_at_rest(session) == sum(files.values())
        shared, published = shared_state(session, ["ladder"]), kept_for_good(session, ["ladder"])
        finished = {row.folder for row in session.scalars(select(ResultRow).where(ResultRow.state == "finished"))}
    of_others = [path for path in on_disk(days, "history") if path.rpartition("/")[0] not in finished]
    assert shared == {"ladder": sum(files[path] for path in of_others)}
    holders = held_by([], published, shared)
    assert [(each.reason, each.bytes) for each in holders if each.reason == SHARED] == [(SHARED, shared["ladder"])]
    assert sum(each.bytes for each in holders if each.reason == PUBLISHED) == published["ladder"]
