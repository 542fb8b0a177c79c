"""What a person reads of checkpoints."""

import json

import pytest
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.command_line import typed, use
from tests.weir.restoring import HISTORY_FLOW
from tests.weir.small_dataflow import Saved, World

from weir.errors import Misconfigured
from weir.testing.fakes.code import archive_of_edits


@pytest.fixture(scope="module")
def four_days():
    """A dataflow with state after four days."""
    with fast_folder() as folder:
        world = World(folder / "world", HISTORY_FLOW)
        world.airflow.deployed = archive_of_edits(HISTORY_FLOW, {})
        for day in range(1, 5):
            world.airflow.dag_run(day)
            world.airflow.run_until_quiet()
        yield Saved(world, folder / "saved")


@pytest.fixture(autouse=True)
def days(four_days, tmp_path, monkeypatch):
    four_days.go_on(tmp_path)
    use(monkeypatch, tmp_path)


def test_each_checkpoint_is_told_with_its_files_and_by_which_one_it_was_subsumed():
    found = json.loads(typed("checkpoints", "--json"))["checkpoints"]
    assert [(each["number"], each["status"], each["subsumed_by"]) for each in found] == [
        (1, "subsumed", 4),
        (2, "completed", None),
        (3, "completed", None),
        (4, "completed", None),
    ]
    assert [(each["files"], each["new_files"], each["shared_files"]) for each in found] == [
        (1, 1, 0),
        (2, 1, 1),
        (3, 1, 2),
        (4, 1, 3),
    ]
    newest = found[-1]
    assert newest["epoch"] == "20130104T000000Z"
    assert newest["full_bytes"] == 4 * newest["incremental_bytes"] > 0
    assert newest["seconds"] == 0
    assert newest["amplification"]["reading"] == 4
    [(version,)] = {tuple(versions) for each in found for versions in each["code"].values()}
    assert all(version[:20] in line for line in typed("checkpoints").splitlines() if "2013010" in line)


def test_the_table_says_the_same():
    lines = [line for line in typed("checkpoints", "ladder").splitlines() if "2013010" in line]
    assert len(lines) == 4
    assert "subsumed" in lines[0]
    assert [word for word in lines[3].replace("│", " ").split() if word.isdecimal()][-4:] == ["4", "1", "3", "4"]


def test_a_dataflow_that_is_not_known_is_said():
    with pytest.raises(Misconfigured, check=of_kind("ledger.dataflow_unknown", said="it knows ladder")):
        typed("checkpoints", "leiter")
