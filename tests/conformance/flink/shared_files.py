"""Register which checkpoint uses which file, and name the files to delete, as Flink's SharedStateRegistryImpl.

Invariant 4: a file is named for deletion only when no retained checkpoint uses it, and only if the dataflow owns it. A
file belongs to the registry, never to a checkpoint: the checkpoint that wrote it may have been deleted long before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from weir.errors import Internal

File = TypeVar("File")
"""The description of a file in a manifest; equal descriptions are of the same file."""

_NONE = -1


class ClaimMode(Enum):
    """The owner of the files of a restored checkpoint: Flink's RecoveryClaimMode (FLIP-193)."""

    CLAIM = "CLAIM"
    """The dataflow that restored it: files are deleted when they are not used any more."""
    NO_CLAIM = "NO_CLAIM"
    """The origin, as before: files are never deleted."""


class Sharing(Enum):
    """The way in which later snapshots share the files of a snapshot: Flink's SharingFilesStrategy."""

    FILE_BY_FILE = "file_by_file"
    """Files of an incremental checkpoint are shared independently."""
    WHOLE = "whole"
    """A savepoint is kept whole as long as any of its files is used."""


class Use(Enum):
    """The part of a restored snapshot that a checkpoint needs if it uses a file of it."""

    FILE = "file"
    """That file only."""
    WHOLE_ORIGIN = "whole_origin"
    """The whole snapshot: it may not be discarded while the file is used. It holds for all later users of the file."""


@dataclass(frozen=True, slots=True)
class RestoredSnapshot(Generic[File]):
    """A snapshot that a dataflow was restored from, by its id; `files` by their keys."""

    checkpoint: int
    files: Mapping[str, File]
    mode: ClaimMode = ClaimMode.NO_CLAIM
    sharing: Sharing = Sharing.FILE_BY_FILE


@dataclass(frozen=True, slots=True)
class Unused(Generic[File]):
    """The files to delete when checkpoints are no longer retained.

    `in_use` are the ids of restored snapshots that have to stay whole nevertheless.
    """

    files: Mapping[str, File]
    in_use: frozenset[int]


@dataclass(slots=True)
class _Entry(Generic[File]):
    file: File
    created: int
    last_used: int
    use: Use

    def used_by(self, checkpoint: int, use: Use) -> File:
        self.last_used = max(self.last_used, checkpoint)
        if use is Use.WHOLE_ORIGIN:
            self.use = use
        return self.file


class SharedFiles(Generic[File]):
    """The files of all retained checkpoints of a dataflow, by key, with the first and the last checkpoint that use it.

    The registry is not stored. Built anew from manifests (first what was restored, then the retained checkpoints in the
    order of their ids) it names the same files for deletion, some of them once more: deleting must be idempotent.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry[File]] = {}
        self._restored: dict[int, Sharing] = {}
        self._not_claimed = _NONE

    @property
    def files(self) -> Mapping[str, File]:
        """All files that are used, by key."""
        return {key: entry.file for key, entry in self._entries.items()}

    def register(self, key: str, file: File, checkpoint: int, use: Use = Use.FILE) -> File:
        """Register that a checkpoint uses a file, and return the file as it was first registered.

        Raises Internal if another file has the key (FLINK-29913: one of the two would be deleted while in use).
        """
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(file, checkpoint, checkpoint, use)
            return file
        if entry.file != file:
            raise Internal(
                f"checkpoint {checkpoint} names the state file {key!r} as {file}, but checkpoint {entry.created} "
                f"registered it as {entry.file}: no name is used twice; compare the two manifests, and report it"
            )
        return entry.used_by(checkpoint, use)

    def register_again(self, key: str, checkpoint: int, use: Use = Use.FILE) -> File:
        """Register that a checkpoint uses a file which is registered already, and return it. Else raises Internal.

        Flink's placeholder, for conformance: production describes each file wherever it names it.
        """
        if key not in self._entries:
            raise Internal(
                f"checkpoint {checkpoint} refers to the state file {key!r}, which no retained checkpoint describes: "
                "it needs the description itself; report it"
            )
        return self._entries[key].used_by(checkpoint, use)

    def restore(self, snapshot: RestoredSnapshot[File]) -> None:
        """Register the files of the snapshot that the dataflow was restored from, and their owner."""
        for key, file in snapshot.files.items():
            self.register(key, file, snapshot.checkpoint)
        self._restored[snapshot.checkpoint] = snapshot.sharing
        if snapshot.mode is not ClaimMode.CLAIM:
            self._not_claimed = max(self._not_claimed, snapshot.checkpoint)

    def unregister_unused(self, lowest_retained: int) -> Unused[File]:
        """Forget the files that no checkpoint from `lowest_retained` on uses, and return those that are to be deleted.

        Call it after the manifest of the new checkpoint is written and its files are registered, never before.
        """
        unused = {key: entry for key, entry in self._entries.items() if entry.last_used < lowest_retained}
        for key in unused:
            del self._entries[key]
        return Unused(
            {key: entry.file for key, entry in unused.items() if entry.created > self._not_claimed},
            frozenset(entry.created for entry in self._entries.values() if self._holds_origin(entry)),
        )

    def _holds_origin(self, entry: _Entry[File]) -> bool:
        sharing = self._restored.get(entry.created)
        return sharing is Sharing.WHOLE or (sharing is not None and entry.use is Use.WHOLE_ORIGIN)
