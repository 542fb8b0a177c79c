from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import Misconfigured
from weir.topology.key_groups import key_group_range

sizes = st.integers(1, 32768).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most)))


@given(sizes)
def test_the_ranges_divide_all_key_groups(size):
    most, parallelism = size
    ranges = [key_group_range(most, parallelism, i) for i in range(min(parallelism, 300))]
    assert ranges[0][0] == 0
    assert all(first <= last for first, last in ranges)
    assert all(behind[0] == before[1] + 1 for before, behind in pairwise(ranges))
    assert key_group_range(most, parallelism, parallelism - 1)[1] == most - 1


@pytest.mark.parametrize(
    ("most", "parallelism", "ranges"),
    [(10, 3, [(0, 3), (4, 6), (7, 9)]), (7, 4, [(0, 1), (2, 3), (4, 5), (6, 6)]), (128, 1, [(0, 127)])],
)
def test_ranges_are_flinks(most, parallelism, ranges):
    assert [key_group_range(most, parallelism, i) for i in range(parallelism)] == ranges


@pytest.mark.parametrize(
    ("most", "parallelism", "subtask"), [(4, 5, 0), (4, 0, 0), (40000, 1, 0), (4, 2, 2), (4, 2, -1)]
)
def test_what_is_out_of_bounds_is_refused(most, parallelism, subtask):
    with pytest.raises(Misconfigured):
        key_group_range(most, parallelism, subtask)
