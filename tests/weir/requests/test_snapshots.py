"""Requests for a savepoint and a restore: planned as the commands are, and carried out only as they were shown."""

from contextlib import nullcontext

import pytest
from tests.builders.ledgers import fast_folder
from tests.messages.kinds import of_kind
from tests.weir.restoring import EPOCHS, aircraft, keep_savepoints, lineage_of, restore, run_days, spoil, states_of
from tests.weir.small_dataflow import Saved, World

from weir.coordination.airflow import UserRights
from weir.errors import Conflict, Misconfigured
from weir.recovery.standing import Asked
from weir.requests.request import Request
from weir.requests.verbs import SAVES, plan_request, refusal, require_same
from weir.snapshots.savepoint import savepoints
from weir.views.checkpoints import dry_run_of


@pytest.fixture(scope="module")
def two_days():
    """Two days of state, of which the first has a savepoint, number 3, and was then computed otherwise."""
    with fast_folder() as folder:
        (folder / "world" / "store").mkdir(parents=True)
        world = World(folder / "world", aircraft(retained_checkpoints=9))
        run_days(world.airflow, 1, 2)
        keep_savepoints(world, 1)
        spoil(world, 1)
        yield Saved(world, folder / "saved")


@pytest.fixture
def days(two_days, tmp_path):
    return two_days.go_on(tmp_path)


def asked(verb, what, shown="-", dag_id="dag", name="ladder"):
    return Request(verb=verb, dag_id=dag_id, name=name, what=what, hash=shown)


def planned(world, request):
    return plan_request(world.services, request, lambda: nullcontext(Asked(airflow=world.airflow)))


def carried_out(world, request):
    found = planned(world, request)
    require_same(request, found)
    return found.carry_out(world.airflow, "anna")


def test_a_restore_is_that_of_the_dry_run_which_was_shown(days):
    shown, wrong = dry_run_of(days.services, "ladder", 3)["hash"], states_of(days, 1)
    assert "2 of 2 task instance(s) are cleared" in carried_out(days, asked("restore", "3", shown))
    assert states_of(days, 1) != wrong
    days.airflow.run_until_quiet()
    assert set(days.airflow.states().values()) == {"success"}
    again = asked("restore", "3", dry_run_of(days.services, "ladder", 3)["hash"])
    with pytest.raises(Conflict, check=of_kind("requests.nothing_to_do")):
        carried_out(days, again)


def test_nothing_is_restored_once_something_else_would_be_done(days):
    before = lineage_of(days)
    request = asked("restore", "3", dry_run_of(days.services, "ladder", 3)["hash"])
    found = planned(days, request)
    run_days(days.airflow, 3)
    with pytest.raises(Conflict, check=of_kind("requests.plan_changed")):
        carried_out(days, request)
    with pytest.raises(Conflict, check=of_kind("snapshots.restore_changed")):
        found.carry_out(days.airflow, "anna")
    assert lineage_of(days) == before


def test_clears_that_airflow_does_not_take_are_left_to_upkeep(days):
    found = planned(days, asked("restore", "3"))
    days.airflow.reachable = False
    assert "weir_upkeep" in found.carry_out(days.airflow, "anna")


def test_a_savepoint_of_the_checkpoint_that_was_shown_is_made(days):
    assert planned(days, asked("savepoint", "5")).hash == SAVES
    carried_out(days, asked("savepoint", "5", SAVES))
    assert [each.epoch for each in savepoints(days.services, "ladder")] == [EPOCHS[0], EPOCHS[1]]


@pytest.mark.parametrize("verb", ["savepoint", "restore"])
@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"dag_id": "other"}, "requests.dataflow_of_other_dag"),
        ({"name": "laddr"}, "requests.dataflow_of_other_dag"),
        ({"what": "s3://elsewhere/mine"}, "requests.number_malformed"),
        ({"what": "day1"}, "requests.number_malformed"),
        ({"what": ""}, "requests.number_malformed"),
    ],
)
def test_only_a_number_of_a_dataflow_of_the_dag_can_be_asked_for(days, verb, changed, kind):
    with pytest.raises(Misconfigured, check=of_kind(kind)):
        planned(days, asked(**{"verb": verb, "what": "2", **changed}))


def test_what_is_not_there_is_refused_with_what_there_is(days):
    with pytest.raises(Misconfigured, check=of_kind("snapshots.number_unknown")):
        planned(days, asked("restore", "99"))
    with pytest.raises(Misconfigured, check=of_kind("snapshots.nothing_to_save")):
        planned(days, asked("savepoint", "99"))


@pytest.mark.parametrize("verb", ["savepoint", "restore"])
def test_a_right_to_edit_each_dag_of_the_dataflow_and_a_name_among_the_operators_are_needed(days, verb):
    restore(days, "day1", fork="forked")  # whose run is of no DAG
    request = asked(verb, "5")
    assert planned(days, request).dags == ("dag",)
    edits, reads = UserRights(reads=True, edits=True), UserRights(reads=True)
    assert refusal(request, "anna", {"dag": edits}, {"anna"}) == ""
    assert refusal(request, "anna", {"dag": edits}, {"ben"}).kind == "requests.no_operator"
    assert refusal(request, "anna", {"dag": reads}, {"anna"}).kind == "requests.right_missing"
