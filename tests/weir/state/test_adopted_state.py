"""Runs that were moved to a form without some of their stages and states: what others hold of the old form stays."""

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.state.test_checkpoints import EPOCHS, checkpoint, is_there, retained, run_days

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, previous, sink, source
from weir.errors import Misconfigured
from weir.formats.paths import checkpoint_path
from weir.ledger.attempts import attempts_of
from weir.ledger.database.tables import ResultRow, RunRow
from weir.ledger.runs import run_by_id
from weir.ledger.snapshot import run_state
from weir.recovery.adopt import adopt
from weir.state.files_in_use import live_state_files
from weir.topology.regions import RegionId
from weir.upkeep import RESULTS, settle_everywhere

FIRST, RUN = f"ladder@{EPOCHS[0]}", "scheduled__2013-01-01"


def aircraft(state="history", name="known", *, carries=True, **declared):
    """Each day's flights change a state of some name; and totals that resume from those before if they are carried."""
    kept = {} if state is None else {"state": keyed_state(state, key="k", schema="k BIGINT, n BIGINT")}
    before = [previous("totals", schema="k BIGINT")] if carries else []
    return Dataflow(
        "ladder",
        [
            source("flights", "pipelines.ladder:flights"),
            Stage("totals", "pipelines.ladder:totals", [blocking("flights", by="k"), *before]),
            Stage("aircraft", "pipelines.ladder:aircraft", [blocking("flights", by="k")], **kept),
            Stage("both", "pipelines.ladder:both", [blocking("aircraft"), blocking("totals")]),
            sink("both", name),
        ],
        keep="on_consumed",
        **declared,
    )


@pytest.fixture
def days(world):
    world.airflow.deploy(aircraft())
    world.run_first(1, 2, 3)
    return world


def move_first(world, flow):
    """The first day's run is freed of its record; another dataflow is deployed."""
    adopt(world.services, FIRST)
    world.airflow.deploy(flow)
    world.airflow.clear_run_by_hand(RUN)


def kept(world, stage):
    """The states of the first day's results of a stage."""
    with world.ledger.transaction() as session:
        found = select(ResultRow.state).where(ResultRow.run == FIRST, ResultRow.stage == stage)
        return list(session.scalars(found.order_by(ResultRow.id)))


def committed_tries(world, day, region):
    with world.ledger.transaction() as session:
        of_region = attempts_of(session, f"ladder@{EPOCHS[day - 1]}", RegionId(region, 0))
        return [row.try_number for row in of_region if row.state == "committed"]


def named(world):
    return {path for number, _ in retained(world) for path in checkpoint(world, number).files}


def test_upkeep_goes_on_where_results_are_of_a_stage_that_their_run_has_no_more(world):
    world.airflow.deploy(aircraft(None, carries=False))
    run_days(world, 1)
    move_first(world, aircraft(None, "known_too", carries=False))
    world.airflow.run_until_quiet()
    assert kept(world, "known") == ["finished"]  # it is published
    settle_everywhere(world.services, RESULTS).require_whole()


@pytest.mark.parametrize("state", ["history_too", None])
def test_files_stay_that_later_checkpoints_share_with_a_state_of_an_earlier_form(days, state):
    before = named(days)
    assert {file.epoch for file in checkpoint(days, 3).files.values()} == set(EPOCHS[:3])
    move_first(days, aircraft(state))
    days.airflow.run_until_quiet()
    settle_everywhere(days.services, RESULTS).require_whole()
    assert all(is_there(days, path) for path in before & named(days))
    assert set(checkpoint(days, 3).files) <= before & named(days)


@pytest.mark.parametrize("flow", [aircraft("history_too"), aircraft(None), aircraft(carries=False)])
def test_what_a_retained_checkpoint_of_an_earlier_form_names_is_not_released(days, flow):
    move_first(days, flow)
    settle_everywhere(days.services, RESULTS).require_whole()
    assert (kept(days, "history"), kept(days, "totals")) == (["finished"], ["finished"])
    assert [day for _, day in retained(days)] == [1, 2, 3]
    for _ in range(2):
        days.airflow.step(days.airflow._ready())
        settle_everywhere(days.services, RESULTS).require_whole()
        assert (1, 1) in retained(days)
        assert (kept(days, "history")[0], kept(days, "totals")[0]) == ("finished", "finished")


def test_it_is_released_once_the_run_has_a_checkpoint_of_its_new_form(days):
    move_first(days, aircraft("history_too"))
    days.airflow.run_until_quiet()
    settle_everywhere(days.services, RESULTS).require_whole()
    assert [day for _, day in retained(days)] == [2, 3, 1]
    assert (kept(days, "history"), kept(days, "totals")) == (["released"], ["released", "finished"])


def test_a_result_of_a_state_of_an_earlier_form_names_its_files_as_long_as_it_is_not_released(world):
    world.airflow.deploy(aircraft())
    run_days(world, 1)
    files = set(checkpoint(world, 1).files)
    world.store.delete(checkpoint_path("ladder", 1))
    move_first(world, aircraft("history_too"))
    world.airflow.step(world.airflow._ready())
    assert files
    assert files <= live_state_files(world.services, "ladder")


def test_a_day_that_began_without_a_state_goes_on_from_that_of_the_day_before_once_it_has_one(world):
    world.airflow.deploy(aircraft(None))
    run_days(world, 1)
    world.airflow.deploy(aircraft())
    run_days(world, 2)
    assert committed_tries(world, 2, "aircraft") == [1]
    move_first(world, aircraft())
    world.airflow.run_until_quiet()
    assert committed_tries(world, 2, "aircraft")[1:]
    notes = [note for task in world.airflow.tasks.values() for note in task.notes]
    assert f"weir: in run {FIRST} history[0] (by-k-128-128657) is new" in notes


@pytest.mark.parametrize("declared", [{"on_reprocess": "mark"}, {"failover": "individual"}])
def test_where_weir_clears_no_later_day_one_that_began_without_a_state_stays_closed(world, declared):
    world.airflow.deploy(aircraft(None, carries=False, **declared))
    run_days(world, 1)
    world.airflow.deploy(aircraft(carries=False, **declared))
    run_days(world, 2)
    move_first(world, aircraft(carries=False, **declared))
    world.airflow.run_until_quiet()
    run_days(world, 3)
    assert committed_tries(world, 2, "aircraft") == [1]
    assert set(world.airflow.states().values()) == {"success"}


def test_a_run_that_is_moved_to_another_sink_is_closed_once_that_is_published(days):
    move_first(days, aircraft(name="other"))
    while (task := days.airflow._ready()).key.task_id != "weir_close":
        days.airflow.step(task)
    assert not is_closed(days)
    days.airflow.run_until_quiet()
    assert is_closed(days)


def is_closed(world):
    with world.ledger.transaction() as session:
        return session.get_one(RunRow, FIRST).closed_at is not None


@pytest.mark.parametrize("flow", [aircraft("history_too"), aircraft(None), aircraft(carries=False)])
def test_what_later_days_have_read_of_an_earlier_form_stays_valid(days, flow):
    move_first(days, flow)
    days.airflow.run_until_quiet()
    assert [invalid(days, day) for day in (1, 2, 3)] == [[], [], []]


def invalid(world, day):
    with world.ledger.transaction() as session:
        state = run_state(session, run_by_id(session, f"ladder@{EPOCHS[day - 1]}"))
    return [each for region in state.region_ids() for each in state.outputs(region) if not state.is_valid(each)]


def test_results_that_go_on_from_a_released_state_are_discarded_only_if_that_is_asked_for(days):
    run_days(days, 4, 5)
    settle_everywhere(days.services, RESULTS).require_whole()
    assert kept(days, "history") == ["released"]
    with pytest.raises(Misconfigured, match=f"{FIRST}", check=of_kind("recovery.results_would_be_lost")):
        adopt(days.services, f"ladder@{EPOCHS[1]}")
    assert adopt(days.services, FIRST).results
    assert adopt(days.services, f"ladder@{EPOCHS[1]}").results  # the day before is computed again, too
    assert adopt(days.services, f"ladder@{EPOCHS[2]}").results


def test_a_person_may_discard_them(days):
    run_days(days, 4, 5)
    settle_everywhere(days.services, RESULTS).require_whole()
    assert adopt(days.services, f"ladder@{EPOCHS[1]}", discards=True).results


def test_a_day_is_computed_while_the_next_one_is_pinned_to_no_dataflow(days):
    adopt(days.services, FIRST)
    adopt(days.services, f"ladder@{EPOCHS[1]}")
    days.airflow.clear_run_by_hand(RUN)
    days.airflow.run_until_quiet()
    assert committed_tries(days, 1, "aircraft")[1:]


def test_a_day_that_runs_while_the_day_before_gets_a_state_begins_again_with_it(world):
    world.airflow.deploy(aircraft(None, carries=False))
    run_days(world, 1)
    world.airflow.deploy(aircraft(carries=False))

    def moved(key):
        if key.task_id == "aircraft" and key.run_id != RUN:
            world.airflow.during = lambda _key: None
            move_first(world, aircraft(carries=False))
            while committed_tries(world, 1, "aircraft") == [1]:
                world.airflow.step(world.airflow._ready())

    world.airflow.during = moved
    run_days(world, 2)
    with world.ledger.transaction() as session:
        state = run_state(session, run_by_id(session, f"ladder@{EPOCHS[1]}"))
    made = state.results[state.topology.outputs(RegionId("aircraft", 0))[0]]
    assert "history" in {each.partition.stage for of in made.reads for each in of.members}
