"""Keyed state over epochs: what an epoch goes on from, and what happens to those behind it when it changes."""

import json

import pytest
from sqlalchemy import select

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, sink, source
from weir.ledger.models import ResultRow
from weir.results.codec import manifest_from_json

EPOCHS = ("20130101T000000Z", "20130102T000000Z", "20130103T000000Z")


def aircraft(parallelism=1, **more):
    """Each day's flights change the history of the aircraft."""
    return Dataflow(
        "ladder",
        [
            source("flights", "pipelines.ladder:flights"),
            Stage(
                "aircraft",
                "pipelines.ladder:aircraft",
                [blocking("flights", by="k")],
                parallelism=parallelism,
                state=keyed_state("history", key="k", schema="k BIGINT, n BIGINT"),
            ),
            sink("aircraft", "known"),
        ],
        **{"keep": "60 days", **more},
    )


@pytest.fixture
def days(world):
    world.airflow.deploy(aircraft())
    return world


def run_days(world, *days):
    for day in days:
        world.airflow.dag_run(day)
        world.airflow.run_until_quiet()


def state_of(world, day, subtask=0):
    with world.ledger.transaction() as session:
        row = session.scalar(
            select(ResultRow).where(
                ResultRow.run == f"ladder@{EPOCHS[day - 1]}",
                ResultRow.stage == "history",
                ResultRow.subtask == subtask,
                ResultRow.is_current,
            )
        )
        folder = row.folder
    return manifest_from_json(world.store.read(f"{folder}/manifest.json"))


def test_an_epoch_goes_on_from_the_files_of_the_one_before_and_adds_its_own(days):
    run_days(days, 1, 2, 3)
    assert set(days.airflow.states().values()) == {"success"}
    files = [[file.epoch for file in state_of(days, day).state.files] for day in (1, 2, 3)]
    assert files == [list(EPOCHS[:1]), list(EPOCHS[:2]), list(EPOCHS)]
    assert [len(state_of(days, day).files) for day in (1, 2, 3)] == [1, 1, 1]


def test_a_changed_parallelism_takes_effect_with_the_next_epoch_and_rewrites_nothing(days):
    run_days(days, 1)
    days.airflow.deploy(aircraft(parallelism=3))
    run_days(days, 2)
    assert set(days.airflow.states().values()) == {"success"}
    first = state_of(days, 1).state.files[0]
    for subtask, groups in enumerate([(0, 42), (43, 85), (86, 127)]):
        files = state_of(days, 2, subtask).state.files
        assert [(file.path == first.path, file.key_groups) for file in files] == [(True, groups), (False, groups)]


def test_a_state_file_that_is_gone_is_made_again_with_all_that_used_it(days):
    run_days(days, 1, 2)
    lost = state_of(days, 1).state.files[0]
    days.store.delete(lost.path)
    run_days(days, 3)
    assert set(days.airflow.states().values()) == {"success"}
    assert all(file.path != lost.path for day in (1, 2, 3) for file in state_of(days, day).state.files)
    assert json.loads(json.dumps([file.epoch for file in state_of(days, 3).state.files])) == list(EPOCHS)
