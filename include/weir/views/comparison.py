"""How results differ: what `weir compare` and `weir try --compare` print. Invariant: it counts nothing itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from weir.coordination.services import Services
from weir.formats.programs import ComparisonAnswer, RepeatedKey
from weir.reading.comparison_rules import ColumnDifference
from weir.reading.pairs import Pair, Pairs, pairs_of_epochs


class Outcome(Enum):
    """Whether two results are equal; the value says it to people."""

    EQUAL = "equal"
    DIFFER = "differ"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferingRow:
    """Rows with the same key, or equal rows where there is none: how many more of them a result has, and the first.

    `columns` are those in which `a` and `b` differ, where both have one row of the key.
    """

    rows_a: int
    rows_b: int
    a: Mapping[str, Any] | None
    b: Mapping[str, Any] | None
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifference:
    """How many rows differ, by `key` (None: rows are equal or not, and none is changed).

    `columns` has how many changed rows differ in a column. `share` is the part of all rows that differ, from 0 to 1:
    a changed row, and one that both have, is one of `total` rows. `repeated` are keys that are not unique. `first` are
    the first differing rows.
    """

    key: tuple[str, ...] | None
    repeated: tuple[RepeatedKey, ...]
    only_in_a: int
    only_in_b: int
    changed: int
    total: int
    share: float
    columns: Mapping[str, int]
    first: tuple[DifferingRow, ...]

    @property
    def count(self) -> int:
        """How many rows differ."""
        return self.only_in_a + self.only_in_b + self.changed


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultComparison:
    """Two results, whose names differ only where sinks of two names are compared.

    A `version` is that of a sink. `by_digest` means that no row was read. Where rows were not read, `rows_a` and
    `rows_b` are those that the ledger knows, `columns` and `rows` are null, and `problem` says why, unless they are
    equal. `rule` is the digest rule by which they are compared, empty where all of every row counts.
    """

    a: str
    b: str
    version_a: int | None
    version_b: int | None
    outcome: Outcome
    by_digest: bool
    rule: str
    rows_a: int | None
    rows_b: int | None
    columns: ColumnDifference | None
    rows: RowDifference | None
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The results of two runs, `a` and `b`, and the names of those that only one of them has."""

    a: str
    b: str
    results: tuple[ResultComparison, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        """Whether all that both have is equal; a difference counts more than what was not compared, or is nothing."""
        found = {each.outcome for each in self.results} or {Outcome.NOT_COMPARED}
        return next(each for each in (Outcome.DIFFER, Outcome.NOT_COMPARED, Outcome.EQUAL) if each in found)


Answer = tuple[ComparisonAnswer, Sequence[Mapping[str, Any]]]
"""What a comparison of rows has found, and the first rows that differ."""


def comparison(pairs: Pairs, answers: Sequence[Answer]) -> Comparison:
    """Return what was found; `answers` are those to what the pairs ask, in order."""
    found = iter(answers)
    results = tuple(result_comparison(each, None if each.asked is None else next(found)) for each in pairs.pairs)
    return Comparison(
        a=pairs.run_a, b=pairs.run_b, results=results, only_in_a=pairs.only_in_a, only_in_b=pairs.only_in_b
    )


def epochs_compared(services: Services, a: str, b: str, newest: int = 0) -> list[Comparison] | None:
    """Return how the epochs of two dataflows compare by what is recorded of them, as `pairs_of_epochs` pairs them."""
    pairs = pairs_of_epochs(services, a, b, newest)
    return None if pairs is None else [comparison(each, ()) for each in pairs]


def result_comparison(pair: Pair, answer: Answer | None) -> ResultComparison:
    """Return what was found of two results; `answer` is that to what the pair asks, if it asks anything."""
    rows = None if answer is None else _row_difference(answer)
    compared = None if answer is None else answer[0].compared
    problem = pair.problem or ("" if answer is None else answer[0].error)
    return ResultComparison(
        a=pair.a.stage,
        b=pair.b.stage,
        version_a=pair.a.version,
        version_b=pair.b.version,
        outcome=_outcome(pair, rows),
        by_digest=pair.is_equal is True,
        rule="" if pair.rule.is_plain else str(pair.rule),
        rows_a=pair.a.rows if compared is None else compared.rows_a,
        rows_b=pair.b.rows if compared is None else compared.rows_b,
        columns=pair.columns,
        rows=rows,
        problem=problem or None,
    )


def _outcome(pair: Pair, rows: RowDifference | None) -> Outcome:
    if pair.is_equal:
        return Outcome.EQUAL
    has_other_columns = pair.columns is not None and not pair.columns.is_none
    if has_other_columns or (rows is not None and rows.count):
        return Outcome.DIFFER
    if rows is not None:
        return Outcome.EQUAL
    return Outcome.NOT_COMPARED if pair.is_equal is None else Outcome.DIFFER


def _row_difference(answer: Answer) -> RowDifference | None:
    found, first = answer
    compared = found.compared
    if compared is None:
        return None
    differing = compared.only_a + compared.only_b + compared.changed
    total = compared.rows_a + compared.only_b
    return RowDifference(
        key=compared.key,
        repeated=compared.repeated,
        only_in_a=compared.only_a,
        only_in_b=compared.only_b,
        changed=compared.changed,
        total=total,
        share=differing / total if total else 0.0,
        columns={name: count for name, count in compared.columns.items() if count},
        first=tuple(_differing(first)),
    )


def _differing(rows: Sequence[Mapping[str, Any]]) -> Iterator[DifferingRow]:
    for row in rows:
        yield DifferingRow(
            rows_a=row["rows_a"], rows_b=row["rows_b"], a=row["a"], b=row["b"], columns=tuple(row["columns"])
        )
