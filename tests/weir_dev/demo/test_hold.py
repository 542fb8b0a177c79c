"""The demo deletes a result only where it is current, available, held, and has the bytes recorded."""

from __future__ import annotations

from datetime import date

import pytest
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.small_dataflow import World, ladder

from weir.dataflow import Dataflow
from weir.errors import Misconfigured
from weir.ledger.database.tables import ResultRow
from weir.retention.release import release
from weir.store.catalogue import published
from weir_dev.airflow_api import TaskInstance
from weir_dev.demo.evidence import epoch_key, pending_clears
from weir_dev.demo.hold import held_day, partition_to_lose, verified_day
from weir_dev.demo.report import changed_tries, unexpected_reruns

DAY = date(2013, 1, 1)
LOST, READER = "joined[0]", "totals"


@pytest.fixture
def world():
    """A world whose one run is closed."""
    with fast_folder() as folder:
        (folder / "store").mkdir()
        world = World(folder, ladder())
        world.run_id = world.airflow.dag_run()
        world.airflow.run_until_quiet()
        yield world
        world.ledger.close()


def chosen(world):
    """What the demo would delete."""
    with held_day(world.services, "ladder", DAY) as held:
        return partition_to_lose(held, verified_day(world.services, held), LOST, READER)


def instances(world):
    """The task instances of all runs, as Airflow's API tells of them."""
    return [
        TaskInstance(
            task_id=key.task_id,
            map_index=key.map_index,
            run_id=key.run_id,
            state=task.state,
            try_number=task.try_number,
            note="",
        )
        for key, task in world.airflow.tasks.items()
    ]


def release_everything_that_is_not_held(world):
    """Let the run's results be needed by nothing any more."""
    flow = world.airflow.flow
    world.airflow.deploy(Dataflow(flow.name, flow.stages, keep="on_consumed"))
    world.airflow.dag_run(2)
    world.airflow.run_until_quiet()
    release(world.services, "ladder")


def state_of(world, folder):
    with world.ledger.transaction() as session:
        return session.query(ResultRow).filter_by(folder=folder).one().state


def test_a_sound_result_is_chosen_with_its_size_and_its_readers(world):
    lost = chosen(world)
    assert lost.name == "joined[0] by k"
    assert lost.bytes > 0
    assert set(lost.consumers) >= {"totals[0]", "totals[1]"}
    assert world.store.list(lost.folder)


def test_a_result_that_was_already_released_is_refused(world):
    release_everything_that_is_not_held(world)
    with pytest.raises(Misconfigured, check=of_kind("dev.results_not_whole")):
        chosen(world)


def test_what_is_held_is_not_released(world):
    with held_day(world.services, "ladder", DAY) as held:
        release_everything_that_is_not_held(world)
        lost = partition_to_lose(held, verified_day(world.services, held), LOST, READER)
        assert state_of(world, lost.folder) == "finished"
    release(world.services, "ladder")
    assert state_of(world, lost.folder) == "released"


def test_a_result_whose_files_are_gone_is_refused(world):
    world.store.delete_folder(chosen(world).folder)
    with pytest.raises(Misconfigured, check=of_kind("dev.results_not_whole")):
        chosen(world)


def test_a_result_with_other_bytes_than_those_recorded_is_refused(world):
    folder = chosen(world).folder
    name, size = next((name, size) for name, size in world.store.list(folder) if name != "manifest.json")
    path = world.folder / "store" / folder / name
    data = bytearray(path.read_bytes())
    data[size // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(Misconfigured, check=of_kind("dev.results_not_whole")):
        chosen(world)


def test_a_loss_of_another_result_of_the_day_is_refused_too(world):
    with held_day(world.services, "ladder", DAY) as held:
        other = next(each for each in held.state.results.values() if each.partition.stage == "weather")
    world.store.delete_folder(other.folder)
    with pytest.raises(Misconfigured, check=of_kind("dev.results_not_whole")):
        chosen(world)


def test_a_result_that_was_not_verified_is_refused(world):
    with (
        held_day(world.services, "ladder", DAY) as held,
        pytest.raises(Misconfigured, check=of_kind("dev.results_not_whole")),
    ):
        partition_to_lose(held, [], LOST, READER)


def test_a_subtask_without_such_a_result_is_refused(world):
    with held_day(world.services, "ladder", DAY) as held:
        verified = verified_day(world.services, held)
        with pytest.raises(Misconfigured, check=of_kind("dev.result_unknown", name="joined[7]", reader="totals")):
            partition_to_lose(held, verified, "joined[7]", READER)


def test_a_day_without_a_run_is_refused(world):
    with (
        pytest.raises(Misconfigured, check=of_kind("dev.no_run", dataflow="ladder", day="2013-01-02")),
        held_day(world.services, "ladder", date(2013, 1, 2)),
    ):
        pass


def test_a_loss_has_exactly_the_producer_and_the_cleared_consumer_run_again(world):
    before, pointer = instances(world), published(world.store, "ladder", "delays", epoch_key(DAY))
    with held_day(world.services, "ladder", DAY) as held:
        lost = partition_to_lose(held, verified_day(world.services, held), LOST, READER)
        world.store.delete_folder(lost.folder)
        world.airflow.clear_by_hand(world.run_id, "totals", 0)
        world.airflow.run_until_quiet()
    changed = changed_tries(before, instances(world))
    assert unexpected_reruns(changed, world.run_id, {"joined[0]": 1, "totals[0]": 2}, "2013-01-01") is None
    assert pending_clears(world.ledger, "ladder") == []
    assert published(world.store, "ladder", "delays", epoch_key(DAY)) == pointer


def test_a_run_whose_results_were_released_runs_more_again_and_that_is_seen(world):
    folder = chosen(world).folder
    release_everything_that_is_not_held(world)
    before = instances(world)
    world.store.delete_folder(folder)
    world.airflow.clear_by_hand(world.run_id, "totals", 0)
    world.airflow.run_until_quiet()
    said = unexpected_reruns(
        changed_tries(before, instances(world)), world.run_id, {"joined[0]": 1, "totals[0]": 2}, "2013-01-01"
    )
    assert "weather" in said
