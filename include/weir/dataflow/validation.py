"""Validation of a dataflow. Invariant: every problem names its stage and input, and says what to write instead.

Each check yields problems as text. `sound_stages` runs the checks in rounds, since later rounds rely on earlier ones,
and raises all problems of the first round that has any. It also adds a stage for each state that does not have one yet,
so that a dataflow that is read back from its record stays equal.
"""

from __future__ import annotations

import json
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from weir.code.application_rules import application_problems, secrets_of
from weir.code.sql_rules import is_sql, path_problems
from weir.dataflow.arguments import problem_of, reference_for, shown
from weir.dataflow.digest_rule import rule_problems
from weir.dataflow.graph import find_cycle, group_reads, pipelined_groups, spark_conf, task_settings, topological_order
from weir.dataflow.quality import Gate
from weir.dataflow.stage import SKIP, Exchange, ExchangeKind, Reuse, Stage, StageKind, TaskSettings, dataset_of
from weir.dataflow.state import State
from weir.dataflow.state_rules import (
    divided_problems,
    reads_state,
    state_problems,
    states_of_other_tasks,
    tables_of,
    type_problems,
    with_state_stages,
)
from weir.dataflow.targets import shared
from weir.errors import Message, Misconfigured, at, said_by
from weir.secrecy import secrets_in
from weir.wording import did_you_mean

MAX_NAME_LENGTH = 60

MAX_PARALLELISM_LIMIT = 32768
"""Flink's upper bound (KeyGroupRangeAssignment)."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_RESERVED_ARGUMENTS = ("ctx",)
_READABLE = (StageKind.SOURCE, StageKind.TRANSFORM)

MAX_SUITE_LENGTH = 120

RESERVED = "weir"
"""The name of the suite of the built-in checks."""

_SUITE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def sound_stages(dataflow: str, max_parallelism: int, stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Return the stages in topological order; sinks and states have the parallelism and digest rule of their producers.

    Raises Misconfigured.
    """
    refuse(dataflow, _dataflow_problems(dataflow, max_parallelism, stages))
    refuse(dataflow, (text for stage in stages for text in state_problems(stage)))
    refuse(dataflow, (text for stage in stages for text in quality_problems(stage)))
    stages = with_state_stages(stages)
    refuse(dataflow, (text for stage in stages for text in _stage_problems(stage, max_parallelism)))
    refuse(dataflow, (*_name_problems(stages), *_target_problems(stages)))
    by_name = {stage.name: stage for stage in stages}
    refuse(dataflow, (text for stage in stages for text in _input_problems(stage, by_name)))
    refuse(dataflow, (text for stage in stages for text in _own_datasets(dataflow, stage)))
    reads = {
        stage.name: [exchange.stage for exchange in stage.exchanges.values() if exchange.is_of_run] for stage in stages
    }
    refuse(dataflow, _cycle_problems(reads))
    sized = {stage.name: _with_settings_of_producer(stage, by_name) for stage in stages}
    ordered = tuple(sized[name] for name in topological_order(reads))
    refuse(dataflow, (text for stage in ordered for text in meeting_problems(stage, sized)))
    refuse(dataflow, _unread_problems(ordered))
    refuse(dataflow, _region_problems(ordered))
    return ordered


def require_sound_states(dataflow: str, stages: Sequence[Stage]) -> None:
    """Raise Misconfigured for states whose rows their subtasks would not find, and for schemas that Spark refuses.

    A run that is recorded has begun so.
    """
    refuse(dataflow, (*type_problems(stages), *divided_problems(stages)))


def refuse(dataflow: str, problems: Iterable[str]) -> None:
    """Raise Misconfigured with all problems of a dataflow, if there are any."""
    found = list(problems)
    if len(found) == 1:
        raise Misconfigured.of("dataflow.invalid", dataflow=dataflow, found=found[0])
    if found:
        raise Misconfigured.of("dataflow.problems", dataflow=dataflow, number=len(found), problems=found)


# Secrets

_RECORDED = "and is recorded in the ledger, manifests and job files"
_INSTEAD = {
    "spark": "set it where Spark starts, in spark-defaults.conf or the environment (such as AWS_SECRET_ACCESS_KEY) of "
    "the Connect server or of spark-submit, or let a credential provider find it",
    "options": "name an Airflow connection, which is looked up where it is used",
    "asset": "leave it out, as Airflow does",
}
_WHERE_IT_RUNS = (
    "let the stage's function read it where it runs, from an environment variable, a file or an Airflow connection, "
    'and give its name, such as {"password_variable": "DB_PASSWORD"}'
)


def require_no_secrets(dataflow: str, stages: Sequence[Stage], parameters: Mapping[str, Any]) -> None:
    """Raise Misconfigured for Spark settings and parameters that look like secrets, without their values."""
    found = [
        f"stage {stage.name!r}: {text}, {_RECORDED}: {instead}"
        for what, instead in _INSTEAD.items()
        for stage in stages
        for text in secrets_in(what, getattr(stage, what))
    ]
    found += [
        f"stage {stage.name!r}: {text}, {_RECORDED}: let the application find it where it runs"
        for stage in stages
        if stage.application is not None
        for text in secrets_of(stage.application)
    ]
    found += [f"{text}, {_RECORDED}: {_WHERE_IT_RUNS}" for text in secrets_in("parameters", parameters)]
    refuse(dataflow, found)


# The dataflow, its stages one by one


def _dataflow_problems(dataflow: str, max_parallelism: int, stages: Sequence[Stage]) -> Iterator[str]:
    yield from _bad_name("the dataflow's name", dataflow)
    if not _whole(max_parallelism) or not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        yield Message(
            "dataflow.max_parallelism_out_of_range",
            most=MAX_PARALLELISM_LIMIT,
            max_parallelism=max_parallelism,
        )
    if not stages:
        yield Message("dataflow.no_stages")
    for stage in stages:
        if not isinstance(stage, Stage):
            yield Message("dataflow.stage_malformed", stage=shown(stage))


def _stage_problems(stage: Stage, flow_max: int) -> Iterator[str]:
    yield from _prefixed(stage, _bad_name("its name", stage.name))
    yield from _prefixed(stage, _function_problems(stage))
    yield from _prefixed(stage, _kind_problems(stage))
    yield from _prefixed(stage, _parallelism_problems(stage, flow_max))
    yield from _prefixed(stage, _settings_problems(stage))
    for argument, exchange in stage.exchanges.items():
        yield from _prefixed(stage, _argument_problems(stage, argument))
        yield from _prefixed(stage, declared_problems(argument, exchange, is_sink=stage.kind is StageKind.SINK))


def _prefixed(stage: Stage, problems: Iterable[str]) -> Iterator[str]:
    return (at(f"stage {stage.name!r}", problem) for problem in problems)


def _bad_name(what: str, name: object) -> Iterator[str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        yield Message("dataflow.name_malformed", what=what, most=MAX_NAME_LENGTH, name=name)
    elif name.startswith("weir_"):
        yield Message("dataflow.name_reserved", what=what, name=name[5:] or "something")


def _function_problems(stage: Stage) -> Iterator[str]:
    references = [] if stage.kind in (StageKind.SINK, StageKind.STATE) else [("function", stage.function)]
    if stage.resolve is not None:
        references.append(("resolve", stage.resolve))
    for what, reference in references:
        if what == "function" and stage.application is not None:
            own = {state.name for state in stage.states}
            yield from application_problems(stage.application, [each for each in stage.exchanges if each not in own])
            yield from _application_problems(stage)
        elif what == "function" and is_sql(reference):
            yield from path_problems(reference)
            yield from _sql_problems(stage)
        elif not isinstance(reference, str) or not _FUNCTION.fullmatch(reference):
            right = reference_for(reference)
            example = f'write "{right}"' if right else f'say "pipelines.flights:{stage.name}"'
            yield Message("dataflow.reference_malformed", what=what, example=example, reference=shown(reference))


def _sql_problems(stage: Stage) -> Iterator[str]:
    if stage.kind is StageKind.SOURCE:
        yield Message("dataflow.source_with_sql")
    if stage.states:
        yield Message("dataflow.sql_keeps_state", states=stage.states[0].name)


def _application_problems(stage: Stage) -> Iterator[str]:
    if stage.kind is StageKind.SOURCE:
        yield Message("dataflow.source_with_application")
    if stage.states:
        yield Message("dataflow.application_keeps_state", states=stage.states[0].name)


def _reuse_problems(stage: Stage) -> Iterator[str]:
    if stage.reuse is not Reuse.EQUAL:
        return
    if stage.kind is StageKind.SOURCE and stage.resolve is None:
        yield Message("dataflow.reuse_without_resolve")
    elif stage.states or stage.application is not None or not stage.deterministic:
        yield Message("dataflow.reuse_of_what_computes")


def _kind_problems(stage: Stage) -> Iterator[str]:
    own = {state.name for state in stage.states}
    if stage.kind is StageKind.SOURCE and stage.exchanges.keys() - own:
        yield Message("dataflow.source_with_inputs", listed=_listed(stage.exchanges))
    if stage.kind is StageKind.TRANSFORM and not stage.exchanges.keys() - own:
        yield Message("dataflow.stage_without_inputs")
    if stage.kind is not StageKind.SOURCE and stage.resolve is not None:
        yield Message("dataflow.resolve_without_source")
    if stage.options and stage.resolve is None:
        yield Message("dataflow.options_without_resolve")
    if stage.goes_on and stage.resolve is None:
        yield Message("dataflow.goes_on_without_resolve")
    yield from _reuse_problems(stage)
    if stage.moved_from and not stage.goes_on:
        yield Message("dataflow.moved_without_going_on")
    if stage.moved_from == stage.name:
        yield Message("dataflow.moved_from_itself")
    if stage.asset and stage.kind is not StageKind.SOURCE:
        yield Message("dataflow.asset_without_source")
    if stage.kind is StageKind.SINK and [e.kind for e in stage.exchanges.values()] != [ExchangeKind.PIPELINED]:
        yield Message("dataflow.sink_of_several")


def _parallelism_problems(stage: Stage, flow_max: int) -> Iterator[str]:
    maximum = flow_max if stage.max_parallelism is None else stage.max_parallelism
    if not _whole(maximum) or not 1 <= maximum <= MAX_PARALLELISM_LIMIT:
        yield Message("dataflow.max_parallelism_out_of_range", most=MAX_PARALLELISM_LIMIT, max_parallelism=maximum)
    elif not _whole(stage.parallelism) or stage.parallelism < 1:
        yield Message("dataflow.parallelism_malformed", parallelism=stage.parallelism)
    elif stage.parallelism > maximum:
        yield Message("dataflow.parallelism_above_maximum", parallelism=stage.parallelism, maximum=maximum)


def _settings_problems(stage: Stage) -> Iterator[str]:
    unfit = [text for what, value, kind, write in _settings_of(stage) for text in problem_of(what, value, kind, write)]
    if unfit:
        yield from unfit
        return
    for key, value in stage.spark.items():
        if not isinstance(key, str) or not isinstance(value, str):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield Message("dataflow.spark_setting_not_a_text", key=key, text=text, value=value)
    timeout = stage.task.execution_timeout
    if timeout is not None and not isinstance(timeout, timedelta):
        yield Message("dataflow.timeout_malformed", timeout=timeout)
    if not _is_json(stage.options):
        yield Message("dataflow.options_malformed", options=stage.options)
    if stage.asset != stage.asset.strip() or not stage.asset.isprintable():
        yield Message("dataflow.asset_malformed", asset=shown(stage.asset))
    if not isinstance(stage.deterministic, bool):
        yield Message("dataflow.deterministic_malformed", deterministic=stage.deterministic)
    yield from rule_problems(stage.digest)


def _settings_of(stage: Stage) -> Iterator[tuple[str, object, type | tuple[type, ...], str]]:
    """Yield each setting of a stage with its value, the type that it must have, and an example."""
    yield "spark", stage.spark, Mapping, 'spark={"spark.sql.shuffle.partitions": "8"}'
    yield "options", stage.options, Mapping, 'options={"name": "value"}'
    yield "asset", stage.asset, str, 'asset="name or URI of an Airflow asset"'
    yield "task", stage.task, TaskSettings, 'task=TaskSettings(pool="spark", priority_weight=2)'
    if isinstance(stage.task, TaskSettings):
        for what in ("pool", "queue", "spark_conn_id"):
            yield what, getattr(stage.task, what), (str, type(None)), f'{what}="name"'
        yield "priority_weight", stage.task.priority_weight, (int, type(None)), "priority_weight=2"
        yield "executor_config", stage.task.executor_config, Mapping, "executor_config={...}, or leave it out"
    for argument, exchange in stage.exchanges.items():
        for what in ("broadcast", "pointwise", "durable"):
            yield f"{what} of input {argument!r}", getattr(exchange, what), bool, f"{what}=True or {what}=False"


def _is_json(options: object) -> bool:
    try:
        return bool(json.loads(json.dumps(options, allow_nan=False)) == options)
    except (TypeError, ValueError):
        return False


def _argument_problems(stage: Stage, argument: object) -> Iterator[str]:
    if stage.kind in (StageKind.SINK, StageKind.STATE):
        return
    if not isinstance(argument, str) or not argument.isidentifier() or keyword.iskeyword(argument):
        yield Message("dataflow.argument_malformed", argument=argument)
    elif argument in _RESERVED_ARGUMENTS:
        yield Message("dataflow.argument_is_first", argument=argument)


# Quality gates


def quality_problems(stage: Stage) -> Iterator[str]:
    """Yield the problems of the gates of a stage and of its states."""
    yield from _gate_problems(f"stage {stage.name!r}", stage.gates)
    for state in stage.states:
        if isinstance(state, State):
            where = f"stage {stage.name!r}, state {state.name!r}"
            yield from _gate_problems(where, state.quality)


def _gate_problems(where: str, gates: Iterable[Gate]) -> Iterator[str]:
    found = list(gates)
    for gate in found:
        if not isinstance(gate, Gate):
            yield Message("dataflow.not_a_gate", where=where, gate=shown(gate))
            return
        if not isinstance(gate.suite, str) or not _SUITE.fullmatch(gate.suite) or len(gate.suite) > MAX_SUITE_LENGTH:
            yield Message("dataflow.suite_malformed", where=where, most=MAX_SUITE_LENGTH, suite=gate.suite)
        elif gate.suite == RESERVED:
            yield Message("dataflow.suite_reserved", where=where, reserved=RESERVED)
    for suite, count in Counter(gate.suite for gate in found).items():
        if count > 1:
            yield Message("dataflow.suite_repeated", where=where, suite=suite, times=count)


# Exchanges


def declared_problems(argument: str, exchange: Exchange, *, is_sink: bool) -> Iterator[str]:
    """Yield the problems of an exchange by itself; the caller names the stage."""
    if not is_sink:  # the keys of one divide its files, not its rows
        yield from _divided_problems(argument, exchange)
    yield from _expected_schema_problems(argument, exchange)
    if not exchange.durable and exchange.kind is not ExchangeKind.CACHED:
        yield Message("dataflow.durable_not_cached", argument=argument)
    keys = exchange.keys
    if any(not isinstance(key, str) or not key for key in keys):
        yield Message("dataflow.keys_malformed", argument=argument, keys=list(keys))
    elif len(set(keys)) < len(keys):
        yield Message("dataflow.key_repeated", argument=argument, keys=list(keys))


def _divided_problems(argument: str, exchange: Exchange) -> Iterator[str]:
    kind = exchange.kind.value
    if exchange.joins_plan and (exchange.keys or exchange.broadcast or exchange.pointwise):
        yield Message("dataflow.exchange_divides", argument=argument, kind=kind)
        return
    if exchange.keys and exchange.broadcast:
        yield Message("dataflow.by_and_broadcast", argument=argument)
    if not exchange.pointwise:
        return
    if exchange.is_previous:
        yield Message("dataflow.previous_pointwise", argument=argument)
    elif exchange.keys or exchange.broadcast:
        other = "by=" if exchange.keys else "broadcast=True"
        yield Message("dataflow.pointwise_and_other", argument=argument, other=other)


def _expected_schema_problems(argument: str, exchange: Exchange) -> Iterator[str]:
    schema = exchange.schema
    if exchange.is_dataset:
        if exchange.missing == SKIP and not schema:
            yield Message("dataflow.dataset_without_schema", argument=argument, name=exchange.stage)
    elif not exchange.is_previous:
        if schema:
            yield Message("dataflow.schema_of_other_exchange", argument=argument)
    elif not isinstance(schema, str) or not schema.strip():
        yield Message("dataflow.previous_without_schema", argument=argument, stage=exchange.stage)


def _input_problems(stage: Stage, by_name: dict[str, Stage]) -> Iterator[str]:
    for argument, exchange in stage.exchanges.items():
        producer = by_name.get(exchange.stage)
        if exchange.is_dataset:
            continue
        if producer is None:
            known = [each.name for each in by_name.values() if each.kind in _READABLE and each.name != stage.name]
            hint = did_you_mean(exchange.stage, known, _add_it(exchange.stage, known), most=3)
            yield Message("dataflow.input_unknown", stage=stage.name, producer=exchange.stage, hint=hint)
        elif producer.kind is StageKind.SINK:
            published = next(iter(producer.exchanges.values())).stage
            yield Message("dataflow.input_is_a_sink", stage=stage.name, sink=exchange.stage, published=published)
        elif producer.kind is StageKind.STATE and not reads_state(stage, argument, [*by_name.values()]):
            keeper = next(iter(producer.exchanges.values())).stage
            yield Message("dataflow.input_is_a_state", stage=stage.name, state=exchange.stage, keeper=keeper)


def _own_datasets(dataflow: str, stage: Stage) -> Iterator[str]:
    for exchange in stage.exchanges.values():
        if exchange.is_dataset and dataset_of(exchange.stage).dataflow == dataflow:
            yield Message("dataflow.dataset_of_itself", stage=stage.name, name=exchange.stage)


def _add_it(name: str, known: Sequence[str]) -> str:
    others = f", or read {_listed(known, ' or ')}" if known else ""
    return Message("dataflow.stage_to_be_added", name=name, others=others)


def meeting_problems(stage: Stage, by_name: Mapping[str, Stage]) -> Iterator[str]:
    """Yield the conflicts of a stage's exchanges with their producers and with each other."""
    for argument, exchange in stage.exchanges.items():
        if exchange.is_dataset:
            if stage.parallelism > 1 and not (exchange.keys or exchange.broadcast):
                yield _undivided(stage, argument, exchange)
            continue
        producer = by_name[exchange.stage]
        unequal = producer.parallelism != stage.parallelism
        if exchange.joins_plan and unequal:
            yield Message(
                "dataflow.parallelism_differs",
                stage=stage.name,
                parallelism=stage.parallelism,
                producer=producer.name,
                of_producer=producer.parallelism,
                kind=exchange.kind.value,
            )
        elif exchange.pointwise and unequal:
            yield Message(
                "dataflow.pointwise_parallelism_differs",
                stage=stage.name,
                parallelism=stage.parallelism,
                producer=producer.name,
                of_producer=producer.parallelism,
            )
        yield from _application_in_plan(stage, producer, exchange)
        yield from _ignored_keys(stage, producer, exchange)
        if exchange.kind is ExchangeKind.CACHED and exchange.durable and producer.states:
            yield Message("dataflow.cached_exchange_with_state", stage=stage.name, producer=producer.name)
        divides = exchange.keys or exchange.broadcast or exchange.pointwise or exchange.joins_plan
        if stage.parallelism > 1 and not divides:
            yield _undivided(stage, argument, exchange)
    keyed = {argument: exchange.keys for argument, exchange in stage.exchanges.items() if exchange.keys}
    if len({len(keys) for keys in keyed.values()}) > 1:
        listed = ", ".join(f"{argument} by {list(keys)}" for argument, keys in keyed.items())
        yield Message("dataflow.key_counts_differ", stage=stage.name, listed=listed)


def _application_in_plan(stage: Stage, producer: Stage, exchange: Exchange) -> Iterator[str]:
    if not exchange.joins_plan or stage.kind in (StageKind.SINK, StageKind.STATE):
        return
    for each in (stage, producer):
        if each.application is not None:
            yield Message(
                "dataflow.application_in_plan",
                stage=stage.name,
                producer=producer.name,
                kind=exchange.kind.value,
                each=each.name,
            )
            return


def _ignored_keys(stage: Stage, producer: Stage, exchange: Exchange) -> Iterator[str]:
    for key in exchange.keys:
        if key in producer.digest.ignore:
            yield Message("dataflow.key_ignored_by_digest", stage=stage.name, producer=producer.name, key=key)


def _undivided(stage: Stage, argument: str, exchange: Exchange) -> str:
    word, more = exchange.kind.value, ", schema=..." if exchange.is_previous else ""
    if not (exchange.is_previous or exchange.is_dataset):
        word = "blocking"
    return Message(
        "dataflow.input_not_divided",
        stage=stage.name,
        parallelism=stage.parallelism,
        argument=argument,
        word=word,
        producer=exchange.stage,
        more=more,
    )


# Stages together


def _name_problems(stages: Sequence[Stage]) -> Iterator[str]:
    for name, count in Counter(stage.name for stage in stages).items():
        if count > 1:
            yield _same_name(name, [stage for stage in stages if stage.name == name])


def _same_name(name: str, stages: Sequence[Stage]) -> str:
    kinds = [stage.kind for stage in stages]
    if set(kinds) == {StageKind.SINK}:
        return Message("dataflow.sinks_share_name", sinks=len(kinds), name=name)
    if set(kinds) == {StageKind.STATE}:
        keepers = _listed((next(iter(stage.exchanges)) for stage in stages), " and ")
        return Message("dataflow.states_share_name", keepers=keepers, name=name)
    if StageKind.SINK in kinds:
        what = "state" if set(kinds) == {StageKind.SINK, StageKind.STATE} else "stage"
        published = next(iter(stages[kinds.index(StageKind.SINK)].exchanges.values())).stage
        return Message("dataflow.sink_named_as_another", name=name, what=what, published=published)
    if StageKind.STATE in kinds:
        keeper = next(iter(stages[kinds.index(StageKind.STATE)].exchanges.values())).stage
        return Message("dataflow.state_named_as_stage", name=name, keeper=keeper)
    if all(stage == stages[0] for stage in stages):
        return Message("dataflow.stage_repeated", stages=stages[0], times=len(stages))
    return Message("dataflow.stages_share_name", name=name, stages=len(stages))


def _target_problems(stages: Sequence[Stage]) -> Iterator[str]:
    """Yield the tables and folders that several sinks publish into, or that have several states."""
    own = [(stage.name, each) for stage in stages for each in stage.targets]
    own += [(state.name, table) for state, table in tables_of(stages)]
    for one, into, other, target in shared(own):
        how = "one below the other" if "path" in into.options else "one table if one schema: write it for both"
        where = f"one target, {into}" if str(into) == str(target) else f"{into} and {target}, {how}"
        names = f"{_listed([one, other], ' and ')}" if one != other else f"the targets of sink {one!r}"
        yield Message("dataflow.targets_shared", names=names, where=where)


def _cycle_problems(reads: dict[str, list[str]]) -> Iterator[str]:
    cycle = find_cycle(reads)
    if cycle:
        yield Message("dataflow.cycle", cycle=cycle)


def _with_settings_of_producer(stage: Stage, by_name: dict[str, Stage]) -> Stage:
    if stage.kind not in (StageKind.SINK, StageKind.STATE):
        return stage
    producer = by_name[next(iter(stage.exchanges.values())).stage]
    return replace(
        stage,
        parallelism=producer.parallelism,
        max_parallelism=producer.max_parallelism,
        deterministic=producer.deterministic,
        digest=producer.digest,
    )


def _unread_problems(stages: Sequence[Stage]) -> Iterator[str]:
    read = {exchange.stage for stage in stages for exchange in stage.exchanges.values() if exchange.stage != stage.name}
    for stage in stages:
        if stage.kind is not StageKind.SINK and stage.name not in read and not stage.states:
            yield Message("dataflow.stage_not_read", stage=stage.name)


# Regions


def _region_problems(stages: Sequence[Stage]) -> Iterator[str]:
    groups = pipelined_groups(stages)
    inside = [text for group in groups for text in _blocking_inside(group)]
    if inside:
        yield from inside
        return
    named = {group[0].name: "-".join(stage.name for stage in group) for group in groups}
    cycle = find_cycle(group_reads(groups))
    if cycle:
        pipelines = [e for group in groups if group[0].name in cycle for e in _pipelined_inside(group)]
        yield Message("dataflow.cycle_of_tasks", cycle=[named[name] for name in cycle], listed=_listed(pipelines))
        return
    for group in groups:
        yield from _conflicting_settings(group)
        yield from states_of_other_tasks(group, stages)


def _blocking_inside(group: Sequence[Stage]) -> Iterator[str]:
    names = [stage.name for stage in group]
    for stage in group:
        for exchange in stage.exchanges.values():
            if exchange.is_boundary and exchange.stage in names:
                yield Message(
                    "dataflow.blocking_inside_a_task",
                    stage=stage.name,
                    producer=exchange.stage,
                    listed=_listed(names),
                    exchanges=_listed(_pipelined_inside(group)),
                )


def _pipelined_inside(group: Sequence[Stage]) -> list[str]:
    return [
        f"{exchange.stage} -> {stage.name}"
        for stage in group
        for exchange in stage.exchanges.values()
        if exchange.joins_plan and stage.kind not in (StageKind.SINK, StageKind.STATE)
    ]


def _conflicting_settings(group: Sequence[Stage]) -> Iterator[str]:
    for merge in (task_settings, spark_conf):
        try:
            merge(group)
        except Misconfigured as error:
            yield said_by(error)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(names: Iterable[str], separator: str = ", ") -> str:
    return separator.join(repr(name) for name in names)
