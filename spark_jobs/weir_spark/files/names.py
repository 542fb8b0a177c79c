"""Compares the names that a schema declares with those that files have, at every depth.

Invariant: a declared name that files have nowhere, or in another spelling, is found, instead of read as nulls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from weir.dataflow.state_schema import Kind
from weir.wording import closest

_OBJECTS = frozenset({"struct", "object"})


@dataclass(slots=True)
class Names:
    """The names of fields, each with those inside of it. An array has those of its elements.

    `is_open` is true where any name may be: in a map, or where values are of several kinds.
    """

    inside: dict[str, Names] = field(default_factory=dict)
    is_open: bool = False

    def add(self, other: Names) -> None:
        """Add the names of another file."""
        self.is_open |= other.is_open
        for name, more in other.inside.items():
            self.inside.setdefault(name, Names()).add(more)


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A declared name that files do not have; `near` is the one that may be meant, empty if there is none.

    `is_also_there` tells that some rows have the declared name; `others` are names that files have and nobody declared.
    """

    name: str
    near: str
    others: tuple[str, ...]
    is_also_there: bool = False

    def __str__(self) -> str:
        here = ", ".join(map(repr, self.others[:10])) or "no other"
        return f"{self.name!r}" + (f" (is {self.near!r} meant?)" if self.near else f" (undeclared are there: {here})")


def names_of_kind(kinds: Mapping[str, Kind]) -> Names:
    """Return the names of declared columns."""
    return Names({name: _of_kind(kind) for name, kind in kinds.items()})


def _of_kind(kind: Kind) -> Names:
    if kind.name in _OBJECTS:
        return names_of_kind(dict(kind.parts))
    if kind.name == "array" and kind.parts:
        return _of_kind(kind.parts[0][1])
    return Names(is_open=True)


def unmatched(declared: Names, found: Names, *, ignoring_case: bool, inside: str = "") -> Iterator[Unmatched]:
    """Yield the declared names that are not found, or are found in two spellings."""
    if declared.is_open or found.is_open or not found.inside:
        return
    others = tuple(sorted(found.inside.keys() - declared.inside.keys()))
    for name, more in declared.inside.items():
        same = [each for each in found.inside if each.casefold() == name.casefold()]
        if name in same and len(same) > 1 and not ignoring_case:
            other = next(each for each in same if each != name)
            yield Unmatched(inside + name, inside + other, others, is_also_there=True)
        matching = same[:1] if ignoring_case else [each for each in same if each == name]
        if matching:
            yield from unmatched(
                more, found.inside[matching[0]], ignoring_case=ignoring_case, inside=f"{inside}{name}."
            )
        else:
            near = _near(name, others)
            yield Unmatched(inside + name, inside + near if near else "", others)


def _near(name: str, others: tuple[str, ...]) -> str:
    plain = {_plain(each): each for each in others}
    if found := plain.get(_plain(name)):
        return found
    close = closest(_plain(name), plain, likeness=0.7)
    return plain[close[0]] if close else ""


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).casefold()
