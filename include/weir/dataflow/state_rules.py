"""Validation of states, and the stages that they are.

Invariants: every problem names its stage and state, and says what to write instead. A stage that keeps a keyed state
with several subtasks reads an input by as many keys as the state has, so that a row and its state can meet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from weir.dataflow.arguments import shown
from weir.dataflow.key_types import canonical_type
from weir.dataflow.stage import Exchange, ExchangeKind, Stage, StageKind, pipelined
from weir.dataflow.state import State, StateKind
from weir.dataflow.state_schema import Fields, fields_of_ddl, stored_fields
from weir.dataflow.targets import Target
from weir.errors import Message, Misconfigured, at, said_by
from weir.units import size_from_text, time_from_text


def state_problems(stage: Stage) -> Iterator[str]:
    """Yield the problems of the states of a stage."""
    for state in stage.states:
        if not isinstance(state, State):
            yield Message("dataflow.not_a_state", stage=stage.name, state=shown(state))
            continue
        where = f"stage {stage.name!r}, state {state.name!r}"
        yield from (at(where, problem) for problem in _problems_of_state(stage, state))


def _problems_of_state(stage: Stage, state: State) -> Iterator[str]:
    if stage.kind in (StageKind.SINK, StageKind.STATE):
        yield Message("dataflow.sink_keeps_state")
    if stage.exchanges.get(state.name, previous_of(state)) != previous_of(state):
        yield Message("dataflow.state_named_as_input")
    if not isinstance(state.schema, str) or not state.schema.strip():
        yield Message("dataflow.state_without_schema")
    else:
        yield from _state_schema_problems(state)
    if state.kind is StateKind.KEYED and not state.divided_by:
        yield Message("dataflow.state_without_key")
    if len({*state.keys}) < len(state.keys):
        yield Message("dataflow.state_key_twice", keys=state.keys)
    if not isinstance(state.runs, int) or state.runs < 2:
        yield Message("dataflow.runs_malformed", runs=state.runs)
    yield from _checked_state_problems(state)
    try:
        size_from_text("budget", state.budget)
        if state.ttl is not None and time_from_text("ttl", state.ttl) is None:
            yield Message("dataflow.ttl_is_forever")
    except Misconfigured as error:
        yield said_by(error)


def _checked_state_problems(state: State) -> Iterator[str]:
    if state.kind is not StateKind.KEYED and (state.grows or state.quality):
        yield Message("dataflow.state_not_checkable")
    if not isinstance(state.grows, bool):
        yield Message("dataflow.grows_malformed", grows=state.grows)
    elif state.grows and state.ttl is not None:
        yield Message("dataflow.grows_with_ttl")


def _state_schema_problems(state: State) -> Iterator[str]:
    try:
        fields = fields_of_ddl(state.schema)
    except Misconfigured as error:
        yield said_by(error)
        return
    for name in fields:
        if name.lower().startswith("_weir_"):
            yield Message("dataflow.state_column_reserved", name=name)
    for key in state.keys:
        if key not in fields:
            yield Message("dataflow.state_key_not_in_schema", key=key, fields=fields)
            continue
        try:
            canonical_type(str(fields[key].kind))
        except Misconfigured as error:
            yield str(error).replace(", in the stage that writes it", ", and declare it so")


def type_problems(stages: Sequence[Stage]) -> Iterator[str]:
    """Yield what is wrong with the columns of states, and of inputs with a schema: their types, and keys among them."""
    states = {name: state.kind for name, state in states_of(stages).items()}
    for stage in stages:
        for argument, exchange in stage.exchanges.items():
            if not exchange.schema:
                continue
            where = f"stage {stage.name!r}, {'state' if exchange.stage in states else 'input'} {argument!r}"
            try:
                fields = stored_fields(
                    exchange.schema, has_collations=states.get(exchange.stage) is not StateKind.KEYED
                )
            except Misconfigured as error:
                yield at(where, said_by(error))
                continue
            if exchange.stage not in states:
                yield from (at(where, problem) for problem in _key_problems(exchange.keys, fields))


def _key_problems(keys: Sequence[str], fields: Fields) -> Iterator[str]:
    """Yield the columns that divide an input and that its schema does not have, or has of a type that divides none."""
    kinds = {name.lower(): field.kind for name, field in fields.items()}
    for key in keys:
        if key.lower() not in kinds:
            yield Message("dataflow.key_not_in_schema", key=key, fields=list(fields))
            continue
        try:
            canonical_type(str(kinds[key.lower()]))
        except Misconfigured as error:
            yield said_by(error)


def divided_problems(stages: Sequence[Stage]) -> Iterator[str]:
    """Yield the keyed states whose rows their subtasks would not find: no input of the stage has the state's keys."""
    by_name = {stage.name: stage for stage in stages}
    return (text for stage in stages for text in _undivided_states(stage, by_name))


def _undivided_states(stage: Stage, by_name: Mapping[str, Stage]) -> Iterator[str]:
    for state in stage.states:
        if state.kind is not StateKind.KEYED or stage.parallelism == 1:
            continue
        found = dict.fromkeys(_keys_read(stage, by_name))
        if not any(_may_divide(keys, columns, state) for keys, columns in found):
            wanted = state.divided_by
            by = f'"{wanted[0]}"' if len(wanted) == 1 else json.dumps(wanted)
            read = f"reads {', '.join(f'by {list(keys)}' for keys, _ in found) or 'without by='}"
            advice = f"read an input with blocking(x, by={by})"
            if stage.kind is StageKind.SOURCE:
                read, advice = "is a source", f"keep it in a stage that reads this one with blocking(x, by={by})"
            yield Message(
                "dataflow.state_not_divided",
                stage=stage.name,
                state=state.name,
                keys=list(wanted),
                parallelism=stage.parallelism,
                read=read,
                advice=advice,
            )


def _may_divide(keys: tuple[str, ...], columns: frozenset[str], state: State) -> bool:
    """Report whether rows that are divided by `keys` meet the state's: the function may rename columns.

    It does not where names tell: the input has the state's keys under their names, or the state has a column of an
    input's key that is no key of its own. `columns` are those that the input is declared with, if they are known.
    """
    wanted = state.divided_by
    if keys == wanted:
        return True
    others = columns_of(state.schema) - {*wanted}
    is_named = {*wanted} <= columns or not others.isdisjoint(keys)
    return len(keys) == len(wanted) and sorted(keys) != sorted(wanted) and not is_named


def columns_of(schema: object) -> frozenset[str]:
    """Return the columns of a schema in Spark DDL; none where it has no, or cannot be read."""
    try:
        return frozenset(fields_of_ddl(schema)) if isinstance(schema, str) and schema else frozenset()
    except Misconfigured:
        return frozenset()


def _keys_read(stage: Stage, by_name: Mapping[str, Stage]) -> Iterator[tuple[tuple[str, ...], frozenset[str]]]:
    """Yield the keys that divide the rows of a stage, each with the columns that the input is declared with."""
    own = {state.name for state in stage.states}
    for argument, exchange in stage.exchanges.items():
        if exchange.keys and argument not in own:
            producer = None if exchange.is_dataset else by_name.get(exchange.stage)
            declared = exchange.schema or (producer.options.get("schema") if producer is not None else None)
            yield exchange.keys, columns_of(declared)
        elif exchange.joins_plan or exchange.pointwise:
            yield from _keys_read(by_name[exchange.stage], by_name)


def with_state_stages(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Add to each stage that keeps state an input from the previous epoch, and a stage for each state.

    A stage that reads another one's state, by `previous` alone, reads it as its keeper does.
    """
    declared = {stage.name for stage in stages if stage.kind is StageKind.STATE}
    kept = states_of(stages)
    return tuple(each for stage in stages for each in _with_states(stage, declared, kept))


def states_of(stages: Sequence[Stage]) -> dict[str, State]:
    """Return all states by name."""
    return {state.name: state for stage in stages for state in stage.states}


def tables_of(stages: Iterable[Stage]) -> list[tuple[State, Target]]:
    """Return the states that have tables, with these."""
    return [(state, state.table) for stage in stages for state in stage.states if state.table is not None]


def _with_states(stage: Stage, declared: set[str], kept: Mapping[str, State]) -> Iterator[Stage]:
    inputs = {
        argument: previous_of(kept[exchange.stage])
        for argument, exchange in stage.exchanges.items()
        if exchange.stage in kept and exchange == Exchange(exchange.stage, ExchangeKind.PREVIOUS)
    }
    inputs |= {state.name: previous_of(state) for state in stage.states}
    yield replace(stage, inputs={**stage.exchanges, **inputs}) if inputs else stage
    for state in stage.states:
        if state.name not in declared:
            yield Stage(
                name=state.name,
                function="",
                inputs={stage.name: pipelined(stage)},
                kind=StageKind.STATE,
                quality=state.quality,
            )


def reads_state(stage: Stage, argument: str, stages: Sequence[Stage]) -> bool:
    """Report whether an input reads a state as its keeper does; the keeper itself by no other argument."""
    exchange = stage.exchanges[argument]
    kept = states_of(stages)[exchange.stage]
    return exchange == previous_of(kept) and (argument == kept.name or kept not in stage.states)


def states_of_other_tasks(group: Sequence[Stage], stages: Sequence[Stage]) -> Iterator[str]:
    """Yield the states that stages of a task read and that no stage of it keeps by the same key groups."""
    known, keepers = states_of(stages), {state.name: stage for stage in group for state in stage.states}
    for stage in group:
        for exchange in stage.exchanges.values():
            keeper = keepers.get(exchange.stage)
            is_same = keeper is not None and keeper.max_parallelism == stage.max_parallelism
            if exchange.is_previous and exchange.stage in known and not is_same:
                yield Message("dataflow.state_of_other_task", stage=stage.name, state=exchange.stage)


def previous_of(state: State) -> Exchange:
    """Return the exchange over which a stage reads its own state of the previous epoch."""
    is_keyed = state.kind is StateKind.KEYED
    return Exchange(
        stage=state.name, kind=ExchangeKind.PREVIOUS, keys=state.divided_by, broadcast=not is_keyed, schema=state.schema
    )
