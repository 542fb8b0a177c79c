"""The catalogue of a store: runs, results and published versions, found by listing its folders.

Invariants: a folder without a manifest is not a result; a manifest that cannot be read is left out with a note, but a
store that does not answer is an error, never an empty store. A reader of a sink sees its highest version, whole, or
none. What is read of an attempt's code is what its job names: an archive with another content is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from weir.code.archive import Archive, archive_of
from weir.code.generation_rules import short
from weir.errors import Message, Misconfigured, at, said_by
from weir.formats.codec import from_json
from weir.formats.manifest import RELEASED_NOTE, Manifest, Stored, release_reason
from weir.formats.paths import (
    PROVISIONAL,
    archive_fingerprint,
    archives_folder,
    attempt_of_folder,
    epoch_folder,
    manifest_path,
    pointer_folder,
    record_path,
    result_folder,
    sinks_folder,
)
from weir.formats.pointer import Pointer, newest, pointer_from_json
from weir.formats.region_job import CodeToRun
from weir.formats.run_record import RunRecord
from weir.store.errors import NotFound
from weir.store.store import Store
from weir.store.walk import files_in, folders_in
from weir.store.worker_threads import in_parallel
from weir.topology.ids import Epoch, is_synthetic


@dataclass(frozen=True, slots=True)
class EpochCatalogue:
    """The content of an epoch: its run's record, results, published versions, and notes on unreadable files.

    `provisional` are the pointers to provisional rows.
    """

    epoch: Epoch
    record: RunRecord | None
    stored: tuple[Stored, ...]
    pointers: tuple[Pointer, ...]
    provisional: tuple[Pointer, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredArchive:
    """A file with an archive of code, which is whole."""

    fingerprint: str
    path: str
    bytes: int


def stored_archives(store: Store, dataflow: str) -> tuple[StoredArchive | str, ...]:
    """Return the archives of code of a dataflow that are whole, and notes on the others. Raises Retryable."""
    folder = archives_folder(dataflow)
    paths = [f"{folder}/{name}" for name in files_in(store, folder)]
    named = [(fingerprint, path) for path in paths if (fingerprint := archive_fingerprint(path)) is not None]
    found = in_parallel(partial(_archive, store), named, store.workers)
    return tuple(each for each in found if each is not None)


def _archive(store: Store, named: tuple[str, str]) -> StoredArchive | str | None:
    fingerprint, path = named
    try:
        data = store.read(path)
        archive_of(data, fingerprint)
    except NotFound:
        return None
    except ValueError as error:
        return f"{path} is damaged, so it is left out: {error}"
    return StoredArchive(fingerprint, path, len(data))


def stored_dataflows(store: Store) -> tuple[str, ...]:
    """Return the dataflows that have a folder in the store."""
    return tuple(_folders(store, ""))


def catalogue(store: Store, dataflow: str) -> tuple[EpochCatalogue, ...]:
    """Return all epochs of a dataflow, oldest first. Raises Retryable, and Misconfigured for files of another Weir."""
    return tuple(_epoch(store, dataflow, epoch) for epoch in _folders(store, dataflow))


def restored(store: Store, dataflow: str, epoch: str | None = None) -> tuple[Stored, ...]:
    """Return the readable results restored into a dataflow, in an epoch or in all. Raises as `catalogue`."""
    epochs = _folders(store, dataflow) if epoch is None else [epoch]
    folders = [folder for each in epochs for folder in _attempt_folders(store, epoch_folder(dataflow, each))]
    synthetic = [each for each in folders if is_synthetic(attempt_of_folder(each))]
    found = in_parallel(partial(_result, store), synthetic, store.workers)
    return tuple(each for each in found if isinstance(each, Stored))


def stored_record(store: Store, dataflow: str, epoch: str) -> RunRecord | None:
    """Read the record of a run; None where there is none. Raises Retryable, and Misconfigured."""
    try:
        return from_json(RunRecord, store.read(record_path(dataflow, epoch)))
    except NotFound:
        return None


def ledgers_of(store: Store, dataflow: str, known: Set[str]) -> set[str]:
    """Return the ids of the ledgers that have the newest run of a dataflow, and the newest not in `known` epochs.

    A record that cannot be read names none. Raises Retryable.
    """
    epochs = _folders(store, dataflow)
    wanted = {max(found) for found in (epochs, [each for each in epochs if each not in known]) if found}
    found = set()
    for epoch in wanted:
        with suppress(ValueError, KeyError, TypeError, Misconfigured):
            record = stored_record(store, dataflow, epoch)
            found |= set() if record is None else {record.ledger}
    return found


def _epoch(store: Store, dataflow: str, epoch: str) -> EpochCatalogue:
    found = in_parallel(partial(_result, store), _attempt_folders(store, epoch_folder(dataflow, epoch)), store.workers)
    pointers = in_parallel(partial(_pointer, store), _pointer_paths(store, dataflow, epoch), store.workers)
    return EpochCatalogue(
        Epoch(epoch),
        stored_record(store, dataflow, epoch),
        tuple(each for each in found if isinstance(each, Stored)),
        tuple(each for each in pointers if isinstance(each, Pointer) and not each.lacks),
        tuple(each for each in pointers if isinstance(each, Pointer) and each.lacks),
        tuple(each for each in (*found, *pointers) if isinstance(each, str)),
    )


def _attempt_folders(store: Store, epoch_folder: str) -> list[str]:
    """Return the attempts' folders, below stage, layout and subtask."""
    level = [epoch_folder]
    for _ in range(4):
        below = in_parallel(partial(_folders, store), level, store.workers)
        level = [f"{folder}/{name}" for folder, names in zip(level, below, strict=True) for name in names]
    return level


def _folders(store: Store, path: str) -> list[str]:
    """Return the folders in a folder, without those that begin with an underscore, which are Weir's own."""
    names = folders_in(store, path)
    return [name for name in names if not name.startswith(("_", ".")) and name != "lost+found"]


def _result(store: Store, folder: str) -> Stored | str | None:
    path = manifest_path(folder)
    try:
        data = store.read(path)
    except NotFound:
        return None
    try:
        manifest = from_json(Manifest, data)
    except Misconfigured as error:
        said = said_by(error)
        if isinstance(said, Message) and said.kind == "formats.another_version":
            raise Misconfigured(at(path, said)) from error  # no damage: it must not be left out
        return f"{path} cannot be read, so its result is left out: {error}"
    named = result_folder(
        manifest.dataflow, manifest.epoch, manifest.stage, manifest.layout, manifest.subtask, manifest.attempt
    )
    if named != folder:
        return f"{path} is of {named}, so its result is left out: was it copied there?"
    return Stored(folder, hashlib.sha256(data).hexdigest(), manifest, _released(store, folder))


def _released(store: Store, folder: str) -> str | None:
    try:
        return release_reason(store.read(f"{folder}/{RELEASED_NOTE}"))
    except NotFound:
        return None


def _pointer_paths(store: Store, dataflow: str, epoch: str) -> Iterable[str]:
    for sink in _folders(store, sinks_folder(dataflow)):
        folder = pointer_folder(dataflow, sink, epoch)
        yield from (f"{folder}/{name}" for name in files_in(store, folder) if name.endswith((".json", PROVISIONAL)))


def _pointer(store: Store, path: str) -> Pointer | str:
    try:
        return pointer_from_json(store.read(path))
    except (ValueError, TypeError, KeyError, NotFound) as error:
        return f"{path} cannot be read, so its version is not recorded: {error}"


def highest_version(store: Store, dataflow: str, sink: str, epoch: str) -> int:
    """Return the highest version with a pointer, of any attempt; 0 if there is none. Raises Retryable."""
    name = newest(files_in(store, pointer_folder(dataflow, sink, epoch)))
    return 0 if name is None else int(name.removesuffix(".json"))


def published(store: Store, dataflow: str, sink: str, epoch: str) -> Pointer | None:
    """Return the version of `sink` that is visible for `epoch`; None if none is. Raises Retryable."""
    folder = pointer_folder(dataflow, sink, epoch)
    name = newest(files_in(store, folder))
    return None if name is None else pointer_from_json(store.read(f"{folder}/{name}"))


def read_archive(code: CodeToRun, store: Store) -> Archive:
    """Read a job's archive from the store. Raises Misconfigured if it is gone or damaged, and Retryable."""
    try:
        return archive_of(store.read(code.path), code.archive)
    except (NotFound, ValueError) as error:
        raise Misconfigured.of(
            "store.code_lost", short=short(code.version), code_path=code.path, error=error
        ) from error
