"""What makes a state unfit to be kept. Invariant: every problem names its stage and says what to write instead."""

from __future__ import annotations

from collections.abc import Iterator

from weir.dataflow.keep import size_from_text, time_from_text
from weir.dataflow.stage import Stage, StageKind
from weir.dataflow.state import State, StateKind
from weir.dataflow.state_schema import fields_of_ddl
from weir.dataflow.state_stages import previous_of
from weir.errors import Misconfigured
from weir.topology.key_hash import canonical_type


def state_problems(stage: Stage) -> Iterator[str]:
    """Say what is wrong with the states of a stage."""
    for state in stage.states:
        if not isinstance(state, State):
            yield (
                f"stage {stage.name!r}: {state!r} is not a state: write keyed_state(...), list_state(...) or "
                "broadcast_state(...)"
            )
            continue
        where = f"stage {stage.name!r}, state {state.name!r}"
        yield from (f"{where}: {problem}" for problem in _problems(stage, state))


def _problems(stage: Stage, state: State) -> Iterator[str]:
    if stage.kind in (StageKind.SINK, StageKind.STATE):
        yield "a sink keeps no state: give it to the stage that the sink publishes"
    if stage.exchanges.get(state.name, previous_of(state)) != previous_of(state):
        yield "an input of the stage has that name, too: rename the input ({'other_name': ...}) or the state"
    if not isinstance(state.schema, str) or not state.schema.strip():
        yield 'it needs schema=, Spark DDL with all of its columns, like "tailnum STRING, flights BIGINT"'
    else:
        yield from _schema_problems(state)
    if state.kind is StateKind.KEYED and not state.keys:
        yield "it has no key: write key=, the columns that tell its rows apart"
    if not isinstance(state.runs, int) or state.runs < 2:
        yield f"runs must be a whole number of at least 2, not {state.runs!r}"
    try:
        size_from_text("budget", state.budget)
        if state.ttl is not None and time_from_text("ttl", state.ttl) is None:
            yield "a state without an end has no ttl: leave ttl= out"
    except Misconfigured as error:
        yield str(error)


def _schema_problems(state: State) -> Iterator[str]:
    try:
        fields = fields_of_ddl(state.schema)
    except Misconfigured as error:
        yield str(error)
        return
    for name in fields:
        if name.lower().startswith("_weir_"):
            yield f"the column {name!r} begins with '_weir_', which is reserved for Weir's own columns: rename it"
    for key in state.keys:
        if key not in fields:
            yield f"its schema has no key column {key!r}; it has {', '.join(fields)}: all columns stand there, keys too"
            continue
        try:
            canonical_type(str(fields[key].kind))
        except Misconfigured as error:
            yield str(error).replace(", in the stage that writes it", ", and declare it so")
