"""Flink's StateAssignmentOperationTest, as far as operator state goes, and what holds of any lists."""

from __future__ import annotations

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from tests.messages.kinds import of_kind

from weir.dataflow.state import StateKind
from weir.errors import Internal
from weir.state.operator_state import assigned_elements, own_elements

# By state: its kind, and the offsets that the two subtasks of the old parallelism had.
T1 = (StateKind.SPLIT, [["a", "b"], []])
T2 = (StateKind.SPLIT, [[], ["a", "b"]])
T3 = (StateKind.UNION, [["a"], ["b"]])
T4 = (StateKind.UNION, [["a", "b"], []])
T5 = (StateKind.BROADCAST, [["a", "b", "c"], ["a", "b", "c"]])


def all_of(state, parallelism):
    kind, lists = state
    return [list(assigned_elements(kind, lists, parallelism, subtask)) for subtask in range(parallelism)]


@pytest.mark.parametrize("state", [T1, T2])
def test_a_split_list_gives_each_of_more_subtasks_one_element(state):
    assert sorted(map(len, all_of(state, 3))) == [0, 1, 1]


@pytest.mark.parametrize("state", [T1, T2])
def test_a_split_list_gives_all_to_a_single_subtask(state):
    assert all_of(state, 1) == [["a", "b"]]


@pytest.mark.parametrize("state", [T1, T2])
def test_a_split_list_stays_where_it_is_while_the_parallelism_is_unchanged(state):
    assert all_of(state, 2) == state[1]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("state", [T3, T4])
def test_a_union_list_gives_all_to_each_subtask(state, parallelism):
    assert all_of(state, parallelism) == [["a", "b"]] * parallelism


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_broadcast_state_is_given_once_to_each_subtask(parallelism):
    assert all_of(T5, parallelism) == [["a", "b", "c"]] * parallelism


def test_the_states_of_one_stage_are_divided_each_by_its_own_kind():
    # testCombined: handles that carry the name, over all new subtasks, for the parallelisms 3, 1 and 2.
    combined = {"t1": T3, "t2": T4, "t3": T1, "t4": T5}
    found = {
        name: [sum(bool(elements) for elements in all_of(state, parallelism)) for parallelism in (3, 1, 2)]
        for name, state in combined.items()
    }
    assert found == {"t1": [3, 1, 2], "t2": [3, 1, 2], "t3": [2, 1, 1], "t4": [3, 1, 2]}


@pytest.mark.parametrize("kind", [StateKind.SPLIT, StateKind.UNION, StateKind.BROADCAST])
def test_the_first_epoch_is_given_nothing(kind):
    assert assigned_elements(kind, [], 2, 1) == ()


def test_keyed_state_is_no_list():
    with pytest.raises(Internal, check=of_kind("state.not_a_list", kind="keyed")):
        assigned_elements(StateKind.KEYED, [["a"]], 1, 0)


lists_of_subtasks = st.lists(st.lists(st.integers(), max_size=5), max_size=5)


@for_all(lists_of_subtasks, st.integers(1, 7))
def test_each_element_is_one_subtasks_own(lists, parallelism):
    assigned = [own_elements(lists, parallelism, subtask) for subtask in range(parallelism)]
    assert [each for elements in assigned for each in elements] == [each for elements in lists for each in elements]


@for_all(lists_of_subtasks, st.integers(1, 7))
def test_after_a_change_of_parallelism_no_subtask_has_two_elements_more_than_another(lists, parallelism):
    sizes = [len(own_elements(lists, parallelism, subtask)) for subtask in range(parallelism)]
    assert len(lists) == parallelism or max(sizes) - min(sizes) <= 1
