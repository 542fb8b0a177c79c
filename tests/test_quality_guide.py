"""What docs/quality.md shows is true."""

from __future__ import annotations

import re
from pathlib import Path

from weir.dataflow import Dataflow, Stage, source
from weir.formats.suite import Severity, suite_from_json

GUIDE = (Path(__file__).parents[1] / "docs/quality.md").read_text()


def blocks(language):
    return re.findall(rf"(?s)```{language}\n(.*?)```", GUIDE)


def test_what_is_declared_there_is_a_dataflow():
    declared = {}
    exec(compile(blocks("python")[0], "docs/quality.md", "exec"), declared)  # noqa: S102  it is ours
    keeps = Stage("keeps", "m:keeps", {"join": declared["blocking"]("join", by="tailnum")}, state=declared["history"])
    flow = Dataflow(
        "shown", [source("flights", "m:f"), source("weather", "m:w"), declared["clean"], declared["join"], keeps]
    )
    assert {gate.suite: gate.when.value for stage in flow.stages for gate in stage.gates} == {
        "flights_clean": "always",
        "flights_joined": "always",
        "flights_audit": "restored",
        "aircraft_history": "restored",
    }


def test_the_suite_that_is_shown_is_one():
    suite = suite_from_json("flights_joined", blocks("json")[0].encode())
    assert [(each.severity, each.blames) for each in suite.expectations] == [
        (Severity.FAIL, ("planes",)),
        (Severity.WARN, ()),
    ]


def test_what_is_said_of_the_real_data_is_said_of_what_the_suites_expect():
    named = {"airports.csv", "D942DN", "1,048 mph"}
    notes = "".join(path.read_text() for path in (Path(__file__).parents[1] / "include/expectations").glob("*.json"))
    assert {each for each in named if each in GUIDE} == {each for each in named if each in notes} == named
