"""What lies in the folder of a run, sorted by the attempts that write there.

Invariant: what no attempt of Weir writes is set apart: it is told, and never deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from weir.results.released_note import RELEASED_NOTE
from weir.results.stage_copy import COPY

MANIFEST: Final = "manifest.json"
RUN_RECORD: Final = "_run.json"

NOTES: Final = frozenset({MANIFEST, RELEASED_NOTE})
_RECORDS: Final = "_regions"
TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
"""The names of files that are being created on a local disk."""
_RESULT_DEPTH, _RECORD_DEPTH = 4, 4


class Place(Enum):
    """What a folder of an attempt is for."""

    RESULT = "result"
    COPY = "copy"
    RECORD = "record"
    """Where the job of an attempt is described and reports."""


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """A folder that one attempt has written: `files` are names below it with sizes, `name` the stage or the region."""

    path: str
    place: Place
    name: str
    subtask: str
    layout: str
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
    """What lies in the folder of a run. `temporary` are files that a creator left who was killed; all with sizes."""

    folders: tuple[AttemptFolder, ...]
    temporary: tuple[tuple[str, int], ...]
    strange: tuple[tuple[str, int], ...]
    has_record: bool


def run_folder(root: str, files: Iterable[tuple[str, int]]) -> RunFolder:
    """Sort the files below the folder of a run, which are (path from the root of the store, size)."""
    by_folder: dict[str, list[tuple[str, int]]] = {}
    temporary, strange = [], []
    has_record = False
    for path, size in files:
        parts = path.removeprefix(f"{root}/").split("/")
        if parts == [RUN_RECORD]:
            has_record = True
        elif TEMPORARY.fullmatch(parts[-1]):
            temporary.append((path, size))
        elif (depth := _depth(parts)) is not None:
            folder = "/".join((root, *parts[:depth]))
            by_folder.setdefault(folder, []).append(("/".join(parts[depth:]), size))
        else:
            strange.append((path, size))
    folders = tuple(_attempt_folder(root, path, found) for path, found in sorted(by_folder.items()))
    return RunFolder(folders, tuple(temporary), tuple(strange), has_record)


def _depth(parts: list[str]) -> int | None:
    """How many names lead to the folder of an attempt; None where no attempt writes."""
    if parts[0] == _RECORDS:
        return _RECORD_DEPTH if len(parts) > _RECORD_DEPTH else None
    return None if parts[0].startswith(("_", ".")) or len(parts) <= _RESULT_DEPTH else _RESULT_DEPTH


def _attempt_folder(root: str, path: str, files: list[tuple[str, int]]) -> AttemptFolder:
    parts = path.removeprefix(f"{root}/").split("/")
    if parts[0] == _RECORDS:
        _, region, subtask, attempt = parts
        return AttemptFolder(path, Place.RECORD, region, subtask, "", attempt, tuple(files))
    stage, layout, subtask, attempt = parts
    place = Place.COPY if layout == COPY else Place.RESULT
    return AttemptFolder(path, place, stage, subtask, layout, attempt, tuple(files))


def may_have_strays(folder: AttemptFolder, expected_bytes: int) -> bool:
    """Whether there are files in the folder of a finished result that its manifest may not name."""
    data = [(name, size) for name, size in folder.files if name not in NOTES]
    return folder.data_bytes > expected_bytes or any(size == 0 or name[0] in "._" for name, size in data)


def is_short(folder: AttemptFolder, expected_bytes: int) -> bool:
    """Whether bytes of a finished result, or its manifest, are not there."""
    return MANIFEST not in folder.names or folder.data_bytes < expected_bytes


def strays(folder: AttemptFolder, named: Set[str]) -> tuple[tuple[str, int], ...]:
    """The files in the folder of a result that its manifest does not name."""
    return tuple((name, size) for name, size in folder.files if name not in named | NOTES)
