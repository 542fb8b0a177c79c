"""Digest rules: which columns, and how many decimal places, count as a change of a stage's rows.

Invariant: two rules are equal exactly if their fingerprints are. A digest carries its rule's fingerprint, so that
results that were digested under different rules never compare equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weir.dataflow.arguments import answers, column_names, shown
from weir.errors import Message

MOST_PLACES = 15
"""A double has no more significant decimal places."""

_FINGERPRINT_LENGTH = 12


@dataclass(frozen=True, slots=True)
class DigestRule:
    """Columns that are rounded to decimal places before they are digested, and columns that are left out.

    The rows themselves are written as they are. The plain rule, with neither, digests all of every row.
    """

    round: Mapping[str, int] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Report whether every column counts as it is."""
        return not self.round and not self.ignore

    @property
    def fingerprint(self) -> str:
        """A short text that is equal exactly for equal rules; empty for the plain rule."""
        if self.is_plain:
            return ""
        content = json.dumps([sorted(self.round.items()), sorted(set(self.ignore))])
        return hashlib.sha256(content.encode()).hexdigest()[:_FINGERPRINT_LENGTH]

    def __str__(self) -> str:
        """`fare rounded to 6 places, without loaded_at`; `all columns` for the plain rule."""
        parts = [f"{column} rounded to {places} places" for column, places in sorted(self.round.items())]
        parts += [f"without {column}" for column in sorted(set(self.ignore))]
        return ", ".join(parts) or "all columns"


PLAIN_RULE = DigestRule()


@answers()
def digest(*, round: Mapping[str, int] | None = None, ignore: str | Sequence[str] = ()) -> DigestRule:  # noqa: A002  Spark's own name
    """Declare which changes of rows count: `digest(round={"fare": 6}, ignore=["loaded_at"])`.

    The consumers of a result whose digest has not changed do not restart. Round floating-point sums, whose last digits
    depend on the order of the rows; ignore columns such as the time at which a row was loaded.
    """
    return DigestRule({} if round is None else round, column_names("digest(...)", "ignore", ignore))


def rule_problems(rule: object) -> Iterator[str]:
    """Yield the problems of a stage's digest rule, and what to write instead."""
    if not isinstance(rule, DigestRule):
        yield Message("dataflow.digest_not_a_rule", rule=shown(rule))
        return
    if not isinstance(rule.round, Mapping):
        yield Message("dataflow.digest_round_malformed", rounded=rule.round)
        return
    for column in (*rule.round, *rule.ignore):
        if not isinstance(column, str) or not column:
            yield Message("dataflow.digest_column_malformed", column=column)
    for column, places in rule.round.items():
        if not isinstance(places, int) or isinstance(places, bool) or not 0 <= places <= MOST_PLACES:
            yield Message("dataflow.digest_places_out_of_range", column=column, most_places=MOST_PLACES, places=places)
    for column in rule.round:
        if column in rule.ignore:
            yield Message("dataflow.digest_rounds_and_ignores", column=column)
