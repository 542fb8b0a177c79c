"""What a dataflow names exists and fits, or is a problem of one line."""

from __future__ import annotations

import json
import sys
import uuid

import pytest

from weir.dataflow import (
    Dataflow,
    Stage,
    blocking,
    callback,
    expectations,
    keyed_state,
    notifier,
    sink,
    source,
    target,
    webhook,
)
from weir.doctor.declarations import problems_of

FUNCTIONS = """
from functools import partial
from weir.sinks import SinkTarget

def days(ctx): ...
def flights(ctx, split): ...
def aircraft(ctx, flights, history): ...
def report(ctx, aircraft, scale=1): ...
def no_split(ctx): ...
def wrong(ctx, flight): ...
def tell(event, channel): ...
def tell_all(event): ...
def owner(failure): ...
class Mail:
    def __init__(self, to): ...
class Table(SinkTarget):
    def __init__(self, options, reach): ...
    def commit(self, delivery, files): ...
class Odd(SinkTarget):
    def __init__(self): ...
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write modules and return their names, which no other test has."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text=FUNCTIONS):
        name = f"functions_{uuid.uuid4().hex[:12]}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def suites(tmp_path):
    folder = tmp_path / "expectations"
    folder.mkdir()
    expected = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "k"}}
    (folder / "whole.json").write_text(json.dumps({"expectations": [expected]}))
    (folder / "blaming.json").write_text(json.dumps({"expectations": [expected | {"meta": {"blames": ["planes"]}}]}))
    (folder / "broken.json").write_text("{")
    return str(folder)


def flow_of(m, *, flights="flights", resolve="days", aircraft="aircraft", quality=(), to=(), notify=()):
    history = keyed_state("history", key="k", schema="k STRING, n BIGINT")
    return Dataflow(
        "delays",
        [
            source("flights", f"{m}:{flights}", resolve=f"{m}:{resolve}"),
            Stage("aircraft", f"{m}:{aircraft}", [blocking("flights", by="k")], state=history, quality=quality),
            Stage("report", f"{m}:report", [blocking("aircraft")]),
            sink("report", "daily", to=to),
        ],
        notify=notify,
    )


def problems(flow, suites="", enrichers=()):
    return [(each.stage, each.text) for each in problems_of("dags/delays.py", flow, suites, enrichers)]


def test_what_exists_and_fits_has_no_problems(module, suites):
    m = module()
    flow = flow_of(
        m,
        quality=expectations("whole"),
        to=target(f"{m}:Table", table="x"),
        notify=[callback(f"{m}:tell", channel="#a"), notifier(f"{m}:Mail", to="me"), webhook("alerts")],
    )
    assert problems(flow, suites, [f"{m}:owner"]) == []


def test_a_function_that_does_not_exist_is_named_with_what_was_meant(module):
    m = module()
    ((stage, text),) = problems(flow_of(m, aircraft="aircarft"))
    assert stage == "aircraft"
    assert text.startswith(
        f"function '{m}:aircarft': the module {m} has no function 'aircarft', did you mean 'aircraft'?"
    )


def test_a_function_takes_the_inputs_and_the_states_of_its_stage(module):
    ((stage, text),) = problems(flow_of(module(), aircraft="wrong"))
    assert stage == "aircraft"
    assert "expected `def wrong(ctx, flights, history)`, found `def wrong(ctx, flight)`" in text


def test_a_source_with_a_resolver_takes_its_split_and_the_resolver_takes_none(module):
    m = module()
    assert "expected `def no_split(ctx, split)`" in dict(problems(flow_of(m, flights="no_split")))["flights"]
    said = dict(problems(flow_of(m, resolve="flights")))["flights"]
    assert said.startswith(f"resolve '{m}:flights': expected `def flights(ctx)`, found `def flights(ctx, split)`")


def test_a_module_that_is_missing_or_fails_is_one_problem_of_all_its_stages(module):
    ((stage, text),) = problems(flow_of(module("import time\n1 / 0\n")))
    assert stage == "flights"
    assert "importing it failed: ZeroDivisionError: division by zero" in text
    assert text.endswith(".py:2) (also stage 'aircraft', 'report')")
    ((_, text),) = problems(flow_of("no_such_package.delays"))
    assert "module no_such_package.delays: there is no module 'no_such_package' on this machine" in text
    assert text.endswith("(also stage 'aircraft', 'report')")
    ((_, text),) = problems(flow_of(module("def f(:\n")))
    assert "failed: SyntaxError: " in text
    ((_, text),) = problems(flow_of(module("raise SystemExit(3)")))
    assert "failed: SystemExit: 3" in text


def test_suites_exist_can_be_read_and_blame_inputs(module, suites):
    m = module()
    ((stage, text),) = problems(flow_of(m, quality=expectations("whol")), suites)
    assert stage == "aircraft"
    assert "there is no suite whol" in text
    assert "did you mean whole?" in text
    assert "the suite broken is not JSON" in problems(flow_of(m, quality=expectations("broken")), suites)[0][1]
    blamed = problems(flow_of(m, quality=expectations("blaming")), suites)[0][1]
    assert (
        "the suite blaming: expectation 1: expect_column_values_to_not_be_null blames planes, which is no input of it"
        in blamed
    )


def test_a_target_of_ones_own_is_a_class_that_can_be_made(module):
    m = module()
    said = dict(problems(flow_of(m, to=[target(f"{m}:Mail"), target(f"{m}:Odd")])))
    assert said.keys() == {"daily"}
    texts = [text for _, text in problems(flow_of(m, to=[target(f"{m}:Mail"), target(f"{m}:Odd")]))]
    assert texts[0] == f"the target {m}:Mail must be a class that extends weir.sinks.SinkTarget"
    assert texts[1].startswith(f"target '{m}:Odd' is called with (a value, a value), and is declared with ()")


def test_receivers_and_enrichers_exist_and_take_what_they_get(module):
    m = module()
    told = [callback(f"{m}:tell"), callback(f"{m}:nobody"), notifier(f"{m}:Mail", form="me")]
    found = problems(flow_of(m, notify=told), enrichers=[f"{m}:tell"])
    assert {stage for stage, _ in found} == {""}
    texts = [text for _, text in found]
    assert texts[0].startswith(f"callback('{m}:tell') in notify is called with (a value), and is declared with (event,")
    assert "missing a required argument: 'channel'" in texts[0]
    assert texts[1].startswith(f"callback {m}:nobody: the module {m} has no function 'nobody'")
    assert f"notifier('{m}:Mail') in notify is called with (form=)" in texts[2]
    assert f"failure_enrichers '{m}:tell': expected `def tell(failure)`, found" in texts[3]


def test_checking_starts_no_spark(module):
    before = set(sys.modules)
    problems(flow_of(module()))
    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] == "pyspark"}


def test_code_that_cannot_travel_is_a_problem_of_the_dataflow(module, tmp_path):
    flow = flow_of(module(f"{FUNCTIONS}\nPLACE = __file__, 'rules'\n"))
    assert problems(flow) == []
    next(tmp_path.rglob("*.py")).with_name("rules").symlink_to("nothing")
    ((stage, text),) = problems(flow)
    assert stage == ""
    assert "rules" in text
