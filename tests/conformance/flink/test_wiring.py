import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.flink.wiring import pointwise_consumers, pointwise_producers

sizes = st.tuples(st.integers(1, 60), st.integers(1, 60))


@given(sizes)
def test_producers_and_consumers_are_inverse(size):
    s, t = size
    from_consumers = {(a, i) for i in range(t) for a in pointwise_producers(s, t, i)}
    from_producers = {(a, i) for a in range(s) for i in pointwise_consumers(s, t, a)}
    assert from_consumers == from_producers


@given(sizes)
def test_nobody_is_left_out(size):
    s, t = size
    assert all(len(pointwise_producers(s, t, i)) >= 1 for i in range(t))
    assert all(len(pointwise_consumers(s, t, a)) >= 1 for a in range(s))


@pytest.mark.parametrize(
    ("s", "t", "producers"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1], [2, 3, 4]]),
        (2, 4, [[0], [0], [1], [1]]),
        (2, 5, [[0], [0], [0], [1], [1]]),
        (3, 3, [[0], [1], [2]]),
    ],
)
def test_wiring_is_flinks(s, t, producers):
    assert [list(pointwise_producers(s, t, i)) for i in range(t)] == producers
