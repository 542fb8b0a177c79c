"""What a stage keeps from epoch to epoch. Invariant: its name is a stable id, and nothing else says which state it is.

A state is carried like any result: it is a stage of its own (StageKind.STATE) in the region of the stage that keeps
it, which reads the one of the epoch before. So whatever holds for results over `previous` holds for state: awaiting,
losses, backtracking into earlier runs, staleness, and that it stops where the content comes out equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from weir.dataflow.quality import Gate, gates_of


class StateKind(Enum):
    """How a state is divided among subtasks, as Flink's keyed and operator state."""

    KEYED = "keyed"
    """By key group; stored as sorted runs of what changed."""
    SPLIT = "split"
    """A list for the whole stage: of n elements at parallelism p, element i goes to subtask i * p // n."""
    UNION = "union"
    """A list for the whole stage, that each subtask is given whole; each adds its own elements."""
    BROADCAST = "broadcast"
    """The same rows in every subtask."""


class OnReprocess(Enum):
    """What becomes of later epochs when one that they go on from is made again, and comes out otherwise."""

    CASCADE = "cascade"
    """They run again, one after the other, up to the first that comes out as it was."""
    MARK = "mark"
    """They are stale, and are made again when somebody needs them: a later epoch, or a person."""


@dataclass(frozen=True, slots=True)
class State:
    """One state of a stage; made by `keyed_state`, `list_state` and `broadcast_state`.

    `schema` is Spark DDL with all columns, keys among them. `ttl` is a time such as "7 days" since the last update, in
    epoch time. `runs` bounds how many runs a read merges; `budget` is how many bytes a compaction may write an epoch
    besides twice what changed; `is_full` has each epoch write all of the state instead of what changed. `grows` says
    that it never has fewer rows than in the epoch before; `quality` is what all of its rows are checked by.
    """

    name: str
    kind: StateKind
    keys: tuple[str, ...] = ()
    schema: str = ""
    ttl: str | None = None
    runs: int = 8
    budget: str = "64 MB"
    is_full: bool = False
    grows: bool = False
    quality: tuple[Gate, ...] = ()


def keyed_state(
    name: str,
    *,
    key: str | Sequence[str],
    schema: str,
    ttl: str | None = None,
    runs: int = 8,
    budget: str = "64 MB",
    full: bool = False,
    grows: bool = False,
    quality: Gate | Sequence[Gate] = (),
) -> State:
    """Declare rows by key that a stage keeps over epochs; its function is given a handle as the argument `name`.

    `schema` is Spark DDL with the key columns, like "tailnum STRING, flights BIGINT". With `ttl="7 days"` a row that
    was last updated in an epoch that starts at t is invisible in epochs that start at t + 7 days or later.
    `grows=True` says that there are never fewer rows than in the epoch before. Suites of `quality` are given all rows
    of the state, so that one with when="restored" costs nothing on an ordinary day.
    """
    return State(
        name=name,
        kind=StateKind.KEYED,
        keys=_keys(key),
        schema=schema,
        ttl=ttl,
        runs=runs,
        budget=budget,
        is_full=full,
        grows=grows,
        quality=gates_of(quality),
    )


def list_state(name: str, *, union: bool = False) -> State:
    """Declare a list of JSON values that a stage keeps over epochs, Flink's operator state.

    After a change of parallelism each subtask has its share of the elements; with `union=True` each has all of them.
    """
    return State(name=name, kind=StateKind.UNION if union else StateKind.SPLIT, schema=LIST_SCHEMA)


def broadcast_state(name: str, *, schema: str) -> State:
    """Declare rows that a stage keeps over epochs and that are the same in every subtask."""
    return State(name=name, kind=StateKind.BROADCAST, schema=schema)


LIST_SCHEMA = "position BIGINT, element STRING"
"""The columns of a stored list: where each element stands, and its JSON."""


def _keys(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
