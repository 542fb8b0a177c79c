"""Keyed state over epochs: what an epoch resumes from, and what happens to later epochs when it changes."""

import json

import pytest
from tests.weir.keeping import aircraft, manifest_of, run_days

EPOCHS = ("20130101T000000Z", "20130102T000000Z", "20130103T000000Z")


@pytest.fixture
def days(world):
    world.airflow.deploy(aircraft())
    return world


def test_an_epoch_goes_on_from_the_files_of_the_one_before_and_adds_its_own(days):
    days.run_first(1, 2, 3)
    assert set(days.airflow.states().values()) == {"success"}
    files = [[file.epoch for file in manifest_of(days, day).state.files] for day in (1, 2, 3)]
    assert files == [list(EPOCHS[:1]), list(EPOCHS[:2]), list(EPOCHS)]
    assert [len(manifest_of(days, day).files) for day in (1, 2, 3)] == [1, 1, 1]


def test_a_changed_parallelism_takes_effect_with_the_next_epoch_and_rewrites_nothing(days):
    days.run_first(1)
    days.airflow.deploy(aircraft(parallelism=3))
    run_days(days, 2)
    assert set(days.airflow.states().values()) == {"success"}
    first = manifest_of(days, 1).state.files[0]
    for subtask, groups in enumerate([(0, 42), (43, 85), (86, 127)]):
        files = manifest_of(days, 2, subtask).state.files
        assert [(file.path == first.path, file.key_groups) for file in files] == [(True, groups), (False, groups)]


def test_a_state_file_that_is_gone_is_made_again_with_all_that_used_it(days):
    days.run_first(1, 2)
    lost = manifest_of(days, 1).state.files[0]
    days.store.delete(lost.path)
    run_days(days, 3)
    assert set(days.airflow.states().values()) == {"success"}
    assert all(file.path != lost.path for day in (1, 2, 3) for file in manifest_of(days, day).state.files)
    assert json.loads(json.dumps([file.epoch for file in manifest_of(days, 3).state.files])) == list(EPOCHS)
