"""List and broadcast state over epochs: the elements that a subtask resumes from."""

import pytest
from sqlalchemy import select
from tests.weir.keeping import run_days

from weir.dataflow import Dataflow, Stage, blocking, broadcast_state, list_state, sink, source
from weir.ledger.database.tables import ResultRow
from weir.testing.fakes.engine import elements_of

EPOCHS = ("20130101T000000Z", "20130102T000000Z", "20130103T000000Z")


def flow(state, parallelism=2):
    return Dataflow(
        "ladder",
        [
            source("flights", "pipelines.ladder:flights"),
            Stage(
                "aircraft",
                "pipelines.ladder:aircraft",
                [blocking("flights", by="k")],
                parallelism=parallelism,
                state=state,
            ),
            sink("aircraft", "known"),
        ],
        keep="60 days",
    )


def rows_of(world, day, state):
    with world.ledger.transaction() as session:
        rows = session.scalars(
            select(ResultRow)
            .where(
                ResultRow.run == f"ladder@{EPOCHS[day - 1]}",
                ResultRow.stage == state,
                ResultRow.is_current,
            )
            .order_by(ResultRow.subtask)
        )
        return [(row.folder, row.digest) for row in rows]


def lists_of(world, day, state="offsets"):
    """Who added each element in which epoch, by subtask."""
    files = [f"{folder}/part-0.bin" for folder, _ in rows_of(world, day, state)]
    return [[each.rpartition("/")[0] for each in elements_of(world.store.read(file))] for file in files]


def elements(*names):
    return [f"{EPOCHS[int(day) - 1]}/{subtask}" for day, subtask in (name.split(".") for name in names)]


@pytest.mark.parametrize("is_union", [False, True])
def test_each_subtask_goes_on_from_its_own_list(world, is_union):
    world.airflow.deploy(flow(list_state("offsets", union=is_union)))
    run_days(world, 1, 2)
    assert set(world.airflow.states().values()) == {"success"}
    assert lists_of(world, 2) == [elements("1.0", "2.0"), elements("1.1", "2.1")]


def test_a_changed_parallelism_divides_the_elements_anew(world):
    world.airflow.deploy(flow(list_state("offsets")))
    run_days(world, 1, 2)
    world.airflow.deploy(flow(list_state("offsets"), parallelism=3))
    run_days(world, 3)
    assert set(world.airflow.states().values()) == {"success"}
    # Of four elements number i goes to subtask i * 3 // 4.
    assert lists_of(world, 3) == [elements("1.0", "2.0", "3.0"), elements("1.1", "3.1"), elements("2.1", "3.2")]


def test_broadcast_state_is_the_same_in_all_subtasks_whatever_their_number(world):
    state = broadcast_state("rates", schema="k BIGINT, rate DOUBLE")
    world.airflow.deploy(flow(state))
    run_days(world, 1)
    world.airflow.deploy(flow(state, parallelism=3))
    run_days(world, 2)
    assert set(world.airflow.states().values()) == {"success"}
    assert [len({digest for _, digest in rows_of(world, day, "rates")}) for day in (1, 2)] == [1, 1]
    assert len(rows_of(world, 2, "rates")) == 3


@pytest.fixture
def unequal(world):
    """Subtask 1 has left other broadcast state than subtask 0."""
    world.airflow.deploy(flow(broadcast_state("rates", schema="k BIGINT, rate DOUBLE")))
    world.content["rates[1]"] = "what subtask 1 alone has read"
    run_days(world, 1)
    return world


def test_no_run_is_closed_while_its_broadcast_state_differs_between_subtasks(unequal):
    close = unequal.airflow.task("scheduled__2013-01-01", "weir_close")
    assert close.state == "failed"
    assert "broadcast state 'rates' must be the same in all subtasks" in close.notes[-1]
    assert "but subtask 0 has left 1 rows and subtask 1 1 rows" in close.notes[-1]


def test_no_epoch_goes_on_from_broadcast_state_that_differs_between_subtasks(unequal):
    run_days(unequal, 2)
    for subtask in (0, 1):
        task = unequal.airflow.task("scheduled__2013-01-02", "aircraft-known", subtask)
        assert task.state == "failed"
        assert "broadcast state 'rates' must be the same in all subtasks" in task.notes[-1]


def test_once_broadcast_state_is_made_again_alike_all_goes_on(unequal):
    del unequal.content["rates[1]"]
    unequal.airflow.clear_by_hand("scheduled__2013-01-01", "aircraft-known", 1)
    unequal.airflow.clear_by_hand("scheduled__2013-01-01", "weir_close")
    run_days(unequal, 2)
    assert set(unequal.airflow.states().values()) == {"success"}
