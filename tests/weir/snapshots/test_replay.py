"""A replay computes epochs again from their sources: what is published then is what a new dataflow would publish."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.messages.kinds import of_kind
from tests.weir.command_line import invoked, reach, typed, use
from tests.weir.restoring import EPOCHS, aircraft, go_on, run_days, states_of
from tests.weir.small_dataflow import World

from weir.assembly import coordinator_of
from weir.dataflow import Dataflow, Replay
from weir.errors import Misconfigured, Retryable
from weir.ledger.database.tables import AttemptRow, ResultRow, RunRow
from weir.restarts.recovery_settings import RecoverySettings
from weir.retention.sweep import sweep
from weir.snapshots.replay import replay, replay_plan
from weir.snapshots.restore import RestoreRequest, restore
from weir.snapshots.savepoint import SavepointRequest, create

DAYS = range(1, 6)
RUNS = [f"ladder@{epoch}" for epoch in EPOCHS]


class FailsAfter:
    """The fake Airflow, whose API answers some clears and no more."""

    def __init__(self, airflow, answers):
        self.airflow, self.left = airflow, answers

    def __getattr__(self, name):
        return getattr(self.airflow, name)

    def clear_run(self, dag_id, run_id):
        if not self.left:
            raise Retryable.of("coordination.token_refused_for_now", base_url="airflow", answer="none")
        self.left -= 1
        return self.airflow.clear_run(dag_id, run_id)


@pytest.fixture
def world(tmp_path):
    """Five days of state, of which two checkpoints are kept."""
    world = World(tmp_path, aircraft(retained_checkpoints=2))
    run_days(world.airflow, *DAYS)
    return world


def digests(world):
    with world.ledger.transaction() as session:
        rows = session.scalars(select(ResultRow).where(ResultRow.is_current))
        return {(row.run, row.stage, row.subtask): row.digest for row in rows}


def fresh(folder):
    """The results of a new dataflow whose source has other rows."""
    world = World(folder / "fresh", aircraft(retained_checkpoints=2))
    world.content["flights"] = "other"
    run_days(world.airflow, *DAYS)
    return digests(world)


def carried_out(world, *span, airflow=None):
    freed = []
    plan = replay_plan(world.services, "ladder", *span)
    replay(world.services, plan, airflow or world.airflow, freed.append)
    world.airflow.run_until_quiet()
    assert set(world.airflow.states().values()) == {"success"}
    return freed


def test_all_epochs_are_computed_again_in_order_though_their_states_are_released(world, tmp_path):
    world.content["flights"] = "other"
    assert carried_out(world) == RUNS
    assert digests(world) == fresh(tmp_path)


@pytest.mark.parametrize("answers", [0, 1, 4])
def test_the_same_command_goes_on_where_it_was_interrupted(world, tmp_path, answers):
    world.content["flights"] = "other"
    with pytest.raises(Retryable):
        carried_out(world, airflow=FailsAfter(world.airflow, answers))
    assert [each.is_free for each in replay_plan(world.services, "ladder").runs] == [True] * 5
    assert carried_out(world) == []
    assert digests(world) == fresh(tmp_path)


def test_a_plan_tells_the_runs_their_cost_and_what_the_first_one_begins_with(world):
    plan = replay_plan(world.services, "ladder", "2013-01-05")
    assert ([each.run for each in plan.runs], plan.before, plan.impossible) == (RUNS[4:], RUNS[3], "")
    assert plan.cost == plan.runs[0].cost
    assert (plan.cost.regions, plan.cost.rows > 0, plan.cost.unknown) == (3, True, 0)
    whole = replay_plan(world.services, "ladder")
    assert (len(whole.runs), whole.before, whole.cost.regions) == (5, "", 15)


def test_where_the_state_before_is_released_nothing_is_freed(world):
    plan = replay_plan(world.services, "ladder", "2013-01-03")
    assert "which was released" in plan.impossible
    with pytest.raises(Misconfigured, check=of_kind("snapshots.replay_impossible", dataflow="ladder")):
        replay(world.services, plan, world.airflow, print)
    with world.ledger.transaction() as session:
        assert all(session.scalars(select(RunRow.pinned)))


def test_from_the_epoch_after_a_restored_savepoint(tmp_path):
    world = World(tmp_path / "own", aircraft(retained_checkpoints=2))
    run_days(world.airflow, 1, 2)
    saved = create(world.services, SavepointRequest("ladder"))
    run_days(world.airflow, 3, 4, 5)
    assert replay_plan(world.services, "ladder", "2013-01-03").impossible
    restore(world.services, RestoreRequest("ladder", str(saved.number)))
    assert carried_out(world, "2013-01-03", "2013-01-03") == RUNS[2:3]
    assert replay_plan(world.services, "ladder", "2013-01-03").impossible == ""


def test_a_run_whose_dag_run_was_deleted_is_named(world):
    with world.ledger.transaction("ladder") as session:
        session.get_one(RunRow, RUNS[1]).deleted_at = world.airflow.time
    told = replay_plan(world.services, "ladder").impossible
    assert RUNS[1] in told
    assert "backfill create" in told


def test_as_a_person_types_it(world, tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    shown = typed("replay", "ladder")
    assert "5 run(s), in order; the first one begins without state." in shown
    assert "Nothing is changed." in shown
    assert json.loads(typed("replay", "ladder", "--from", "2013-01-05", "--json"))["before"] == RUNS[3]
    with pytest.raises(Misconfigured, check=of_kind("cli.airflow_not_reached")):
        invoked("replay", "ladder", "--apply")
    reach(monkeypatch, world.airflow)
    before = digests(world)
    done = invoked("replay", "ladder", "--from", "2013-01-05", "--apply")
    assert "of 1 run(s) are cleared in Airflow, which runs them in order" in done.stdout
    assert {key.run_id[-2:] for key, task in world.airflow.tasks.items() if task.state is None} == {"05"}
    world.airflow.run_until_quiet()
    assert digests(world) == before


AUTOMATIC = {"retained_checkpoints": 2, "replay": "automatic"}


def test_a_correction_of_old_days_has_the_states_made_again_that_it_needs(tmp_path):
    world = World(tmp_path / "own", aircraft(**AUTOMATIC))
    run_days(world.airflow, *DAYS)
    assert {row.run for row in histories(world) if row.state == "released"} == set(RUNS[:3])
    world.content["flights"] = "other"
    for day in DAYS:
        world.airflow.clear_by_hand(f"scheduled__2013-01-{day:02d}", "flights")
    settle(world)
    assert set(world.airflow.states().values()) == {"success"}
    assert digests(world) == fresh(tmp_path)


@pytest.mark.parametrize("cleared", [3, 5])
def test_a_cleared_day_has_the_states_before_it_made_again_as_they_were(tmp_path, cleared):
    world = World(tmp_path, aircraft(**AUTOMATIC))
    run_days(world.airflow, *DAYS)
    before, tried = digests(world), tries(world)
    lose_results(world, histories(world))
    world.airflow.clear_by_hand(f"scheduled__2013-01-{cleared:02d}", "aircraft-known", 0)
    settle(world)
    assert set(world.airflow.states().values()) == {"success"}
    assert digests(world) == before
    assert {run for run, number in tries(world).items() if number > tried[run]} >= set(RUNS[:cleared])


def test_more_losses_than_the_largest_plan_allows_are_left_to_a_person(tmp_path):
    world = World(tmp_path, aircraft(**AUTOMATIC))
    services = replace(world.services, recovery=RecoverySettings(largest_plan=0.1))
    world.airflow.coordinator = coordinator_of(services)
    run_days(world.airflow, *DAYS)
    tried = tries(world)
    lose_results(world, all_rows(world))
    world.airflow.clear_by_hand("scheduled__2013-01-05", "aircraft-known", 0)
    settle(world)
    assert {run for run, number in tries(world).items() if number > tried[run]} == {RUNS[4]}
    assert "failed" in world.airflow.states().values()


def test_what_a_person_has_restored_is_not_made_again(tmp_path):
    world = World(tmp_path, aircraft(**AUTOMATIC))
    run_days(world.airflow, 1, 2)
    saved, good = create(world.services, SavepointRequest("ladder")), states_of(world, 2)
    world.content["flights"] = "wrong rows of day 2"
    world.airflow.clear_run_by_hand("scheduled__2013-01-02")
    world.airflow.run_until_quiet()
    del world.content["flights"]
    restore(world.services, RestoreRequest("ladder", str(saved.number)))
    go_on(world)
    run_days(world.airflow, 3, 4, 5)
    world.airflow.release("ladder")
    last = states_of(world, 5)
    world.airflow.clear_by_hand("scheduled__2013-01-03", "aircraft-known", 0)
    settle(world)
    assert "failed" in world.airflow.states().values()
    assert (states_of(world, 2), states_of(world, 5)) == (good, last)


@pytest.mark.parametrize("is_known", [True, False])
def test_an_epoch_whose_dag_run_was_deleted_is_run_again_before_what_follows_from_it(tmp_path, is_known):
    world = World(tmp_path, aircraft(**AUTOMATIC))
    run_days(world.airflow, *DAYS)
    before = digests(world)
    world.airflow.delete("scheduled__2013-01-01")
    if is_known:
        sweep(world.services, "ladder", is_full=True, clearer=world.airflow)
    world.airflow.clear_by_hand("scheduled__2013-01-03", "aircraft-known", 0)
    settle(world)
    left = {str(key): state for key, state in world.airflow.states().items() if state != "success"}
    assert left == {"scheduled__2013-01-03/aircraft-known[0]": "failed"}
    (told,) = (task.failed_because for task in world.airflow.tasks.values() if task.state == "failed")
    assert "`weir airflow backfill create --dag-id dag --from-date 2013-01-01T00:00:00+00:00" in told
    run_days(world.airflow, 1)
    world.airflow.clear_by_hand("scheduled__2013-01-03", "aircraft-known", 0)
    settle(world)
    assert set(world.airflow.states().values()) == {"success"}
    assert digests(world) == before


def test_it_is_declared_by_a_word():
    assert Dataflow.from_json(aircraft(**AUTOMATIC).to_json()).replay is Replay.AUTOMATIC
    with pytest.raises(Misconfigured, check=of_kind("dataflow.choice_wrong")):
        aircraft(replay="always")


def all_rows(world):
    with world.ledger.transaction() as session:
        return list(session.scalars(select(ResultRow)))


def histories(world):
    return [row for row in all_rows(world) if row.stage == "history"]


def lose_results(world, rows):
    for row in rows:
        if row.state == "finished":
            world.store.delete_folder(row.folder)


def tries(world):
    with world.ledger.transaction() as session:
        found = list(session.scalars(select(AttemptRow)))
    return {run: max(row.try_number for row in found if row.run == run) for run in {row.run for row in found}}


def settle(world):
    for _ in range(8):
        world.airflow.deliver_clears()
        world.airflow.run_until_quiet()
