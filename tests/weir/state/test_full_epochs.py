"""Epochs of a state that are written as its changes or whole, as an estimate says: nothing else differs."""

import json

import pytest
from tests.weir import keeping
from tests.weir.command_line import typed, use
from tests.weir.keeping import epoch, manifest_of, run_days
from tests.weir.small_dataflow import World

from weir.views.checkpoints import checkpoint_details

DAYS = range(1, 8)


def aircraft(incremental="auto", parallelism=1):
    return keeping.aircraft(parallelism, {"runs": 3, "incremental": incremental})


@pytest.fixture
def days(world):
    world.airflow.deploy(aircraft())
    run_days(world, *DAYS)
    return world


def whole(world, days=DAYS):
    """The days that an estimate had written whole."""
    found = {day: manifest_of(world, day).state.estimate for day in days}
    return [day for day, known in found.items() if known is not None and known.is_full]


def digests(world, *days):
    return [str(manifest_of(world, day).digest) for day in days]


def test_an_epoch_that_was_written_whole_names_no_older_file(days):
    assert 0 < len(whole(days)) < len(DAYS) - 1
    assert manifest_of(days, 1).state.estimate is None
    for day in DAYS[1:]:
        named = {each.epoch for each in manifest_of(days, day).state.files}
        assert (named == {epoch(day)}) == (day in whole(days))


@pytest.mark.parametrize("incremental", [True, False])
def test_a_state_has_the_same_digests_however_it_is_written(days, tmp_path, incremental):
    other = World(tmp_path / "other", aircraft(incremental))
    run_days(other, *DAYS)
    assert whole(other) == []
    assert digests(other, *DAYS) == digests(days, *DAYS)


def test_a_lost_file_of_an_epoch_that_was_written_whole_is_written_again(days):
    day = whole(days)[-1]
    before = digests(days, *DAYS)
    (file,) = manifest_of(days, day).state.files
    days.store.delete(file.path)
    run_days(days, 8)
    assert set(days.airflow.states().values()) == {"success"}
    assert digests(days, *DAYS) == before
    assert days.store.size(manifest_of(days, day).state.files[-1].path)


def test_after_a_change_of_parallelism_each_subtask_is_estimated_on_its_own(days):
    days.airflow.deploy(aircraft(parallelism=2))
    run_days(days, 8, 9, 10)
    assert set(days.airflow.states().values()) == {"success"}
    assert all(manifest_of(days, 10, subtask).state.estimate is not None for subtask in (0, 1))


def test_the_checkpoint_says_how_each_partition_was_written_and_why(days, tmp_path, monkeypatch):
    ways = {}
    for number in (5, 6, 7):
        (found,) = checkpoint_details(days.services, "ladder", number).written
        known = manifest_of(days, number).state.estimate
        assert (found.full, found.changes, found.compaction) == (known.full, known.changes, known.compaction)
        ways[number] = found.written
    assert ways == {number: "full" if number in whole(days) else "incremental" for number in (5, 6, 7)}
    use(monkeypatch, tmp_path)
    assert json.loads(typed("checkpoints", "ladder", "--id", "7", "--json"))["written"][0]["partition"] == "history[0]"
    assert "history[0]" in typed("checkpoints", "ladder", "--id", "7")
    assert json.loads(typed("checkpoints", "ladder", "--id", "1", "--json"))["written"] == []  # it is deleted
