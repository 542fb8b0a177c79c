"""Dataflows become DAGs and task groups."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from tests.messages.kinds import of_kind

from weir.dataflow import (
    Dataflow,
    Stage,
    blocking,
    cached,
    keyed_state,
    list_state,
    pipelined,
    previous,
    sink,
    source,
)
from weir.dataflow.stage import TaskSettings
from weir.errors import Misconfigured
from weir.restarts.delays import AIRFLOW_RETRIES
from weir.restarts.strategy import (
    ExponentialDelay,
    FailureLimits,
    FixedDelay,
    NoRestart,
    RestartChoice,
    RestartStrategy,
)

START = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.fixture
def flow():
    pool = TaskSettings(
        pool="spark", queue="big", priority_weight=7, execution_timeout=timedelta(minutes=9), executor_config={"a": 1}
    )
    clean = Stage("clean", "pipelines.f:clean", [pipelined("flights")], parallelism=3, task=pool)
    joined = Stage(
        "joined",
        "pipelines.f:join",
        {
            "flights": blocking("clean", by=["origin", "hour"]),
            "weather": blocking("weather", by=["origin", "hour"]),
            "planes": blocking("planes", broadcast=True),
        },
        parallelism=2,
    )
    report = Stage("report", "pipelines.f:report", [blocking("joined")])
    return Dataflow(
        "delays",
        [
            source("flights", "pipelines.f:flights", parallelism=3),
            source("weather", "pipelines.f:weather"),
            source("planes", "pipelines.f:planes"),
            clean,
            joined,
            report,
            sink("report", "daily"),
        ],
    )


@pytest.fixture
def dag(flow):
    from weir_airflow import dataflow_dag

    return dataflow_dag(flow, schedule="@daily", start_date=START, catchup=True, max_active_runs=3, tags=["mine"])


def edges(dag):
    return {(up, down) for down, task in dag.task_dict.items() for up in task.upstream_task_ids}


def test_every_region_is_a_task_and_one_more_closes_the_run(dag):
    assert set(dag.task_dict) == {"flights-clean", "weather", "planes", "joined", "report-daily", "weir_close"}
    assert edges(dag) == {
        ("flights-clean", "joined"),
        ("weather", "joined"),
        ("planes", "joined"),
        ("joined", "report-daily"),
        ("report-daily", "weir_close"),
    }


def test_a_region_of_several_subtasks_is_mapped_and_one_of_one_is_not(dag):
    assert {name for name, task in dag.task_dict.items() if task.is_mapped} == {"flights-clean", "joined"}
    assert dag.task_dict["flights-clean"].expand_input.value == {"subtask": [0, 1, 2]}


def test_mapped_task_instances_have_readable_names(dag):
    mapped = dag.task_dict["flights-clean"]
    task = mapped.unmap({"subtask": 2})
    template = dag.get_template_env().from_string(mapped.partial_kwargs["map_index_template"])
    assert template.render(task=task, ti=SimpleNamespace(map_index=2)) == "flights-clean[2]"


def test_edges_say_how_rows_cross_them(dag):
    def label(up, down):
        return dag.get_edge_info(up, down)["label"]

    assert label("flights-clean", "joined") == "blocking by origin, hour"
    assert label("planes", "joined") == "blocking, broadcast"
    assert label("joined", "report-daily") == "blocking"


def test_each_task_is_documented_by_its_stages(dag):
    doc = dag.task_dict["flights-clean"].partial_kwargs["doc_md"]
    assert "`pipelines.f:clean`" in doc
    assert "`flights` as `flights`, pipelined" in doc
    assert "by-origin-hour-128" in doc
    assert "`daily`" in dag.doc_md
    assert "publishes the sinks" in dag.task_dict["weir_close"].doc_md


def test_an_asset_that_a_source_names_is_told_and_no_inlet_that_airflow_would_check():
    from weir_airflow import dataflow_dag

    calls, plain = source("calls", "p:c", asset="s3://lake/calls"), source("plain", "p:p")
    dag = dataflow_dag(Dataflow("phones", [calls, plain, sink("calls", "out"), sink("plain", "other")]))
    assert "It reads the assets `s3://lake/calls`." in dag.doc_md
    docs = {name: task.doc_md for name, task in dag.task_dict.items()}
    assert [name for name, doc in docs.items() if "asset `s3://lake/calls`" in doc] == ["calls-out"]
    assert [task.inlets for task in dag.tasks] == [[]] * len(dag.tasks)


def test_a_shadow_tells_no_asset(flow, dag):
    from weir_airflow import dataflow_dag

    beside = dataflow_dag(replace(flow, name="beside", shadow_of=flow.name), schedule="@daily", start_date=START)
    assert [each.name for each in dag.get_task("weir_close").outlets] == [f"{flow.name}.daily"]
    assert beside.get_task("weir_close").outlets == []
    assert beside.task_dict.keys() == dag.task_dict.keys()


def test_the_stages_settings_are_those_of_the_task(dag):
    task = dag.task_dict["flights-clean"]
    assert (task.pool, task.queue, task.priority_weight) == ("spark", "big", 7)
    assert (task.execution_timeout, task.executor_config) == (timedelta(minutes=9), {"a": 1})
    assert dag.task_dict["weather"].pool == "default_pool"


def test_the_closing_task_goes_before_all_else_and_an_earlier_run_before_a_later_one(flow):
    """The weights are absolute: Airflow's default would add that of the closing task to all before it."""
    from airflow.serialization.serialized_objects import DagSerialization

    from weir_airflow import dataflow_dag

    declared = dataflow_dag(flow, schedule="@daily", start_date=START, default_args={"weight_rule": "upstream"})
    dag = DagSerialization.from_dict(DagSerialization.to_dict(declared))
    weights = {name: task.weight_rule.get_weight(SimpleNamespace(task=task)) for name, task in dag.task_dict.items()}
    close = weights.pop("weir_close")
    assert weights == {"flights-clean": 7, "weather": 1, "planes": 1, "joined": 1, "report-daily": 1}
    assert close > 1_000 * max(weights.values())


def spark_of(task):
    declared = getattr(task, "declared", None) or task.partial_kwargs["declared"]
    return declared.spark_conn_id_of(task.task_id)


@pytest.fixture
def on_two_sparks():
    """A dataflow one stage of which names its own connection."""
    big = TaskSettings(spark_conn_id="spark_big")
    return Dataflow(
        "two",
        [
            source("small", "p:small"),
            Stage("large", "p:large", [blocking("small", by="k")], parallelism=2, task=big),
            sink("large", "out"),
        ],
    )


def test_regions_are_computed_by_the_spark_of_the_settings_by_default(dag):
    assert {spark_of(task) for task in dag.task_dict.values() if task.task_id != "weir_close"} == {None}


def test_a_dag_names_the_connection_to_spark_and_a_stage_another_one(on_two_sparks):
    from weir_airflow import dataflow_dag

    tasks = dataflow_dag(on_two_sparks, spark_conn_id="spark_default").task_dict
    assert (spark_of(tasks["small"]), spark_of(tasks["large-out"])) == ("spark_default", "spark_big")


def test_a_group_names_the_connection_to_spark(on_two_sparks):
    from airflow.sdk import DAG

    from weir_airflow import dataflow_group

    with DAG("ordinary", start_date=START) as ordinary:
        dataflow_group(on_two_sparks, spark_conn_id="spark_default")
    small = ordinary.task_dict["two.small"]
    assert small.declared.spark_conn_id_of(small.weir_region) == "spark_default"


def test_airflows_own_retries_never_decide(dag):
    from weir_airflow.recovery.retry import WeirRetryPolicy

    for task in dag.task_dict.values():
        assert (task.retries, task.retry_delay) == (999, timedelta(seconds=5))
        assert isinstance(getattr(task, "retry_policy", None) or task.partial_kwargs["retry_policy"], WeirRetryPolicy)


@pytest.mark.parametrize(
    "said", [{}, {"retries": 0}, {"retries": 7}, {"restart": FixedDelay(4)}, {"restart": NoRestart()}]
)
def test_airflows_own_retries_are_the_same_whatever_restarts_are_declared(flow, said):
    """Airflow sets `max_tries` to try and retries at a clear, and Weir tells a clear by another `max_tries` (104)."""
    from weir_airflow import dataflow_dag

    assert {task.retries for task in dataflow_dag(flow, **said).task_dict.values()} == {AIRFLOW_RETRIES}


def test_the_documentation_of_each_task_says_what_restarts_it_and_that_airflows_retries_do_not(flow):
    from weir_airflow import dataflow_dag

    def docs(**said):
        dag = dataflow_dag(flow, **said)
        tasks = (getattr(task, "doc_md", None) or task.partial_kwargs["doc_md"] for task in dag.task_dict.values())
        return [dag.doc_md, *tasks]

    for said, told in (
        ({}, "the deployment's restart strategy, by default after at most 3 failures"),
        ({"retries": 2}, "`fixed-delay`, after at most 2 failures"),
        ({"restart": {"maximum-per-task-failures": 5}}, "the deployment's restart strategy, after at most 5 failures"),
        ({"restart": {"restart-strategy.type": "failure-rate"}}, "`failure-rate`. "),
    ):
        assert [doc for doc in docs(**said) if told not in doc or str(AIRFLOW_RETRIES) not in doc] == []


def restart_of(dag):
    return dag.task_dict["weather"].declared.restart_strategy(RestartChoice())


def test_a_users_retries_become_restarts_with_a_fixed_delay(flow):
    from weir_airflow import dataflow_dag

    two = RestartStrategy.from_retries(2, timedelta(minutes=1))
    assert restart_of(dataflow_dag(flow, retries=2, retry_delay=timedelta(minutes=1))) == two
    assert restart_of(dataflow_dag(flow, default_args={"retries": 2, "retry_delay": 60})) == two
    at_once = RestartStrategy.from_retries(1, timedelta(0))
    assert restart_of(dataflow_dag(flow, retries=1, retry_delay=timedelta(0))) == at_once
    assert restart_of(dataflow_dag(flow, retries=1)) == RestartStrategy.from_retries(1, timedelta(minutes=5))
    assert restart_of(dataflow_dag(flow)) == RestartStrategy.default()


def test_a_restart_strategy_may_be_given_instead_of_retries(flow):
    from weir_airflow import dataflow_dag

    never = RestartStrategy.from_options({"restart-strategy.type": "none"})
    assert restart_of(dataflow_dag(flow, restart=never)) == never
    assert restart_of(dataflow_dag(flow, restart={"restart-strategy.type": "none"})) == never
    with pytest.raises(Misconfigured, check=of_kind("dags.retries_and_restart")):
        dataflow_dag(flow, restart=never, retries=2)
    with pytest.raises(Misconfigured, check=of_kind("restarts.option_unknown")):
        dataflow_dag(flow, restart={"restart-strategy.typ": "none"})


def test_what_a_dag_says_of_restarts_goes_before_what_the_deployment_says(flow):
    from weir_airflow import dataflow_dag

    deployed = RestartChoice.from_options({"restart-strategy.type": "none", "maximum-total-task-failures": 9})

    def strategy(**said):
        return dataflow_dag(flow, **said).task_dict["weather"].declared.restart_strategy(deployed)

    limits = FailureLimits(per_run=9)
    assert strategy() == NoRestart(limits=limits)
    assert strategy(restart={"maximum-total-task-failures": 2}) == NoRestart(limits=FailureLimits(per_run=2))
    assert strategy(restart=FixedDelay(4)) == FixedDelay(4, limits=limits)
    assert strategy(retries=2, retry_delay=timedelta(seconds=1)) == FixedDelay(2, 1_000, limits=FailureLimits(2, 9))
    assert strategy(retries=2, restart={"maximum-per-task-failures": 1}).limits == FailureLimits(1, 9)


NUMBERS_OF_FLINK_1_18 = {"restart-strategy.type": "flink-1.18"}


@pytest.mark.parametrize("is_of_dag", [True, False])
def test_the_numbers_of_flink_1_18_depend_on_whether_the_dataflow_keeps_state(is_of_dag):
    from weir_airflow import dataflow_dag

    deployed = RestartChoice() if is_of_dag else RestartChoice.from_options(NUMBERS_OF_FLINK_1_18)

    def strategy(state):
        flow = Dataflow("flow", [source("a", "p:a", state=state), sink("a", "out")])
        said = {"restart": NUMBERS_OF_FLINK_1_18} if is_of_dag else {}
        return dataflow_dag(flow, **said).task_dict["a-out"].declared.restart_strategy(deployed)

    assert strategy([]) == ExponentialDelay(max_backoff_ms=300_000, multiplier=2.0)
    assert strategy([keyed_state("history", key="k", schema="k STRING")]) == FixedDelay(2**31 - 1, 1_000)


def test_a_users_retry_policy_is_kept_beside_weirs(flow):
    from airflow.sdk import DAG
    from airflow.sdk.definitions.retry_policy import ExceptionRetryPolicy, RetryRule

    from weir_airflow import dataflow_dag, dataflow_group

    policy = ExceptionRetryPolicy([RetryRule(ValueError)])
    for dag in (dataflow_dag(flow, retry_policy=policy), dataflow_dag(flow, default_args={"retry_policy": policy})):
        assert {declared_of(task).recovery.retry_policy for task in dag.task_dict.values()} == {policy}
        assert {type(policy_of(task)).__name__ for task in dag.task_dict.values()} == {"WeirRetryPolicy"}
    with DAG("mixed", default_args={"retry_policy": policy}) as dag:
        dataflow_group(flow, group_id="inner")
    assert dag.task_dict["inner.weather"].declared.recovery.retry_policy is policy
    with pytest.raises(Misconfigured, check=of_kind("dags.retry_policy_malformed", name="dict")):
        dataflow_dag(flow, retry_policy={"retries": 3})


def declared_of(task):
    return getattr(task, "declared", None) or task.partial_kwargs["declared"]


def policy_of(task):
    return getattr(task, "retry_policy", None) or task.partial_kwargs["retry_policy"]


def test_the_serialized_dag_knows_of_a_policy_only_that_there_is_one(flow):
    from airflow.sdk.definitions.retry_policy import RetryPolicy
    from airflow.serialization.serialized_objects import DagSerialization

    from weir_airflow import dataflow_dag

    class Mine(RetryPolicy):
        """It has a lambda, and no `serialize`."""

        rule = staticmethod(lambda error: error)

        def evaluate(self, exception, try_number, max_tries, context=None):
            raise NotImplementedError

    plain, with_policy = dataflow_dag(flow), dataflow_dag(flow, retry_policy=Mine())
    assert DagSerialization.to_dict(with_policy) == DagSerialization.to_dict(plain)
    assert '"has_retry_policy": true' in json.dumps(DagSerialization.to_dict(plain), default=str)


def test_functions_that_label_failures_are_named_as_module_and_function(flow):
    from weir_airflow import dataflow_dag

    dag = dataflow_dag(flow, failure_enrichers=["tickets:owner", "tickets:owner"])
    assert dag.task_dict["weather"].declared.recovery.failure_enrichers == ("tickets:owner",)
    with pytest.raises(Misconfigured, check=of_kind("execution.enricher_malformed", given="'tickets.owner'")):
        dataflow_dag(flow, failure_enrichers=["tickets.owner"])


def test_default_args_that_would_be_ignored_are_refused(flow):
    from weir_airflow import dataflow_dag

    with pytest.raises(Misconfigured, check=of_kind("dataflow.columns_wrong")):
        dataflow_dag(flow, default_args={"retry_exponential_backoff": 2})


def test_a_cron_preset_gives_each_run_its_data_interval(dag):
    from airflow.sdk import CronDataIntervalTimetable

    assert isinstance(dag.timetable, CronDataIntervalTimetable)
    assert (dag.timetable.expression, str(dag.timetable.timezone)) == ("0 0 * * *", "UTC")
    assert (dag.catchup, dag.max_active_runs, dag.tags) == (True, 3, {"weir", "mine"})


def test_a_timedelta_gives_intervals_and_timetables_pass_through(flow):
    from airflow.sdk import CronDataIntervalTimetable, DeltaDataIntervalTimetable

    from weir_airflow import dataflow_dag

    six_hourly = dataflow_dag(flow, schedule=timedelta(hours=6), start_date=START)
    assert isinstance(six_hourly.timetable, DeltaDataIntervalTimetable)
    hourly = CronDataIntervalTimetable("@hourly", timezone="Europe/Berlin")
    assert dataflow_dag(flow, schedule=hourly, start_date=START).timetable is hourly


@pytest.mark.parametrize("schedule", ["@once", "@continuous", [1]])
def test_a_schedule_without_intervals_is_refused(flow, schedule):
    from weir_airflow import dataflow_dag

    with pytest.raises(Misconfigured, match="no data interval"):
        dataflow_dag(flow, schedule=schedule)


def test_a_dataflow_can_be_a_group_among_ordinary_tasks(flow):
    from airflow.sdk import DAG, BaseOperator

    from weir_airflow import dataflow_group

    with DAG("mixed", default_args={"retries": 1}) as dag:
        first, last = BaseOperator(task_id="first"), BaseOperator(task_id="last")
        group = dataflow_group(flow, group_id="inner")
        first >> group >> last
    assert {("first", "inner.weather"), ("first", "inner.flights-clean"), ("inner.weir_close", "last")} <= edges(dag)
    task = dag.task_dict["inner.weather"]
    assert (task.declared.task_prefix, task.declared.restart_strategy(RestartChoice()).attempts) == ("inner.", 1)
    assert dag.get_edge_info("inner.weather", "inner.joined")["label"] == "blocking by origin, hour"


@pytest.fixture
def by_index():
    """Rows by file, cleaned and rated index by index; sums of all of them, that go on from those of yesterday."""
    return Dataflow(
        "prices",
        [
            source("lookup", "p:lookup"),
            source("rows", "p:rows", parallelism=4),
            Stage("clean", "p:clean", [blocking("rows", pointwise=True)], parallelism=4),
            Stage(
                "rated",
                "p:rate",
                {"rows": blocking("clean", pointwise=True), "lookup": blocking("lookup", broadcast=True)},
                parallelism=4,
            ),
            Stage(
                "sums",
                "p:sums",
                {"now": blocking("rated", by="id"), "before": previous("sums", by="id", schema="id BIGINT")},
                parallelism=2,
            ),
            sink("sums", "out"),
        ],
    )


def test_regions_that_read_each_other_index_by_index_are_a_mapped_group(by_index):
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from weir_airflow import dataflow_dag

    dag = dataflow_dag(by_index)
    (group,) = [each for each in dag.task_group.children.values() if hasattr(each, "children")]
    assert set(group.children) == {"rows", "clean", "rated"}
    assert group._expand_input.value == {"subtask": [0, 1, 2, 3]}
    assert {task.task_id for task in dag.tasks if isinstance(task, MappedOperator)} == {"sums-out"}
    for name in ("rows", "clean", "rated"):
        task = dag.task_dict[name]
        assert task.get_closest_mapped_task_group() is group
        template = dag.get_template_env().from_string(task.map_index_template)
        assert template.render(task=task, ti=SimpleNamespace(map_index=3)) == f"{name}[3]"


def test_a_mapped_group_changes_neither_ids_nor_edges(by_index):
    from weir_airflow import dataflow_dag

    dag = dataflow_dag(by_index)
    assert set(dag.task_dict) == {"lookup", "rows", "clean", "rated", "sums-out", "weir_close"}
    assert edges(dag) == {
        ("rows", "clean"),
        ("clean", "rated"),
        ("lookup", "rated"),
        ("rated", "sums-out"),
        ("sums-out", "weir_close"),
    }
    assert dag.get_edge_info("rows", "clean")["label"] == "blocking, index by index"


def test_the_epoch_before_is_no_edge_but_is_documented(by_index):
    from weir_airflow import dataflow_dag

    dag = dataflow_dag(by_index)
    assert dag.task_dict["sums-out"].upstream_task_ids == {"rated"}
    doc = dag.task_dict["sums-out"].partial_kwargs["doc_md"]
    assert "`sums` as `before`, previous epoch by id" in doc


def test_independent_pipelines_are_documented(by_index):
    from weir_airflow import dataflow_dag

    dag = dataflow_dag(by_index)
    assert "index by index: `rows`, `clean`, `rated`" in dag.doc_md
    (group,) = [each for each in dag.task_group.children.values() if hasattr(each, "children")]
    assert group.tooltip.startswith("rows, clean, rated. These regions read each other index by index")


def test_a_copy_is_documented_where_a_retry_resumes():
    from weir_airflow import dataflow_dag

    stages = [
        source("a", "p:a"),
        Stage("b", "p:b", [cached("a")]),
        Stage("c", "p:c", [cached("b", durable=False)]),
        sink("c", "out"),
    ]
    doc = dataflow_dag(Dataflow("flow", stages)).task_dict["a-b-c-out"].doc_md
    assert "| `a` | `p:a` | - | a copy that a retry resumes from |" in doc
    assert "| `b` | `p:b` | `a` as `a`, cached | (not written) |" in doc
    assert "`b` as `b`, cached within an attempt" in doc


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "its producers run again, and consumers only if the content has changed"),
        ({"consumers": "always"}, "and consumers whenever what they read is recomputed"),
        ({}, "A deployment may say otherwise, by `[weir] failover`."),
        ({"failover": "full"}, "all regions that have begun run again"),
        ({"failover": "individual"}, "nothing else runs again by itself"),
        ({}, "A clear runs the deployed code"),
        ({"repair_code": "as_it_was"}, "A clear runs the code that computed the result before"),
    ],
)
def test_the_documentation_of_a_dag_describes_its_recovery(options, said):
    from weir_airflow import dataflow_dag

    assert said in dataflow_dag(Dataflow("flow", [source("a", "p:a"), sink("a", "out")], **options)).doc_md


@pytest.mark.parametrize(
    ("on_reprocess", "said"),
    [("cascade", "later ones run again, in order"), ("mark", "later ones become stale")],
)
def test_the_documentation_of_a_dag_describes_its_states(on_reprocess, said):
    from weir_airflow import dataflow_dag

    states = [keyed_state("history", key="k", schema="k STRING, n INT", ttl="7 days"), list_state("offsets")]
    flow = Dataflow("flow", [source("a", "p:a", state=states), sink("a", "out")], on_reprocess=on_reprocess)
    doc = dataflow_dag(flow).doc_md
    assert "- `a` keeps `history` by k, each row for 7 days since its last update" in doc
    assert "- `a` keeps `offsets`, a list whose elements are divided among its subtasks" in doc
    assert "runs are computed in the order of their intervals" in doc
    assert said in doc
    stateless = Dataflow("flow", [source("a", "p:a"), sink("a", "out")], on_reprocess=on_reprocess)
    assert "keeps" not in dataflow_dag(stateless).doc_md


def test_a_long_region_is_shown_by_its_first_and_last_stage_and_its_ids_stay():
    from airflow.sdk import DAG

    from weir_airflow import dataflow_dag, dataflow_group

    kept = [keyed_state("known", key="k", schema="k STRING")]
    stages = [
        source("flights_as_sent", "p:a", parallelism=2),
        Stage("flights_clean", "p:b", [pipelined("flights_as_sent")], parallelism=2),
        Stage("flights_rated", "p:c", [pipelined("flights_clean")], parallelism=2),
        Stage("totals_by_origin", "p:d", [blocking("flights_rated")], state=kept),
        sink("totals_by_origin", "totals"),
    ]
    with DAG("mixed") as mixed:
        dataflow_group(Dataflow("flow", stages), group_id="inner")
    for dag, prefix in ((dataflow_dag(Dataflow("flow", stages)), ""), (mixed, "inner.")):
        shown = {name.removeprefix(prefix): task.task_display_name for name, task in dag.task_dict.items()}
        long, last = "flights_as_sent-flights_clean-flights_rated", "totals_by_origin-totals"
        assert shown.pop(long) == "flights_as_sent … flights_rated"
        assert shown == {name: f"{prefix}{name}" for name in shown}
        assert {last, f"weir_compact-{last}"} < {*shown}


def test_the_list_of_dags_says_what_a_dataflow_publishes_and_keeps(dag):
    from weir_airflow import dataflow_dag

    assert dag.description == "6 stages in 5 regions; publishes daily"
    flow = Dataflow("flow", [source("a", "p:a", state=[list_state("offsets")]), sink("a", "out")])
    assert dataflow_dag(flow).description == "One stage; publishes out; keeps offsets"
    assert dataflow_dag(flow, description="mine").description == "mine"


def test_pipelines_in_a_group_keep_the_group_s_ids(by_index):
    from airflow.sdk import DAG, BaseOperator, TaskGroup

    from weir_airflow import dataflow_group

    with DAG("mixed") as dag, TaskGroup("outer"):
        first, last = BaseOperator(task_id="first"), BaseOperator(task_id="last")
        first >> dataflow_group(by_index, group_id="inner") >> last
    assert {"outer.inner.rows", "outer.inner.clean", "outer.inner.sums-out"} <= set(dag.task_dict)
    task = dag.task_dict["outer.inner.rows"]
    assert (task.declared.task_prefix, task.weir_region, task.task_display_name) == ("outer.inner.", "rows", "rows")
    assert {("outer.first", "outer.inner.rows"), ("outer.inner.weir_close", "outer.last")} <= edges(dag)


def test_a_serialized_pipeline_reads_back_with_one_instance_an_index(by_index):
    from airflow.serialization.serialized_objects import DagSerialization

    from weir_airflow import dataflow_dag

    def serialized():
        return DagSerialization.to_dict(dataflow_dag(by_index, schedule="@daily", start_date=START))

    assert " object at 0x" not in str(serialized())
    assert serialized()["dag"]["tasks"] == serialized()["dag"]["tasks"]
    dag = DagSerialization.from_dict(serialized())
    group = dag.get_task("clean").get_closest_mapped_task_group()
    assert group.get_parse_time_mapped_ti_count() == 4
    assert dag.get_task("rated").get_closest_mapped_task_group() is not None
    assert dag.get_task("sums-out").get_closest_mapped_task_group() is None


def test_groups_nest(flow):
    from airflow.sdk import DAG, TaskGroup

    from weir_airflow import dataflow_group

    with DAG("nested") as dag, TaskGroup("outer"):
        dataflow_group(flow)
    assert dag.task_dict["outer.delays.weather"].declared.task_prefix == "outer.delays."


def test_a_dataflow_in_a_mapped_group_is_refused(flow):
    from airflow.sdk import DAG, task_group

    from weir_airflow import dataflow_group

    @task_group
    def each(number):
        dataflow_group(flow)

    with DAG("mapped"), pytest.raises(Misconfigured, check=of_kind("dag.group_mapped")):
        each.expand(number=[1, 2])


def test_the_serialized_dag_is_small_and_the_same_at_every_parse(flow):
    from airflow.serialization.serialized_objects import DagSerialization

    from weir_airflow import dataflow_dag

    def serialized(of):
        return str(DagSerialization.to_dict(dataflow_dag(of, schedule="@daily", start_date=START))["dag"]["tasks"])

    again = Dataflow.from_json(flow.to_json())
    assert "Declaration(delays, " in serialized(flow)
    assert " object at 0x" not in serialized(flow)
    assert len(serialized(flow)) < 20_000
    assert serialized(Dataflow(again.name, again.stages)) == serialized(Dataflow(again.name, again.stages))
    as_it_was = Dataflow(again.name, again.stages, repair_code="as_it_was")
    assert serialized(as_it_was) != serialized(Dataflow(again.name, again.stages))


def test_a_dag_file_imports_neither_spark_nor_the_ledger():
    script = """
import sys
from datetime import UTC, datetime
import airflow.sdk
from airflow.sdk import DAG, Label, TaskGroup, BaseOperator, CronDataIntervalTimetable
before = set(sys.modules)
from weir.dataflow import Dataflow, Stage, blocking, sink, source
from weir_airflow import dataflow_dag
a, b = source("a", "m:a", parallelism=2), Stage("b", "m:b", [blocking("a", by="k")])
flow = Dataflow("light", [a, b, sink("b", "s")])
dataflow_dag(flow, schedule="@daily", start_date=datetime(2025, 1, 1, tzinfo=UTC))
print("\\n".join(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=400)
    loaded = done.stdout.split()
    heavy = {
        "pyspark", "great_expectations", "pandas", "numpy", "pyarrow", "fsspec", "sqlalchemy", "alembic", "fastapi",
        "httpx", "grpc", "weir.ledger.ledger", "weir.store.store", "weir.coordination.values", "weir_spark",
    }  # fmt: skip
    assert "weir_airflow.dag" in loaded
    assert not heavy & set(loaded)
    assert len(loaded) < 81, loaded
