"""What lies in the folder of a run, and whose it is: what may be deleted, what is kept, and why.

Invariant 4: a folder is named garbage only if its attempt is at work no more and neither the ledger nor a published
version needs what is in it.

Whoever uses this has listed the store first and read the ledger then: an attempt is registered before it writes, so
that files of an attempt that the ledger does not know are nobody's.

What lies in the folder of a run, sorted by the attempts that write there.

Invariant: what no attempt of Weir writes is set apart: it is told, and never deleted.
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
from weir.formats.paths import MANIFEST, RUN_RECORD, AttemptPath, AttemptRecordPath, parse_attempt_path


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownResult:
    """A result in the ledger; `reader` says who has a lease on it, `is_deleted` that its data are known to be gone."""

    state: PartitionState
    is_current: bool
    bytes: int
    reason: str
    reader: str | None = None
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAttempt:
    """An attempt in the ledger; one that is not at work has ended at `ended_at`, in a state that is told."""

    region: str
    subtask: int
    try_number: int
    is_at_work: bool
    state: str
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKnowledge:
    """What the ledger knows of a run: results by folder, attempts by id, and folders of published versions.

    `copies` says of stages and subtasks why their copies are kept (None: they are not). In an expired run only what is
    published is kept, and what is at work. `pointers` says of each version that was ever published, by the path of its
    pointer, whether it still is. `has_readers` says that another epoch may read its results.
    """

    results: Mapping[str, KnownResult]
    attempts: Mapping[str, KnownAttempt]
    published: Set[str]
    copies: Mapping[tuple[str, str], str | None]
    pointers: Mapping[str, bool]
    is_expired: bool = False
    has_readers: bool = True


class Fate(Enum):
    """What becomes of a folder."""

    KEPT = "kept"
    GARBAGE = "garbage"
    """All of it goes."""
    EMPTIED = "emptied"
    """Its data go; its manifest stays."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a folder, and why. What is `aged` goes only when it is old, by its files and by `since`."""

    folder: AttemptFolder
    fate: Fate
    reason: str
    is_aged: bool = False
    since: datetime | None = None


def judge(found: RunFolder, known: RunKnowledge) -> tuple[Judgement, ...]:
    """Say of each attempt's folder what becomes of it, and why."""
    newest = _newest_copies(found.folders, known)
    return tuple(_judge(each, known, newest) for each in found.folders)


def _judge(folder: AttemptFolder, known: RunKnowledge, newest: Set[str]) -> Judgement:
    attempt = known.attempts.get(folder.attempt)
    if attempt is not None and attempt.is_at_work:
        return Judgement(folder, Fate.KEPT, "its attempt is at work")
    result = known.results.get(folder.path) if folder.place is Place.RESULT else None
    if result is not None:
        return _judge_result(folder, known, result)
    if folder.path in known.published:
        return Judgement(folder, Fate.KEPT, "a published version names it")
    if known.is_expired:
        return Judgement(folder, Fate.GARBAGE, "its run is expired")
    return _judge_rest(folder, attempt) if attempt is None else _judge_left(folder, known, attempt, newest)


def _judge_left(folder: AttemptFolder, known: RunKnowledge, attempt: KnownAttempt, newest: Set[str]) -> Judgement:
    """What an attempt has left that has come to its end, beside its results."""
    if folder.place is Place.RECORD:
        return Judgement(folder, Fate.KEPT, "the record of an attempt, kept until the run expires")
    if folder.place is Place.COPY:
        return _judge_copy(folder, known, attempt, newest)
    return _judge_rest(folder, attempt)


def _judge_rest(folder: AttemptFolder, attempt: KnownAttempt | None) -> Judgement:
    if attempt is None:
        return Judgement(folder, Fate.GARBAGE, "the ledger knows no such attempt", is_aged=True)
    reason = f"its attempt has {_told(attempt)}, and nothing of it is kept"
    return Judgement(folder, Fate.GARBAGE, reason, is_aged=True, since=attempt.ended_at)


def _told(attempt: KnownAttempt) -> str:
    return "committed" if attempt.state == "committed" else f"ended without a commit ({attempt.state})"


_KEPT_STATES: Final = {
    PartitionState.FINISHED: "its result is needed, or kept by the policy",
    PartitionState.LOST: "its result is lost, and its bytes may come back",
    PartitionState.QUARANTINED: "its result is quarantined: it is kept to be looked at",
}


def _judge_result(folder: AttemptFolder, known: RunKnowledge, result: KnownResult) -> Judgement:
    kept = result.reader or _why_kept(folder, known, result)
    if kept is not None:
        return Judgement(folder, Fate.KEPT, kept)
    if known.is_expired:
        return Judgement(folder, Fate.GARBAGE, "its run is expired")
    if result.state is PartitionState.RELEASED:
        return Judgement(folder, Fate.EMPTIED, f"it was released: {result.reason}")
    return Judgement(folder, Fate.GARBAGE, f"it is superseded: {result.reason}")


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


def _judge_copy(folder: AttemptFolder, known: RunKnowledge, attempt: KnownAttempt, newest: Set[str]) -> Judgement:
    if COPY_NAME not in folder.names:
        reason = f"a copy that was never completed; its attempt has {_told(attempt)}"
        return Judgement(folder, Fate.GARBAGE, reason, is_aged=True, since=attempt.ended_at)
    if any(_is_at_work_on(each, attempt) for each in known.attempts.values()):
        return Judgement(folder, Fate.KEPT, "an attempt is at work that may have resumed from it")
    kept = known.copies.get((folder.name, folder.subtask))
    if kept is None:
        return Judgement(folder, Fate.GARBAGE, "a copy that nobody will resume from")
    if folder.path not in newest:
        return Judgement(folder, Fate.GARBAGE, "there is a newer copy")
    return Judgement(folder, Fate.KEPT, f"a copy to resume from: {kept}")


def _is_at_work_on(other: KnownAttempt, attempt: KnownAttempt) -> bool:
    return other.is_at_work and (other.region, other.subtask) == (attempt.region, attempt.subtask)


def _newest_copies(folders: Iterable[AttemptFolder], known: RunKnowledge) -> frozenset[str]:
    """The newest complete copy of each stage and subtask."""
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    for each in folders:
        attempt = known.attempts.get(each.attempt)
        if each.place is Place.COPY and attempt is not None and COPY_NAME in each.names:
            key, candidate = (each.name, each.subtask), (attempt.try_number, each.path)
            newest[key] = max(newest.get(key, candidate), candidate)
    return frozenset(path for _, path in newest.values())


def is_record_kept(known: RunKnowledge) -> bool:
    """Whether the record of a run stays: not where the run is expired, nothing of it published, and none its reader."""
    is_published = bool(known.published) or any(known.pointers.values())
    return not known.is_expired or is_published or known.has_readers


def known_gone(known: RunKnowledge, there: Set[str]) -> frozenset[str]:
    """The folders of results that are out of use and not `there` any more, which the ledger does not say yet."""
    return frozenset(
        path
        for path, result in known.results.items()
        if not result.is_deleted and path not in there and _is_out_of_use(result, is_expired=known.is_expired)
    )


def _is_out_of_use(result: KnownResult, *, is_expired: bool) -> bool:
    return result.state is PartitionState.SUPERSEDED or (is_expired and result.state is not PartitionState.FINISHED)


NOTES: Final = frozenset({MANIFEST, RELEASED_NOTE})

TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
"""The names of files that are being created on a local disk."""


class Place(Enum):
    """What a folder of an attempt is for."""

    RESULT = "result"
    COPY = "copy"
    RECORD = "record"
    """Where the job of an attempt is described and reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    by_folder: dict[AttemptPath, list[tuple[str, int]]] = {}
    temporary, strange = [], []
    has_record = False
    for path, size in files:
        found = parse_attempt_path(path)
        if path == f"{root}/{RUN_RECORD}":
            has_record = True
        elif TEMPORARY.fullmatch(path.rpartition("/")[2]):
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
        place, name, layout = Place.COPY if path.is_copy else Place.RESULT, path.stage, path.layout
    return AttemptFolder(
        path=str(path),
        place=place,
        name=name,
        subtask=path.subtask,
        layout=layout,
        attempt=path.attempt,
        files=tuple(files),
    )


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
