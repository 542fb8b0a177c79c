"""A savepoint: a checkpoint with all of its files in one folder, in the store or elsewhere.

Invariant: paths in its manifest are relative to the folder, and no two files have one name there; so it can be moved,
copied and restored from any place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from weir.formats.checkpoint import Checkpoint, KeyedSnapshot, ResultInFlight, SnapshotKind
from weir.formats.manifest import DataFile, StateFile
from weir.formats.paths import manifest_path
from weir.topology.ids import AttemptId

SAVEPOINT: Final = "savepoint.json"
"""The manifest of a savepoint: written last, removed first."""

FILES: Final = "files"
RESULTS: Final = "results"


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file to copy: its source, target, size and SHA-256. `bytes` is None where only the hash is known."""

    source: str
    target: str
    bytes: int | None
    sha256: str


@dataclass(frozen=True, slots=True)
class FileLocation:
    """The location of a state file: its folder and its name there."""

    folder: str
    name: str


def as_savepoint(
    checkpoint: Checkpoint, number: int, attempt: AttemptId, triggered_at: str
) -> tuple[Checkpoint, tuple[FileCopy, ...]]:
    """Return the savepoint with the content of a checkpoint, and the files to copy for it.

    The caller sets `completed_at` after it has copied them.
    """
    known = checkpoint.files
    names = {path: FileLocation(FILES, f"{i:06d}-{known[path].file.name}") for i, path in enumerate(sorted(known))}
    copies = [
        FileCopy(path, f"{FILES}/{names[path].name}", each.file.bytes, each.file.sha256) for path, each in known.items()
    ]
    results = []
    for each in checkpoint.results:
        folder = f"{RESULTS}/{each.stage}/{each.layout}/{each.subtask}"
        copies += copies_of(each, each.folder, folder)
        results.append(replace(each, folder=folder))
    size = sum(copy.bytes or 0 for copy in copies)
    savepoint = replace(
        checkpoint,
        number=number,
        kind=SnapshotKind.SAVEPOINT,
        attempt=attempt,
        states=tuple(placed(state, names) for state in checkpoint.states),
        results=tuple(results),
        triggered_at=triggered_at,
        full_bytes=size,
        incremental_bytes=size,
        new_files=sum(copy.bytes is not None for copy in copies),
        shared_files=0,
    )
    return savepoint, tuple(copies)


def copies_of(result: ResultInFlight, source: str, target: str) -> list[FileCopy]:
    """Return the copies of a result partition's files, manifest included, from one folder to another."""
    return [
        FileCopy(manifest_path(source), manifest_path(target), None, result.manifest_sha256),
        *(FileCopy(f"{source}/{each.name}", f"{target}/{each.name}", each.bytes, each.sha256) for each in result.files),
    ]


def placed(state: KeyedSnapshot, places: Mapping[str, FileLocation]) -> KeyedSnapshot:
    """Return the state with new locations of its files: `places` by former path; other files stay."""
    return replace(
        state,
        partitions=tuple(
            replace(part, files=tuple(moved(file, places) for file in part.files)) for part in state.partitions
        ),
    )


def moved(file: StateFile, places: Mapping[str, FileLocation]) -> StateFile:
    """Return the file at its new location."""
    place = places.get(file.path)
    return file if place is None else replace(file, folder=place.folder, file=renamed(file.file, place.name))


def renamed(file: DataFile, name: str) -> DataFile:
    """Return the file under another name."""
    return replace(file, name=name)
