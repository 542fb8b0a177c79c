"""The stages that states are. Invariant: to give them twice is to give them once, so that a record reads back equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from weir.dataflow.exchange import Exchange, ExchangeKind, pipelined
from weir.dataflow.stage import Stage, StageKind
from weir.dataflow.state import State, StateKind


def with_state_stages(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Give each stage that keeps state an input of the epoch before, and each state a stage of its own."""
    declared = {stage.name for stage in stages if stage.kind is StageKind.STATE}
    return tuple(each for stage in stages for each in _with_states(stage, declared))


def _with_states(stage: Stage, declared: set[str]) -> Iterator[Stage]:
    inputs = {state.name: previous_of(state) for state in stage.states}
    yield replace(stage, inputs={**stage.exchanges, **inputs}) if inputs else stage
    for state in stage.states:
        if state.name not in declared:
            yield Stage(state.name, "", {stage.name: pipelined(stage)}, kind=StageKind.STATE, quality=state.quality)


def previous_of(state: State) -> Exchange:
    """How a stage reads its own state of the epoch before."""
    is_keyed = state.kind is StateKind.KEYED
    return Exchange(state.name, ExchangeKind.PREVIOUS, state.keys, not is_keyed, schema=state.schema)
