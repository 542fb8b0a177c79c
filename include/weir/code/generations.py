"""Rules of code: which code a try runs, and which results of a stage are of one code.

The code of a task in a run changes by generations. A generation is opened by a begin, and is current from its first
commit on. What Weir runs again by itself runs the current one, so that what is recomputed is what was lost; what a
person clears runs the newest code that is deployed.

Invariant: a stage's results in a run are valid only if one version made, or would have made, all of them. A generation
that fails before its first commit changes nothing for the subtasks that have results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a task: its version, and the fingerprint of the archive that it is imported from."""

    version: str
    archive: str


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


class RepairCode(Enum):
    """The code that a person's clear runs."""

    NEWEST = "newest"
    AS_IT_WAS = "as_it_was"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCode:
    """What is known of the code of a task in a run.

    `opened` is the newest generation, `current` the newest that has committed; None where there is none. `inherited` is
    the code of the task in the run's archive, or in that of the newest generation of a task upstream. `done` is how
    many of the task's `subtasks` have current results.
    """

    opened: Code | None
    current: Code | None
    inherited: Code
    done: int
    subtasks: int

    @property
    def present(self) -> Code:
        """The code of what Weir runs by itself."""
        return self.current or self.opened or self.inherited


@dataclass(frozen=True, slots=True)
class Choice:
    """The code of a try; `opens` a generation, or goes on with one. The note says what a person should know of it."""

    code: Code
    opens: bool = False
    note: str = ""


def choose(task: TaskCode, deployed: Code, cause: Cause, repair: RepairCode = RepairCode.NEWEST) -> Choice:
    """Choose the code of a try. `deployed` is the code of the task as the process that begins it has it."""
    present = task.present
    is_newest_wanted = {
        Cause.BY_PERSON: repair is RepairCode.NEWEST,
        Cause.OWN_FAILURE: task.done == 0,
    }.get(cause, False)
    if is_newest_wanted and deployed.version != present.version:
        is_open = task.opened is not None and task.opened.version == deployed.version
        return Choice(task.opened or deployed) if is_open else Choice(deployed, opens=True)
    is_behind = deployed.version != present.version and cause is Cause.OWN_FAILURE
    note = (
        f"newer code is deployed; {task.done} of {task.subtasks} subtasks were made by older, and so is this try. "
        "Clear one of them to run the whole stage with the newer"
        if is_behind
        else ""
    )
    return Choice(present, opens=task.opened is None, note=note)


def versions_after(before: Set[str], version: str, *, is_same: bool) -> frozenset[str]:
    """Return the versions known to make a result, once `version` has made it.

    `is_same`: a deterministic stage had the same digest from the same inputs by each version of `before`.
    """
    return frozenset({version, *(before if is_same else ())})


def agreed(versions: Iterable[Set[str]], same: Collection[tuple[str, str]] = ()) -> frozenset[str]:
    """Return the versions that made, or would have made, all results of a stage: empty if they are of several codes.

    `same` are pairs of versions that a person has declared equal; one name stands for all that are.
    """
    names = _names(same)
    sets = [frozenset(names.get(each, each) for each in some) for some in versions]
    return frozenset.intersection(*sets) if sets else frozenset()


def lacking(siblings: Mapping[int, Set[str]], version: str, same: Collection[tuple[str, str]] = ()) -> tuple[int, ...]:
    """Return the subtasks whose results `version` has not made, and that have to be made again after it has."""
    return tuple(subtask for subtask, made in sorted(siblings.items()) if not agreed([made, {version}], same))


def _names(same: Collection[tuple[str, str]]) -> Mapping[str, str]:
    """Return the name that stands for each version that was declared equal to another."""
    names: dict[str, str] = {}
    for old, new in same:
        kept, gone = sorted((names.get(old, old), names.get(new, new)))
        names |= {each: kept for each, name in names.items() if name == gone} | {old: kept, new: kept}
    return names
