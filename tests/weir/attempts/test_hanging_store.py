"""A store that hangs under a running dataflow: tries give up in time, nothing is lost, and all goes on afterwards."""

import pytest
from sqlalchemy import select
from tests.servers.hung_file import hung_file

from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import AttemptRow, ResultEventRow, ResultRow
from weir.store.catalogue import published
from weir.store.local import LocalFiles
from weir.store.time_limit import TimeLimitedFiles

EPOCHS = ("20130101T000000Z", "20130102T000000Z")


@pytest.fixture
def green(world, tmp_path):
    """Two runs without a fault; from now on the store is waited for during half a second."""
    world.run = world.run_first(1, 2)
    world.store.files = TimeLimitedFiles(LocalFiles(tmp_path / "store"), 0.5)
    return world


@pytest.fixture
def folder(green, tmp_path):
    """The folder of the second run's current result of joined[1]."""
    with green.ledger.transaction() as session:
        row = session.scalar(
            select(ResultRow).where(
                ResultRow.run == f"ladder@{EPOCHS[1]}",
                ResultRow.stage == "joined",
                ResultRow.subtask == 1,
                ResultRow.is_current,
            )
        )
    return tmp_path / "store" / row.folder


def run_until_nothing_goes_on(world, tries):
    with pytest.raises(AssertionError, match=f"no end after {tries} tries"):
        world.airflow.run_until_quiet(tries)


def failures(world):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(AttemptRow.failure).where(AttemptRow.failure.is_not(None))))


def require_as_before(world, before):
    """Nothing was ever called lost, only `routes` ran again, and what is published is the same."""
    with world.ledger.transaction() as session:
        present = set(session.scalars(select(ResultRow.state).where(ResultRow.is_current)))
        assert present == {PartitionState.FINISHED.value}
        assert PartitionState.LOST.value not in set(session.scalars(select(ResultEventRow.state)))
    again = {task for task, tries in world.airflow.executed(world.run).items() if tries > before.get(task, 0)}
    assert again == {"routes[0]"}
    assert set(world.airflow.states().values()) == {"success"}
    contents = [[part.digest for part in published(world.store, "ladder", "delays", at).partitions] for at in EPOCHS]
    assert contents[0] == contents[1]


def test_a_manifest_that_hangs_at_the_begin_is_waited_for(green, folder):
    before = green.airflow.executed(green.run)
    green.airflow.clear_by_hand(green.run, "routes")
    with hung_file(folder / "manifest.json"):
        run_until_nothing_goes_on(green, 3)
        assert failures(green) == ["environment"] * 3
    green.airflow.run_until_quiet()
    require_as_before(green, before)


def test_a_file_that_begins_to_hang_while_it_is_read_is_not_taken_for_a_damaged_one(green, folder):
    before, hung = green.airflow.executed(green.run), hung_file(folder / "part-0.bin")
    read = green.airflow.engine._read

    def read_and_hang(path):
        content = read(path)
        if path.endswith(f"{folder.name}/part-0.bin") and not failures(green):
            hung.__enter__()
        return content

    green.airflow.engine._read = read_and_hang
    green.airflow.clear_by_hand(green.run, "routes")
    try:
        run_until_nothing_goes_on(green, 3)
        assert failures(green) == ["environment"] * 3
    finally:
        hung.__exit__(None, None, None)
    green.airflow.run_until_quiet()
    require_as_before(green, before)
