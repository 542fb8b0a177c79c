"""A keyed state is divided by keys as its stage reads them."""

from __future__ import annotations

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import Dataflow, Stage, blocking, files_source, keyed_state, pipelined, previous, sink, source
from weir.errors import Misconfigured

HISTORY = keyed_state("history", key="tail", schema="tail STRING, n BIGINT")
FLIGHTS = source("flights", "p:flights", parallelism=2)


def flow(inputs, *between, parallelism=2, state=HISTORY):
    aircraft = Stage("aircraft", "p:aircraft", inputs, parallelism=parallelism, state=state)
    return Dataflow("delays", [FLIGHTS, *between, aircraft, sink("aircraft", "known")])


@pytest.mark.parametrize(
    "read", [blocking("flights", broadcast=True), blocking("flights", pointwise=True), pipelined("flights")]
)
def test_a_state_that_no_input_is_divided_as_is_refused(read):
    with pytest.raises(Misconfigured) as error:
        flow([read])
    said = str(error.value)
    assert said.startswith(
        "dataflow 'delays': stage 'aircraft', state 'history': the state is divided by its key ['tail']"
    )
    assert 'but the stage reads without by=: read an input with blocking(x, by="tail")' in said


def test_a_source_of_several_subtasks_keeps_no_keyed_state():
    kept = source("flights", "p:flights", parallelism=2, state=HISTORY)
    with pytest.raises(Misconfigured, check=of_kind("dataflow.state_not_divided", read="is a source")):
        Dataflow("delays", [kept, sink("flights", "known")])


def reading(read, between=None, **more):
    """A dataflow whose stage `later` reads a state of the stage `aircraft`."""
    aircraft = Stage("aircraft", "p:aircraft", [blocking("flights", by="tail")], parallelism=2, state=HISTORY)
    inputs = {"today": between or pipelined("aircraft"), "before": read}
    return Dataflow(
        "delays",
        [FLIGHTS, aircraft, Stage("later", "p:later", inputs, parallelism=2, **more), sink("later", "known")],
    )


@pytest.mark.parametrize(
    "read",
    [previous("history", by="tail", schema="tail STRING"), pipelined("history"), blocking("history", by="tail")],
)
def test_a_state_is_read_as_its_keeper_reads_it_and_not_otherwise(read):
    with pytest.raises(Misconfigured) as error:
        reading(read)
    assert (
        "stage 'later' reads 'history', which is a state of 'aircraft': as the epoch before has left it, by "
        "previous('history') and no other argument, in a stage of the same task; else read what 'aircraft' returns"
    ) in str(error.value)
    reading(previous("aircraft", by="tail", schema=HISTORY.schema))


def test_a_stage_of_the_same_task_reads_a_state():
    flow = reading(previous("history"))
    read = flow.stage("later").exchanges["before"]
    assert read == flow.stage("aircraft").exchanges["history"]
    assert Dataflow.from_json(flow.to_json()) == flow


@pytest.mark.parametrize(
    ("between", "more"), [(blocking("aircraft", by="tail"), {}), (pipelined("aircraft"), {"max_parallelism": 8})]
)
def test_a_stage_of_another_task_or_of_other_key_groups_reads_no_state(between, more):
    with pytest.raises(Misconfigured) as error:
        reading(previous("history"), between=between, **more)
    assert "stage 'later' reads the state 'history', which no stage of its task keeps" in str(error.value)


def test_its_keeper_reads_a_state_by_its_name_alone():
    with pytest.raises(Misconfigured, match="stage 'aircraft' reads 'history', which is a state of 'aircraft'"):
        flow({"flights": blocking("flights", by="tail"), "again": previous("history")})


def test_the_order_of_keys_counts():
    state = keyed_state("days", key=["origin", "day"], schema="origin STRING, day DATE, n BIGINT")
    with pytest.raises(Misconfigured, check=of_kind("dataflow.invalid")):
        flow([blocking("flights", by=["day", "origin"])], state=state)
    flow([blocking("flights", by=["origin", "day"])], state=state)


def test_one_input_with_the_keys_of_the_state_is_enough():
    flow({"flights": blocking("flights", by="tail"), "all": blocking("flights", broadcast=True)})


def test_a_stage_of_one_subtask_has_all_of_its_state():
    flow([blocking("flights", by="origin")], parallelism=1)
    flow([blocking("flights")], parallelism=1)


def test_a_function_may_rename_the_keys():
    """Rows of keys that are another subtask's are refused when they are written."""
    flow([blocking("flights", by="tailnum")])


WITH_ORIGIN = keyed_state("history", key="tail", schema="tail STRING, origin STRING, n BIGINT")
FILES = files_source("files", "/data/*.csv", format="csv", schema="tail STRING, origin STRING", parallelism=2)


@pytest.mark.parametrize(
    ("read", "state"), [(blocking("flights", by="origin"), WITH_ORIGIN), (blocking("files", by="origin"), HISTORY)]
)
def test_a_state_that_is_read_by_another_key_is_refused_where_names_tell_that_it_is_no_other_name(read, state):
    inputs = {"read": read, "files": blocking("files", broadcast=True), "flights": blocking("flights", broadcast=True)}
    with pytest.raises(Misconfigured, check=of_kind("dataflow.invalid")):
        flow(inputs, FILES, state=state)
    flow({"read": read, "files": blocking("files"), "flights": blocking("flights")}, FILES, state=state, parallelism=1)
    flow(inputs | {"flights": blocking("flights", by="tail")}, FILES, state=state)


def test_a_stage_in_the_same_task_may_have_divided_the_rows_and_renamed_the_keys():
    between = Stage("clean", "p:clean", [blocking("flights", by="tailnum")], parallelism=2)
    flow([pipelined("clean")], between)
    flow([blocking("clean", pointwise=True)], between)


def test_a_run_that_has_begun_so_goes_on():
    document = flow([blocking("flights", by="tail")]).to_json()
    [aircraft] = [stage for stage in document["stages"] if stage["name"] == "aircraft"]
    aircraft["inputs"]["flights"] = aircraft["inputs"]["flights"] | {"keys": [], "broadcast": True}
    assert Dataflow.from_json(document).stage("aircraft").exchanges["flights"].broadcast


MAPS = keyed_state("maps", key="tail", map_key=["route", "day"], schema="tail STRING, route STRING, day DATE, n BIGINT")


def test_maps_are_divided_by_the_key_without_that_of_their_entries():
    flow([blocking("flights", by="tail")], state=MAPS)
    with pytest.raises(Misconfigured, match=r'read an input with blocking\(x, by="tail"\)'):
        flow([blocking("flights", by="route")], state=MAPS)
    with pytest.raises(Misconfigured, match="its keyed inputs have different numbers of keys"):
        flow([blocking("flights", by=["tail", "route", "day"])], state=MAPS)
    assert (MAPS.keys, MAPS.divided_by) == (("tail", "route", "day"), ("tail",))


@pytest.mark.parametrize(
    ("key", "map_key", "said"),
    [
        ("tail", "tail", "its key and map_key name a column twice: tail, tail"),
        ("tail", "way", "its schema has no key column 'way'"),
        ([], "route", "it has no key"),
    ],
)
def test_the_key_of_a_map_is_a_column_of_its_own(key, map_key, said):
    with pytest.raises(Misconfigured) as error:
        flow([blocking("flights", by="tail")], state=keyed_state("m", key=key, map_key=map_key, schema=MAPS.schema))
    assert said in str(error.value)
