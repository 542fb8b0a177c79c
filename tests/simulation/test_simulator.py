"""Random dataflows under random faults: DESIGN 9's invariants hold after every step, and all heals.

A failure prints a seed and the shortest schedule that was found: `python -m weir.testing.simulator --seed SEED`.
"""

import time
from pathlib import Path
from random import Random

import pytest

from weir.testing.simulator.actions import apply
from weir.testing.simulator.dataflows import scene_from_text
from weir.testing.simulator.events import Event, events_from_text, events_to_text, random_events
from weir.testing.simulator.healing import heal
from weir.testing.simulator.simulate import Shares, report_of, scene_and_events, shrunk, simulate, sweep
from weir.testing.simulator.world import World

SEEDS = 120
"""As many as two cores do in half a minute. They are the same each time; thousands of others are a soak."""

SEEDS_OF_A_SOAK = 5000


def test_the_invariants_hold_under_random_faults():
    swept = sweep(range(SEEDS), most=1)
    assert swept.findings == (), "\n".join(report_of(found.seed, found.finding) for found in swept.findings)
    assert swept.seeds == SEEDS


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_invariants_hold_under_seeds_that_no_run_had_before(capsys):
    first = int(time.time()) * SEEDS_OF_A_SOAK
    for seed in range(first, first + SEEDS_OF_A_SOAK, SEEDS):
        seeds = range(seed, min(seed + SEEDS, first + SEEDS_OF_A_SOAK))
        with capsys.disabled():
            print(f"seeds {seeds.start} to {seeds.stop - 1}", flush=True)
        swept = sweep(seeds, most=1)
        assert swept.findings == (), "\n".join(report_of(found.seed, found.finding) for found in swept.findings)


@pytest.mark.parametrize("file", sorted(Path(__file__).with_name("seeds").glob("*.txt")), ids=lambda file: file.stem)
def test_what_was_once_wrong_is_right(file):
    """Each file is what the simulator printed when it was wrong."""
    text = file.read_text()
    assert simulate(scene_from_text(text.splitlines()), events_from_text(text)) is None


EDITED = """\
dataflow failover=region consumers=if_changed tries=any largest_plan=1 modules=apart
stage s0 x1 fine: source
stage s1 x3 fine: blocking s0 by k
stage s2 x1 fine: blocking s1
"""

TWO_STAGES = """\
dataflow failover=region consumers=if_changed tries=any largest_plan=1
stage s0 x1 fine: source
stage s1 x1 fine: blocking s0
"""


@pytest.mark.parametrize("has_changed", [True, False])
def test_the_heartbeat_of_a_suspended_process_stops_work_whose_input_has_changed_and_no_other(has_changed):
    stopped = []
    for at in range(3, 32):
        world = World(scene_from_text(TWO_STAGES.splitlines()))
        world.airflow.on_stop = lambda begun: stopped.append(begun.attempt.region.name)
        change = "change 0\n" if has_changed else ""
        for event in events_from_text(f"step 0\nstep 0 suspend@{at}\n{change}clear 0\nstep 0\nbeat 0\nresume 0"):
            apply(world, event)
        heal(world)
        world.close()
    assert (len(stopped) >= 3) is has_changed
    assert set(stopped) <= {"s1-set_s1", "s1"}


@pytest.mark.parametrize(
    ("then", "edits"), [("damage 2 folder\nclear 4", {0}), ("clear 2", {2}), ("break 1\nclear 2", {4})]
)
def test_a_stage_is_of_its_first_code_until_a_person_clears_a_subtask(then, edits):
    """What is lost is made again as it was; a function that raises is mended, and cleared once."""
    scene = scene_from_text(EDITED.splitlines())
    world = World(scene)
    for event in events_from_text("step 0\n" * 6 + "edit 1\nedit 1\n" + then):
        apply(world, event)
    heal(world)
    world.close()
    current = world.history.ledger.current.values()
    assert {world.engine.made[each.attempt].edits["s1"] for each in current if each.stage == "s1"} == edits


def test_a_seed_is_the_same_each_time():
    first, second = (scene_and_events(11) for _ in range(2))
    assert first == second
    assert str(first[0]) == str(second[0])


@pytest.mark.parametrize("shares", [Shares(0, 0), Shares(1, 0), Shares(0, 1), Shares(1, 1)], ids=str)
@pytest.mark.parametrize("seed", range(40))
def test_a_scene_is_read_as_it_is_printed(seed, shares):
    scene, _ = scene_and_events(seed, shares)
    assert scene_from_text(str(scene).splitlines()) == scene
    assert scene.keeps_state == (shares.stateful == 1)
    assert scene.is_gated == (shares.gated == 1 and not scene.collects)


def test_events_are_read_as_they_are_printed():
    events = random_events(Random(5))
    assert events_from_text(events_to_text(events)) == events


def test_a_schedule_is_shrunk_to_what_matters():
    """Say that what breaks it is a damage behind a step that is struck."""

    def breaks(events):
        steps = [at for at, event in enumerate(events) if event.fault.at]
        return bool(steps) and any(event.verb.value == "damage" for event in events[steps[0] :])

    events = random_events(Random(3))
    assert breaks(events)
    found = shrunk(events, breaks)
    assert len(found) == 2
    assert found[1] == Event.from_text(f"damage 0 {found[1].how}")
