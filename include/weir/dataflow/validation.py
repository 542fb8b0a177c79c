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
from weir.dataflow.graph import find_cycle, group_reads, pipelined_groups, topological_order
from weir.dataflow.quality import Gate
from weir.dataflow.stage import (
    Exchange,
    ExchangeKind,
    Stage,
    StageKind,
    TaskSettings,
    spark_conf,
    task_settings,
)
from weir.dataflow.state import State, StateKind
from weir.dataflow.state_rules import divided_problems, state_problems, type_problems, with_state_stages
from weir.dataflow.targets import shared
from weir.errors import Misconfigured
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
    reads = {
        stage.name: [exchange.stage for exchange in stage.exchanges.values() if not exchange.is_previous]
        for stage in stages
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
        raise Misconfigured(f"dataflow {dataflow!r}: {found[0]}")
    if found:
        raise Misconfigured(f"dataflow {dataflow!r} has {len(found)} problems:\n" + "\n".join(f"- {p}" for p in found))


# Secrets

_RECORDED = "and is recorded in the ledger, manifests and job files"
_WHERE_SPARK_STARTS = (
    "set it where Spark starts, in spark-defaults.conf or the environment (such as AWS_SECRET_ACCESS_KEY) of the "
    "Connect server or of spark-submit, or let a credential provider find it"
)
_WHERE_IT_RUNS = (
    "let the stage's function read it where it runs, from an environment variable, a file or an Airflow connection, "
    'and give its name, such as {"password_variable": "DB_PASSWORD"}'
)


def require_no_secrets(dataflow: str, stages: Sequence[Stage], parameters: Mapping[str, Any]) -> None:
    """Raise Misconfigured for Spark settings and parameters that look like secrets, without their values."""
    found = [
        f"stage {stage.name!r}: {text}, {_RECORDED}: {_WHERE_SPARK_STARTS}"
        for stage in stages
        for text in secrets_in("spark", stage.spark)
    ]
    found += [
        f"stage {stage.name!r}: {text}, {_RECORDED}: name an Airflow connection, which is looked up where it is used"
        for stage in stages
        for text in secrets_in("options", stage.options)
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
        yield f"max_parallelism must be a whole number from 1 to {MAX_PARALLELISM_LIMIT}, not {max_parallelism!r}"
    if not stages:
        yield "it has no stages: declare at least a source and a sink"
    for stage in stages:
        if not isinstance(stage, Stage):
            yield f"{shown(stage)} is not a stage: write source(...), Stage(...) or sink(...)"


def _stage_problems(stage: Stage, flow_max: int) -> Iterator[str]:
    yield from _prefixed(stage, _bad_name("its name", stage.name))
    yield from _prefixed(stage, _function_problems(stage))
    yield from _prefixed(stage, _kind_problems(stage))
    yield from _prefixed(stage, _parallelism_problems(stage, flow_max))
    yield from _prefixed(stage, _settings_problems(stage))
    for argument, exchange in stage.exchanges.items():
        yield from _prefixed(stage, _argument_problems(stage, argument))
        yield from _prefixed(stage, declared_problems(argument, exchange))


def _prefixed(stage: Stage, problems: Iterable[str]) -> Iterator[str]:
    return (f"stage {stage.name!r}: {problem}" for problem in problems)


def _bad_name(what: str, name: object) -> Iterator[str]:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        yield (
            f"{what} must be lower-case letters, digits and underscores, begin with a letter and have at most "
            f"{MAX_NAME_LENGTH} characters, not {name!r}"
        )
    elif name.startswith("weir_"):
        yield f"{what} begins with 'weir_', which is reserved for Weir's own tasks: call it {name[5:] or 'something'!r}"


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
            yield f'{what} must look like "module:function" ({example}), not {shown(reference)}'


def _sql_problems(stage: Stage) -> Iterator[str]:
    if stage.kind is StageKind.SOURCE:
        yield "a source needs a function: write it, and query its rows in a stage that reads it"
    if stage.states:
        yield f"a query keeps no state: write a function, whose argument {stage.states[0].name!r} is the state's handle"


def _application_problems(stage: Stage) -> Iterator[str]:
    if stage.kind is StageKind.SOURCE:
        yield "a source needs a function: write it, and let the application read its rows as a Stage(...)"
    if stage.states:
        yield (
            "an application keeps no state: read what the epoch before has written over previous(...), or write a "
            f"function, whose argument {stage.states[0].name!r} is the state's handle"
        )


def _kind_problems(stage: Stage) -> Iterator[str]:
    own = {state.name for state in stage.states}
    if stage.kind is StageKind.SOURCE and stage.exchanges.keys() - own:
        yield f"a source has no inputs, this one reads {_listed(stage.exchanges)}: write Stage(...), not source(...)"
    if stage.kind is StageKind.TRANSFORM and not stage.exchanges.keys() - own:
        yield "it has no inputs: write source(...) instead of Stage(...), or give inputs=[pipelined(x)]"
    if stage.kind is not StageKind.SOURCE and stage.resolve is not None:
        yield "only a source has resolve=: move it to the source that this stage reads"
    if stage.options and stage.resolve is None:
        yield "options= are for the function that resolve= names: give resolve=, or leave options= out"
    if stage.kind is StageKind.SINK and [e.kind for e in stage.exchanges.values()] != [ExchangeKind.PIPELINED]:
        yield "a sink publishes exactly one stage: write sink(x, name)"


def _parallelism_problems(stage: Stage, flow_max: int) -> Iterator[str]:
    maximum = flow_max if stage.max_parallelism is None else stage.max_parallelism
    if not _whole(maximum) or not 1 <= maximum <= MAX_PARALLELISM_LIMIT:
        yield f"max_parallelism must be a whole number from 1 to {MAX_PARALLELISM_LIMIT}, not {maximum!r}"
    elif not _whole(stage.parallelism) or stage.parallelism < 1:
        yield f"parallelism must be a whole number of at least 1, not {stage.parallelism!r}"
    elif stage.parallelism > maximum:
        yield (
            f"parallelism {stage.parallelism} is above the maximum of {maximum}: lower it, or raise max_parallelism "
            "(which changes the key groups, so that existing results are laid out anew)"
        )


def _settings_problems(stage: Stage) -> Iterator[str]:
    unfit = [text for what, value, kind, write in _settings_of(stage) for text in problem_of(what, value, kind, write)]
    if unfit:
        yield from unfit
        return
    for key, value in stage.spark.items():
        if not isinstance(key, str) or not isinstance(value, str):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield f'Spark settings are text: write spark={{"{key}": "{text}"}}, not {value!r}'
    timeout = stage.task.execution_timeout
    if timeout is not None and not isinstance(timeout, timedelta):
        yield f"execution_timeout must be a timedelta, not {timeout!r}: write timedelta(minutes=...)"
    if not _is_json(stage.options):
        yield f"options must be a dict of JSON values (texts, numbers, lists, dicts), not {stage.options!r}"
    if not isinstance(stage.deterministic, bool):
        yield f"deterministic must be True or False, not {stage.deterministic!r}"
    yield from rule_problems(stage.digest)


def _settings_of(stage: Stage) -> Iterator[tuple[str, object, type | tuple[type, ...], str]]:
    """Yield each setting of a stage with its value, the type that it must have, and an example."""
    yield "spark", stage.spark, Mapping, 'spark={"spark.sql.shuffle.partitions": "8"}'
    yield "options", stage.options, Mapping, 'options={"name": "value"}'
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
        yield f"input {argument!r} cannot be a function's argument: name it like a Python variable"
    elif argument in _RESERVED_ARGUMENTS:
        yield f"input {argument!r} is the name of the function's first argument: give this input another name"


# Quality gates


def quality_problems(stage: Stage) -> Iterator[str]:
    """Yield the problems of the gates of a stage and of its states."""
    yield from _gate_problems(f"stage {stage.name!r}", stage.gates)
    for state in stage.states:
        if isinstance(state, State):
            where = f"stage {stage.name!r}, state {state.name!r}"
            yield from _gate_problems(where, state.quality)
            yield from (f"{where}: {problem}" for problem in _checked_state_problems(state))


def _gate_problems(where: str, gates: Iterable[Gate]) -> Iterator[str]:
    found = list(gates)
    for gate in found:
        if not isinstance(gate, Gate):
            yield f'{where}: {shown(gate)} is no gate: write quality=expectations("name_of_a_suite")'
            return
        if not isinstance(gate.suite, str) or not _SUITE.fullmatch(gate.suite) or len(gate.suite) > MAX_SUITE_LENGTH:
            yield (
                f"{where}: a suite is named like its file include/expectations/<suite>.json, in letters, digits, "
                f"underscores, dots and hyphens, at most {MAX_SUITE_LENGTH} of them, not {gate.suite!r}"
            )
        elif gate.suite == RESERVED:
            yield f"{where}: the suite {RESERVED!r} is reserved for the built-in checks: give it another name"
    for suite, count in Counter(gate.suite for gate in found).items():
        if count > 1:
            yield f"{where}: the suite {suite!r} is named {count} times: once is enough"


def _checked_state_problems(state: State) -> Iterator[str]:
    if state.kind is not StateKind.KEYED and (state.grows or state.quality):
        yield "only a keyed state has rows that can be checked: leave grows= and quality= out"
    if not isinstance(state.grows, bool):
        yield f"grows must be True or False, not {state.grows!r}"
    elif state.grows and state.ttl is not None:
        yield "grows=True requires that there are never fewer rows, but with ttl= rows expire: leave one of them out"


# Exchanges


def declared_problems(argument: str, exchange: Exchange) -> Iterator[str]:
    """Yield the problems of an exchange by itself; the caller names the stage."""
    yield from _divided_problems(argument, exchange)
    yield from _expected_schema_problems(argument, exchange)
    if not exchange.durable and exchange.kind is not ExchangeKind.CACHED:
        yield f"input {argument!r}: only a cached exchange can have durable=False: write cached(x, durable=False)"
    keys = exchange.keys
    if any(not isinstance(key, str) or not key for key in keys):
        yield f"input {argument!r}: keys must be names of columns, not {list(keys)!r}"
    elif len(set(keys)) < len(keys):
        yield f"input {argument!r}: a key is named twice in {list(keys)!r}"


def _divided_problems(argument: str, exchange: Exchange) -> Iterator[str]:
    kind = exchange.kind.value
    if exchange.joins_plan and (exchange.keys or exchange.broadcast or exchange.pointwise):
        yield (
            f"input {argument!r}: a {kind} exchange has neither keys nor broadcast nor pointwise, since it joins its "
            "ends index to index: write blocking(...) to divide the rows otherwise"
        )
        return
    if exchange.keys and exchange.broadcast:
        yield f"input {argument!r} has both by= and broadcast=True: keep by= to divide the rows, broadcast to copy them"
    if not exchange.pointwise:
        return
    if exchange.is_previous:
        yield (
            f"input {argument!r}: a previous exchange is not pointwise, since the previous epoch may have had another "
            "parallelism: write previous(x, by=[columns], schema=...)"
        )
    elif exchange.keys or exchange.broadcast:
        other = "by=" if exchange.keys else "broadcast=True"
        yield (
            f"input {argument!r} has both pointwise=True and {other}: keep pointwise if subtask i needs only what "
            f"subtask i wrote, {other} if it needs rows of others"
        )


def _expected_schema_problems(argument: str, exchange: Exchange) -> Iterator[str]:
    schema = exchange.schema
    if not exchange.is_previous:
        if schema:
            yield f"input {argument!r}: only a previous exchange has schema=: remove it, or write previous(...)"
    elif not isinstance(schema, str) or not schema.strip():
        yield (
            f"input {argument!r} needs schema=, since the first epoch has no previous one: write "
            f'previous("{exchange.stage}", schema="id BIGINT, seen TIMESTAMP") with the columns that it reads'
        )


def _input_problems(stage: Stage, by_name: dict[str, Stage]) -> Iterator[str]:
    for exchange in stage.exchanges.values():
        producer = by_name.get(exchange.stage)
        if producer is None:
            known = [each.name for each in by_name.values() if each.kind in _READABLE and each.name != stage.name]
            hint = did_you_mean(exchange.stage, known, _add_it(exchange.stage, known), most=3)
            yield f"stage {stage.name!r} reads {exchange.stage!r}, which is not a stage of this dataflow: {hint}"
        elif producer.kind is StageKind.SINK:
            published = next(iter(producer.exchanges.values())).stage
            yield f"stage {stage.name!r} reads the sink {exchange.stage!r}: read the stage {published!r} instead"
        elif producer.kind is StageKind.STATE and exchange.stage not in {state.name for state in stage.states}:
            keeper = next(iter(producer.exchanges.values())).stage
            yield (
                f"stage {stage.name!r} reads {exchange.stage!r}, which is a state of {keeper!r} and only its own: read "
                f"what {keeper!r} returns instead"
            )


def _add_it(name: str, known: Sequence[str]) -> str:
    others = f", or read {_listed(known, ' or ')}" if known else ""
    return f"add {name!r} to the dataflow's list of stages{others}"


def meeting_problems(stage: Stage, by_name: Mapping[str, Stage]) -> Iterator[str]:
    """Yield the conflicts of a stage's exchanges with their producers and with each other."""
    for argument, exchange in stage.exchanges.items():
        producer = by_name[exchange.stage]
        unequal = producer.parallelism != stage.parallelism
        if exchange.joins_plan and unequal:
            yield (
                f"stage {stage.name!r} (parallelism {stage.parallelism}) reads {producer.name!r} (parallelism "
                f"{producer.parallelism}) over a {exchange.kind.value} exchange, which joins them index to index: give "
                f'both the same parallelism, or write blocking("{producer.name}", by=...)'
            )
        elif exchange.pointwise and unequal:
            yield (
                f"stage {stage.name!r} (parallelism {stage.parallelism}) reads {producer.name!r} (parallelism "
                f"{producer.parallelism}) over a pointwise exchange, where subtask i reads partition i: give both the "
                f'same parallelism, or write blocking("{producer.name}", by=[columns])'
            )
        yield from _application_in_plan(stage, producer, exchange)
        yield from _ignored_keys(stage, producer, exchange)
        if exchange.kind is ExchangeKind.CACHED and exchange.durable and producer.states:
            yield (
                f"stage {stage.name!r} reads {producer.name!r} over a cached exchange, but a retry that resumes after "
                f"{producer.name!r} would skip the changes of its state: write pipelined({producer.name!r}), "
                f"and cache what {producer.name!r} reads"
            )
        divides = exchange.keys or exchange.broadcast or exchange.pointwise or exchange.joins_plan
        if stage.parallelism > 1 and not divides:
            yield _undivided(stage, argument, exchange)
    keyed = {argument: exchange.keys for argument, exchange in stage.exchanges.items() if exchange.keys}
    if len({len(keys) for keys in keyed.values()}) > 1:
        listed = ", ".join(f"{argument} by {list(keys)}" for argument, keys in keyed.items())
        yield (
            f"stage {stage.name!r}: its keyed inputs have different numbers of keys ({listed}), so that equal keys "
            "would meet in different subtasks: give each as many, in the same order, or broadcast the smaller input"
        )


def _application_in_plan(stage: Stage, producer: Stage, exchange: Exchange) -> Iterator[str]:
    if not exchange.joins_plan or stage.kind in (StageKind.SINK, StageKind.STATE):
        return
    for each in (stage, producer):
        if each.application is not None:
            yield (
                f"stage {stage.name!r} reads {producer.name!r} over a {exchange.kind.value} exchange, but "
                f"{each.name!r} is an application, which is a process of its own and in no plan with others: write "
                f'blocking("{producer.name}", ...)'
            )
            return


def _ignored_keys(stage: Stage, producer: Stage, exchange: Exchange) -> Iterator[str]:
    for key in exchange.keys:
        if key in producer.digest.ignore:
            yield (
                f"stage {stage.name!r} reads {producer.name!r} by {key!r}, which the digest of {producer.name!r} "
                f"ignores, so that a row could move to another subtask unnoticed: remove {key!r} from "
                "digest(ignore=...), or read by another column"
            )


def _undivided(stage: Stage, argument: str, exchange: Exchange) -> str:
    word, more = ("previous", ", schema=...") if exchange.is_previous else ("blocking", "")
    return (
        f"stage {stage.name!r} has parallelism {stage.parallelism}, but its input {argument!r} does not say which rows "
        f'each subtask reads: write {word}("{exchange.stage}", by=[columns]{more}), or '
        f'{word}("{exchange.stage}", broadcast=True{more}) to give every subtask all rows'
    )


# Stages together


def _name_problems(stages: Sequence[Stage]) -> Iterator[str]:
    for name, count in Counter(stage.name for stage in stages).items():
        if count > 1:
            yield _same_name(name, [stage for stage in stages if stage.name == name])


def _same_name(name: str, stages: Sequence[Stage]) -> str:
    kinds = [stage.kind for stage in stages]
    if set(kinds) == {StageKind.SINK}:
        return f"{len(kinds)} sinks have the name {name!r}: give each data set a name of its own"
    if set(kinds) == {StageKind.STATE}:
        keepers = _listed((next(iter(stage.exchanges)) for stage in stages), " and ")
        return f"stages {keepers} keep a state {name!r} each: a state has one stage, give each a name of its own"
    if StageKind.SINK in kinds:
        what = "state" if set(kinds) == {StageKind.SINK, StageKind.STATE} else "stage"
        published = next(iter(stages[kinds.index(StageKind.SINK)].exchanges.values())).stage
        return (
            f"the sink {name!r} has the name of a {what}: give the data set another name, as in "
            f'sink("{published}", "{published}_published")'
        )
    if StageKind.STATE in kinds:
        keeper = next(iter(stages[kinds.index(StageKind.STATE)].exchanges.values())).stage
        return f"the state {name!r} of stage {keeper!r} has the name of a stage: give one of them another name"
    if all(stage == stages[0] for stage in stages):
        return f"{stages[0]} is {len(stages)} times in the list of stages: name it once"
    return f"stage {name!r} is declared {len(stages)} times: names of stages and sinks must differ, rename all but one"


def _target_problems(stages: Sequence[Stage]) -> Iterator[str]:
    """Yield the tables and folders that several sinks publish into."""
    for one, into, other, target in shared((stage.name, each) for stage in stages for each in stage.targets):
        how = "one below the other" if "path" in into.options else "one table if one schema: write it for both"
        where = f"one target, {into}" if str(into) == str(target) else f"{into} and {target}, {how}"
        names = f"sinks {_listed([one, other], ' and ')}" if one != other else f"the targets of sink {one!r}"
        yield f"{names} publish into {where}: give each a table or folder of its own"


def _cycle_problems(reads: dict[str, list[str]]) -> Iterator[str]:
    cycle = find_cycle(reads)
    if cycle:
        yield f"the stages read each other in a cycle, {' -> '.join(cycle)}: remove one of these inputs"


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
            yield f'stage {stage.name!r}: no stage reads it: add sink("{stage.name}", "name_of_data_set"), or remove it'


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
        yield (
            f"the tasks wait for each other in a cycle, {' -> '.join(named[name] for name in cycle)}: "
            f"make one of the pipelined exchanges {_listed(pipelines)} a blocking one"
        )
        return
    for group in groups:
        yield from _conflicting_settings(group)


def _blocking_inside(group: Sequence[Stage]) -> Iterator[str]:
    names = [stage.name for stage in group]
    for stage in group:
        for exchange in stage.exchanges.values():
            if exchange.is_boundary and exchange.stage in names:
                yield (
                    f"stage {stage.name!r} reads {exchange.stage!r} over a blocking exchange inside one task, since "
                    f'pipelined exchanges join {_listed(names)}: write pipelined("{exchange.stage}") if each subtask '
                    f'needs only its own rows (cached("{exchange.stage}") if a retry is not to compute them again), or '
                    f"make one of {_listed(_pipelined_inside(group))} blocking too"
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
            yield str(error)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(names: Iterable[str], separator: str = ", ") -> str:
    return separator.join(repr(name) for name in names)
