"""The handles of one key, without Spark: what is done to them is what is written."""

from __future__ import annotations

import operator

import pytest

from weir_spark.state.handles import LIST, MAP, VALUE, KeyState, MapOfKey

COLUMNS = {"n": VALUE, "seen": LIST, "by_route": MAP}
ROW = {"n": 3, "seen": ["a"], "by_route": {"JFK-LAX": 2}}


def known():
    return KeyState(COLUMNS, {"n": 3, "seen": ["a"], "by_route": {"JFK-LAX": 2}})


def unknown():
    return KeyState(COLUMNS, None)


def test_a_key_without_a_row_has_nothing():
    state = unknown()
    assert (state.exists, state.get()) == (False, None)
    assert (state.value("n").get(), state.value("n").get(7)) == (None, 7)
    assert (state.list("seen").get(), len(state.map("by_route"))) == ([], 0)
    assert [*state._changes()] == []


def test_what_is_only_read_is_not_written():
    state = known()
    assert (state.exists, state.get()) == (True, ROW)
    assert (state.value("n").get(), state.list("seen").get()) == (3, ["a"])
    assert dict(state.map("by_route").items()) == {"JFK-LAX": 2}
    assert [*state._changes()] == []


def test_a_row_is_set_whole_and_what_is_not_named_is_none():
    state = known()
    state.set(n=4)
    assert state.get() == {"n": 4, "seen": None, "by_route": None}
    assert [*state._changes()] == [(False, {"n": 4, "seen": None, "by_route": None})]


def test_a_value_is_set_and_the_rest_of_the_row_stays():
    state = known()
    state.value("n").set(4)
    assert [*state._changes()] == [(False, {**ROW, "n": 4})]
    new = unknown()
    new.value("n").set(4)
    assert (new.exists, [*new._changes()]) == (True, [(False, {"n": 4, "seen": None, "by_route": None})])


def test_a_row_is_deleted_once_and_only_if_there_was_one():
    state, new = known(), unknown()
    state.clear()
    new.clear()
    assert (state.exists, [*state._changes()], [*new._changes()]) == (False, [(True, {})], [])


def test_a_row_may_be_set_again_after_it_was_deleted():
    state = known()
    state.clear()
    state.value("n").set(1)
    assert [*state._changes()] == [(False, {"n": 1, "seen": None, "by_route": None})]


def test_a_row_all_of_whose_columns_are_cleared_is_none():
    state = known()
    state.value("n").clear()
    state.list("seen").clear()
    assert [*state._changes()] == [(False, {**ROW, "n": None, "seen": None})]
    state.map("by_route").clear()
    assert [*state._changes()] == [(True, {})]


def test_a_row_that_is_set_with_nothing_but_nulls_is_a_row():
    state, bare = unknown(), KeyState({}, None)
    state.set()
    bare.set()
    assert [*state._changes()] == [(False, {"n": None, "seen": None, "by_route": None})]
    assert [*bare._changes()] == [(False, {})]


def test_a_list_grows_at_its_end():
    state = known()
    seen = state.list("seen")
    seen.append("b")
    seen.extend(["c", "a"])
    assert (seen.get(), next(state._changes())[1]["seen"]) == (["a", "b", "c", "a"],) * 2
    seen.update(("z",))
    seen.append("y")
    assert seen.get() == ["z", "y"]


def test_what_a_function_holds_of_a_list_or_a_map_is_its_own():
    state = known()
    first, own = state.list("seen").get(), ["z"]
    row = state.get()
    state.list("seen").append("b")
    state.map("by_route").put("JFK-SFO", 1)
    assert (first, row) == (["a"], ROW)
    state.value("seen").set(own)
    state.list("seen").append("y")
    assert (own, state.list("seen").get()) == (["z"], ["z", "y"])
    value = state.value("seen").get()
    state.list("seen").append("x")
    assert value == ["z", "y"]


def test_a_map_has_entries_that_are_put_and_removed():
    state = known()
    routes = state.map("by_route")
    routes.put("JFK-SFO", 1)
    routes.put("JFK-LAX", routes.get("JFK-LAX") + 1)
    assert (routes.items(), list(routes), routes.values()) == (
        [("JFK-LAX", 3), ("JFK-SFO", 1)],
        ["JFK-LAX", "JFK-SFO"],
        [3, 1],
    )
    routes.remove("JFK-LAX")
    routes.remove("no such route")
    assert ("JFK-LAX" in routes, routes.get("JFK-LAX", 0), len(routes)) == (False, 0, 1)
    assert [*state._changes()] == [(False, {**ROW, "by_route": {"JFK-SFO": 1}})]


def test_a_map_without_entries_is_cleared():
    state = known()
    state.map("by_route").remove("JFK-LAX")
    assert [*state._changes()] == [(False, {**ROW, "by_route": None})]


def test_to_remove_what_is_not_there_changes_nothing():
    state = known()
    state.map("by_route").remove("no such route")
    assert [*state._changes()] == []


def test_an_aggregating_state_has_an_accumulator_of_another_type_than_its_values_and_its_result():
    def mean_of(state):
        return state.aggregating(
            "mean",
            create=lambda: {"sum": 0.0, "n": 0},
            add=lambda so_far, value: {"sum": so_far["sum"] + value, "n": so_far["n"] + 1},
            result=lambda so_far: so_far["sum"] / so_far["n"],
        )

    state = KeyState({"mean": VALUE}, None)
    mean = mean_of(state)
    assert (mean.get(), mean.get("none")) == (None, "none")
    mean.add(1)
    mean.add(4)
    assert mean.get() == 2.5
    assert [*state._changes()] == [(False, {"mean": {"sum": 5.0, "n": 2}})]
    known = KeyState({"mean": VALUE}, {"mean": {"sum": 5.0, "n": 2}})
    mean_of(known).add(4)
    assert mean_of(known).get() == 3.0
    mean_of(known).clear()
    assert (mean_of(known).get(), [*known._changes()]) == (None, [(True, {})])


def test_a_reducing_value_takes_the_first_as_it_is():
    state = unknown()
    longest = state.reducing("n", max)
    for value in (5, 9, 2):
        longest.add(value)
    assert longest.get() == 9
    state.reducing("n", operator.add).add(1)
    assert next(state._changes())[1]["n"] == 10
    longest.clear()
    assert longest.get() is None


@pytest.mark.parametrize("ask", ["value", "list", "map"])
def test_a_column_that_the_state_has_not_is_refused(ask):
    with pytest.raises(ValueError, match=r"no column 'm' besides its key; it has n, seen, by_route"):
        getattr(known(), ask)("m")
    with pytest.raises(ValueError, match="no column 'm'"):
        known().set(m=1)


def test_a_column_of_another_kind_is_refused():
    with pytest.raises(ValueError, match=r"'n' of the state is no ARRAY: use state.value\('n'\)"):
        known().list("n")
    with pytest.raises(ValueError, match="'seen' of the state is no MAP"):
        known().map("seen")


def map_of(rows, named=None, columns=("n",)):
    return MapOfKey(("route",), columns, rows, named)


def test_of_a_map_with_rows_of_its_own_only_what_was_changed_is_written():
    entries = map_of([{"route": "JFK", "n": 1}, {"route": "LAX", "n": 2}, {"route": None, "n": 3}])
    assert (len(entries), sorted(entries, key=str), entries.get("SFO", 0), "JFK" in entries) == (
        3,
        ["JFK", "LAX", None],
        0,
        True,
    )
    entries.put("SFO", 4)
    entries.put("JFK", 5)
    entries.remove("LAX")
    entries.remove("ORD")
    assert entries.items() == [("JFK", 5), (None, 3), ("SFO", 4)]
    assert [*entries._changes()] == [
        (False, {"route": "SFO", "n": 4}),
        (False, {"route": "JFK", "n": 5}),
        (True, {"route": "LAX"}),
    ]


def test_an_entry_that_came_and_went_is_none_and_one_that_went_and_came_is_written():
    entries = map_of([{"route": "JFK", "n": 1}])
    entries.put("SFO", 1)
    entries.clear()
    assert [*entries._changes()] == [(True, {"route": "JFK"})]
    entries.put("JFK", 1)
    assert [*entries._changes()] == [(False, {"route": "JFK", "n": 1})]


def test_entries_that_were_not_loaded_are_not_taken_for_absent():
    entries = map_of([{"route": "JFK", "n": 1}], named=[{"route": "JFK"}, {"route": "LAX"}])
    assert (entries.get("JFK"), entries.get("LAX"), "LAX" in entries) == (1, None, False)
    entries.put("LAX", 2)
    entries.remove("JFK")
    for asked in (lambda: entries.get("SFO"), lambda: entries.put("SFO", 1), lambda: "SFO" in entries):
        with pytest.raises(ValueError, match="'SFO' is not loaded"):
            asked()
    for asked in (entries.items, entries.clear, lambda: len(entries)):
        with pytest.raises(ValueError, match="only entries that the rows name"):
            asked()
    assert [*entries._changes()] == [(False, {"route": "LAX", "n": 2}), (True, {"route": "JFK"})]


def test_the_key_of_a_map_is_a_tuple_of_several_columns_and_a_value_a_dictionary():
    entries = MapOfKey(("route", "year"), ("n", "m"), [{"route": "JFK", "year": 2013, "n": 1, "m": 2}], None)
    assert entries.items() == [(("JFK", 2013), {"n": 1, "m": 2})]
    entries.put(("LAX", 2013), {"n": 3, "m": None})
    assert [*entries._changes()] == [(False, {"route": "LAX", "year": 2013, "n": 3, "m": None})]
    with pytest.raises(ValueError, match="a tuple of route, year, not 'LAX'"):
        entries.put("LAX", {"n": 3, "m": None})
    with pytest.raises(ValueError, match="a dictionary of the columns n, m"):
        entries.put(("LAX", 2014), {"n": 3})
    bare = map_of([], columns=())
    bare.put("JFK", {})
    assert (bare.get("JFK"), [*bare._changes()]) == ({}, [(False, {"route": "JFK"})])
    with pytest.raises(ValueError, match=r"none: it is \{\}, not True"):
        bare.put("JFK", True)
