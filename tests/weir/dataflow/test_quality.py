"""Gates are data: what cannot be run is refused where it is written, and what can is kept with the run."""

import json

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import (
    Dataflow,
    Policy,
    Stage,
    When,
    blocking,
    expectations,
    keyed_state,
    list_state,
    pipelined,
    sink,
    source,
)
from weir.errors import Misconfigured
from weir.quality.rules import input_names, suspected_arguments


def flow(quality=(), *, state=()):
    return Dataflow(
        "flights",
        [
            source("raw", "pipelines.f:raw"),
            source("weather", "pipelines.f:weather"),
            Stage(
                "clean", "pipelines.f:clean", {"flights": blocking("raw"), "weather": blocking("weather")}, state=state
            ),
            Stage("joined", "pipelines.f:joined", [pipelined("clean")], quality=quality),
            sink("joined", "delays"),
        ],
    )


HISTORY = keyed_state("history", key="k", schema="k BIGINT", quality=expectations("whole", when="restored"))


def test_a_run_is_pinned_to_its_gates():
    written = flow([expectations("a"), expectations("b", when="restored", policy="backtrack")], state=HISTORY)
    read = Dataflow.from_json(json.loads(json.dumps(written.to_json())))
    assert read == written
    assert [(each.suite, each.when, each.policy) for each in read.stage("joined").gates] == [
        ("a", When.ALWAYS, Policy.FAIL),
        ("b", When.RESTORED, Policy.BACKTRACK),
    ]
    assert [each.suite for each in read.stage("history").gates] == ["whole"]


@pytest.mark.parametrize(
    ("quality", "state", "said"),
    [
        ("clean", (), "stage 'joined': quality is 'clean': write expectations"),
        (expectations("a/b"), (), "stage 'joined': a suite is named like its file"),
        (expectations(""), (), "a suite is named like its file"),
        (expectations("weir"), (), "the suite 'weir' is reserved for the built-in checks"),
        ([expectations("a"), expectations("a", when="restored")], (), "the suite 'a' is named 2 times"),
        (
            (),
            keyed_state("history", key="k", schema="k BIGINT", ttl="7 days", grows=True),
            "stage 'clean', state 'history': grows=True requires",
        ),
        ((), keyed_state("h", key="k", schema="k BIGINT", quality=expectations("..")), "state 'h': a suite is named"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_stage(quality, state, said):
    with pytest.raises(Misconfigured, match=said):
        flow(quality, state=state)


@pytest.mark.parametrize("said", [{"when": "sometimes"}, {"policy": "ignore"}])
def test_a_word_that_is_not_known_is_refused_with_those_that_are(said):
    ((name, value),) = said.items()
    with pytest.raises(
        Misconfigured, check=of_kind("dataflow.expectation_option_unknown", name=name, value=repr(value))
    ):
        expectations("a", **said)


def test_blames_are_arguments_or_stages_and_a_pipelined_input_stands_for_what_it_reads():
    dataflow = flow(state=(HISTORY, list_state("offsets")))
    assert set(input_names(dataflow, "clean")) == {"flights", "raw", "weather", "history", "offsets"}
    assert suspected_arguments(dataflow, "clean", ["raw"]) == {"clean.flights"}
    assert suspected_arguments(dataflow, "clean", ["flights", "weather"]) == {"clean.flights", "clean.weather"}
    assert suspected_arguments(dataflow, "joined", ["clean"]) == {
        "clean.flights",
        "clean.weather",
        "clean.history",
        "clean.offsets",
    }
    assert suspected_arguments(dataflow, "history", ["history"]) == {"clean.history"}
    assert suspected_arguments(dataflow, "joined", []) == frozenset()
