"""A keyed state is divided by the keys by which its stage reads."""

from __future__ import annotations

import pytest

from weir.dataflow import Dataflow, Stage, blocking, keyed_state, pipelined, sink, source
from weir.errors import Misconfigured

HISTORY = keyed_state("history", key="tail", schema="tail STRING, n BIGINT")
FLIGHTS = source("flights", "p:flights", parallelism=2)


def flow(inputs, *between, parallelism=2, state=HISTORY):
    aircraft = Stage("aircraft", "p:aircraft", inputs, parallelism=parallelism, state=state)
    return Dataflow("delays", [FLIGHTS, *between, aircraft, sink("aircraft", "known")])


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        ([blocking("flights", by="origin")], "by ['origin']"),
        ([blocking("flights", broadcast=True)], "without by="),
        ([blocking("flights", pointwise=True)], "without by="),
        ([pipelined("flights")], "without by="),
        ({"x": blocking("flights", by="origin"), "y": blocking("flights", by="dest")}, "by ['origin'], by ['dest']"),
    ],
)
def test_a_state_that_no_input_is_divided_as_is_refused(inputs, found):
    with pytest.raises(Misconfigured) as error:
        flow(inputs)
    said = str(error.value)
    assert said.startswith(
        "dataflow 'delays': stage 'aircraft', state 'history': the state is divided by its key ['tail']"
    )
    assert f'but the stage reads {found}: read an input with blocking(x, by="tail")' in said


def test_a_source_of_several_subtasks_keeps_no_keyed_state():
    kept = source("flights", "p:flights", parallelism=2, state=HISTORY)
    with pytest.raises(Misconfigured, match=r"but the stage is a source: keep it in a stage that reads this one with"):
        Dataflow("delays", [kept, sink("flights", "known")])


def test_the_order_of_keys_counts():
    state = keyed_state("days", key=["origin", "day"], schema="origin STRING, day DATE, n BIGINT")
    with pytest.raises(Misconfigured, match=r"read an input with blocking\(x, by=\[\"origin\", \"day\"\]\)"):
        flow([blocking("flights", by=["day", "origin"])], state=state)
    flow([blocking("flights", by=["origin", "day"])], state=state)


def test_one_input_with_the_keys_of_the_state_is_enough():
    flow({"flights": blocking("flights", by="tail"), "all": blocking("flights", broadcast=True)})


def test_a_stage_of_one_subtask_has_all_of_its_state():
    flow([blocking("flights", by="origin")], parallelism=1)
    flow([blocking("flights")], parallelism=1)


def test_a_stage_in_the_same_task_may_have_divided_the_rows_and_renamed_the_keys():
    between = Stage("clean", "p:clean", [blocking("flights", by="tailnum")], parallelism=2)
    flow([pipelined("clean")], between)
    flow([blocking("clean", pointwise=True)], between)


def test_a_run_that_has_begun_so_goes_on():
    document = flow([blocking("flights", by="tail")]).to_json()
    for stage in document["stages"]:
        for exchange in stage["inputs"].values():
            if exchange.get("keys") == ["tail"] and exchange["stage"] == "flights":
                exchange["keys"] = ["origin"]
    assert Dataflow.from_json(document).stage("aircraft").exchanges["flights"].keys == ("origin",)
