import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import (
    Application,
    Consumers,
    Dataflow,
    FailoverStrategy,
    RepairCode,
    Stage,
    TaskSettings,
    blocking,
    cached,
    callback,
    dataset,
    digest,
    expectations,
    files,
    files_source,
    keyed_state,
    last,
    pipelined,
    postgres,
    previous,
    sink,
    source,
    webhook,
)
from weir.errors import Misconfigured


def flights(**changes):
    stages = [
        source("flights", "p:flights", resolve="p:splits", parallelism=3),
        Stage(
            "clean",
            "p:clean",
            [pipelined("flights")],
            parallelism=3,
            task=TaskSettings(pool="io", execution_timeout=timedelta(minutes=1, microseconds=5)),
            spark={"spark.sql.shuffle.partitions": "4"},
        ),
        source("weather", "p:weather"),
        Stage(
            "joined",
            "p:join",
            {"flights": blocking("clean", by=["origin", "hour"]), "weather": blocking("weather", by=["place", "hour"])},
            parallelism=2,
            max_parallelism=8,
        ),
        sink("joined", "delays"),
    ]
    return Dataflow("flight_delays", stages, **{"max_parallelism": 64, "parameters": {"minutes": 15}, **changes})


def test_stages_are_in_topological_order_and_else_in_that_of_declaration():
    flow = Dataflow(
        "flow",
        [
            sink("b", "out"),
            Stage("b", "p:b", [pipelined("a"), blocking("c")]),
            source("c", "p:c"),
            source("a", "p:a"),
            sink("c", "also"),
        ],
    )
    assert [stage.name for stage in flow.stages] == ["c", "a", "b", "out", "also"]


def test_a_sink_is_as_parallel_as_what_it_publishes():
    assert flights().stage("delays").parallelism == 2
    assert flights().max_parallelism_of("delays") == 8


def test_a_stage_says_its_own_maximum_or_takes_that_of_the_dataflow():
    assert flights().max_parallelism_of("joined") == 8
    assert flights().max_parallelism_of("clean") == 64
    assert Dataflow("flow", [source("a", "p:a"), sink("a", "out")]).max_parallelism == 128


def test_an_unknown_stage_is_named_with_those_there_are():
    with pytest.raises(Misconfigured, check=of_kind("dataflow.stage_unknown", stage="cleaned")):
        flights().stage("cleaned")


def test_what_is_pinned_reads_back_equal():
    text = json.dumps(flights().to_json())
    assert Dataflow.from_json(json.loads(text)) == flights()


def test_what_is_pinned_reads_back_equal_when_its_keys_were_sorted():
    text = json.dumps(flights().to_json(), sort_keys=True)
    read = Dataflow.from_json(json.loads(text))
    assert read == flights()
    assert [stage.name for stage in read.stages] == [stage.name for stage in flights().stages]


def test_executor_config_is_not_pinned():
    stage = source("a", "p:a", task=TaskSettings(pool="x", executor_config={"pod": object()}))
    flow = Dataflow("flow", [stage, sink("a", "out")])
    assert Dataflow.from_json(flow.to_json()).stage("a").task == TaskSettings(pool="x")


@pytest.mark.parametrize("version", [None, 0, 5, "1", True])
def test_an_unknown_version_is_refused(version):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.record_of_other_version", expected="1")):
        Dataflow.from_json(flights().to_json() | {"version": version})


GOLDEN = Path(__file__).parents[2] / "golden"


def test_a_record_is_written_as_the_golden_file_is():
    rounded = digest(round={"total": 6}, ignore=["at"])
    task = TaskSettings(pool="x", priority_weight=3, execution_timeout=timedelta(seconds=1.5))
    gates = [expectations("a_whole", when="restored", policy="retry")]
    table = postgres("warehouse", "reports.kept")
    kept = keyed_state("kept", key="k", schema="k BIGINT", grows=True, quality=gates, table=table)
    zones = dataset("trips.zones", by="k", epoch=last(7), schema="k BIGINT", missing="skip")
    flow = Dataflow(
        "flow",
        [
            replace(
                source("a", "p:a", resolve="p:r", parallelism=2, task=task, spark={"k": "v"}, deterministic=False),
                goes_on=True,
                moved_from="y",
                asset="s3://lake/a",
            ),
            Stage("b", "p:b", [blocking("a", pointwise=True)], parallelism=2, digest=rounded, quality=gates),
            Stage("c", "p:c", [cached("b")], parallelism=2),
            Stage("d", "p:d", {"c": cached("c", durable=False), "before": previous("d", by="k", schema="k BIGINT")}, 2),
            Stage("e", "p:e", {"rows": blocking("d", by="k"), "zones": zones}, max_parallelism=4, state=kept),
            sink("d", "out", to=files("/out", partition="day"), delivery="at_least_once"),
            sink("e", "all", by="k"),
        ],
        parameters={"x": [1]},
        failover="individual",
        consumers="always",
        keep="2 runs",
        savepoint_every=30,
        retained_savepoints=2,
        on_reprocess="mark",
        reuse="equal",
        notify=[callback("alerts:tell", kinds=["person_needed"], channel="#ops"), webhook("ops_http", "/weir")],
        publish_by=timedelta(hours=6),
    )
    written = json.loads((GOLDEN / "dataflow-v1.json").read_text())
    assert flow.to_json() == written
    assert Dataflow.from_json(written) == flow


@pytest.mark.parametrize("given", [0, -1, "3", True, 1.0], ids=str)
@pytest.mark.parametrize("what", ["retained_checkpoints", "savepoint_every", "retained_savepoints"])
def test_a_number_of_snapshots_is_a_whole_number_of_at_least_one(what, given):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.count_wrong", name="flow", what=what)):
        Dataflow("flow", [source("a", "p:a"), sink("a", "out")], **{what: given})


def test_savepoints_of_a_dataflow_without_state_are_refused():
    with pytest.raises(Misconfigured, check=of_kind("dataflow.nothing_to_save", name="flow", every="30")):
        Dataflow("flow", [source("a", "p:a"), sink("a", "out")], savepoint_every=30)


@pytest.mark.parametrize("given", [6, "6 hours", True, timedelta(), timedelta(hours=-1), timedelta.max], ids=str)
def test_a_deadline_is_a_time_after_the_end_of_the_interval(given):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.publish_by_wrong", name="flow")):
        Dataflow("flow", [source("a", "p:a"), sink("a", "out")], publish_by=given)


@pytest.mark.parametrize("receivers", [[], [callback("a:b", kinds="person_needed")]], ids=["none", "of others"])
def test_a_deadline_that_nobody_is_told_of_is_refused(receivers):
    with pytest.raises(Misconfigured, check=of_kind("dataflow.publish_by_tells_nobody", name="flow")):
        Dataflow("flow", [source("a", "p:a"), sink("a", "out")], publish_by=timedelta(hours=6), notify=receivers)


def test_ready_made_sources_name_an_asset_too():
    flow = Dataflow("flow", [files_source("a", "/data/a", asset="calls"), sink("a", "out")])
    assert Dataflow.from_json(flow.to_json()).stage("a").asset == "calls"


def test_a_stage_s_connection_to_spark_is_pinned():
    stage = source("a", "p:a", task=TaskSettings(spark_conn_id="big"))
    flow = Dataflow("flow", [stage, sink("a", "out")])
    assert Dataflow.from_json(flow.to_json()).stage("a").task == TaskSettings(spark_conn_id="big")


def test_parameters_are_copied():
    given = {"list": [1]}
    flow = flights(parameters=given)
    given["list"].append(2)
    assert flow.parameters == {"list": [1]}


@pytest.mark.parametrize("parameters", [{"x": object()}, {"x": float("nan")}, {1: 2}, ["x"]])
def test_parameters_must_be_json(parameters):
    with pytest.raises(Misconfigured, match="parameters must be"):
        flights(parameters=parameters)


def test_importing_the_declaration_loads_nothing_heavy():
    code = "import sys, weir.dataflow; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["airflow", "pyspark", "sqlalchemy", "fsspec", "pyarrow", "pandas", "typer", "great_expectations"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_recovery_is_said_in_texts_or_enums_and_kept_as_enums():
    flow = flights(failover="full", consumers=Consumers.ALWAYS)
    assert (flow.failover, flow.consumers) == (FailoverStrategy.FULL, Consumers.ALWAYS)
    assert flights().consumers is Consumers.IF_CHANGED
    assert flights(failover=FailoverStrategy.FULL, consumers="always") == flow


def test_the_failover_strategy_is_left_to_the_deployment_unless_it_is_declared():
    assert (flights().failover, flights().failover_strategy) == (None, FailoverStrategy.REGION)
    declared = flights(failover="individual")
    assert (declared.failover, declared.failover_strategy) == (FailoverStrategy.INDIVIDUAL,) * 2
    for flow in (flights(), declared):
        assert Dataflow.from_json(json.loads(json.dumps(flow.to_json()))) == flow


def test_the_code_of_repairs_is_pinned():
    flow = flights(repair_code="as_it_was")
    assert flow.repair_code is RepairCode.AS_IT_WAS
    assert Dataflow.from_json(json.loads(json.dumps(flow.to_json()))) == flow
    with pytest.raises(
        Misconfigured, check=of_kind("dataflow.choice_wrong", known='repair_code="newest" or repair_code="as_it_was"')
    ):
        flights(repair_code="oldest")


def test_an_unknown_way_to_recover_is_refused_with_those_there_are():
    with pytest.raises(
        Misconfigured,
        check=of_kind("dataflow.choice_wrong", known='failover="region" or failover="full" or failover="individual"'),
    ):
        flights(failover="regions")
    with pytest.raises(Misconfigured, check=of_kind("dataflow.choice_wrong", value=True, what="consumers")):
        flights(consumers=True)


def test_a_sink_has_the_digest_rule_of_what_it_publishes():
    rule = digest(round={"fare": 6})
    flow = Dataflow("flow", [source("a", "p:a", digest=rule), sink("a", "out")])
    assert flow.stage("out").digest == rule


def test_an_application_is_part_of_the_record_of_a_run():
    given = Application("jars/b.jar", ["{{ inputs.a }}", "--out={{ output }}"], main_class="com.example.B")
    flow = Dataflow(
        "flow", [source("a", "p:a"), Stage("b", inputs=[blocking("a")], application=given), sink("b", "out")]
    )
    assert Dataflow.from_json(json.loads(json.dumps(flow.to_json()))) == flow
    assert flow.stage("b").function == "jars/b.jar"
