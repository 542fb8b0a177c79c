"""Whatever happens to dataflows that read each other: rows are right, nothing is in vain, and nobody waits for ever."""

import pytest
from tests.builders.ledgers import fast_folder
from tests.simulation.dataflows import Dataflows

COUNT = 3

SOAKED = [pytest.param(first, marks=pytest.mark.soak) for first in range(COUNT, 600, COUNT)]


@pytest.mark.parametrize("first", [0, *SOAKED])
def test_dataflows_that_read_each_other_publish_what_a_computation_in_python_gives(first):
    for seed in range(first, first + COUNT):
        with fast_folder() as folder:
            flows = Dataflows(folder, seed)
            flows.happen()
            flows.heal()
            assert flows.published() == flows.expected(), seed
            assert flows.broken == [], seed
            assert flows.town.ledger.crossed == [], seed
            for changes in (False, True) if flows.is_whole else ():
                run, tries = flows.run_again(changes=changes)
                assert tries.keys() == {run, *(flows.readers_of(*run) if changes else ())}, (seed, changes)
                assert flows.published() == flows.expected(), seed
            flows.town.ledger.close()
