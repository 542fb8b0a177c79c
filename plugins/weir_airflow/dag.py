"""A dataflow as an Airflow DAG or task group: one task a region, mapped over its subtasks, and one that closes the run.

Invariant: DAG files import this at every parse, so it imports no Spark, no ledger and no store.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, Label, TaskGroup, TriggerRule
from airflow.sdk.definitions.mappedoperator import MappedOperator

from weir.dataflow.arguments import answers, require, unknown_argument
from weir.dataflow.stage import Stage, name_of
from weir.errors import Misconfigured
from weir.restarts.delays import AIRFLOW_RETRIES, AIRFLOW_RETRY_DELAY
from weir.topology.regions import LogicalRegion, Topology, compacted_regions, compaction_task
from weir.wording import did_you_mean
from weir_airflow.assets import sink_alias
from weir_airflow.dags.callbacks import quiet
from weir_airflow.dags.declaration import CLOSE, Declaration, TaskRecovery, require_declared
from weir_airflow.dags.docs import (
    dataflow_doc,
    dataflow_line,
    exchange_label,
    pipeline_tooltip,
    region_doc,
    region_label,
    restarts_line,
)
from weir_airflow.dags.schedule import (
    cadence_of,
    data_sets_of,
    declared_cadence,
    has_intervals,
    is_partitioned,
    is_without_schedule,
    require_dates,
    schedule_name,
    timetable_of,
    zone_of,
)
from weir_airflow.dags.stage_files import applications_of, sql_of
from weir_airflow.recovery.retry import WeirRetryPolicy
from weir_airflow.tasks.operators import WeirCloseOperator, WeirCompactOperator, WeirRegionOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow.sdk import BaseOperator
    from airflow.sdk.definitions.retry_policy import RetryPolicy

    from weir.dataflow import Dataflow
    from weir.restarts.strategy import RestartStrategy

AFTER_REGIONS: Final = TriggerRule.NONE_FAILED
"""The trigger rule of a task that reads regions. Airflow's default, all_success, removes a mapped task instance that
waits for its producers' repair if an upstream task once had more instances; and it skips a consumer of a skipped
producer silently, where this one lets the consumer run and name the producer."""

AFTER_REGION: Final = TriggerRule.ALL_DONE
"""The trigger rule of a compaction: no other one keeps it from `upstream_failed`, and it is a leaf of the DAG, so that
the DagRun would stay failed when the failed region has been repaired and the run is closed."""

CLOSE_PRIORITY: Final = 1_000_000
"""The priority of closing tasks: a complete run is closed and published before anything else is computed."""

ABSOLUTE: Final = "absolute"
"""The weight rule of all tasks. Airflow's default adds the weights of all downstream tasks: the closing task would come
last, after the regions of all later runs. With equal weights the scheduler takes the earliest run first."""

_NAMED_BY_SUBTASK: Final = "{{ task.weir_region }}[{{ ti.map_index }}]"
"""The name of a mapped task instance, known before it runs, so that the grid never shows bare numbers."""


@answers(dict.fromkeys(("schedule_interval", "timetable", "cron"), "schedule") | {"name": "dag_id"}, second="schedule")
def dataflow_dag(
    flow: Dataflow,
    *,
    schedule: Any = None,
    cadence: str | timedelta | None = None,
    start_date: datetime | None = None,
    dag_id: str | None = None,
    retries: int | None = None,
    retry_delay: timedelta | None = None,
    restart: RestartStrategy | Mapping[str, Any] | None = None,
    retry_policy: RetryPolicy | None = None,
    failure_enrichers: Sequence[str] = (),
    spark_conn_id: str | None = None,
    default_args: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    doc_md: str | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Build the DAG that runs `flow`, one run an epoch.

    A cron string or preset gives every run its data interval, the epoch. With `on_dataset(...)` for the schedule, or
    other assets with partition keys, data sets start the runs: the epoch begins at the key, and `cadence`, a cron
    string in the zone of the start date or a timedelta, says how long it is. `retries` and `retry_delay` keep their
    meaning: that many restarts of a task, that far apart. `restart` is a strategy, or options under Flink's names;
    without them the deployment's or Weir's default holds. `retry_policy` may override the decision about an
    application's failure, after it has been booked. `failure_enrichers` are functions, "module:function", that label
    failures. `spark_conn_id` names the Airflow connection to the Spark that computes the regions: one of the type
    `spark_connect` leads to a Connect server, one of the type `spark` has each region submitted by spark-submit.
    Regions that read each other index by index (`blocking(x, pointwise=True)`) are a mapped task group, so that no
    index waits for another. The dataflow's settings of recovery (`failover`, `consumers`, `repair_code`) and of the
    previous epoch (`previous`) change no DAG: the coordinator applies them. Everything else goes to `airflow.sdk.DAG`.
    Raises Misconfigured.
    """
    where = require_declared(
        "dataflow_dag", flow, default_args, dag_id=dag_id, spark_conn_id=spark_conn_id, doc_md=doc_md
    )
    _require_known(dataflow_dag, flow, dag_kwargs, DAG)
    require(where, "tags", tags, (list, tuple, set, frozenset), 'tags=["name"]')
    arguments = dict(default_args or {})
    start = arguments.get("start_date") if start_date is None else start_date
    end = arguments.get("end_date") if dag_kwargs.get("end_date") is None else dag_kwargs["end_date"]
    timetable = timetable_of(schedule, start, where, has_cadence=cadence is not None)
    every = declared_cadence(cadence, timetable, where)
    require_dates(where, start, end, is_scheduled=every is None and not is_without_schedule(timetable))
    recovery = TaskRecovery.declared(
        flow,
        arguments,
        restart=restart,
        retries=retries,
        retry_delay=retry_delay,
        retry_policy=retry_policy,
        failure_enrichers=failure_enrichers,
    )
    topology = Topology(flow)
    dag = DAG(
        dag_id or flow.name,
        schedule=timetable,
        start_date=start,
        default_args=arguments,
        tags=["weir", *tags],
        doc_md=doc_md or dataflow_doc(topology, flow, recovery.restart),
        **{"description": dataflow_line(topology), **dag_kwargs},
    )
    with dag:
        sql, applications = sql_of(flow, dag), applications_of(flow, dag)
        own = _schedule_of(dag, every)
        _add_tasks(Declaration(flow, topology, recovery, "", spark_conn_id, sql, applications, *own))
    return dag


@answers(
    {"schedule": "write it to the DAG that the group is in", "start_date": "write it to the DAG"}, second="group_id"
)
def dataflow_group(
    flow: Dataflow,
    *,
    group_id: str | None = None,
    cadence: str | timedelta | None = None,
    retries: int | None = None,
    retry_delay: timedelta | None = None,
    restart: RestartStrategy | Mapping[str, Any] | None = None,
    retry_policy: RetryPolicy | None = None,
    failure_enrichers: Sequence[str] = (),
    spark_conn_id: str | None = None,
    **group_kwargs: Any,
) -> TaskGroup:
    """Add `flow` as a task group to the DAG that is being built, among ordinary tasks.

    `extract >> dataflow_group(flow) >> notify`: what comes after the group starts when the run is closed and its
    sinks are published. The DAG's schedule has to give data intervals, or it is a PartitionedAssetTimetable: then
    `cadence` says how long an epoch is, as in `dataflow_dag`. To leave the whole group out, use a
    ShortCircuitOperator before it: one region alone cannot be skipped. Restarts are
    declared as in `dataflow_dag`.
    Raises Misconfigured.
    """
    where = require_declared("dataflow_group", flow, None, group_id=group_id, spark_conn_id=spark_conn_id)
    _require_known(dataflow_group, flow, group_kwargs, TaskGroup)
    group = DataflowGroup(group_id or flow.name, **group_kwargs)
    inherited = {**(group.dag.default_args or {}), **group.default_args}
    recovery = TaskRecovery.declared(
        flow,
        inherited,
        restart=restart,
        retries=retries,
        retry_delay=retry_delay,
        retry_policy=retry_policy,
        failure_enrichers=failure_enrichers,
    )
    if next(group.iter_mapped_task_groups(), None) is not None:
        raise Misconfigured.of("dag.group_mapped", group_id=group.group_id)
    every = declared_cadence(cadence, group.dag.timetable, where)
    if every is None:
        _require_intervals(where, group)
    with group:
        prefix, sql, applications = group.child_id(""), sql_of(flow, group.dag), applications_of(flow, group.dag)
        schedule, topology = _schedule_of(group.dag, every), Topology(flow)
        _add_tasks(Declaration(flow, topology, recovery, prefix, spark_conn_id, sql, applications, *schedule))
    return group


def stage_task(owner: DAG | TaskGroup, stage: str | Stage) -> Any:
    """Return the task that computes a stage, so that ordinary tasks can be put before and after it.

    `owner` is what `dataflow_dag` or `dataflow_group` returned, or a DAG that such a group is in:
    `check >> stage_task(dag, "clean") >> tell`. Weir clears its own tasks only, so that a repair runs no ordinary task
    again. Raises Misconfigured.
    """
    require(
        "stage_task(...)", "owner", owner, (DAG, TaskGroup), "what dataflow_dag(...) or dataflow_group(...) returned"
    )
    wanted = name_of(stage)
    declared = [(task, _declared_of(task)) for task in (owner.tasks if isinstance(owner, DAG) else owner.iter_tasks())]
    found = {task.task_id: task for task, of in declared if of is not None and task.task_id == _task_of(of, wanted)}
    name = owner.dag_id if isinstance(owner, DAG) else owner.group_id
    if not found:
        known = list(dict.fromkeys(stage.name for _, of in declared if of is not None for stage in of.flow.stages))
        hint = did_you_mean(wanted, known, f"it has {', '.join(known) or 'no dataflow'}")
        raise Misconfigured.of("dag.stage_unknown", name=name, wanted=wanted, hint=hint)
    if len(found) > 1:
        raise Misconfigured.of("dag.stage_in_a_group", name=name, wanted=wanted, found=found)
    return next(iter(found.values()))


def _require_known(function: Any, flow: Dataflow, passed_on: Mapping[str, Any], to: type) -> None:
    """Require that what a function passes on is known to Airflow. Raises Misconfigured."""
    taken = signature(to).parameters if passed_on else {}
    own = [each.name for each in signature(function).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    for word in passed_on.keys() - taken.keys():
        raise unknown_argument(f"{function.__name__}({flow})", word, own, [*taken])


def _declared_of(task: Any) -> Declaration | None:
    arguments = task.partial_kwargs if isinstance(task, MappedOperator) else vars(task)
    found = arguments.get("declared")
    return found if isinstance(found, Declaration) else None


def _task_of(declared: Declaration, stage: str) -> str | None:
    if all(each.name != stage for each in declared.flow.stages):
        return None
    return f"{declared.task_prefix}{declared.topology.logical_region_of(stage).name}"


class DataflowGroup(TaskGroup):  # type: ignore[misc]  # Airflow's classes are not followed
    """The tasks of a dataflow in a DAG. What comes after the group comes after its closing task."""

    def get_leaves(self) -> Iterator[BaseOperator]:
        """Yield the closing task: no task waits for a compaction."""
        return (task for task in super().get_leaves() if not isinstance(task, WeirCompactOperator))


def _add_tasks(declared: Declaration) -> None:
    topology = declared.topology
    tasks = _region_tasks(declared)
    for name, task in tasks.items():
        for upstream in topology.upstream(name):
            label = exchange_label(topology.exchanges_between(upstream.name, name))
            tasks[upstream.name] >> Label(label) >> task
    outlets = [] if declared.flow.shadow_of else [sink_alias(declared.flow.name, sink) for sink in topology.sinks]
    close = WeirCloseOperator(
        declared=declared,
        task_id=CLOSE,
        doc_md=f"{_CLOSE_DOC}\n\n{restarts_line(declared.recovery.restart)}",
        outlets=outlets,
        trigger_rule=AFTER_REGIONS,
        priority_weight=CLOSE_PRIORITY,
        **_recovery_arguments(),
    )
    for leaf in topology.leaves:
        tasks[leaf.name] >> close
    for region in compacted_regions(topology):
        tasks[region.name] >> _compaction_task(declared, region)


def _compaction_task(declared: Declaration, region: LogicalRegion) -> Any:
    """Build the task that compacts a region's state.

    It is an ordinary task, since teardowns decide about DagRuns that a person has marked (decision 50). It ends as a
    success whatever happens, so it decides about no run.
    """
    return WeirCompactOperator(
        declared=declared,
        region=region.name,
        task_id=compaction_task(region.name),
        doc_md=_COMPACTION_DOC,
        trigger_rule=AFTER_REGION,
        retries=AIRFLOW_RETRIES,
        retry_delay=AIRFLOW_RETRY_DELAY,
        weight_rule=ABSOLUTE,
        **{**declared.task_arguments(region), "execution_timeout": None},
        **_named(declared, region, compaction_task),
    )


def _region_tasks(declared: Declaration) -> dict[str, Any]:
    pipeline_of = {region.name: pipeline for pipeline in declared.topology.pipelines for region in pipeline}
    tasks: dict[str, Any] = {}
    for region in declared.topology.regions:
        if region.name not in pipeline_of:
            tasks[region.name] = _region_task(declared, region)
        elif region.name not in tasks:
            tasks |= _pipeline_tasks(declared, pipeline_of[region.name])
    return tasks


def _pipeline_tasks(declared: Declaration, pipeline: Sequence[LogicalRegion]) -> dict[str, Any]:
    """Put the regions into a mapped task group, in which Airflow joins task instances of equal map index.

    Task ids and map indexes are what they would be without it, so that a run can be moved from one to the other.
    """
    from airflow.sdk import task_group  # noqa: PLC0415  spares other dataflows its imports

    tasks: dict[str, Any] = {}

    def index_by_index(subtask: int) -> None:  # noqa: ARG001  Airflow maps over it; the map index is the subtask
        for region in pipeline:
            arguments = _region_arguments(declared, region)
            # This group adds no prefix to ids, so Airflow adds none of the groups around it either.
            arguments["task_id"] = f"{declared.task_prefix}{region.name}"
            arguments["task_display_name"] = region_label(declared.topology, region)
            tasks[region.name] = WeirRegionOperator(**arguments, map_index_template=_NAMED_BY_SUBTASK)

    group = task_group(
        group_id=f"weir_pipeline-{pipeline[0].name}",
        prefix_group_id=False,
        group_display_name=f"{region_label(declared.topology, pipeline[0])}, index by index",
        tooltip=pipeline_tooltip(pipeline),
    )(index_by_index)
    group.expand(subtask=list(range(pipeline[0].parallelism)))
    return tasks


def _region_task(declared: Declaration, region: LogicalRegion) -> Any:
    arguments = _region_arguments(declared, region)
    if region.parallelism == 1:
        return WeirRegionOperator(**arguments)
    mapped = WeirRegionOperator.partial(**arguments, map_index_template=_NAMED_BY_SUBTASK)
    quiet(mapped.kwargs)  # the DAG processor takes them from here
    return mapped.expand(subtask=list(range(region.parallelism)))


def _region_arguments(declared: Declaration, region: LogicalRegion) -> dict[str, Any]:
    arguments = {
        "declared": declared,
        "region": region.name,
        "task_id": region.name,
        "doc_md": region_doc(declared.topology, declared.flow, region, declared.recovery.restart),
        **_recovery_arguments(),
        **declared.task_arguments(region),
        **_named(declared, region),
    }
    if declared.topology.upstream(region.name):
        arguments["trigger_rule"] = AFTER_REGIONS
    return arguments


def _named(declared: Declaration, region: LogicalRegion, name_of: Callable[[str], str] = str) -> dict[str, str]:
    """Return the short name of a task whose region has a long one; of others Airflow shows the id, less its group's."""
    label = region_label(declared.topology, region)
    return {} if label == region.name else {"task_display_name": name_of(label)}


def _recovery_arguments() -> dict[str, Any]:
    return {
        "retries": AIRFLOW_RETRIES,
        "retry_delay": AIRFLOW_RETRY_DELAY,
        "retry_policy": WeirRetryPolicy(),
        "weight_rule": ABSOLUTE,
    }


def _require_intervals(where: str, group: TaskGroup) -> None:
    if not has_intervals(group.dag.timetable, group.dag.start_date):
        raise Misconfigured.of(
            "dag.schedule_without_intervals",
            where=where,
            dag_id=group.dag.dag_id,
            schedule_name=schedule_name(group.dag.timetable),
        )


def _schedule_of(dag: DAG, declared: str | None) -> tuple[str, str, str | None, bool, dict[str, bool]]:
    """Return a DAG's schedule as a declaration has it: name, zone, cadence, whether data sets start it, and which."""
    name, zone = schedule_name(dag.timetable), zone_of(dag.timetable, dag.timezone)
    every = declared or cadence_of(dag.timetable)
    return name, zone, every, is_partitioned(dag.timetable), data_sets_of(dag.timetable)


_CLOSE_DOC: Final = """### Closes the run

Asks Weir's ledger, not Airflow, whether every result of this run is valid and available. If so it publishes the sinks;
if not, what is missing is computed again and this task runs again afterwards."""

_COMPACTION_DOC: Final = """### Compacts state

Merges small sorted runs of the region's state, so that the next epochs read few files. Nothing waits for it, and it
never fails: where it could not compact, its note says why, and the next epoch's compaction does the work."""
