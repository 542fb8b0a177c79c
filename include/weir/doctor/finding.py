"""What a check found, as data.

Invariant: whatever is not ok says what was expected and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Status(Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    """Weir works, but slower or less safely than it could."""
    PROBLEM = "problem"
    """Something of Weir does not work."""
    UNKNOWN = "unknown"
    """It could not be asked, for a reason that is no fault of what was asked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `mend` is what to do next, in the words to type where there are such."""

    area: str
    name: str
    status: Status
    found: str
    expected: str = ""
    mend: str = ""

    def to_json(self) -> dict[str, Any]:
        """A flat object of texts."""
        return {**asdict(self), "status": self.status.value}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Finding:
        """Read what `to_json` made. Raises KeyError, TypeError or ValueError for anything else."""
        return cls(**{**values, "status": Status(values["status"])})


def ok(area: str, name: str, found: str) -> Finding:
    """All is well."""
    return Finding(area, name, Status.OK, found)


def warning(area: str, name: str, found: str, *, expected: str, mend: str) -> Finding:
    """It works, but."""
    return Finding(area, name, Status.WARNING, found, expected, mend)


def problem(area: str, name: str, found: str, *, expected: str, mend: str) -> Finding:
    """It does not work."""
    return Finding(area, name, Status.PROBLEM, found, expected, mend)


def unknown(area: str, name: str, found: str, *, mend: str = "") -> Finding:
    """Nobody can tell, from here."""
    return Finding(area, name, Status.UNKNOWN, found, mend=mend)


def worst(findings: Iterable[Finding]) -> Status:
    """The status of all together: a problem if there is one, else a warning, else what is unknown."""
    found = {each.status for each in findings}
    return next((each for each in (Status.PROBLEM, Status.WARNING, Status.UNKNOWN) if each in found), Status.OK)
