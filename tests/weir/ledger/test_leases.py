"""Read leases live from the begin's answer to the attempt's end."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.weir.small_dataflow import World, ladder

from weir.ledger.database.tables import LeaseRow, ResultRow
from weir.ledger.leases import LEASE
from weir.testing.fakes.airflow import Killed


@pytest.fixture
def world(tmp_path):
    """A run whose `joined[0]` may begin."""
    (tmp_path / "store").mkdir()
    world = World(tmp_path, ladder())
    world.run = world.airflow.dag_run()
    for task_id, index in (("raw-clean", 0), ("raw-clean", 1), ("weather", -1)):
        world.airflow.step(world.airflow.task(world.run, task_id, index))
    return world


def leases(world):
    with world.ledger.transaction() as session:
        query = select(ResultRow, LeaseRow).join(LeaseRow, LeaseRow.result == ResultRow.id)
        return {(row.stage, row.subtask): (lease.holder, lease.expires_at) for row, lease in session.execute(query)}


def step(world):
    world.airflow.step(world.airflow.task(world.run, "joined", 0))


def test_all_inputs_are_leased_while_an_attempt_reads_them(world):
    seen = {}
    world.airflow.during = lambda _key: seen.update(leases(world))
    step(world)
    assert seen.keys() == {("clean", 0), ("clean", 1), ("weather", 0)}
    assert len({holder for holder, _ in seen.values()}) == 1
    assert {expires for _, expires in seen.values()} == {world.airflow.time + LEASE}


def test_a_commit_ends_the_leases(world):
    step(world)
    assert world.airflow.task(world.run, "joined", 0).state == "success"
    assert leases(world) == {}


def test_a_failure_ends_the_leases(world):
    world.airflow.during = lambda _key: (_ for _ in ()).throw(ValueError("bad row"))
    step(world)
    assert world.airflow.task(world.run, "joined", 0).state == "up_for_retry"
    assert leases(world) == {}


def test_a_killed_attempt_keeps_its_leases_until_they_expire(world):
    world.airflow.during = lambda _key: (_ for _ in ()).throw(Killed)
    step(world)
    assert len(leases(world)) == 3


def test_an_attempt_that_awaits_an_input_holds_no_lease(world):
    world.airflow.clear_by_hand(world.run, "weather")
    weather = world.airflow.task(world.run, "weather")
    weather.try_number, weather.state = 2, "running"
    world.airflow.coordinator.begin(world.airflow.request(weather), world.airflow)
    world.store.delete_folder(folder_of(world, "weather"))
    step(world)
    assert world.airflow.task(world.run, "joined", 0).state in ("up_for_reschedule", "up_for_retry")
    assert leases(world) == {}


def folder_of(world, stage):
    with world.ledger.transaction() as session:
        return session.scalar(select(ResultRow.folder).where(ResultRow.stage == stage, ResultRow.is_current))


def test_leases_are_renewed_by_signs_of_life(world):
    task = world.airflow.task(world.run, "joined", 0)
    task.try_number, task.state = 1, "running"
    begun = world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)
    world.airflow.time += timedelta(minutes=50)
    world.airflow.coordinator.heartbeat(begun)
    assert {expires for _, expires in leases(world).values()} == {world.airflow.time + LEASE}
