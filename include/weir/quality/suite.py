"""A suite of expectations, read from Great Expectations' own JSON. Invariant: what is not understood is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Severity(Enum):
    """What a violated expectation does: GX's `critical` fails, its `warning` and `info` warn."""

    FAIL = "fail"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation, in GX's terms; `blames` names inputs of the stage that are distrusted where it is violated."""

    type: str
    kwargs: dict[str, Any]
    severity: Severity = Severity.FAIL
    blames: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suite:
    """Expectations that are checked together; `fingerprint` is that of all that can change an outcome."""

    name: str
    fingerprint: str
    expectations: tuple[Expectation, ...] = field(default=())
