"""Quality gates of stages and states. Invariant: a gate only names its suite, which is read when an attempt begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from weir.dataflow.arguments import answers, shown
from weir.errors import Misconfigured

_E = TypeVar("_E", bound=Enum)


class When(Enum):
    """The results that a suite checks."""

    ALWAYS = "always"
    RESTORED = "restored"
    """Results that a failover recomputed, or that were restored from a snapshot, adopted, or backfilled."""


class Policy(Enum):
    """The consequence of a violated expectation of the severity `fail`; except with WARN the result is quarantined."""

    FAIL = "fail"
    """The region fails, and no other try is made."""
    RETRY = "retry"
    """The region fails, and its restart strategy decides whether and when it is tried again."""
    BACKTRACK = "backtrack"
    """The inputs that the violated expectations blame become suspected, and their producers run again."""
    WARN = "warn"
    """The result is committed, without quarantine, and a note lists the violated expectations."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A suite of expectations between the writing of a result and its commit; made by `expectations`."""

    suite: str
    when: When = When.ALWAYS
    policy: Policy = Policy.FAIL

    def __str__(self) -> str:
        """Return it as it is declared, without its settings."""
        return f'expectations("{self.suite}")'


@answers()
def expectations(suite: str, *, when: str = "always", policy: str = "fail") -> Gate:
    """Declare that a suite of Great Expectations, `include/expectations/<suite>.json` in GX's format, checks the rows.

    `when` is "always" or "restored", `policy` one of "fail", "retry", "backtrack" and "warn". Raises Misconfigured.
    """
    if isinstance(suite, str) and suite.endswith(".json"):
        name = suite.removesuffix(".json").rpartition("/")[2]
        raise Misconfigured.of("dataflow.suite_name_malformed", suite=suite, name=name)
    return Gate(suite, _member(When, "when", when), _member(Policy, "policy", policy))


def gates_of(given: Gate | Sequence[Gate]) -> tuple[Gate, ...]:
    """Return a gate, or a sequence of gates, as a tuple."""
    return (given,) if isinstance(given, Gate | str) else tuple(given)


def _member(kind: type[_E], name: str, value: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(each.value) for each in kind)
        raise Misconfigured.of(
            "dataflow.expectation_option_unknown", name=name, value=shown(value), known=known
        ) from None
