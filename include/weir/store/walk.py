"""Recursive listings.

Invariant: a file that vanishes during the listing is left out, and a store that does not answer is an error, never a
shorter list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from weir.store.errors import NotFound
from weir.store.store import Store
from weir.store.worker_threads import in_parallel


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a store, by its path from the root, and its size in bytes."""

    path: str
    bytes: int


def files_below(store: Store, folders: Iterable[str]) -> tuple[FoundFile, ...]:
    """List all files below folders, at any depth, by path. Raises Retryable."""
    level = list(folders)
    found: list[FoundFile] = []
    while level:
        listed = in_parallel(partial(_entries, store), level, store.workers)
        below = [(f"{folder}/{name}", size) for folder, each in zip(level, listed, strict=True) for name, size in each]
        found += [FoundFile(path, size) for path, size in below if size is not None]
        level = [path for path, size in below if size is None]
    return tuple(sorted(found, key=lambda each: each.path))


def folders_in(store: Store, path: str) -> list[str]:
    """Return the names of the folders directly in a folder, sorted; none if it does not exist. Raises Retryable."""
    try:
        return store.folders(path)
    except NotFound:
        return []


def files_in(store: Store, path: str) -> list[str]:
    """Return the names of the files directly in a folder; none if it does not exist. Raises Retryable."""
    try:
        return [name for name, _ in store.list(path)]
    except NotFound:
        return []


def _entries(store: Store, folder: str) -> tuple[tuple[str, int | None], ...]:
    try:
        return store.entries(folder)
    except NotFound:
        return ()
