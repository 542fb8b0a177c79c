"""Readers of published versions. Invariant: a reader sees the highest version, whole, or none."""

from __future__ import annotations

from weir.formats.paths import pointer_folder
from weir.formats.pointer import Pointer, newest, pointer_from_json
from weir.store.store import Store
from weir.store.walk import files_in


def highest_version(store: Store, dataflow: str, sink: str, epoch: str) -> int:
    """Return the highest version with a pointer, of any attempt; 0 if there is none. Raises Retryable."""
    name = newest(files_in(store, pointer_folder(dataflow, sink, epoch)))
    return 0 if name is None else int(name.removesuffix(".json"))


def published(store: Store, dataflow: str, sink: str, epoch: str) -> Pointer | None:
    """Return the version of `sink` that is visible for `epoch`; None if none is. Raises Retryable."""
    folder = pointer_folder(dataflow, sink, epoch)
    name = newest(files_in(store, folder))
    return None if name is None else pointer_from_json(store.read(f"{folder}/{name}"))
