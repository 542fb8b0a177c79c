"""A disk that fills up under a running dataflow: tries wait for room, and the outcome is that without the fault."""

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.servers.small_disk import small_disk

from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir.errors import DiskFull
from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import AttemptRow, ResultRow
from weir.store.catalogue import published

EPOCHS = ("20130101T000000Z", "20130102T000000Z")


@pytest.fixture
def disk(world, tmp_path):
    """A small disk in the place of the store. A run of the first day, without a fault, is through."""
    with small_disk(tmp_path / "store", megabytes=24) as mounted:
        world.airflow.dag_run(1)
        world.airflow.run_until_quiet()
        yield mounted


def fill_in(world, disk, task_id, map_index=-1):
    """Fill the disk up in the middle of the task's next computation."""

    def fill(key):
        if (key.task_id, key.map_index) == (task_id, map_index):
            world.airflow.during = lambda _key: None
            disk.fill()

    world.airflow.during = fill


def run_until_nothing_goes_on(world, tries=30):
    with pytest.raises(AssertionError, match=f"no end after {tries} tries"):
        world.airflow.run_until_quiet(tries)


def failures(world):
    with world.ledger.transaction() as session:
        return set(session.scalars(select(AttemptRow.failure).where(AttemptRow.failure.is_not(None))))


def content(world, epoch):
    return [(each.rows, each.digest) for each in published(world.store, "ladder", "delays", epoch).partitions]


def test_the_run_goes_on_by_itself_once_there_is_room_and_its_outcome_is_that_without_the_fault(world, disk):
    fill_in(world, disk, "joined", 1)
    run = world.airflow.dag_run(2)
    run_until_nothing_goes_on(world)
    assert failures(world) == {"environment"}
    disk.make_room()
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    again = {task for task, tries in world.airflow.executed(run).items() if tries > 1}
    assert again == {"joined[1]"}
    assert content(world, EPOCHS[1]) == content(world, EPOCHS[0])


def twofold():
    """A source that writes two results: one by key, one plain."""
    by_key = Stage("by_key", "pipelines.ladder:by_key", [blocking("raw", by="k")], parallelism=2)
    inputs = [blocking("raw", by="v"), blocking("by_key", by="v")]
    whole = Stage("whole", "pipelines.ladder:whole", inputs, parallelism=2)
    return Dataflow("ladder", [source("raw", "pipelines.ladder:raw"), by_key, whole, sink("whole", "delays")])


@pytest.mark.parametrize("too_large", ["its second result", "its manifest"])
def test_nothing_is_marked_lost_and_what_was_half_written_is_removed(world, disk, too_large):
    write, written = world.airflow.engine._write, []

    def filling_up(stage, output, *content):
        if too_large == "its second result" and written:
            disk.fill()
        report = write(stage, output, *content)
        written.append(disk.path / output.folder)
        if too_large == "its manifest":
            disk.fill()
        return report

    world.airflow.engine._write = filling_up
    world.airflow.deploy(twofold())
    world.airflow.dag_run(2)
    run_until_nothing_goes_on(world, 10)
    assert failures(world) == {"environment"}
    assert written
    assert not any(folder.exists() for folder in written)
    with world.ledger.transaction() as session:
        states = set(session.scalars(select(ResultRow.state)))
    assert states <= {PartitionState.FINISHED.value, PartitionState.RELEASED.value}  # released to make room


def test_no_try_computes_anything_on_a_disk_that_is_full(world, disk):
    disk.fill()
    world.airflow.dag_run(2)
    computed = []
    world.airflow.during = computed.append
    run_until_nothing_goes_on(world)
    assert computed == []
    disk.make_room()
    world.airflow.run_until_quiet()
    assert content(world, EPOCHS[1]) == content(world, EPOCHS[0])


def test_an_error_of_a_computation_that_left_no_room_is_taken_for_a_full_disk(world, disk):
    """Spark says "Mkdirs failed to create ..." of a folder for which there is no room."""

    def fail(_key):
        disk.fill()
        world.airflow.during = lambda _key: None
        raise OSError("Mkdirs failed to create file:/...")

    world.airflow.during = fail
    world.airflow.dag_run(2)
    run_until_nothing_goes_on(world, 10)
    assert failures(world) == {"environment"}


def test_the_message_says_how_much_room_there_is_and_what_to_do(world, disk):
    disk.fill()
    with pytest.raises(DiskFull, check=of_kind("store.disk_full", free="0 of 25165824 bytes free")):
        world.store.require_free_space()
    with pytest.raises(DiskFull, check=of_kind("store.write_hit_full_disk")):
        world.store.create("a", b"b")
