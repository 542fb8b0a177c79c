"""A dataflow is stopped after the epochs that have begun, changed, and goes on."""

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import reach, typed, use
from tests.weir.restoring import EPOCHS, aircraft, run_days, states_of, two_saved_days
from tests.weir.small_dataflow import World

from weir.errors import Misconfigured
from weir.ledger.database.tables import DataflowRow, RunRow
from weir.snapshots.seal import seal_plan, seal_run
from weir.snapshots.stop import start, stop

MOST = 60
"""The tries in which all comes to rest, and tasks that wait have looked several times."""


@pytest.fixture(scope="module")
def two_days():
    with two_saved_days() as saved:
        yield saved


@pytest.fixture
def world(two_days, tmp_path):
    return two_days.go_on(tmp_path)


def step(world):
    """Let Airflow run one try; the fake's clock goes on to it."""
    if (ready := world.airflow._ready()) is not None:
        world.airflow.time = max(world.airflow.time, ready.not_before or world.airflow.time)
        world.airflow.step(ready)


def settle(world):
    for _ in range(MOST):
        step(world)


def stopped(world, said=None):
    """Stop the dataflow while Airflow runs on."""
    told = [] if said is None else said
    return stop(world.services, "ladder", world.airflow, told.append, lambda _seconds: step(world))


def closed(world):
    with world.ledger.transaction() as session:
        return {row.epoch for row in session.scalars(select(RunRow)) if row.closed_at is not None}


def test_begun_epochs_end_and_no_later_one_begins_until_it_is_started(world, tmp_path):
    world.airflow.dag_run(3)
    step(world)
    world.airflow.dag_run(4)
    said = []
    found = stopped(world, said)
    assert (found.epoch, found.dag_id, found.keeps_state) == (EPOCHS[2], "dag", True)
    assert said == [f"waiting until ladder@{EPOCHS[2]} is closed"]
    assert world.airflow.is_paused
    settle(world)
    assert closed(world) == set(EPOCHS[:3])
    notes = [note for key, task in world.airflow.tasks.items() if key.run_id.endswith("04") for note in task.notes]
    assert any("was stopped after epoch" in each for each in notes)
    assert start(world.services, "ladder", world.airflow) == "dag"
    assert not world.airflow.is_paused
    settle(world)
    assert closed(world) == set(EPOCHS[:4])
    plain = World(tmp_path / "plain", aircraft())
    run_days(plain.airflow, 1, 2, 3, 4)
    assert states_of(world, 4) == states_of(plain, 4)


def test_one_that_was_killed_while_it_waited_goes_on_with_the_same_epoch(world):
    world.airflow.dag_run(3)
    step(world)

    class Killed(Exception):
        pass

    def killed(_seconds):
        raise Killed

    with pytest.raises(Killed):
        stop(world.services, "ladder", world.airflow, print, killed)
    world.airflow.dag_run(4)
    settle(world)
    assert stopped(world).epoch == EPOCHS[2]
    assert stopped(world).epoch == EPOCHS[2]
    assert closed(world) == set(EPOCHS[:3])


def test_an_epoch_that_has_failed_for_good_is_named_and_may_be_sealed(world):
    def fail(key):
        if key.task_id == "aircraft-known":
            raise ValueError("bad rows")

    world.airflow.during = fail
    world.airflow.dag_run(3)
    settle(world)
    with pytest.raises(Misconfigured, check=of_kind("snapshots.stop_awaits", dataflow="ladder")):
        stopped(world)
    assert not world.airflow.is_paused
    run = f"ladder@{EPOCHS[2]}"
    seal_run(world.services, seal_plan(world.services, run), world.airflow, "ada")
    assert stopped(world).epoch == EPOCHS[2]


def test_another_declaration_goes_on_from_the_state_that_is_there(world, tmp_path):
    stopped(world)
    world.airflow.deploy(aircraft(parallelism=3))
    start(world.services, "ladder", world.airflow)
    run_days(world.airflow, 3)
    plain = World(tmp_path / "plain", aircraft())
    run_days(plain.airflow, 1, 2)
    plain.airflow.deploy(aircraft(parallelism=3))
    run_days(plain.airflow, 3)
    assert states_of(world, 3) == states_of(plain, 3)


def test_what_is_not_stopped_is_not_started(world):
    with pytest.raises(Misconfigured, check=of_kind("snapshots.not_stopped", dataflow="ladder")):
        start(world.services, "ladder", world.airflow)


def test_as_a_person_types_it(world, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    reach(monkeypatch, world.airflow)
    shown = typed("stop", "ladder", "--savepoint")
    assert f"ladder has stopped after epoch {EPOCHS[1]}; its DAG dag is paused." in shown
    assert "Next: change what you want, then `weir start ladder`." in shown
    listed = typed("savepoint", "list", "ladder")
    number = next(word for line in listed.splitlines() for word in line.split() if word.isdigit() and "ladder" in line)
    with world.ledger.transaction() as session:
        assert session.get_one(DataflowRow, "ladder").stopped_after == EPOCHS[1]
    assert "ladder goes on; its DAG dag is unpaused." in typed("start", "ladder", "--from", number)
    with world.ledger.transaction() as session:
        assert session.get_one(DataflowRow, "ladder").stopped_after is None
