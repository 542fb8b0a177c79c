"""Copying files from store to store. Invariant: what is copied is, byte for byte, what was to be copied."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from weir.errors import Misconfigured
from weir.results.savepoint import FileCopy
from weir.store.errors import AlreadyExists, NotFound
from weir.store.store import Store

AT_ONCE = 4
"""How many files are held in memory at once: each is one that a subtask has written."""


class NotThere(Misconfigured):
    """A file that was to be copied is gone, or is another one than it should be."""


def copy_files(source: Store, target: Store, copies: Sequence[FileCopy]) -> int:
    """Copy files; answers how many bytes. Raises NotThere if one is gone or damaged, Retryable, or AlreadyExists.

    Whatever it raises, nothing is being written any more: what is there can be removed.
    """
    if min(AT_ONCE, target.workers) == 1:
        return sum(_copy(source, target, each) for each in copies)
    with ThreadPoolExecutor(min(AT_ONCE, target.workers), thread_name_prefix="weir-copies") as hands:
        return sum(hands.map(lambda each: _copy(source, target, each), copies))


def _copy(source: Store, target: Store, copy: FileCopy) -> int:
    try:
        data = source.read(copy.source)
    except NotFound as error:
        raise NotThere(f"{source.url}/{copy.source} is gone: it cannot be copied") from error
    found = hashlib.sha256(data).hexdigest()
    if found != copy.sha256:
        raise NotThere(f"{source.url}/{copy.source} is damaged: expected SHA-256 {copy.sha256}, found {found}")
    try:
        target.create(copy.target, data)
    except AlreadyExists as error:
        raise Misconfigured(f"{target.url}/{copy.target} is there already: name another place") from error
    return len(data)
