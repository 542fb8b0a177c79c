"""Copies files from store to store. Invariant: a copy has the bytes of its digest, or there is an error."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from weir.errors import WeirError
from weir.formats.region_job import OutputReport, OutputToWrite
from weir.store.errors import AlreadyExists, OtherBytes
from weir.store.store import Store

AT_ONCE: Final = 4
"""How many files are in memory."""

A = TypeVar("A")


def copy_all(copy: Callable[[A], int], files: Sequence[A], target: Store) -> int:
    """Copy files by a function, some at once, and return the sum of what it returns.

    When it raises, no thread is writing any more: the copies can be deleted.
    """
    at_once = min(AT_ONCE, target.workers)
    if at_once == 1:
        return sum(map(copy, files))
    with ThreadPoolExecutor(at_once, thread_name_prefix="weir-copies") as threads:
        return sum(threads.map(copy, files))


def copy_file(source: Store, path: str, target: Store, to: str, sha256: str) -> int:
    """Copy a file through memory, and return the number of its bytes; `sha256` is theirs, in hex.

    Raises NotFound, OtherBytes, AlreadyExists or Retryable.
    """
    data = source.read(path)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise OtherBytes.of("store.other_bytes", url=source.url, path=path, sha256=sha256, found=found)
    target.create(to, data)
    return len(data)


def copy_outputs(store: Store, written: Sequence[OutputReport], own: Sequence[OutputToWrite]) -> str:
    """Copy the files of an attempt's outputs to those of another one: all, or nothing; return why not, or empty.

    What cannot be read, for whatever reason, can be computed. Raises AlreadyExists where the attempt has such a file.
    """
    files = [
        (f"{taken.folder}/{file.name}", f"{to.folder}/{file.name}", file.sha256)
        for taken, to in zip(written, own, strict=True)
        for file in taken.files
    ]
    try:
        copy_all(lambda each: copy_file(store, each[0], store, each[1], each[2]), files, store)
    except AlreadyExists:
        raise
    except WeirError as error:
        for output in own:
            store.delete_folder(output.folder)
        return str(error)
    return ""
