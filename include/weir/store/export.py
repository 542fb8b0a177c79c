"""Copies what is published in a store, of this or another build, into a folder.

Invariant: only the pointers are read, and of these only which files a version consists of: all builds say this alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weir.errors import Misconfigured
from weir.formats.paths import SINKS, pointer_folder, sinks_folder
from weir.formats.pointer import newest
from weir.store.segments import chunks
from weir.store.store import Store
from weir.store.walk import files_in, folders_in


@dataclass(frozen=True, slots=True)
class ExportedEpoch:
    """The newest version of an epoch of a sink, as it was copied: its folder, and how many bytes that has."""

    folder: Path
    bytes: int


def export(store: Store, target: Path, dataflow: str | None = None) -> Iterator[ExportedEpoch]:
    """Copy the newest version of each epoch of each sink into `target`/DATAFLOW/SINK/EPOCH, and yield it.

    Raises Misconfigured for a folder that is there already or a pointer that cannot be read, NotFound for a file that
    is gone, and Retryable.
    """
    for name in folders_in(store, SINKS) if dataflow is None else [dataflow]:
        for sink in folders_in(store, sinks_folder(name)):
            for epoch in folders_in(store, f"{sinks_folder(name)}/{sink}"):
                folder = pointer_folder(name, sink, epoch)
                pointer = newest(files_in(store, folder))
                if pointer is not None:
                    yield _copied(store, f"{folder}/{pointer}", target / name / sink / epoch)


def _copied(store: Store, pointer: str, folder: Path) -> ExportedEpoch:
    try:
        parts = json.loads(store.read(pointer))["partitions"]
        paths = [
            (f"{part['folder']}/{file}", f"{part['subtask']:05d}-{file}") for part in parts for file in part["files"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise Misconfigured.of("store.not_a_pointer", store_url=store.url, pointer=pointer, error=error) from error
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise Misconfigured.of("store.export_in_the_way", folder=folder) from error
    return ExportedEpoch(folder, sum(_copy(store, path, folder / name) for path, name in paths))


def _copy(store: Store, path: str, target: Path) -> int:
    with target.open("xb") as file:
        return sum(file.write(data) for data in chunks(store, path, 0, store.size(path)))
