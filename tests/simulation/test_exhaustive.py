"""All schedules of two tries, a closing task, a sweep and a kill over the smallest dataflow with a state.

A finding prints the schedule that leads there: `replay` in tests/simulator/exhaustive/scope.py carries it out.
"""

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random

import pytest
from tests.simulator.exhaustive.scope import (
    ACT,
    CHAIN,
    CHANGE,
    SCOPES,
    Play,
    Scope,
    choices_from_text,
    choices_to_text,
    replay,
)
from tests.simulator.exhaustive.search import searches
from tests.simulator.exhaustive.traffic import Traffic

SECONDS, SECONDS_OF_A_SOAK = 60.0, 3600.0
"""Of processor time."""

LEAST_STATES = 800


def searched(name, most):
    """The last of the searches with ever more preemptions."""
    return list(searches(SCOPES[name], SECONDS, most))[-1]


def in_a_process(function, *args):
    """A search forks, and processes of tests have threads."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "most"), [("tries", 0), ("clears", 1)])
def test_two_tries_and_a_kill_or_a_clear_at_any_step_of_either_keep_the_invariants(name, most):
    found = in_a_process(searched, name, most)
    assert found.finding == ""
    assert found.is_whole
    assert found.states >= LEAST_STATES
    assert found.schedules >= found.ends >= 10


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", SCOPES)
def test_all_schedules_keep_the_invariants(name, capsys):
    """With ever more preemptions, for an hour of a core."""
    command = [sys.executable, "-m", "tests.simulator.exhaustive", name, f"--seconds={SECONDS_OF_A_SOAK}"]
    with capsys.disabled():
        assert subprocess.run(command, check=False).returncode == 0


def world_after(scope, text):
    """The fingerprint of the world that a schedule comes to: all worlds of a process share one database."""
    play = replay(scope, choices_from_text(text), heals=False)
    found = play.fingerprint
    play.world.close()
    return found


TRY, OTHER = "s1-set_s1#1", "s1-set_s1#2"
SOURCE = Scope(CHAIN, person=CHANGE)


def test_equal_schedules_come_to_equal_worlds():
    text = f"begin {TRY}\ngo {TRY} until 9\nbegin sweep\ngo sweep until 7\nkill {TRY}\ngo sweep until its end"
    assert world_after(SCOPES["successor"], text) == world_after(SCOPES["successor"], text)


def test_independent_steps_come_to_one_world_in_either_order():
    """Both have begun, and stand before a transaction that only reads."""
    begun = f"begin {TRY} until 1\nbegin sweep until 1\n"
    one = world_after(SCOPES["successor"], f"{begun}go sweep until 2\ngo {TRY} until 2")
    assert one == world_after(SCOPES["successor"], f"{begun}go {TRY} until 2\ngo sweep until 2")
    assert one != world_after(SCOPES["successor"], f"{begun}go sweep until 2")


def test_a_process_that_was_answered_otherwise_makes_another_world():
    """One sweep has listed the attempts that are running before the try was entered, the other one after."""
    before = world_after(SCOPES["successor"], f"begin sweep\ngo sweep until 30\nbegin {TRY}\ngo {TRY} until 20")
    after = world_after(SCOPES["successor"], f"begin {TRY}\ngo {TRY} until 20\nbegin sweep\ngo sweep until 30")
    assert before != after


def test_a_try_that_airflow_has_lost_sight_of_runs_beside_its_successor():
    text = f"begin {TRY}\ngo {TRY} until 7\nlose {TRY}\nbegin {OTHER}"
    play = replay(SCOPES["tries"], choices_from_text(text), heals=False)
    assert {choice.name for choice in play.choices()} == {TRY, OTHER}
    play.heal()
    play.world.close()


def test_a_person_clears_a_source_beside_the_try_that_reads_it():
    play = replay(SCOPES["clears"], choices_from_text(f"begin {TRY}\ngo {TRY} until 10\n{ACT}"), heals=False)
    assert {choice.name for choice in play.choices()} == {TRY, "s0#2"}
    play.heal()
    play.world.close()


def test_what_a_source_gave_before_a_change_is_known_to_the_try_that_has_read_it():
    """Also before it has written what it has read."""
    begun, computed = "begin s0#1\ngo s0#1 until 25\n", "go s0#1 until 26\n"
    assert world_after(SOURCE, f"{begun}{computed}{ACT}") != world_after(SOURCE, f"{begun}{ACT}\n{computed}")


@pytest.mark.parametrize("name", ["successor", "clears"])
def test_a_schedule_is_carried_out_as_it_is_printed(name):
    """Also by a process that does not know yet which paths several processes use."""
    traffic = Traffic()
    for seed in range(2):
        play, chosen, random = Play(SCOPES[name], traffic), [], Random(seed)
        while found := play.choices():
            chosen.append(play.choose(random.choice(found)))
        came_to = play.fingerprint
        play.world.close()
        assert world_after(SCOPES[name], choices_to_text(chosen)) == came_to
