import json
from datetime import timedelta

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import (
    Dataflow,
    Exchange,
    ExchangeKind,
    Stage,
    StageKind,
    TaskSettings,
    blocking,
    cached,
    delta,
    digest,
    files,
    iceberg,
    pipelined,
    postgres,
    previous,
    sink,
    source,
)
from weir.dataflow.resolving import checked_splits
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


def test_an_unknown_input_without_close_names_is_refused_with_what_can_be_read():
    assert "add 'zzzz' to the dataflow's list of stages, or read 'a'" in refusal(
        A, b([pipelined("zzzz")]), sink("b", "out")
    )


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


def test_one_table_or_folder_for_two_sinks_is_refused():
    said = refusal(A, sink("a", "one", to=files("/lake/a")), sink("a", "two", to=files("/lake/a", partition="day")))
    assert "'one' and 'two' publish into one target, files /lake/a: give each a table or folder" in said
    tables = [sink("a", name, to=postgres("warehouse", "reports.a")) for name in ("one", "two")]
    assert "publish into one target, postgres reports.a" in refusal(A, *tables)


def test_a_folder_below_another_sinks_is_refused_and_one_beside_it_is_not():
    nested = [("/lake/a", "/lake/a/b"), ("/lake/a/epoch=2013-01-01", "/lake/a"), ("s3://lake/a", "s3://lake/a/b")]
    for one, two in nested:
        said = refusal(A, sink("a", "one", to=files(one)), sink("a", "two", to=delta(two)))
        assert "'one' and 'two' publish into" in said
        assert "one below the other" in said
    assert "the targets of sink 'one'" in refusal(A, sink("a", "one", to=[files("/lake/a"), delta("/lake/a/b")]))
    for one, two in [("/lake/a", "/lake/ab"), ("s3://lake/a", "s3://lake/ab"), ("s3://lake/a", "s3://pond/a")]:
        Dataflow("d", [A, sink("a", "one", to=files(one)), sink("a", "two", to=delta(two))])


def test_one_name_twice_is_refused():
    assert "source 'a' is 2 times in the list of stages: name it once" in refusal(A, A, sink("a", "out"))
    assert "stage 'a' is declared 2 times" in refusal(A, source("a", "p:other"), sink("a", "out"))
    assert "2 sinks have the name 'out'" in refusal(A, sink("a", "out"), sink("a", "out"))
    said = refusal(A, sink("a", "a"))
    assert (
        'the sink \'a\' has the name of a stage: give the data set another name, as in sink("a", "a_published")' in said
    )


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


@pytest.mark.parametrize("target", [files("/lake/out"), delta("/lake/out"), iceberg("lake.flow.out")])
def test_a_sink_by_keys_gives_nobody_its_files(target):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.copied_by_keys")):
        sink("a", "out", by="k", to=target)
    assert sink("a", "out", by="k", to=postgres("warehouse", "out")).exchanges["a"].keys == ("k",)


@pytest.mark.parametrize(("by", "said"), [(["k", "k"], "twice"), (["k", ""], "k")])
def test_the_keys_of_a_sink_are_checked(by, said):
    assert said in refusal(A, sink("a", "out", by=by))


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
    with pytest.raises(Misconfigured, check=of_kind("dataflow.argument_twice", argument="a", stage="b")):
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
    assert "stage 'b': no stage reads it: add sink(\"b\"" in said


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a.b", "a" * 61, "ä", "a\n"])
def test_names_are_plain(name):
    assert "must be lower-case letters" in refusal(source(name, "p:a"), sink(name, "out"))
    assert "the dataflow's name must be lower-case letters" in refusal(A, sink("a", "out"), name=name)


def test_what_is_neither_a_stage_nor_its_name_cannot_be_read():
    for declare in (pipelined, blocking, lambda stage: sink(stage, "out")):
        with pytest.raises(Misconfigured, check=of_kind("dataflow.not_a_stage")):
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


def test_settings_and_parameters_that_look_like_secrets_are_refused_together_with_the_right_way():
    with pytest.raises(Misconfigured) as refused:
        Dataflow(
            "flow",
            [source("a", "p:a", spark={"spark.hadoop.fs.s3a.secret.key": "hush"}), sink("a", "out")],
            parameters={"db": {"password": "hush"}, "url": "postgresql://me:hush@db/x", "day": "today"},
        )
    said = str(refused.value)
    assert "has 3 problems" in said
    assert "stage 'a': spark[\"spark.hadoop.fs.s3a.secret.key\"] has the name of a secret" in said
    assert 'parameters["db"]["password"] has the name of a secret' in said
    assert 'parameters["url"] is a URL with a password' in said
    assert "spark-defaults.conf" in said
    assert "environment variable, a file or an Airflow connection" in said
    assert "hush" not in said


def test_a_record_with_a_secret_of_an_earlier_weir_is_still_read():
    plain = Dataflow("flow", [source("a", "p:a", spark={"x": "y"}), sink("a", "out")], parameters={"x": 1})
    record = json.loads(json.dumps(plain.to_json()).replace('"x"', '"password"'))
    read = Dataflow.from_json(record)
    assert (read.parameters, read.stage("a").spark) == ({"password": 1}, {"password": "y"})
    assert Dataflow.from_json(read.to_json()) == read


@pytest.mark.parametrize("split", [{"password": "hush"}, "mysql://me:hush@db/x", ["a", {"token": "hush"}]])
def test_splits_that_look_like_secrets_are_refused(split):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.splits_have_secret", owner="resolver p:r")) as refused:
        checked_splits([split], "resolver p:r", 1)
    assert "hush" not in str(refused.value)


def test_a_timeout_is_a_timedelta():
    task = TaskSettings(execution_timeout=60)
    assert "must be a timedelta" in refusal(source("a", "p:a", task=task), sink("a", "out"))


def test_a_stage_may_read_itself_of_the_epoch_before():
    flow = Dataflow("flow", [A, b({"a": pipelined("a"), "before": previous("b", schema="k INT")}), sink("b", "out")])
    assert [stage.name for stage in flow.stages] == ["a", "b", "out"]


def test_previous_may_close_any_cycle_and_changes_no_order():
    last = Stage("d", "p:d", {"b": blocking("b"), "a": previous("a", schema="k INT")})
    flow = Dataflow("flow", [A, b({"a": blocking("a"), "d": previous("d", schema="k INT")}), last, sink("d", "out")])
    assert [stage.name for stage in flow.stages] == ["a", "b", "d", "out"]


def test_a_stage_may_read_nothing_but_the_epoch_before():
    Dataflow("flow", [Stage("count", "p:c", {"before": previous("count", schema="n INT")}), sink("count", "out")])


def test_a_stage_of_the_same_task_may_be_read_of_the_epoch_before():
    flow = [A, b([pipelined("a")]), Stage("c", "p:c", {"b": pipelined("b"), "x": previous("a", schema="k INT")})]
    Dataflow("flow", [*flow, sink("c", "out")])


@pytest.mark.parametrize("schema", ["", "  ", None, 7])
def test_previous_needs_the_columns_that_the_first_epoch_reads(schema):
    said = refusal(A, b({"a": pipelined("a"), "before": previous("b", schema=schema)}), sink("b", "out"))
    assert "stage 'b': input 'before' needs schema=, since the first epoch has no previous one" in said
    assert 'previous("b", schema="id BIGINT, seen TIMESTAMP")' in said


def test_previous_says_which_rows_each_subtask_reads():
    said = refusal(A3, b({"a": pipelined("a"), "before": previous("b", schema="k INT")}, 3), sink("b", "out"))
    assert "its input 'before' does not say which rows each subtask reads" in said
    assert 'write previous("b", by=[columns], schema=...)' in said
    for divided in (previous("b", by="k", schema="k INT"), previous("b", broadcast=True, schema="k INT")):
        Dataflow("flow", [A3, b({"a": pipelined("a"), "before": divided}, 3), sink("b", "out")])


def test_previous_is_not_pointwise():
    exchange = Exchange("b", ExchangeKind.PREVIOUS, pointwise=True, schema="k INT")
    said = refusal(A3, b({"a": pipelined("a"), "before": exchange}, 3), sink("b", "out"))
    assert "input 'before': a previous exchange is not pointwise" in said


def test_keys_of_the_epoch_before_meet_those_of_this_one():
    inputs = {"a": blocking("a", by=["x", "y"]), "before": previous("b", by="x", schema="x INT")}
    assert "different numbers of keys (a by ['x', 'y'], before by ['x'])" in refusal(A, b(inputs, 2), sink("b", "out"))


def test_to_be_read_by_oneself_alone_is_to_be_read_by_nobody():
    said = refusal(A, b({"a": pipelined("a"), "before": previous("b", schema="k INT")}))
    assert "stage 'b': no stage reads it" in said
    other = Stage("c", "p:c", {"b": previous("b", schema="k INT")})
    Dataflow("flow", [A, b([pipelined("a")]), other, sink("c", "out")])


def test_only_what_another_run_has_written_has_a_schema():
    exchange = Exchange("a", ExchangeKind.BLOCKING, schema="k INT")
    assert "input 'a': only previous(...) and dataset(...) have schema=" in refusal(A, b([exchange]), sink("b", "out"))


def test_a_sink_of_the_epoch_before_cannot_be_read():
    said = refusal(A, b({"a": pipelined("a"), "x": previous("out", schema="k INT")}), sink("b", "out"))
    assert "reads the sink 'out': read the stage 'b' instead" in said


def test_a_cached_exchange_joins_index_to_index_as_a_pipelined_one():
    said = refusal(A3, b([cached("a")], 2), sink("b", "out"))
    assert "stage 'b' (parallelism 2) reads 'a' (parallelism 3) over a cached exchange, which joins them index" in said
    exchange = Exchange("a", ExchangeKind.CACHED, keys=("k",))
    assert "input 'a': a cached exchange has neither keys nor broadcast" in refusal(A, b([exchange]), sink("b", "out"))
    said = refusal(A, b([cached("a")]), Stage("c", "p:c", [cached("b"), blocking("a")]), sink("c", "out"))
    assert "over a blocking exchange inside one task" in said
    assert "make one of 'a -> b', 'b -> c' blocking too" in said


def test_only_a_cached_exchange_is_not_durable():
    exchange = Exchange("a", ExchangeKind.BLOCKING, durable=False)
    said = refusal(A, b([exchange]), sink("b", "out"))
    assert "only a cached exchange can have durable=False: write cached(x, durable=False)" in said


def test_a_pointwise_exchange_needs_equal_parallelism():
    said = refusal(A3, b([blocking("a", pointwise=True)], 2), sink("b", "out"))
    assert "stage 'b' (parallelism 2) reads 'a' (parallelism 3) over a pointwise exchange" in said
    assert 'or write blocking("a", by=[columns])' in said
    Dataflow("flow", [A3, b([blocking("a", pointwise=True)], 3), sink("b", "out")])


@pytest.mark.parametrize(("other", "name"), [({"by": "k"}, "by="), ({"broadcast": True}, "broadcast=True")])
def test_a_pointwise_exchange_excludes_other_ways_to_divide_the_rows(other, name):
    said = refusal(A3, b([blocking("a", pointwise=True, **other)], 3), sink("b", "out"))
    assert f"input 'a' has both pointwise=True and {name}" in said


def test_a_pointwise_exchange_inside_a_task_is_refused():
    last = Stage("c", "p:c", [pipelined("b"), blocking("a", pointwise=True)], parallelism=3)
    assert "over a blocking exchange inside one task" in refusal(A3, b([pipelined("a")], 3), last, sink("c", "out"))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("plain", "digest must be a rule, not 'plain': write digest=digest(round="),
        (digest(round=["fare"]), "must name columns with their decimal places"),
        (digest(round={"fare": -1}), "of column 'fare' must be a whole number of decimal places from 0 to 15, not -1"),
        (digest(round={"fare": 16}), "from 0 to 15, not 16"),
        (digest(round={"fare": 1.0}), "from 0 to 15, not 1.0"),
        (digest(round={"fare": True}), "from 0 to 15, not True"),
        (digest(round={1: 2}), "names columns by non-empty texts, not 1"),
        (digest(ignore=["at", ""]), "names columns by non-empty texts, not ''"),
        (digest(round={"at": 0}, ignore="at"), "both rounds and ignores column 'at'"),
    ],
)
def test_a_digest_rule_names_columns_and_decimal_places(rule, said):
    assert said in refusal(source("a", "p:a", digest=rule), sink("a", "out"))


def test_deterministic_is_yes_or_no():
    assert "deterministic must be True or False" in refusal(source("a", "p:a", deterministic="no"), sink("a", "out"))


def test_a_reader_s_key_cannot_be_left_out_of_the_digest():
    hourly = source("a", "p:a", digest=digest(ignore=["hour"]))
    said = refusal(hourly, b([blocking("a", by=["origin", "hour"])]), sink("b", "out"))
    assert "stage 'b' reads 'a' by 'hour', which the digest of 'a' ignores" in said
