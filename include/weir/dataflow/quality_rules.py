"""What makes gates unfit to be run. Invariant: every problem names its stage and says what to write instead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from weir.dataflow.quality import Gate
from weir.dataflow.stage import Stage
from weir.dataflow.state import State, StateKind

MAX_SUITE_LENGTH = 120
RESERVED = "weir"
"""The name of the suite of the checks that are built in."""

_SUITE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def quality_problems(stage: Stage) -> Iterator[str]:
    """Say what is wrong with the gates of a stage and of its states."""
    yield from _gate_problems(f"stage {stage.name!r}", stage.gates)
    for state in stage.states:
        if isinstance(state, State):
            where = f"stage {stage.name!r}, state {state.name!r}"
            yield from _gate_problems(where, state.quality)
            yield from (f"{where}: {problem}" for problem in _state_problems(state))


def _gate_problems(where: str, gates: Iterable[Gate]) -> Iterator[str]:
    found = list(gates)
    for gate in found:
        if not isinstance(gate, Gate):
            yield f'{where}: {gate!r} is no gate: write quality=expectations("name_of_a_suite")'
            return
        if not isinstance(gate.suite, str) or not _SUITE.fullmatch(gate.suite) or len(gate.suite) > MAX_SUITE_LENGTH:
            yield (
                f"{where}: a suite is named like its file include/expectations/<suite>.json, in letters, digits, "
                f"underscores, dots and hyphens, at most {MAX_SUITE_LENGTH} of them, not {gate.suite!r}"
            )
        elif gate.suite == RESERVED:
            yield f"{where}: the suite {RESERVED!r} is that of Weir's own checks: call it otherwise"
    for suite, count in Counter(gate.suite for gate in found).items():
        if count > 1:
            yield f"{where}: the suite {suite!r} is named {count} times: once is enough"


def _state_problems(state: State) -> Iterator[str]:
    if state.kind is not StateKind.KEYED and (state.grows or state.quality):
        yield "only a keyed state has rows to be checked: leave grows= and quality= out"
    if not isinstance(state.grows, bool):
        yield f"grows must be True or False, not {state.grows!r}"
    elif state.grows and state.ttl is not None:
        yield "grows=True says that there are never fewer rows, and ttl= that rows expire: leave one of them out"
