"""By a month of faults: a person is told as often as one is needed, each time once, and never of what heals itself.

A failure prints its story: `./weir test tests/simulation/test_month_of_faults.py -k "[SEED]"` tells it again.
"""

import pytest
from tests.simulation.month_of_faults import DAYS, Month


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 25))])
def test_a_person_is_told_as_often_as_one_is_needed(tmp_path, monkeypatch, seed):
    month = Month(tmp_path, seed, monkeypatch)
    for day in range(1, DAYS + 1):
        for told, needed in month.live_a_day(day):
            assert told == needed, month.story
        begun, over = month.recoveries()
        assert begun == over, month.story
    if seed == 0:  # it has all that is to be told
        assert all(month.needed.values())
        assert begun
