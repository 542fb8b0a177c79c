import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.flink.components import UnionFind, strongly_connected


def components(successors):
    found = {}
    for node, number in enumerate(strongly_connected(successors)):
        found.setdefault(number, set()).add(node)
    return sorted(map(sorted, found.values()))


@pytest.mark.parametrize(
    ("successors", "expected"),
    [
        ([[2, 3], [0], [1], [4], []], [[0, 1, 2], [3], [4]]),
        ([[1], [2], [0], [1, 2, 4], [3, 5], [2, 6], [5], [4, 6, 7]], [[0, 1, 2], [3, 4], [5, 6], [7]]),
        ([[1], [2, 4, 5], [3, 6], [2, 7], [0, 5], [6], [5], [3, 6]], [[0, 1, 4], [2, 3, 7], [5, 6]]),
        ([[]] * 5, [[0], [1], [2], [3], [4]]),
        ([[1], [2], [3], [4], []], [[0], [1], [2], [3], [4]]),
    ],
)
def test_components_are_those_of_flinks_cases(successors, expected):
    assert components(successors) == expected


def test_a_ring_of_100_000_nodes_overflows_no_stack():
    size = 100_000
    assert len(set(strongly_connected([[(node + 1) % size] for node in range(size)]))) == 1


@given(
    st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(st.integers(0, n - 1), max_size=4), min_size=n, max_size=n))
)
def test_two_nodes_share_a_component_exactly_if_each_reaches_the_other(successors):
    reach = [{node} for node in range(len(successors))]
    for _ in successors:
        reach = [set().union(seen, *(reach[s] for s in successors[node])) for node, seen in enumerate(reach)]
    number = strongly_connected(successors)
    for one in range(len(successors)):
        for other in range(len(successors)):
            assert (number[one] == number[other]) == (other in reach[one] and one in reach[other])


def test_sets_are_numbered_by_their_least_member():
    sets = UnionFind(5)
    sets.union(4, 1)
    sets.union(2, 3)
    sets.union(3, 2)
    assert sets.labels() == [0, 1, 2, 2, 1]
