"""What a person reads of a sweep."""

import json
import os

import pytest
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.command_line import typed, use
from tests.weir.small_dataflow import Saved, World, ladder

from weir.errors import Misconfigured
from weir.testing.fakes.airflow import Killed

YEAR_2020 = 1_577_836_800


@pytest.fixture(scope="module")
def long_ago():
    """A run in which a try was killed before its commit, long ago."""
    with fast_folder() as folder:
        world, struck = World(folder / "world", ladder()), []
        commit = world.airflow.coordinator.commit

        def once(begun, report, clearer):
            if begun.attempt.region.name == "joined" and not struck:
                struck.append(begun.attempt.id)
                raise Killed
            return commit(begun, report, clearer)

        world.airflow.coordinator.commit = once
        world.airflow.time = world.airflow.time.replace(year=2020)
        world.airflow.dag_run(1)
        world.airflow.run_until_quiet()
        for path in (folder / "world/store").rglob("*"):
            os.utime(path, (YEAR_2020, YEAR_2020))
        yield Saved(world, folder / "saved")


@pytest.fixture
def killed(long_ago, tmp_path, monkeypatch):
    world = long_ago.go_on(tmp_path)
    use(monkeypatch, tmp_path)
    monkeypatch.setenv("WEIR_EXPIRE_RUNS", "forever")
    return world


def test_a_dry_run_tells_what_would_go_and_what_is_kept_and_why(killed):
    told = typed("gc", "--full", "--dry-run")
    [line] = [line for line in told.splitlines() if "would be deleted" in line]
    assert "left by an attempt" in line
    assert "its result is needed, or kept by the policy" in told
    assert "Airflow was not asked for deleted runs (WEIR_API=http" in told


def test_all_of_it_is_told_as_json(killed):
    told = json.loads(typed("gc", "ladder", "--full", "--json"))
    assert [(each["kind"], each["bytes"] > 0) for each in told["deleted"]] == [("left by an attempt", True)]
    assert told["deleted_bytes"] == sum(each["bytes"] for each in told["deleted"])
    assert (told["missing"], told["unknown"], told["is_dry"]) == ([], [], False)
    assert json.loads(typed("gc", "ladder", "--full", "--json"))["deleted"] == []


def test_an_age_that_cannot_be_read_is_refused(killed):
    with pytest.raises(Misconfigured, check=of_kind("units.time_malformed", text="old", what="--older-than")):
        typed("gc", "--older-than", "old")
    with pytest.raises(Misconfigured, check=of_kind("cli.floor_is_forever")):
        typed("gc", "--older-than", "forever")
