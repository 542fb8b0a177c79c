import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.flink.key_groups import default_max_parallelism, subtask_of

from weir.topology.key_groups import key_group_range

sizes = st.integers(1, 32768).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most)))


@given(sizes, st.data())
def test_a_key_group_is_in_the_range_of_its_subtask(size, data):
    most, parallelism = size
    group = data.draw(st.integers(0, most - 1))
    first, last = key_group_range(most, parallelism, subtask_of(most, parallelism, group))
    assert first <= group <= last


@pytest.mark.parametrize(
    ("parallelism", "most"), [(1, 128), (85, 128), (86, 256), (171, 256), (172, 512), (32768, 32768), (30000, 32768)]
)
def test_the_default_maximum_is_flinks(parallelism, most):
    assert default_max_parallelism(parallelism) == most
