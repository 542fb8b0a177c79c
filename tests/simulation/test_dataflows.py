"""Whatever happens to dataflows that read each other: rows are right, nothing is in vain, and nobody waits for ever."""

import pytest
from tests.builders.ledgers import fast_folder
from tests.simulation.dataflows import require_right

COUNT = 3

SOAKED = [pytest.param(first, marks=pytest.mark.soak) for first in range(COUNT, 600, COUNT)]


@pytest.mark.parametrize("first", [0, *SOAKED])
def test_dataflows_that_read_each_other_publish_what_a_computation_in_python_gives(first):
    for seed in range(first, first + COUNT):
        with fast_folder() as folder:
            require_right(folder, seed)
