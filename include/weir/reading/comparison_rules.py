"""What two results have in common: columns, keys, and what their digests say of their rows.

Invariants: equal digests mean equal rows; others mean other rows only where both are of the same definition, rule and
columns. Names of columns are the same where Spark takes them as the same: in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weir.dataflow.digest_rule import PLAIN_RULE, DigestRule
from weir.dataflow.stage import StageKind
from weir.dataflow.state import StateKind
from weir.errors import Misconfigured
from weir.formats.manifest import OF_CHAIN, OF_RESULT, ContentDigest, together
from weir.topology.regions import Topology

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OtherType:
    """A column whose type differs; its values are not compared."""

    column: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class ColumnDifference:
    """The columns, with their types, that only one result has, and those of both that differ in type or spelling.

    The order of columns is no difference.
    """

    only_in_a: Mapping[str, str]
    only_in_b: Mapping[str, str]
    types: tuple[OtherType, ...]
    spelling: Mapping[str, str]

    @property
    def is_none(self) -> bool:
        """Report whether both have the same columns."""
        return not (self.only_in_a or self.only_in_b or self.types or self.spelling)


def column_difference(a: Mapping[str, str], b: Mapping[str, str]) -> ColumnDifference:
    """Return how columns differ, which are given with their types."""
    in_a, in_b = _folded(a), _folded(b)
    both = [(name, in_b[folded]) for folded, name in in_a.items() if folded in in_b]
    return ColumnDifference(
        only_in_a={name: a[name] for folded, name in in_a.items() if folded not in in_b},
        only_in_b={name: b[name] for folded, name in in_b.items() if folded not in in_a},
        types=tuple(OtherType(one, a[one], b[other]) for one, other in both if a[one] != b[other]),
        spelling={one: other for one, other in both if one != other},
    )


def columns_in_common(a: Mapping[str, str], b: Mapping[str, str], rule: DigestRule) -> dict[str, str]:
    """Return the columns whose values are compared, as `a` and `b` spell them: of the same type, and not ignored."""
    in_b = _folded(b)
    ignored = _folded(rule.ignore)
    return {
        name: in_b[folded]
        for folded, name in _folded(a).items()
        if folded in in_b and a[name] == b[in_b[folded]] and folded not in ignored
    }


def _folded(names: Iterable[str]) -> dict[str, str]:
    return {name.casefold(): name for name in names}


def rule_of_both(a: DigestRule, b: DigestRule) -> DigestRule:
    """Return the rule by which rows are compared: that of both results, or, where theirs differ, all of every row."""
    return a if a.fingerprint == b.fingerprint else PLAIN_RULE


# Keys


def declared_keys(topology: Topology, name: str) -> Iterator[Key]:
    """Yield the columns by which a result may have one row each, the most likely first; the same ones may come again.

    These are the key of a state; else the columns by which a stage divides its inputs among subtasks, as an aggregation
    does, and those by which others read it. A sink has the rows of the stage that it publishes.
    """
    stage = topology.dataflow.stage(name)
    if stage.kind is StageKind.STATE:
        state = topology.dataflow.state(name)
        yield from [state.keys] if state.kind is StateKind.KEYED else []
        return
    if stage.kind is StageKind.SINK:
        yield from declared_keys(topology, next(iter(stage.exchanges.values())).stage)
        return
    yield from (each.keys for each in stage.exchanges.values() if each.is_of_results and each.keys)
    yield from (layout.keys for layout in topology.layouts_of(name) if layout.keys)


def usable_keys(declared: Iterable[Key], columns: Sequence[str]) -> tuple[Key, ...]:
    """Return the keys all of whose columns are among those that are compared, as these are spelled, each once."""
    known = _folded(columns)
    spelled = (tuple(known.get(name.casefold(), "") for name in key) for key in declared)
    return tuple(dict.fromkeys(key for key in spelled if all(key)))


def named_key(name: str, key: Key, columns: Sequence[str]) -> tuple[Key, ...]:
    """Return the key that a person names, as its columns are spelled. Raises Misconfigured if a column is missing."""
    known = _folded(columns)
    for column in key:
        if column.casefold() not in known:
            raise Misconfigured.of("reading.key_not_in_common", name=name, column=column, columns=columns or ["none"])
    return (tuple(known[column.casefold()] for column in key),)


# Digests


def rows_of_digests(digests: Sequence[ContentDigest]) -> int | None:
    """Return the number of rows of all partitions; None where a chain says only how many there can be."""
    return None if any(each.version == OF_CHAIN for each in digests) else sum(each.rows for each in digests)


def are_equal(a: Sequence[ContentDigest], b: Sequence[ContentDigest]) -> bool | None:
    """Report whether all partitions of two results have the same rows and columns, by their digests; None: not known.

    Digests of different definitions or rules, those of rows with key groups, and chains say nothing unless equal.
    """
    if together(a) == together(b):
        return True
    kinds = {(each.version, each.schema, each.rule) for each in (*a, *b)}
    versions = {version for version, _, _ in kinds}
    if versions == {OF_RESULT} and len(kinds) == 1:
        return False
    counts = [rows_of_digests(a), rows_of_digests(b)]
    return False if None not in counts and counts[0] != counts[1] else None
