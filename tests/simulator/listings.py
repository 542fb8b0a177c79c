"""The files that sources list: they come, go and are corrected, so that a source resolved later reads other ones.

Invariant: a listing is divided among subtasks in such a way that parts of two listings have files twice, or lack some.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from weir.dataflow.resolving import ResolveContext, Resolved
from weir.errors import Misconfigured

LISTED: Final = "tests.simulator.listings:listed"
"""The resolver of a source whose files are listed."""

SINCE: Final = "tests.simulator.listings:since"
"""The resolver of a source that goes on."""

FILES_OF: Final = "files_of"
"""The option by which the resolver knows its source."""

FILES: Final = "files"

COMES, GOES, CORRECTED = "comes", "goes", "corrected"

_NAMES: Final = "abcdefg"
_FIRST: Final = ("b@0", "d@0", "f@0")

Files = tuple[str, ...]
"""The names of files, each with the number of the last change of its content: `b@0`."""


def listed(context: ResolveContext) -> Sequence[object]:
    """Resolve a source: each subtask reads a part of the files that there are now."""
    files: list[str] = json.loads(context.variable(context.options[FILES_OF]))
    return _splits(context, divided(files, context.parallelism))


def since(context: ResolveContext) -> Resolved:
    """Resolve a source that goes on: what has come since the epoch before."""
    files: list[str] = json.loads(context.variable(context.options[FILES_OF]))
    begin = 0 if context.previous is None else context.previous.position
    end = len(files) if context.recorded is None else context.recorded.position
    if context.recorded is not None:
        begin = end - sum(len(files_of(split)) for split in context.recorded.splits)
    return Resolved(_splits(context, divided(files[begin:end], context.parallelism)), end)


def _splits(context: ResolveContext, parts: Sequence[list[str]]) -> Sequence[object]:
    """Return splits to which the id of a copy can be added, where there is to be one."""
    return [{FILES: part} for part in parts] if "keep" in context.options else parts


def files_of(split: Any) -> list[str]:
    """Return the files of a recorded split."""
    return list(split[FILES] if isinstance(split, dict) else split)


def divided(files: Sequence[str], parallelism: int) -> list[list[str]]:
    """Return the files of each subtask: one that comes or goes moves all that follow it."""
    return [list(files[subtask::parallelism]) for subtask in range(parallelism)]


class Listings:
    """The files of sources, and all listings that they have ever had."""

    def __init__(self, sources: Iterable[str], going: Iterable[str] = ()) -> None:
        self.going = frozenset(going)
        """The sources that go on: their files only come, each with a number of its own."""
        self._of: dict[str, list[Files]] = {source: [_FIRST] for source in (*sources, *self.going)}
        self._changes = 0

    @property
    def sources(self) -> list[str]:
        """Return the sources whose files are listed."""
        return list(self._of)

    def ever(self, source: str) -> Sequence[Files]:
        """Return all listings that a source has had, the present one last."""
        return self._of[source]

    def variable(self, key: str) -> str:
        """Return the present files of a source as JSON, as a variable of Airflow has them."""
        if key not in self._of:
            raise Misconfigured(f"there is no variable {key!r}")
        return json.dumps(self._of[key][-1])

    def change(self, source: str, number: int, how: str) -> None:
        """Let a file come, go, or be corrected; one that is all that there is stays."""
        self._changes += 1
        if source in self.going:
            self._of[source].append((*self._of[source][-1], f"{_NAMES[number % len(_NAMES)]}@{self._changes}"))
            return
        files = dict(file.split("@") for file in self._of[source][-1])
        if how == COMES:
            absent = [name for name in _NAMES if name not in files] or _NAMES
            files[absent[number % len(absent)]] = str(self._changes)
        else:
            there = sorted(files)[number % len(files)]
            if how == CORRECTED:
                files[there] = str(self._changes)
            elif len(files) > 1:
                del files[there]
        self._of[source].append(tuple(f"{name}@{mark}" for name, mark in sorted(files.items())))
