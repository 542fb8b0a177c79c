"""Readers of published versions. Invariant: a reader sees the highest version, whole, or none."""

from __future__ import annotations

from weir.formats.paths import pointer_folder
from weir.formats.pointer import Pointer, newest, pointer_from_json
from weir.store.errors import NotFound
from weir.store.store import Store


def highest_version(store: Store, dataflow: str, sink: str, epoch: str) -> int:
    """Return the highest version with a pointer, of any attempt; 0 if there is none. Raises Retryable."""
    name = _newest(store, pointer_folder(dataflow, sink, epoch))
    return 0 if name is None else int(name.removesuffix(".json"))


def published(store: Store, dataflow: str, sink: str, epoch: str) -> Pointer | None:
    """Return the version of `sink` that is visible for `epoch`; None if none is. Raises Retryable."""
    folder = pointer_folder(dataflow, sink, epoch)
    name = _newest(store, folder)
    return None if name is None else pointer_from_json(store.read(f"{folder}/{name}"))


def _newest(store: Store, folder: str) -> str | None:
    try:
        return newest(name for name, _ in store.list(folder))
    except NotFound:
        return None
