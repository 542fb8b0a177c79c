"""Types of identifiers, and how their texts are built and parsed.

Invariant: a reference to a run is `OWN_RUN` for the run that a value belongs to, and the id of another run else, so
that equal references are equal texts. An attempt's id says its kind and the try that made it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NewType

RunId = NewType("RunId", str)
"""A run of a dataflow: `dataflow@epoch`."""

AttemptId = NewType("AttemptId", str)
"""An attempt of a region, after which folders in the store are named; or that of a person to make a savepoint."""

Epoch = NewType("Epoch", str)
"""The start of a run's data interval in UTC."""

Digest = NewType("Digest", str)
"""A digest of rows, as text."""

RunRef = NewType("RunRef", str)
"""A run as seen from another one: the id of another run, or `OWN_RUN`."""

OWN_RUN: Final = RunRef("")
"""The run that the value with this reference belongs to. It sorts before all other runs."""


def run_ref(run: str, own: str | None) -> RunRef:
    """Return the reference to the run with an id, from the run `own`; None refers to all runs by their ids."""
    return OWN_RUN if run == own else RunRef(run)


def run_of_ref(ref: RunRef, own: str) -> RunId:
    """Return the id of the run that `ref` names from run `own`."""
    return RunId(own if ref == OWN_RUN else ref)


FIRST_TRY: Final = 1
"""The number that Airflow gives to the first try of a task instance."""


def is_task_try(number: int) -> bool:
    """Report whether a number is that of a try of the DagRun that a run belongs to.

    Restored results, and tries of a DagRun that was deleted, have numbers below.
    """
    return number >= FIRST_TRY


class AttemptKind(Enum):
    """The origin of an attempt: a task, Weir itself, or a compaction."""

    TASK = "task"
    """A try of a task instance."""
    SYNTHETIC = "synthetic"
    """Weir itself, without a task: a restore, or a check of results."""
    COMPACTION = "compaction"
    """A compaction of state, after a try of a task has committed."""


_LETTERS: Final = {AttemptKind.TASK: "t", AttemptKind.SYNTHETIC: "t", AttemptKind.COMPACTION: "c"}
_SYNTHETIC_TRY: Final = 0
_ID: Final = re.compile(r"(?P<letter>[tc])(?P<number>\d{4,})-")


@dataclass(frozen=True, slots=True)
class ParsedAttemptId:
    """The parts of an attempt's id: its kind and its try number."""

    kind: AttemptKind
    try_number: int

    @property
    def is_synthetic(self) -> bool:
        """Report whether no task has made the attempt."""
        return self.kind is AttemptKind.SYNTHETIC


def new_attempt_id(kind: AttemptKind, unique: str, try_number: int = _SYNTHETIC_TRY) -> AttemptId:
    """Build the id of an attempt. The number of a synthetic attempt is always 0."""
    number = _SYNTHETIC_TRY if kind is AttemptKind.SYNTHETIC else try_number
    return AttemptId(f"{_LETTERS[kind]}{number:04d}-{unique}")


def parse_attempt_id(attempt: str) -> ParsedAttemptId | None:
    """Parse the id of an attempt; None for a text that is no such id."""
    found = _ID.match(attempt)
    if found is None:
        return None
    number = int(found["number"])
    if found["letter"] == _LETTERS[AttemptKind.COMPACTION]:
        return ParsedAttemptId(AttemptKind.COMPACTION, number)
    return ParsedAttemptId(AttemptKind.SYNTHETIC if number == _SYNTHETIC_TRY else AttemptKind.TASK, number)


def is_synthetic(attempt: str) -> bool:
    """Report whether an id is that of a synthetic attempt."""
    parsed = parse_attempt_id(attempt)
    return parsed is not None and parsed.is_synthetic
