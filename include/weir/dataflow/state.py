"""The state that a stage keeps from epoch to epoch. Invariant: a state is identified by its name alone, as by a uid.

A state is a result: a stage of its own (StageKind.STATE) in the region of the stage that keeps it, which reads that of
the previous epoch. So the rules for results over `previous` hold for state: awaiting, losses, backtracking into earlier
runs, staleness, and that recomputing stops where the content has not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from weir.dataflow.arguments import answers, column_names, require
from weir.dataflow.quality import Gate, gates_of
from weir.dataflow.targets import LONGEST_NAME, Target, postgres
from weir.errors import Misconfigured


class StateKind(Enum):
    """The ways to divide a state among subtasks, as Flink's keyed and operator state."""

    KEYED = "keyed"
    """By key group; stored as sorted runs of what changed."""
    SPLIT = "split"
    """A list for the whole stage: of n elements at parallelism p, element i goes to subtask i * p // n."""
    UNION = "union"
    """A list for the whole stage: every subtask reads all elements and adds its own."""
    BROADCAST = "broadcast"
    """The same rows in every subtask."""


class Incremental(Enum):
    """Whether an epoch writes of a keyed state what it has changed, or all of it."""

    ALWAYS = "always"
    """What it has changed, as a sorted run beside those of earlier epochs."""
    NEVER = "never"
    """All of the state: no file of an earlier epoch is used any more."""
    AUTO = "auto"
    """All of the state where that is estimated to be no more bytes than the changes and the compaction after them."""


class OnReprocess(Enum):
    """The treatment of later epochs when the recomputed result of an epoch that they continue from has changed."""

    CASCADE = "cascade"
    """They run again, in order, up to the first whose result has not changed."""
    MARK = "mark"
    """They are stale, and are recomputed when a later epoch or a person needs them."""


class Replay(Enum):
    """The treatment of states that are needed and that are no longer retained, so that no file of theirs is left."""

    MANUAL = "manual"
    """What needs one fails, and says which snapshot or `weir replay` helps."""
    AUTOMATIC = "automatic"
    """They are recomputed, from the last epoch whose state is there, or from the first epoch on."""


@dataclass(frozen=True, slots=True)
class State:
    """One state of a stage; made by `keyed_state`, `list_state` and `broadcast_state`.

    `schema` is Spark DDL with all columns, keys among them. `ttl` is a time such as "7 days" since the last update, in
    epoch time. `runs` bounds how many sorted runs a read merges; `budget` is how many bytes a compaction may write per
    epoch besides twice the changes. `grows` requires that it never has fewer rows than in the previous epoch; `quality`
    are the gates of all of its rows. There is one row for each of its `keys`, of which the last ones are `map_key`: the
    entries of one key are kept together. Rows of one that is `queryable` are looked up over HTTP; one with a `table` is
    also there, with the rows of each retained checkpoint.
    """

    name: str
    kind: StateKind
    keys: tuple[str, ...] = ()
    schema: str = ""
    ttl: str | None = None
    runs: int = 8
    budget: str = "64 MB"
    incremental: Incremental = Incremental.ALWAYS
    grows: bool = False
    quality: tuple[Gate, ...] = ()
    map_key: tuple[str, ...] = ()
    queryable: bool = False
    table: Target | None = None

    @property
    def divided_by(self) -> tuple[str, ...]:
        """The columns by which a keyed state is divided among subtasks."""
        return self.keys[: len(self.keys) - len(self.map_key)]

    @property
    def key_text(self) -> str:
        """The key, and that of the maps: `customer, map_key=product`."""
        return ", ".join(self.divided_by) + (f", map_key={', '.join(self.map_key)}" if self.map_key else "")

    def __str__(self) -> str:
        """Return what it is and its name: `state 'history'`."""
        return f"state {self.name!r}"


@answers(
    dict.fromkeys(("by", "keys", "on", "key_by", "columns"), "key")
    | {"full": "write incremental=False to write all of the state in each epoch"},
    second="key",
)
def keyed_state(
    name: str,
    *,
    key: str | Sequence[str],
    schema: str,
    ttl: str | None = None,
    runs: int = 8,
    budget: str = "64 MB",
    incremental: bool | Literal["auto"] = True,
    grows: bool = False,
    quality: Gate | Sequence[Gate] = (),
    map_key: str | Sequence[str] = (),
    queryable: bool = False,
    table: Target | None = None,
) -> State:
    """Declare rows by key that a stage keeps over epochs; its function gets a handle as the argument `name`.

    `schema` is Spark DDL with the key columns, like "tailnum STRING, flights BIGINT". With `ttl="7 days"` a row that
    was last updated in an epoch that starts at t is invisible in epochs that start at t + 7 days or later.
    An epoch writes what it has changed; with `incremental=False` all of the state; with "auto" all of it where that is
    estimated to be no more bytes than the changes and their compaction. The rows and their digest are the same.
    `grows=True` requires that there are never fewer rows than in the previous epoch. Suites of `quality` check all rows
    of the state; a suite with when="restored" costs nothing in an ordinary epoch.
    With `map_key="route"` each key has a map, Flink's MapState, whose entries are rows of their own: there is a row for
    each `key` and `map_key`, and what an epoch does not change of a map is not written.
    With `queryable=True` whoever may read the DAG in Airflow may look up its rows over HTTP.
    With `table=postgres("warehouse", "reports.history")` the view reports.history has the rows of the newest run that
    is closed, and reports.history_at those of each retained checkpoint, with the columns `_epoch` and `_checkpoint`.
    """
    where = f"keyed_state({name!r})"
    require(where, "quality", quality, (Gate, list, tuple), 'expectations("name_of_a_suite")')
    require(where, "queryable", queryable, bool, "queryable=True, or leave it out")
    map_keys = column_names(where, "map_key", map_key)
    return State(
        name=name,
        kind=StateKind.KEYED,
        keys=(*column_names(where, "key", key), *map_keys),
        schema=schema,
        ttl=ttl,
        runs=runs,
        budget=budget,
        incremental=_incremental(where, incremental),
        grows=grows,
        quality=gates_of(quality),
        map_key=map_keys,
        queryable=queryable,
        table=_table(where, table),
    )


def _table(where: str, given: Target | None) -> Target | None:
    if given is None:
        return None
    require(where, "table", given, Target, 'postgres("conn_id", "schema.table")')
    name = str(given.options.get("table", ""))
    if given.kind != "postgres" or given != postgres(str(given.options["conn_id"]), name):
        raise Misconfigured.of("dataflow.state_table_unfit", where=where, table=given)
    if len(name.rsplit(".", maxsplit=1)[-1].encode()) > LONGEST_NAME - len("_rows"):
        raise Misconfigured.of("dataflow.state_table_name_too_long", where=where, table=name)
    return given


def _incremental(where: str, given: object) -> Incremental:
    if isinstance(given, bool):
        return Incremental.ALWAYS if given else Incremental.NEVER
    if given != Incremental.AUTO.value:
        require(where, "incremental", given, (), 'incremental=True, incremental=False or incremental="auto"')
    return Incremental.AUTO


@answers({"key": "its elements have no key: write keyed_state(...)", "schema": "its elements are JSON: leave it out"})
def list_state(name: str, *, union: bool = False) -> State:
    """Declare a list of JSON values that a stage keeps over epochs, Flink's operator state.

    After a change of parallelism the elements are divided among the subtasks; with `union=True` each has all of them.
    """
    require(f"list_state({name!r})", "union", union, bool, "union=True, or leave it out")
    return State(name=name, kind=StateKind.UNION if union else StateKind.SPLIT, schema=LIST_SCHEMA)


@answers({"key": "its rows are the same in every subtask: leave it out, or write keyed_state(...)"}, second="schema")
def broadcast_state(name: str, *, schema: str) -> State:
    """Declare rows that a stage keeps over epochs and that are the same in every subtask."""
    return State(name=name, kind=StateKind.BROADCAST, schema=schema)


LIST_SCHEMA = "position BIGINT, element STRING"
"""The columns of a stored list: the position of an element, and its JSON."""
