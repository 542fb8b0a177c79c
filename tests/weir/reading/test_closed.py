"""What counts as closed: half of a correction is never answered, what was closed stays so, also without its ledger."""

from contextlib import ExitStack

import pytest
from tests.builders.ledgers import copy_file
from tests.weir.command_line import use
from tests.weir.reading.parquet_world import ReaderWorld
from tests.weir.reading.state_world import epoch, history, keeps_state, run_days
from tests.weir.small_dataflow import ladder

from weir.errors import WeirError
from weir.reading.lookups import Lookups, RowGroupCache
from weir.reading.state_opening import StateReader, WantedState, open_wanted_state
from weir.rebuild.rebuild import rebuild
from weir.recovery.adopt import adopt
from weir.upkeep import RESULTS, settle_everywhere

KEYS = [f"N{number}" for number in range(8)]
RUN, TASK = "scheduled__2013-01-02", "aircraft-known"


@pytest.fixture
def world(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path)
    made = keeps_state(ReaderWorld(tmp_path, ladder()))
    made.airflow.engine.plan = {epoch(day): dict.fromkeys(KEYS, 10 * day) for day in (1, 2)}
    return made


def answer(world, day=None):
    """Epoch, whether it is stale, and the values of all keys; the name of an error."""
    run = None if day is None else epoch(day)
    wanted = WantedState(dataflow="ladder", name="history", run=run, of_closed=True)
    reader = StateReader(world.services, is_leasing=False)
    try:
        found = Lookups(open_wanted_state(reader, wanted, ExitStack()), RowGroupCache())
    except WeirError as error:
        return type(error).__name__
    with found.opened as opened:
        rows = found.get_many([[key] for key in KEYS])
        return opened.epoch, opened.stale, {row["n"] for row in rows}


def answers(world):
    return [answer(world), answer(world, 1), answer(world, 2)]


def failing(world, subtask):
    """Have a subtask of day 2 fail until the list is empty."""
    fails = [subtask]

    def during(key):
        if (key.run_id, key.task_id) == (RUN, TASK) and key.map_index in fails:
            raise ValueError("bad rows")

    world.airflow.during = during
    return fails


def lose(world, how, tmp_path):
    engine = world.airflow.engine
    if how == "rebuilt":
        world.lose_ledger()
        world.airflow.engine = engine
        return rebuild(world.services)
    copy_file(tmp_path / "before.db", world.folder / "ledger.db")
    return settle_everywhere(world.services, RESULTS)


def keep(world, tmp_path):
    copy_file(world.folder / "ledger.db", tmp_path / "before.db")


HOW = pytest.mark.parametrize("how", ["rebuilt", "caught up"])


@HOW
@pytest.mark.parametrize("value", [20, 21])
def test_a_run_of_which_one_subtask_was_cleared_and_that_was_closed_again_stays_closed(world, tmp_path, how, value):
    run_days(world, history(), 1, 2)
    keep(world, tmp_path)
    world.airflow.engine.plan[epoch(2)] = dict.fromkeys(KEYS, value)
    for task in ((TASK, 1), ("weir_close",)):
        world.airflow.clear_by_hand(RUN, *task)
        world.airflow.run_until_quiet()
    before = answers(world)
    assert before[0] == before[2] == (epoch(2), False, {20, value})
    lose(world, how, tmp_path)
    assert answers(world) == before


@HOW
def test_a_run_that_a_person_has_helped_to_its_end_stays_closed(world, tmp_path, how):
    run_days(world, history(), 1)
    keep(world, tmp_path)
    fails = failing(world, 1)
    world.airflow.dag_run(2)
    world.airflow.run_until_quiet()
    fails.clear()
    world.airflow.clear_by_hand(RUN, TASK, 1)
    world.airflow.run_until_quiet()
    before = answers(world)
    assert before[0] == (epoch(2), False, {20})
    lose(world, how, tmp_path)
    world.airflow.run_until_quiet()
    assert answers(world) == before


def test_half_stays_half_where_it_is_cleared_again_and_comes_to_the_same(world):
    run_days(world, history(), 1, 2)
    failing(world, 0)
    world.airflow.engine.plan[epoch(2)] = dict.fromkeys(KEYS, 21)
    for _ in range(2):
        world.airflow.clear_run_by_hand(RUN)
        world.airflow.run_until_quiet()
        assert all(len(found[2]) == 1 for found in answers(world) if isinstance(found, tuple))


def test_half_stays_half_where_another_subtask_is_cleared_and_comes_to_what_it_was(world):
    run_days(world, history(parallelism=3), 1, 2)
    for subtask, value in ((1, 21), (2, 20)):
        world.airflow.engine.plan[epoch(2)] = dict.fromkeys(KEYS, value)
        world.airflow.clear_by_hand(RUN, TASK, subtask)
        world.airflow.run_until_quiet()
        assert all(len(found[2]) == 1 for found in answers(world) if isinstance(found, tuple))


def test_a_checkpoint_with_half_of_a_correction_is_not_answered_by_a_ledger_that_knows_none_of_it(world, tmp_path):
    run_days(world, history(retained_checkpoints=3), 1, 2)
    failing(world, 1)
    world.airflow.engine.plan[epoch(2)] = dict.fromkeys(KEYS[:7], 21)
    world.airflow.clear_run_by_hand(RUN)
    world.airflow.run_until_quiet()
    world.airflow.engine.plan[epoch(1)] = dict.fromkeys(KEYS, 11)
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    world.airflow.deliver_clears("ladder")
    world.airflow.run_until_quiet()
    lose(world, "rebuilt", tmp_path)
    assert all(not {20, 21} <= found[2] for found in answers(world) if isinstance(found, tuple))


def test_after_a_rebuild_no_answer_goes_back_while_a_day_before_is_corrected(world, tmp_path):
    run_days(world, history(parallelism=1, retained_checkpoints=3), 1, 2)
    lose(world, "rebuilt", tmp_path)
    seen = [answer(world)]
    world.airflow.after_commit = lambda _: seen.append(answer(world))
    world.airflow.engine.plan[epoch(1)] = dict.fromkeys(KEYS, 11)
    world.airflow.engine.plan[epoch(2)] = dict.fromkeys(KEYS[:3], 20)
    world.airflow.clear_run_by_hand("scheduled__2013-01-01")
    world.airflow.run_until_quiet()
    world.airflow.deliver_clears("ladder")
    world.airflow.run_until_quiet()
    assert all(found[0] == epoch(2) or found[1] for found in seen)
    assert answer(world) == (epoch(2), False, {11, 20})


def test_after_a_rebuild_half_of_a_dag_run_that_is_made_again_is_not_answered(world, tmp_path):
    run_days(world, history(), 1)
    lose(world, "rebuilt", tmp_path)
    seen = []
    world.airflow.engine.plan[epoch(1)] = dict.fromkeys(KEYS, 11)
    world.airflow.after_commit = lambda _: seen.append(answer(world))
    world.airflow.delete("scheduled__2013-01-01")
    world.airflow.dag_run(1)
    world.airflow.run_until_quiet()
    assert answer(world) == (epoch(1), False, {11})
    assert all(len(found[2]) == 1 for found in seen if isinstance(found, tuple))


def test_a_rebuild_asks_for_no_close_of_days_that_are_closed(world, tmp_path):
    run_days(world, history(), 1, 2)
    (built,) = lose(world, "rebuilt", tmp_path)
    assert [(each.is_outdated, each.notes) for each in built.runs] == [(False, ())] * 2


@pytest.mark.parametrize("how", ["made again", "adopted"])
@pytest.mark.parametrize("value", [20, 21])
def test_what_a_run_was_closed_with_is_answered_until_it_is_closed_anew(world, how, value):
    run_days(world, history(retained_checkpoints=3), 1, 2)
    world.airflow.engine.plan[epoch(2)] = dict.fromkeys(KEYS, value)
    seen = []
    world.airflow.during = world.airflow.after_commit = lambda _: seen.append(answer(world))
    if how == "made again":
        world.airflow.delete(RUN)
        world.airflow.dag_run(2)
    else:
        adopt(world.services, f"ladder@{epoch(2)}")
        seen.append(answer(world))
        world.airflow.deliver_clears("ladder")
        world.airflow.clear_run_by_hand(RUN)
    world.airflow.run_until_quiet()
    assert {found[0] for found in seen} == {epoch(2)}
    assert all(found[2] == {20} and found[1] for found in seen[1:-1])
    assert answer(world) == (epoch(2), False, {value})
