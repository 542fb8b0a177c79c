"""What is expected of rows. Invariant: it is data; a suite is only named here, and read when an attempt begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from weir.errors import Misconfigured

_E = TypeVar("_E", bound=Enum)


class When(Enum):
    """Which results a suite is for."""

    ALWAYS = "always"
    RESTORED = "restored"
    """Those that were made again by a failover, restored from a checkpoint or savepoint, adopted, or backfilled."""


class Policy(Enum):
    """What follows where an expectation of the severity `fail` is violated; the result is in quarantine in any case."""

    FAIL = "fail"
    """The region fails: no other try is made."""
    RETRY = "retry"
    """As any failure of the region: its restart strategy says whether and when it is tried again."""
    BACKTRACK = "backtrack"
    """The inputs that the violated expectations blame are distrusted, and their producers run again."""
    WARN = "warn"
    """The result is committed as it is, without quarantine, and a note says what is violated."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A suite of expectations between the writing of a result and its commit; made by `expectations`."""

    suite: str
    when: When = When.ALWAYS
    policy: Policy = Policy.FAIL


def expectations(suite: str, *, when: str = "always", policy: str = "fail") -> Gate:
    """Have rows checked by a suite of Great Expectations: `include/expectations/<suite>.json`, in its own format.

    `when` is "always" or "restored", `policy` one of "fail", "retry", "backtrack" and "warn". Raises Misconfigured.
    """
    return Gate(suite, _member(When, "when", when), _member(Policy, "policy", policy))


def gates_of(given: Gate | Sequence[Gate]) -> tuple[Gate, ...]:
    """One gate or several, as several."""
    return (given,) if isinstance(given, Gate | str) else tuple(given)


def _member(kind: type[_E], name: str, value: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(each.value) for each in kind)
        raise Misconfigured(f"expectations(...): {name}={value!r} is none of {known}") from None
