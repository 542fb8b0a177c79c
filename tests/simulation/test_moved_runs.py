"""Whatever runs are moved to, and whatever happens meanwhile, what is published is what a computation anew gives."""

import pytest
from tests.builders.ledgers import fast_folder
from tests.simulation.moved_runs import MovedRuns

COUNT = 3


SOAKED = [pytest.param(first, marks=pytest.mark.soak) for first in range(COUNT, 300, COUNT)]


@pytest.mark.parametrize("first", [0, *SOAKED])
def test_what_is_published_of_moved_runs_is_what_a_computation_anew_gives(first):
    for seed in range(first, first + COUNT):
        with fast_folder() as folder:
            runs = MovedRuns(folder, seed)
            runs.happen()
            runs.heal()
            assert runs.open_runs() == {}, seed
            assert runs.published() == runs.expected(), seed
            runs.world.ledger.close()
