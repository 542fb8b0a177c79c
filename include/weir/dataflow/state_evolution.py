"""Schema evolution: how the declaration of a state may change from one epoch to the next.

Invariant: the rows of a state are read under the new declaration as they were written under the old one, or the change
is refused before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weir.dataflow.state import State, StateKind
from weir.dataflow.state_rules import states_of
from weir.dataflow.state_schema import Fields, Kind, ddl_of, fields_of_ddl
from weir.errors import Message, Misconfigured, at
from weir.units import time_from_text

if TYPE_CHECKING:
    from weir.dataflow.dataflow import Dataflow

_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
"""The wider types as which Spark reads columns that were written with a narrower type."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


@dataclass(frozen=True, slots=True)
class Evolution:
    """The work of the first epoch with a new declaration of a state.

    `is_changed`: the columns differ, so that all rows are digested again. `is_rewritten`: the epoch writes all of the
    state, so that neither values of a dropped column nor expired rows come back. `is_exact`: it looks for the rows that
    it replaces, also of a blind upsert, because columns or time to live differ.
    """

    is_changed: bool = False
    is_rewritten: bool = False
    is_exact: bool = False


def evolution(old: State, new: State, old_fields: Fields | None = None) -> Evolution:
    """Compare two declarations without `problems`; `old_fields` are the columns as they were written."""
    if new.kind is not StateKind.KEYED:
        return Evolution()
    before, after = old_fields or fields_of_ddl(old.schema), fields_of_ddl(new.schema)
    is_changed = [(name, each.kind) for name, each in before.items()] != [
        (name, each.kind) for name, each in after.items()
    ]
    is_rewritten = bool(before.keys() - after.keys()) or _has_longer_ttl(old, new)
    return Evolution(is_changed, is_rewritten, is_changed or old.ttl != new.ttl)


def _has_longer_ttl(old: State, new: State) -> bool:
    before, after = (None if each.ttl is None else time_from_text("ttl", each.ttl) for each in (old, new))
    return before is not None and after is not None and after > before


def require_compatible(
    old: Dataflow, new: Dataflow, old_name: str, new_name: str, left_out: Collection[str] = ()
) -> None:
    """Check that `new` can continue from the states of `old`; `old_name` and `new_name` name them in the message.

    `new` may lack the states in `left_out`; a state that `old` does not have starts empty. Raises Misconfigured.
    """
    found = list(incompatibilities(old, new, left_out))
    if not found:
        return
    listed = found[0] if len(found) == 1 else "\n" + "\n".join(f"- {text}" for text in found)
    raise Misconfigured.of(
        "dataflow.state_incompatible", new_name=new_name, old_name=old_name, listed=listed, found=found
    )


def incompatibilities(old: Dataflow, new: Dataflow, left_out: Collection[str] = ()) -> Iterator[str]:
    """Yield the reasons why `new` cannot continue from the states of `old`."""
    kept = states_of(new.stages)
    for stage in old.stages:
        for state in stage.states:
            if state.name in kept:
                groups = (old.max_parallelism_of(state.name), new.max_parallelism_of(state.name))
                yield from problems(state, kept[state.name], groups)
            elif state.name not in left_out:
                yield _vanished(state, new)


def _vanished(state: State, new: Dataflow) -> str:
    names = [each.name for stage in new.stages for each in stage.states]
    there = f"it keeps {', '.join(names)}" if names else "it keeps none"
    return Message("dataflow.state_vanished", state=state.name, there=there, new=new.name)


def problems(
    old: State, new: State, max_parallelism: tuple[int, int], old_fields: Fields | None = None
) -> Iterator[str]:
    """Yield the reasons why a state cannot continue under a new declaration; `old_fields` are the written columns."""
    where = f"state {new.name!r}"
    if old.kind is not new.kind:
        yield Message("dataflow.state_kind_changed", where=where, kind=old.kind.value, new_kind=new.kind.value)
        return
    if old.kind is not StateKind.KEYED:
        if old.schema != new.schema and fields_of_ddl(old.schema) != fields_of_ddl(new.schema):
            yield Message("dataflow.state_schema_changed", where=where, schema=old.schema, new_schema=new.schema)
        return
    if max_parallelism[0] != max_parallelism[1]:
        yield Message(
            "dataflow.state_groups_changed",
            where=where,
            max_parallelism=max_parallelism[0],
            new_max_parallelism=max_parallelism[1],
        )
    if (old.keys, old.map_key) != (new.keys, new.map_key):
        yield Message("dataflow.state_key_changed", where=where, listed=old.key_text, new_key=new.key_text)
        return
    yield from (at(where, problem) for problem in _column_problems(new, old_fields or fields_of_ddl(old.schema)))
    if (old.ttl is None) is not (new.ttl is None):
        yield Message("dataflow.state_ttl_changed", where=where, ttl=_ttl(old.ttl), new_ttl=_ttl(new.ttl))


def _ttl(ttl: str | None) -> str:
    return "no ttl" if ttl is None else f'ttl="{ttl}"'


def _column_problems(new: State, before: Fields) -> Iterator[str]:
    after = fields_of_ddl(new.schema)
    both = f"It was written with ({ddl_of(before)}), and is declared with ({ddl_of(after)})"
    for name, field in after.items():
        if name not in before:
            if field.is_required:
                yield Message("dataflow.state_column_not_null", name=name, both=both)
            continue
        was = before[name].kind
        if name in new.keys and was != field.kind:
            yield Message("dataflow.state_key_type_changed", name=name, was=was, kind=field.kind, both=both)
        elif not is_readable(was, field.kind):
            yield Message("dataflow.state_type_changed", name=name, was=was, kind=field.kind, both=both)
    for name in before.keys() - after.keys():
        same = [each for each in after if each.lower() == name.lower()]
        if same:
            yield Message("dataflow.state_column_respelled", name=name, same=same[0], both=both)


def is_readable(was: Kind, now: Kind) -> bool:
    """Report whether values that were written as type `was` can be read as type `now`, unchanged."""
    if was == now or now.name in _WIDER.get(was.name, ()):
        return True
    old, new = _DECIMAL.fullmatch(was.name), _DECIMAL.fullmatch(now.name)
    if old and new:
        return int(new[2]) == int(old[2]) and int(new[1]) >= int(old[1])
    if was.name != now.name or not was.parts:
        return False
    after = dict(now.parts)
    if was.name == "map" and dict(was.parts)["key"] != after["key"]:
        return False
    # A nested column may get more fields and wider ones; a dropped field would come back with an old value.
    return all(name in after and is_readable(kind, after[name]) for name, kind in was.parts)
