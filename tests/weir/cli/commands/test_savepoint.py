"""What a person types to make, look at, move, restore and drop a savepoint."""

import json
import shutil

import pytest
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.command_line import reach, typed, use
from tests.weir.restoring import EPOCHS, aircraft, keep_savepoints, run_days, spoil, states_of
from tests.weir.small_dataflow import Saved, World

from weir.errors import Misconfigured
from weir.snapshots.automatic import maintain_savepoints


@pytest.fixture(scope="module")
def two_days():
    """Two days of state: a world of which each test has its own copy."""
    with fast_folder() as folder:
        world = World(folder / "world", aircraft())
        run_days(world.airflow, 1, 2)
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(two_days, tmp_path, monkeypatch):
    folder = tmp_path / "world"
    use(monkeypatch, folder)
    return two_days.go_on(folder)


def test_a_savepoint_is_made_listed_shown_and_dropped(days):
    assert f"Savepoint 3 of ladder, the state at the end of epoch {EPOCHS[1]}: " in typed(
        "savepoint", "create", "ladder"
    )
    [made] = json.loads(typed("savepoint", "list", "--json"))["savepoints"]
    assert (made["number"], made["status"], made["epoch"]) == (3, "completed", EPOCHS[1])
    *_, listed = json.loads(typed("checkpoints", "--json"))["checkpoints"]
    assert (listed["number"], listed["status"]) == (made["number"], made["status"])
    assert made["folder"] in typed("savepoint", "list", "ladder")
    shown = json.loads(typed("savepoint", "show", "ladder", "3", "--json"))["savepoint"]
    assert [(state["name"], state["subtasks"]) for state in shown["states"]] == [("history", 2)]
    assert "state history of stage aircraft: " in typed("savepoint", "show", "ladder", "3")
    assert "Savepoint 3 of ladder is deleted" in typed("savepoint", "drop", "ladder", "3")
    assert json.loads(typed("savepoint", "list", "--json"))["savepoints"] == []


def test_an_automatic_one_is_listed_and_shown_as_such(days):
    days.airflow.deploy(aircraft(savepoint_every=3))
    run_days(days.airflow, 3)
    maintain_savepoints(days.services, "ladder")
    typed("savepoint", "create", "ladder")
    listed = json.loads(typed("savepoint", "list", "--json"))["savepoints"]
    assert [(each["number"], each["kind"]) for each in listed] == [(4, "automatic"), (5, "savepoint")]
    assert "automatic" in typed("savepoint", "list", "ladder")
    assert "automatic" in typed("checkpoints", "ladder")
    assert ", completed, automatic" in typed("savepoint", "show", "ladder", "4")
    assert json.loads(typed("savepoint", "show", "ladder", "4", "--json"))["savepoint"]["kind"] == "automatic"
    assert "Would restore savepoint 4" in typed("restore", "ladder", "4", "--dry-run")
    assert "Savepoint 4 of ladder is deleted" in typed("savepoint", "drop", "ladder", "4")


def test_what_it_means_for_checkpoints_is_told_with_what_keeps_them(days):
    told = typed("savepoint", "create", "ladder")
    assert "retained_checkpoints=3, so that 2 checkpoint(s) stay" in told
    assert json.loads(typed("savepoint", "create", "ladder", "--json"))["displaces"] == [1]
    assert f"checkpoint 1 (epoch {EPOCHS[0]}) goes" in typed("savepoint", "create", "ladder")


def test_one_that_was_moved_is_restored_by_its_folder(days, tmp_path):
    (tmp_path / "usb").mkdir()
    typed("savepoint", "create", "ladder", "--checkpoint", "1", "--to", str(tmp_path / "usb"), "--name", "mine")
    shutil.move(tmp_path / "usb" / "mine", tmp_path / "moved")
    with pytest.raises(Misconfigured, check=of_kind("integrity.no_savepoint")):
        typed("restore", "ladder", "mine", "--as", "forked")
    told = typed("restore", "ladder", str(tmp_path / "moved"), "--as", "forked")
    assert f"Restored savepoint 3 of ladder (epoch {EPOCHS[0]}) into forked" in told
    assert "its rows are checked when they are first read" in told
    assert f"Next: a DAG of dataflow forked, whose first run is the one after epoch {EPOCHS[0]}" in told
    assert states_of(days, 1, "forked") == states_of(days, 1)


def test_a_dry_run_says_what_would_run_again(days):
    days.content["aircraft"] = "wrong"
    typed("savepoint", "create", "ladder", "--checkpoint", "1", "--name", "mine")
    days.airflow.clear_run_by_hand("scheduled__2013-01-01")
    days.airflow.run_until_quiet()
    before = states_of(days, 1)
    told = typed("restore", "ladder", "mine", "--dry-run")
    assert "Would restore savepoint 3 of ladder" in told
    assert "Read other state, and would run again:" in told
    assert f"of ladder@{EPOCHS[1]}: " in told
    assert states_of(days, 1) == before
    said = json.loads(typed("restore", "ladder", "mine", "--json"))
    assert (said["is_dry"], said["epoch"], said["pending_clears"]) == (False, EPOCHS[0], 2)
    assert states_of(days, 1) != before


def test_what_a_restore_clears_is_cleared_at_once_where_airflow_can_be_reached(days, monkeypatch):
    keep_savepoints(days, 1)
    spoil(days, 1)
    reach(monkeypatch, days.airflow)
    assert "2 of 2 task instance(s) are cleared, or about to run" in typed("restore", "ladder", "day1")
    days.airflow.run_until_quiet()
    assert "Nothing is missing" in typed("plan", f"ladder@{EPOCHS[1]}")


def test_what_airflow_does_not_have_is_not_said_to_run(days, monkeypatch):
    keep_savepoints(days, 1)
    spoil(days, 1)
    reach(monkeypatch, days.airflow)
    tasks = days.airflow.tasks
    del tasks[next(key for key in tasks if key.run_id == "scheduled__2013-01-02" and key.task_id == "aircraft-known")]
    told = typed("restore", "ladder", "day1")
    assert "1 of 2 task instance(s) are cleared, or about to run" in told
    assert "Airflow has no such task instance (missing); the DAG has changed: `weir run adopt` that run" in told


def test_a_restore_says_who_clears_where_airflow_cannot_be_reached_and_a_plan_that_this_is_to_come(days):
    keep_savepoints(days, 1)
    spoil(days, 1)
    told = typed("restore", "ladder", "day1")
    assert "2 clear(s) are pending; the DAG weir_upkeep delivers them" in told
    assert "WEIR_API=http://LOGIN:PASSWORD@HOST:PORT" in told
    steps = json.loads(typed("plan", f"ladder@{EPOCHS[1]}", "--json"))["steps"]
    [reason, _] = [each["reason"] for each in steps if each["kind"] == "joined"]
    assert "; its clear is pending: the DAG weir_upkeep or the next task of this dataflow delivers it" in reason


def test_restoring_what_is_there_says_that_nothing_runs_again(days):
    told = typed("restore", "ladder", "1")
    assert "4 partition(s) are unchanged since then, and stay" in told
    assert f"No run after epoch {EPOCHS[0]} has read other state: nothing runs again" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("restore", "ladder", "17"), of_kind("snapshots.number_unknown")),
        (("restore", "ladder", "1", "--as", "not a name"), of_kind("dataflow.invalid")),
        (("savepoint", "drop", "ladder", "1"), of_kind("snapshots.savepoint_unknown", name="1")),
    ],
)
def test_what_cannot_be_done_says_why(days, words, said):
    with pytest.raises(Misconfigured, check=said):
        typed(*words)
