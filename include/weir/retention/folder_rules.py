"""The files in the folder of a run, grouped by attempt: what each folder is, and what lies in it that nothing names.

Invariant: files that no attempt of Weir writes are listed separately: they are reported, never deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from weir.formats.manifest import RELEASED_NOTE
from weir.formats.paths import (
    MANIFEST,
    RUN_RECORD,
    AttemptPath,
    AttemptRecordPath,
    ResultPath,
    name_of,
    parse_attempt_path,
)

NOTES: Final = frozenset({MANIFEST, RELEASED_NOTE})
"""What stays of a released result."""

TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
"""The names of files that are being created on a local disk."""


class Place(Enum):
    """The purpose of an attempt's folder."""

    RESULT = "result"
    COPY = "copy"
    SOURCE_COPY = "source copy"
    """The copies of one split of a source: `attempt` is the id that they share."""
    RECORD = "record"
    """The job description of an attempt and its report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFolder:
    """A folder that one attempt has written: `files` are (name, size) below it, `name` is the stage or the region."""

    path: str
    place: Place
    name: str
    subtask: str
    attempt: str
    files: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(size for _, size in self.files)

    @property
    def data_bytes(self) -> int:
        """The size of all files but the manifest and the note of a release."""
        return sum(size for name, size in self.files if name not in NOTES)

    @property
    def names(self) -> frozenset[str]:
        """The names of all files."""
        return frozenset(name for name, _ in self.files)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The content of a run's folder. `temporary` are unfinished writes of killed processes; all with sizes."""

    folders: tuple[AttemptFolder, ...]
    temporary: tuple[tuple[str, int], ...]
    strange: tuple[tuple[str, int], ...]
    has_record: bool


def run_folder(root: str, files: Iterable[tuple[str, int]]) -> RunFolder:
    """Group the files below the folder of a run by attempt; `files` are (path from the root of the store, size)."""
    by_folder: dict[AttemptPath, list[tuple[str, int]]] = {}
    temporary, strange = [], []
    has_record = False
    for path, size in files:
        found = parse_attempt_path(path)
        if path == f"{root}/{RUN_RECORD}":
            has_record = True
        elif TEMPORARY.fullmatch(name_of(path)):
            temporary.append((path, size))
        elif found is not None and path != str(found):
            by_folder.setdefault(found, []).append((path.removeprefix(f"{found}/"), size))
        else:
            strange.append((path, size))
    in_order = sorted(by_folder.items(), key=lambda found: str(found[0]))
    folders = tuple(_attempt_folder(path, below) for path, below in in_order)
    return RunFolder(folders, tuple(temporary), tuple(strange), has_record)


def _attempt_folder(path: AttemptPath, files: list[tuple[str, int]]) -> AttemptFolder:
    place, name = (Place.RECORD, path.region) if isinstance(path, AttemptRecordPath) else (_place(path), path.stage)
    return AttemptFolder(
        path=str(path), place=place, name=name, subtask=path.subtask, attempt=path.attempt, files=tuple(files)
    )


def _place(path: ResultPath) -> Place:
    if path.is_source_copy:
        return Place.SOURCE_COPY
    return Place.COPY if path.is_copy else Place.RESULT


def may_have_strays(folder: AttemptFolder, expected_bytes: int) -> bool:
    """Report whether the folder of a finished result may have files that its manifest does not name."""
    data = [(name, size) for name, size in folder.files if name not in NOTES]
    return folder.data_bytes > expected_bytes or any(size == 0 or name[0] in "._" for name, size in data)


def is_short(folder: AttemptFolder, expected_bytes: int) -> bool:
    """Report whether bytes of a finished result, or its manifest, are missing."""
    return MANIFEST not in folder.names or folder.data_bytes < expected_bytes


def strays(folder: AttemptFolder, named: Set[str]) -> tuple[tuple[str, int], ...]:
    """Return the files in the folder of a result that its manifest does not name."""
    return tuple((name, size) for name, size in folder.files if name not in named | NOTES)
