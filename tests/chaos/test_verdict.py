"""The judge of a chaos run: it sees what is wrong, each thing by itself, and nothing where all is right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from types import SimpleNamespace

import pytest
from tests.builders.ledgers import fast_folder
from tests.chaos.data_faults import DamageState
from tests.chaos.field import Field
from tests.chaos.report import InjectedFault, costs
from tests.chaos.verdict import broken_invariants
from tests.weir.restoring import aircraft, go_on, run_days
from tests.weir.small_dataflow import World, ladder

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, previous, sink, source
from weir.formats.paths import pointer_folder
from weir.ledger.database.tables import AttemptRow, PendingClearRow, PublicationRow, ResultRow

EPOCH = "20130101T000000Z"


@pytest.fixture
def closed():
    """A world whose one run is closed, and the field on it."""
    with fast_folder() as folder:
        (folder / "store").mkdir()
        world = World(folder, ladder())
        world.run_id = world.airflow.dag_run()
        world.airflow.run_until_quiet()
        stack = SimpleNamespace(store_url=f"file://{folder}/store", ledger_url=f"sqlite:///{folder}/ledger.db")
        field = Field(stack, folder / "control.json", "ladder", "delays")
        yield world, field
        field.ledger.close()


def change(world, row, **values):
    with world.ledger.transaction("ladder") as session:
        found = session.query(row).order_by(row.id).first()
        for name, value in values.items():
            setattr(found, name, value)


def test_a_sound_run_breaks_nothing(closed):
    _, field = closed
    assert broken_invariants(field) == []


def test_a_run_whose_results_were_released_is_sound(closed):
    world, field = closed
    flow = world.airflow.flow
    world.airflow.deploy(Dataflow(flow.name, flow.stages, keep="on_consumed"))
    world.airflow.dag_run(2)
    world.airflow.run_until_quiet()
    with world.ledger.transaction() as session:
        assert session.query(ResultRow).filter_by(state="released").count() > 0
    assert broken_invariants(field) == []


def test_a_run_that_reads_the_one_before_is_sound():
    before = previous("totals", by="k", schema="k bigint")
    totals = Stage("totals", "pipelines.ladder:totals", {"day": blocking("day", by="k"), "before": before})
    flow = Dataflow("ladder", [source("day", "pipelines.ladder:day"), totals, sink(totals, "known")])
    with fast_folder() as folder:
        world = World(folder, flow)
        for day in (1, 2):
            world.airflow.dag_run(day)
        world.airflow.run_until_quiet()
        stack = SimpleNamespace(store_url=f"file://{folder}/store", ledger_url=f"sqlite:///{folder}/ledger.db")
        field = Field(stack, folder / "control.json", "ladder", "known")
        assert len(field.runs()[1].state.results) > len(field.runs()[1].results)
        assert broken_invariants(field) == []
        field.ledger.close()


def a_file_of(world, stage):
    return next(path for path in sorted((world.folder / "store" / "ladder" / EPOCH / stage).rglob("part-0.bin")))


def lose_a_file(world):
    a_file_of(world, "joined").unlink()
    return "joined"


def flip_a_bit(world):
    file = a_file_of(world, "totals")
    data = bytearray(file.read_bytes())
    data[3] ^= 4
    file.write_bytes(data)
    return "damaged"


def know_a_loss(world):
    change(world, ResultRow, state="lost")
    return "is not valid, or lost"


def leave_an_attempt_running(world):
    change(world, AttemptRow, state="running")
    return "is running"


def owe_a_clear(world):
    with world.ledger.transaction("ladder") as session:
        attempt = session.query(AttemptRow).first()
        session.add(
            PendingClearRow(
                dataflow="ladder",
                run=attempt.run,
                region=attempt.region,
                subtask=attempt.subtask,
                dag_id="dag",
                run_id=world.run_id,
                task_id=attempt.task_id,
                map_index=0,
                expected_try=1,
                reason="a test",
                created_at=datetime.now(UTC),
            )
        )
    return "is pending"


def publish_another(world):
    folder = pointer_folder("ladder", "delays", EPOCH)
    pointer = world.store.read(f"{folder}/000001.json")
    world.store.create(f"{folder}/000002.json", pointer.replace(b'"version": 1', b'"version": 2'))
    return "readers see version 2, but the ledger published 1"


def publish_what_is_not_current(world):
    change(world, ResultRow, is_current=False)
    with world.ledger.transaction("ladder") as session:
        for row in session.query(ResultRow).filter_by(stage="delays"):
            row.digest = "another"
    return "is not of the current results"


def damage_what_is_published_and_current_no_more(world):
    file = a_file_of(world, "delays")
    world.airflow.clear_by_hand(world.run_id, "report-delays")
    world.airflow.run_until_quiet()
    data = file.read_bytes()
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    return "delays[0] (plain)"


def forget_a_publication(world):
    change(world, PublicationRow, published_at=None)
    return "readers see version 1, but the ledger published 0"


@pytest.mark.parametrize(
    "break_it",
    [
        lose_a_file,
        flip_a_bit,
        know_a_loss,
        leave_an_attempt_running,
        owe_a_clear,
        publish_another,
        publish_what_is_not_current,
        forget_a_publication,
        damage_what_is_published_and_current_no_more,
    ],
)
def test_what_is_broken_is_named(closed, break_it):
    world, field = closed
    what = break_it(world)
    assert any(what in each for each in broken_invariants(field)), broken_invariants(field)


def test_what_runs_again_is_counted_for_the_fault_before_it_and_the_rest_is_spared(closed):
    world, field = closed
    injected = [InjectedFault("lost", world.airflow.time)]
    a_file_of(world, "joined").unlink()
    world.airflow.clear_by_hand(world.run_id, "totals", 0)
    world.airflow.run_until_quiet()
    injected.append(InjectedFault("nothing", world.airflow.time + timedelta(seconds=1)))
    first, second = costs(field.ledger, "ladder", injected)
    assert first.again == {"joined": 1, "totals": 2}
    assert first.spared == 7
    assert (second.again, second.spared) == ({}, 9)


@pytest.mark.parametrize("seed", range(2))
def test_days_that_keep_state_are_sound_before_and_after_a_lost_file_is_healed(seed):
    with fast_folder() as folder:
        (folder / "store").mkdir()
        history = keyed_state("history", key="k", schema="k BIGINT")
        world = World(folder, aircraft(states=history, retained_checkpoints=4))
        run_days(world.airflow, 1, 2, 3, 4)
        stack = SimpleNamespace(store_url=f"file://{folder}/store", ledger_url=f"sqlite:///{folder}/ledger.db")
        field = Field(stack, folder / "control.json", "ladder", "known")
        assert broken_invariants(field) == []
        lost = DamageState().inject(field, Random(seed))
        assert "history" in lost.what
        assert broken_invariants(field) != []
        for run in field.runs():
            for region in run.state.topology.logical_region_of("history").ids():
                task = run.tasks[region]
                world.airflow.clear_by_hand(task.run_id, task.task_id, task.map_index)
        world.airflow.run_until_quiet()
        go_on(world)
        assert set(world.airflow.states().values()) == {"success"}
        assert broken_invariants(field) == []
        field.ledger.close()
