"""Rules for the files in the folder of a run: group them by attempt, and decide what is deleted, what is kept, and why.

Invariant 4: a folder is garbage only if its attempt is not running any more and neither the ledger nor a published
version needs its content. Files that no attempt of Weir writes are listed separately: they are reported, never deleted.

The store must be listed before the ledger is read: an attempt is registered before it writes, so that files of an
attempt that the ledger does not know belong to no attempt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from weir.execution.partition_state import PartitionState
from weir.formats.manifest import COPY_NAME, RELEASED_NOTE
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

TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
"""The names of files that are being created on a local disk."""

_KEPT_STATES: Final = {
    PartitionState.FINISHED: "its result is needed, or kept by the policy",
    PartitionState.LOST: "its result is lost, and its bytes may come back",
    PartitionState.QUARANTINED: "its result is quarantined: it is kept for inspection",
}


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
    folders = tuple(_attempt_folder(path, below) for path, below in sorted(by_folder.items(), key=_text))
    return RunFolder(folders, tuple(temporary), tuple(strange), has_record)


def _text(found: tuple[AttemptPath, object]) -> str:
    return str(found[0])


def _attempt_folder(path: AttemptPath, files: list[tuple[str, int]]) -> AttemptFolder:
    if isinstance(path, AttemptRecordPath):
        place, name, layout = Place.RECORD, path.region, ""
    else:
        place, name, layout = _place(path), path.stage, path.layout
    return AttemptFolder(
        path=str(path),
        place=place,
        name=name,
        subtask=path.subtask,
        layout=layout,
        attempt=path.attempt,
        files=tuple(files),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownResult:
    """A result in the ledger; `reader` is the holder of a lease on it, `is_deleted` says that its data are deleted."""

    state: PartitionState
    is_current: bool
    bytes: int
    reason: str
    reader: str | None = None
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAttempt:
    """An attempt in the ledger; one that is not running has ended at `ended_at`, in `state`."""

    region: str
    subtask: int
    try_number: int
    is_running: bool
    state: str
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKnowledge:
    """The ledger's record of a run: results by folder, attempts by id, and folders of published versions.

    `copies` says why the cached output of a stage and subtask is kept (None: it is not). In an expired run only
    published results and running attempts are kept. `pointers` says of each version that was ever published, by the
    path of its pointer, whether it still is. `has_readers` says that another epoch may read its results.
    `source_copies` are the ids of the copies of the splits that are recorded.
    """

    results: Mapping[str, KnownResult]
    attempts: Mapping[str, KnownAttempt]
    published: Set[str]
    copies: Mapping[tuple[str, str], str | None]
    pointers: Mapping[str, bool]
    is_expired: bool = False
    has_readers: bool = True
    source_copies: Set[str] = frozenset()


class FolderAction(Enum):
    """The action for a folder."""

    KEPT = "kept"
    GARBAGE = "garbage"
    """All of it goes."""
    EMPTIED = "emptied"
    """Its data go; its manifest stays."""


@dataclass(frozen=True, slots=True)
class FolderDecision:
    """The action for a folder, and why. If `is_aged`, it waits until its files, and `since`, are old enough."""

    folder: AttemptFolder
    action: FolderAction
    reason: str
    is_aged: bool = False
    since: datetime | None = None


def folder_decisions(found: RunFolder, known: RunKnowledge) -> tuple[FolderDecision, ...]:
    """Decide the action for the folder of each attempt."""
    newest = _newest_copies(found.folders, known)
    return tuple(_decide(each, known, newest) for each in found.folders)


def _decide(folder: AttemptFolder, known: RunKnowledge, newest: Set[str]) -> FolderDecision:
    if folder.place is Place.SOURCE_COPY:
        return _decide_source_copy(folder, known)
    attempt = known.attempts.get(folder.attempt)
    if attempt is not None and attempt.is_running:
        return FolderDecision(folder, FolderAction.KEPT, "its attempt is running")
    result = known.results.get(folder.path) if folder.place is Place.RESULT else None
    if result is not None:
        return _decide_result(folder, known, result)
    if folder.path in known.published:
        return FolderDecision(folder, FolderAction.KEPT, "a published version names it")
    if known.is_expired:
        return FolderDecision(folder, FolderAction.GARBAGE, "its run is expired")
    return _decide_rest(folder, attempt) if attempt is None else _decide_left(folder, known, attempt, newest)


def _decide_left(folder: AttemptFolder, known: RunKnowledge, attempt: KnownAttempt, newest: Set[str]) -> FolderDecision:
    """Decide about the other folders of an attempt that has ended: records, cached output, results without a row."""
    if folder.place is Place.RECORD:
        return FolderDecision(folder, FolderAction.KEPT, "the record of an attempt, kept until the run expires")
    if folder.place is Place.COPY:
        return _decide_copy(folder, known, attempt, newest)
    return _decide_rest(folder, attempt)


def _decide_rest(folder: AttemptFolder, attempt: KnownAttempt | None) -> FolderDecision:
    if attempt is None:
        return FolderDecision(folder, FolderAction.GARBAGE, "the ledger knows no such attempt", is_aged=True)
    reason = f"its attempt has {_ended(attempt)}, and nothing of it is kept"
    return FolderDecision(folder, FolderAction.GARBAGE, reason, is_aged=True, since=attempt.ended_at)


def _ended(attempt: KnownAttempt) -> str:
    return "committed" if attempt.state == "committed" else f"ended without a commit ({attempt.state})"


def _decide_result(folder: AttemptFolder, known: RunKnowledge, result: KnownResult) -> FolderDecision:
    kept = result.reader or _why_kept(folder, known, result)
    if kept is not None:
        return FolderDecision(folder, FolderAction.KEPT, kept)
    if known.is_expired:
        return FolderDecision(folder, FolderAction.GARBAGE, "its run is expired")
    if result.state is PartitionState.RELEASED:
        return FolderDecision(folder, FolderAction.EMPTIED, f"it was released: {result.reason}")
    return FolderDecision(folder, FolderAction.GARBAGE, f"it is superseded: {result.reason}")


def _why_kept(folder: AttemptFolder, known: RunKnowledge, result: KnownResult) -> str | None:
    if result.state is PartitionState.FINISHED:
        return _KEPT_STATES[result.state]
    if folder.path in known.published:
        return "a published version names it"
    if known.is_expired:
        return None
    if result.state is PartitionState.RELEASED and folder.names <= NOTES:
        return "the manifest of a released result, kept until the run expires"
    return _KEPT_STATES.get(result.state)


def _decide_copy(folder: AttemptFolder, known: RunKnowledge, attempt: KnownAttempt, newest: Set[str]) -> FolderDecision:
    if COPY_NAME not in folder.names:
        reason = f"a copy that was never completed; its attempt has {_ended(attempt)}"
        return FolderDecision(folder, FolderAction.GARBAGE, reason, is_aged=True, since=attempt.ended_at)
    if any(_is_running_on(each, attempt) for each in known.attempts.values()):
        return FolderDecision(folder, FolderAction.KEPT, "a running attempt may have resumed from it")
    kept = known.copies.get((folder.name, folder.subtask))
    if kept is None:
        return FolderDecision(folder, FolderAction.GARBAGE, "a copy that no attempt will resume from")
    if folder.path not in newest:
        return FolderDecision(folder, FolderAction.GARBAGE, "there is a newer copy")
    return FolderDecision(folder, FolderAction.KEPT, f"a copy to resume from: {kept}")


def _decide_source_copy(folder: AttemptFolder, known: RunKnowledge) -> FolderDecision:
    if any(each.is_running and str(each.subtask) == folder.subtask for each in known.attempts.values()):
        return FolderDecision(folder, FolderAction.KEPT, "a running attempt may copy what its source has, or read it")
    if known.is_expired:
        return FolderDecision(folder, FolderAction.GARBAGE, "its run is expired")
    if folder.attempt in known.source_copies:
        return FolderDecision(folder, FolderAction.KEPT, "what a source has read, kept until the run expires")
    return FolderDecision(folder, FolderAction.GARBAGE, "its source was resolved anew", is_aged=True)


def other_copies(folder: AttemptFolder, bound: str | None, known: RunKnowledge) -> tuple[tuple[str, int], ...]:
    """Return the files of copies that no attempt reads: of other attempts than the `bound` one, which have ended."""
    kept = {bound, *(each for each, attempt in known.attempts.items() if attempt.is_running)}
    of_attempts = ((name, size) for name, size in folder.files if "/" in name)
    return tuple(each for each in of_attempts if each[0].partition("/")[0] not in kept)


def _is_running_on(other: KnownAttempt, attempt: KnownAttempt) -> bool:
    return other.is_running and (other.region, other.subtask) == (attempt.region, attempt.subtask)


def _newest_copies(folders: Iterable[AttemptFolder], known: RunKnowledge) -> frozenset[str]:
    """Return the paths of the newest complete copy of each stage and subtask."""
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    for each in folders:
        attempt = known.attempts.get(each.attempt)
        if each.place is Place.COPY and attempt is not None and COPY_NAME in each.names:
            key, candidate = (each.name, each.subtask), (attempt.try_number, each.path)
            newest[key] = max(newest.get(key, candidate), candidate)
    return frozenset(path for _, path in newest.values())


def is_record_kept(known: RunKnowledge) -> bool:
    """Report whether the record of a run stays: not if the run is expired, not published, and has no readers."""
    is_published = bool(known.published) or any(known.pointers.values())
    return not known.is_expired or is_published or known.has_readers


def known_gone(known: RunKnowledge, there: Set[str]) -> frozenset[str]:
    """Return folders of unused results that are not `there` any more, which the ledger has not recorded yet."""
    return frozenset(
        path
        for path, result in known.results.items()
        if not result.is_deleted and path not in there and _is_out_of_use(result, is_expired=known.is_expired)
    )


def _is_out_of_use(result: KnownResult, *, is_expired: bool) -> bool:
    return result.state is PartitionState.SUPERSEDED or (is_expired and result.state is not PartitionState.FINISHED)
