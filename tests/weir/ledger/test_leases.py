"""Read leases live from the begin's answer to the attempt's end."""

from datetime import timedelta

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.keeping import aircraft, run_days
from tests.weir.small_dataflow import World, ladder

from weir.errors import Conflict
from weir.execution.partition_state import PartitionState
from weir.ledger.database.tables import LeaseRow, ResultRow
from weir.ledger.leases import LEASE, drop_expired
from weir.ledger.results import transition
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


def begin(world, run, task_id, index):
    """Let a person clear a task instance, and begin its next try."""
    task = world.airflow.task(run, task_id, index)
    if task.try_number:
        world.airflow.clear_by_hand(run, task_id, index)
    task.try_number, task.state = task.try_number + 1, "running"
    return world.airflow.coordinator.begin(world.airflow.request(task), world.airflow)


def release(world, stage):
    with world.ledger.transaction("ladder") as session:
        for row in session.scalars(select(ResultRow).where(ResultRow.stage == stage, ResultRow.is_current)):
            transition(session, row, PartitionState.RELEASED, "a test", world.airflow.time)


def test_leases_that_ran_out_are_taken_again_while_the_results_are_there(world):
    begun = begin(world, world.run, "joined", 0)
    world.airflow.time += 3 * LEASE
    with world.ledger.transaction("ladder") as session:
        drop_expired(session, world.airflow.time)
    assert leases(world) == {}
    release(world, "weather")
    world.airflow.coordinator.heartbeat(begun)
    assert leases(world) == {("clean", index): (begun.attempt.id, world.airflow.time + LEASE) for index in (0, 1)}


def test_young_leases_are_not_written_again_by_each_heartbeat(world):
    begun = begin(world, world.run, "joined", 0)
    before = leases(world)
    world.airflow.time += timedelta(minutes=1)
    world.airflow.coordinator.heartbeat(begun)
    assert leases(world) == before


def test_an_input_that_was_released_after_its_lease_had_run_out_is_committed_from(world):
    """It was read before its bytes were deleted: Spark would have failed otherwise. No result names its files."""

    def suspended(_key):
        world.airflow.time += 2 * LEASE
        release(world, "weather")
        world.store.delete_folder(folder_of(world, "weather"))

    world.airflow.during = suspended
    step(world)
    assert world.airflow.task(world.run, "joined", 0).state == "success"


@pytest.fixture
def kept(tmp_path):
    """Three days of a history; `state` is that of the first day, which the second one reads."""
    (tmp_path / "store").mkdir()
    found = World(tmp_path, aircraft())
    run_days(found, 1, 2, 3)
    found.task = next(key for key in found.airflow.tasks if key.task_id.startswith("aircraft") and "-02" in key.run_id)
    return found


def state_of_first_day(session):
    query = select(ResultRow).where(ResultRow.run.like("%20130101%"), ResultRow.stage == "history")
    return session.scalars(query).one()


@pytest.mark.parametrize("is_released", [True, False])
def test_a_state_that_was_released_after_its_lease_had_run_out_is_named_by_no_commit(kept, is_released):
    """The new manifest would name files of it, which may be deleted at any moment."""
    begun = begin(kept, kept.task.run_id, kept.task.task_id, kept.task.map_index)
    report = kept.airflow.engine.run(begun.job)
    kept.airflow.time += 2 * LEASE
    with kept.ledger.transaction("ladder") as session:
        if is_released:
            transition(session, state_of_first_day(session), PartitionState.RELEASED, "a test", kept.airflow.time)
    if not is_released:
        assert kept.airflow.coordinator.commit(begun, report, kept.airflow).summary["attempt"] == begun.attempt.id
        return
    for refused in (
        lambda: kept.airflow.coordinator.heartbeat(begun),
        lambda: kept.airflow.coordinator.commit(begun, report, kept.airflow),
    ):
        with pytest.raises(Conflict, check=of_kind("attempts.state_released", stage="history", subtask="0")):
            refused()
    with kept.ledger.transaction() as session:
        assert begun.attempt.id not in set(session.scalars(select(ResultRow.attempt)))


def test_a_state_that_is_released_under_its_lease_stops_nothing(kept):
    begun = begin(kept, kept.task.run_id, kept.task.task_id, kept.task.map_index)
    with kept.ledger.transaction("ladder") as session:
        transition(session, state_of_first_day(session), PartitionState.RELEASED, "a test", kept.airflow.time)
    kept.airflow.coordinator.heartbeat(begun)
    assert {stage for stage, _ in leases(kept)} >= {"history"}
