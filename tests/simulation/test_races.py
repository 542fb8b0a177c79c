"""Whatever another process does between any two steps of one, the invariants hold. A failure prints its seed."""

import pytest
from tests.simulation.races import race
from tests.simulator.events import events_to_text
from tests.simulator.simulate import simulate

SEEDS = 16
SEEDS_OF_A_SOAK = 3000


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_invariants_hold_between_any_two_steps_of_a_process(seed):
    check(seed)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_invariants_hold_between_any_two_steps_of_thousands():
    for seed in range(SEEDS, SEEDS_OF_A_SOAK):
        check(seed)


def check(seed):
    scene, events = race(seed)
    finding = simulate(scene, events)
    assert finding is None, f"race {seed}: {finding}\n{scene}\n{events_to_text(events)}"
