from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from weir.dataflow.graph import find_cycle, reachable, topological_order


@st.composite
def reads(draw):
    size = draw(st.integers(1, 12))
    names = [f"n{i}" for i in range(size)]
    return {name: draw(st.lists(st.sampled_from(names), max_size=3)) for name in names}


@given(reads())
def test_either_all_names_are_ordered_or_a_cycle_is_named(graph):
    ordered = topological_order(graph)
    place = {name: i for i, name in enumerate(ordered)}
    for name in ordered:
        assert all(place[producer] < place[name] for producer in graph[name])
    cycle = find_cycle(graph)
    assert bool(cycle) == (len(ordered) < len(graph))
    if cycle:
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert all(producer in graph[reader] for producer, reader in pairwise(cycle))


@given(reads())
def test_what_is_reachable_is_the_start_and_what_is_read_by_what_is_reachable(graph):
    found = reachable(["n0"], graph.__getitem__)
    assert found == {name: tuple(graph[name]) for name in found}
    grown, size = {"n0"}, 0
    while len(grown) > size:
        size = len(grown)
        grown |= {producer for name in grown for producer in graph[name]}
    assert found.keys() == grown
