"""Rules of code: which code a try runs, and which results of a stage are of one code.

The code of a task in a run changes by generations. A generation is opened by a begin, and is current from its first
commit on. What Weir runs again by itself runs the current one, so that what is recomputed is what was lost; what a
person clears runs the newest code that is deployed.

Invariant: a stage's results in a run are valid only if one version made, or would have made, all of them. A generation
that fails before its first commit changes nothing for the subtasks that have results.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a task: its version, and the fingerprint of the archive that it is imported from."""

    version: str
    archive: str


@dataclass(frozen=True, slots=True)
class Generation:
    """The code of a task in a run, by number: they count from 1."""

    number: int
    code: Code


def short(version: str) -> str:
    """Return the beginning of a version, by which people name it."""
    return version[:_SHOWN]


class Cause(Enum):
    """The reason why a try of a task runs."""

    FIRST = "first"
    """No try of the task instance has ended yet."""
    BY_WEIR = "by weir"
    """A result is missing or stale, or the try before was killed, refused or lost its engine."""
    OWN_FAILURE = "own failure"
    """The function itself has failed."""
    BY_PERSON = "by person"
    """A person has cleared the task instance, or a backfill has."""
    PERHAPS_BY_PERSON = "perhaps by person"
    """A person has cleared this task instance or another one of the run, while the try before ran."""


class RepairCode(Enum):
    """The code that a person's clear runs."""

    NEWEST = "newest"
    AS_IT_WAS = "as_it_was"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCode:
    """What is known of the code of a task in a run.

    `opened` is the newest generation, `current` the newest that has committed, `repeated` that of the failed try which
    this one repeats; None where there is none. `inherited` is the code of the task in the run's archive, or in that of
    the newest generation of a task upstream. `done` is how many of the task's `subtasks` have current results.
    """

    opened: Generation | None
    current: Generation | None
    inherited: Code
    done: int
    subtasks: int
    repeated: Generation | None = None

    @property
    def has_only_failed(self) -> bool:
        """Report whether no generation has committed of those that were opened: none of them is how it was."""
        return self.opened is not None and self.current is None

    @property
    def present(self) -> Generation:
        """The generation of what Weir runs by itself; a repeated try goes on with its own, unless a newer committed."""
        known = [each for each in (self.repeated, self.current) if each is not None]
        if known:
            return max(known, key=lambda each: each.number)
        return self.opened or Generation(1, self.inherited)


@dataclass(frozen=True, slots=True)
class Choice:
    """The generation that a try belongs to. The note says what a person should know of it."""

    generation: Generation
    note: str = ""


def choose(task: TaskCode, deployed: Code, cause: Cause, repair: RepairCode = RepairCode.NEWEST) -> Choice:
    """Choose the code of a try. `deployed` is the code of the task as the process that begins it has it."""
    present = task.present
    is_newest_wanted = {
        Cause.BY_PERSON: repair is RepairCode.NEWEST or task.done == 0 or task.has_only_failed,
        Cause.OWN_FAILURE: task.done == 0,
    }.get(cause, False)
    if is_newest_wanted:
        newest = present if task.opened is None else task.opened
        is_open = newest.code.version == deployed.version
        number = 1 if task.opened is None else task.opened.number + 1
        return Choice(newest if is_open else Generation(number, deployed))
    if deployed.version == present.code.version:
        return Choice(present)
    how = (
        "A clear of one of them runs the whole stage with the deployed code"
        if repair is RepairCode.NEWEST
        else "`weir plan RUN --lost RESULT --code newest --apply` runs the whole stage with the deployed code"
    )
    notes = {
        Cause.OWN_FAILURE: f"other code is deployed than this try has run, which made {task.done} of {task.subtasks} "
        f"subtasks. {how}",
        Cause.PERHAPS_BY_PERSON: "something of the run was cleared while the try before ran. It is not known whether "
        f"it was this task, so that it goes on with its code; other code is deployed. {how}",
    }
    return Choice(present, notes.get(cause, ""))


def versions_after(before: Set[str], version: str, *, is_same: bool) -> frozenset[str]:
    """Return the versions known to make a result, once `version` has made it.

    `is_same`: a deterministic stage had the same digest from the same inputs by each version of `before`.
    """
    return frozenset({version, *(before if is_same else ())})


def agreed(versions: Iterable[Set[str]]) -> frozenset[str]:
    """Return the versions that made, or would have made, all results of a stage: empty if they are of several codes."""
    sets = [frozenset(some) for some in versions]
    return frozenset.intersection(*sets) if sets else frozenset()


def with_equal(versions: Set[str], same: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the versions and all that were declared equal to one of them, over any number of declarations."""
    pairs = [frozenset(pair) for pair in same]
    found = frozenset(versions)
    while more := frozenset().union(*(pair for pair in pairs if pair & found)) - found:
        found |= more
    return found
