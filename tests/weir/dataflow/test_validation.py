from datetime import timedelta

import pytest

from weir.dataflow import (
    Dataflow,
    Exchange,
    ExchangeKind,
    Stage,
    StageKind,
    TaskSettings,
    blocking,
    pipelined,
    sink,
    source,
)
from weir.errors import Misconfigured

A = source("a", "p:a")
A3 = source("a", "p:a", parallelism=3)


def refusal(*stages, name="flow", **options):
    with pytest.raises(Misconfigured) as raised:
        Dataflow(name, stages, **options)
    return str(raised.value)


def b(inputs, parallelism=1, **options):
    return Stage("b", "p:b", inputs, parallelism=parallelism, **options)


def test_an_unknown_input_is_refused_with_names_that_are_close():
    said = refusal(source("flights", "p:f"), Stage("clean", "p:c", [pipelined("flihgts")]), sink("clean", "out"))
    assert "stage 'clean' reads 'flihgts', which is not a stage of this dataflow: did you mean 'flights'?" in said


def test_an_unknown_input_without_close_names_is_refused_with_all_names():
    assert "there are 'a', 'b', 'out'" in refusal(A, b([pipelined("zzzz")]), sink("b", "out"))


def test_an_unknown_stage_of_a_sink_is_refused():
    assert "stage 'out' reads 'x'" in refusal(A, sink("a", "ok"), sink("x", "out"))


def test_a_sink_cannot_be_read():
    assert "reads the sink 'out': read the stage 'a' instead" in refusal(A, sink("a", "out"), sink("out", "more"))


def test_a_cycle_is_named():
    said = refusal(
        A,
        b([pipelined("a"), pipelined("d")]),
        Stage("c", "p:c", [blocking("b")]),
        Stage("d", "p:d", [pipelined("c")]),
        sink("d", "out"),
    )
    assert "in a cycle, b -> c -> d -> b" in said


def test_a_stage_that_reads_itself_is_a_cycle():
    assert "in a cycle, b -> b" in refusal(A, b([pipelined("a"), blocking("b")]), sink("b", "out"))


def test_one_name_twice_is_refused():
    assert "stage 'a' is declared 2 times" in refusal(A, A, sink("a", "out"))
    assert "stage 'a' is declared 2 times" in refusal(A, sink("a", "a"))


def test_a_parallelism_above_the_maximum_is_refused():
    assert "parallelism 3 is above the maximum of 2" in refusal(A3, sink("a", "out"), max_parallelism=2)
    said = refusal(source("a", "p:a", parallelism=9, max_parallelism=8), sink("a", "out"))
    assert "stage 'a': parallelism 9 is above the maximum of 8" in said


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, True, "2"])
def test_a_parallelism_is_a_whole_number_of_at_least_one(parallelism):
    said = refusal(source("a", "p:a", parallelism=parallelism), sink("a", "out"))
    assert f"parallelism must be a whole number of at least 1, not {parallelism!r}" in said


@pytest.mark.parametrize("maximum", [0, 32769, None])
def test_a_maximum_is_within_flinks_bounds(maximum):
    assert "max_parallelism must be a whole number from 1 to 32768" in refusal(
        A, sink("a", "out"), max_parallelism=maximum
    )


def test_a_missing_key_is_refused():
    said = refusal(A, b([blocking("a")], 2), sink("b", "out"))
    assert "stage 'b' has parallelism 2, but its input 'a' does not say which rows each subtask reads" in said
    assert 'write blocking("a", by=[columns])' in said


def test_a_reader_of_parallelism_one_needs_no_key():
    Dataflow("flow", [A3, b([blocking("a")]), sink("b", "out")])


def test_keys_and_broadcast_together_are_refused():
    said = refusal(A, b([blocking("a", by="k", broadcast=True)], 2), sink("b", "out"))
    assert "input 'a' has both by= and broadcast=True" in said


def test_a_pipelined_exchange_has_no_keys():
    exchange = Exchange("a", ExchangeKind.PIPELINED, keys=("k",))
    assert "a pipelined exchange has neither keys nor broadcast" in refusal(A, b([exchange]), sink("b", "out"))


@pytest.mark.parametrize("keys", [("",), ("k", "k"), (1,)])
def test_keys_are_different_names_of_columns(keys):
    assert "stage 'b': input 'a':" in refusal(A, b([Exchange("a", ExchangeKind.BLOCKING, keys=keys)]), sink("b", "out"))


def test_unequal_parallelism_over_a_pipelined_exchange_is_refused():
    said = refusal(A3, b([pipelined("a")], 2), sink("b", "out"))
    assert "stage 'b' (parallelism 2) reads 'a' (parallelism 3) over a pipelined exchange" in said
    assert 'write blocking("a", by=...)' in said


def test_a_blocking_exchange_inside_a_task_is_refused():
    said = refusal(A, b([pipelined("a")]), Stage("c", "p:c", [pipelined("b"), blocking("a")]), sink("c", "out"))
    assert "stage 'c' reads 'a' over a blocking exchange inside one task" in said
    assert 'write pipelined("a")' in said
    assert "'a -> b', 'b -> c'" in said


def test_tasks_that_wait_for_each_other_are_refused():
    said = refusal(
        A,
        b([pipelined("a")]),
        Stage("c", "p:c", [blocking("a")]),
        Stage("d", "p:d", [pipelined("b"), blocking("c")]),
        sink("d", "out"),
    )
    assert "wait for each other in a cycle" in said
    assert "make one of the pipelined exchanges 'a -> b', 'b -> d' a blocking one" in said


def test_keyed_inputs_of_one_stage_have_equally_many_keys():
    said = refusal(
        A,
        source("other", "p:o"),
        b([blocking("a", by=["x", "y"]), blocking("other", by="x")], 2),
        sink("b", "out"),
    )
    assert "different numbers of keys (a by ['x', 'y'], other by ['x'])" in said


def test_a_broadcast_input_beside_keyed_ones_is_fine():
    stages = [A, source("c", "p:c"), b([blocking("a", by="k"), blocking("c", broadcast=True)], 2), sink("b", "out")]
    Dataflow("flow", stages)


def test_one_producer_read_twice_needs_names():
    with pytest.raises(Misconfigured, match=r"stage 'b' reads 'a' twice: name its arguments"):
        b([blocking("a", by="x"), blocking("a", by="y")])
    Dataflow("flow", [A, b({"one": blocking("a", by="x"), "two": blocking("a", by="y")}, 2), sink("b", "out")])


@pytest.mark.parametrize("function", ["", "module", "module:", ":f", "m/x:f", "m:f()", "1m:f", "m:f\n", None])
def test_a_function_is_named_as_module_and_function(function):
    assert 'function must look like "module:function"' in refusal(source("a", function), sink("a", "out"))
    assert "resolve must" in refusal(source("a", "p:a", resolve=function or "x"), sink("a", "out"))


def test_a_source_has_no_inputs():
    stage = Stage("b", "p:b", [pipelined("a")], kind=StageKind.SOURCE)
    assert "stage 'b': a source has no inputs" in refusal(A, stage, sink("b", "out"))


def test_another_stage_has_inputs():
    assert "stage 'b': it has no inputs: write source(...)" in refusal(A, b([]), sink("b", "out"), sink("a", "x"))


def test_only_a_source_resolves():
    assert "only a source has resolve=" in refusal(A, b([pipelined("a")], resolve="p:r"), sink("b", "out"))


def test_a_sink_publishes_one_stage():
    stage = Stage("out", "", [blocking("a")], kind=StageKind.SINK)
    assert "a sink publishes exactly one stage: write sink(x, name)" in refusal(A, stage)


def test_a_stage_that_nobody_reads_is_refused():
    said = refusal(A, b([pipelined("a")]))
    assert "stage 'b': nobody reads it: add sink(\"b\"" in said


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a.b", "a" * 61, "ä", "a\n"])
def test_names_are_plain(name):
    assert "must be lower-case letters" in refusal(source(name, "p:a"), sink(name, "out"))
    assert "the dataflow's name must be lower-case letters" in refusal(A, sink("a", "out"), name=name)


def test_what_is_neither_a_stage_nor_its_name_cannot_be_read():
    for declare in (pipelined, blocking, lambda stage: sink(stage, "out")):
        with pytest.raises(Misconfigured, match="give the stage itself or its name"):
            declare(["a"])


def test_names_of_weir_are_reserved():
    assert "begins with 'weir_', which is reserved" in refusal(source("weir_close", "p:a"), sink("weir_close", "out"))


@pytest.mark.parametrize("argument", ["ctx", "a b", "class", ""])
def test_inputs_are_named_like_arguments(argument):
    assert "stage 'b': input" in refusal(A, b({argument: pipelined("a")}), sink("b", "out"))


@pytest.mark.parametrize("inputs", [["a"], {"a": "a"}, [A], "a", pipelined("a")])
def test_inputs_are_exchanges(inputs):
    with pytest.raises(Misconfigured, match="stage 'b'"):
        b(inputs)


def test_a_dataflow_without_stages_is_refused():
    assert "it has no stages" in refusal()


def test_what_is_not_a_stage_is_refused():
    assert "'a' is not a stage: write source(...)" in refusal("a")


def test_all_problems_of_one_kind_are_listed_at_once():
    said = refusal(source("a", "x", parallelism=0), sink("a", "Out"))
    assert "dataflow 'flow' has 3 problems:\n- stage 'a'" in said


@pytest.mark.parametrize(
    ("setting", "one", "other"),
    [
        ("pool", "x", "y"),
        ("queue", "x", "y"),
        ("priority_weight", 0, 1),
        ("execution_timeout", timedelta(1), timedelta(2)),
        ("spark_conn_id", "x", "y"),
        ("executor_config", {"k": 1}, {"k": 2}),
    ],
)
def test_stages_of_one_task_agree_in_its_settings(setting, one, other):
    first = source("a", "p:a", task=TaskSettings(**{setting: one}))
    said = refusal(first, b([pipelined("a")], task=TaskSettings(**{setting: other})), sink("b", "out"))
    assert "stages 'a' and 'b' run in one task but set" in said
    Dataflow("flow", [first, b([blocking("a")], task=TaskSettings(**{setting: other})), sink("b", "out")])
    Dataflow("flow", [first, b([pipelined("a")]), sink("b", "out")])


def test_stages_of_one_task_agree_in_spark_settings():
    first = source("a", "p:a", spark={"x": "1", "y": "2"})
    said = refusal(first, b([pipelined("a")], spark={"x": "2"}), sink("b", "out"))
    assert "set x differently ('1' and '2')" in said


def test_spark_settings_are_text():
    assert 'write spark={"x": "true"}, not True' in refusal(source("a", "p:a", spark={"x": True}), sink("a", "out"))
    assert 'write spark={"x": "8"}, not 8' in refusal(source("a", "p:a", spark={"x": 8}), sink("a", "out"))


def test_a_timeout_is_a_timedelta():
    task = TaskSettings(execution_timeout=60)
    assert "must be a timedelta" in refusal(source("a", "p:a", task=task), sink("a", "out"))
