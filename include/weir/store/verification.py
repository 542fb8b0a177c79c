"""Verifies stored results: compares every byte with the recorded digests, and Parquet pages with their checksums.

Invariants: as in `probe`, a loss is reported only if it was found twice, of a store whose marker can be read. Only a
few chunks of a file are in memory. A manifest's digests cover the files as they were sealed; the pages' own checksums
cover them as Spark wrote them. Of pages only a checksum that does not match is damage: a page that cannot be decoded
here may still be decoded elsewhere.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from weir.errors import Fault, Loss, Retryable
from weir.formats.manifest import DataFile, Manifest
from weir.store.errors import NotFound
from weir.store.probe import (
    PartitionRef,
    StoreFinding,
    difference,
    files_of,
    loss_of,
    missing,
    probe,
    probe_twice,
    worst_of,
)
from weir.store.remote import Seekable
from weir.store.segments import chunks
from weir.store.store import Store
from weir.store.worker_threads import in_parallel

Watch = Callable[[int], None]
"""Called, from any thread, with the number of bytes that have been read since the last call."""

_File = tuple[PartitionRef, str, DataFile]
"""A file's result, its path, and its recorded description."""


def compare_results(
    store: Store, store_id: str, refs: Sequence[PartitionRef], watch: Watch, paged: Set[PartitionRef] = frozenset()
) -> dict[PartitionRef, Manifest | Loss]:
    """Compare manifests, sizes, all segments and whole files with their recorded digests.

    Returns the manifest of each result that matches and the loss of each other result. Of `paged` it also compares the
    checksums of all pages. Raises Retryable if an answer is not definite.
    """
    answers = probe(store, store_id, refs)
    named: dict[str, list[PartitionRef]] = {}
    files: list[_File] = []
    for ref, manifest in answers.items():
        for path, file in files_of(manifest, ref.folder) if isinstance(manifest, Manifest) else ():
            if path not in named:  # files of keyed state are shared: each is read once
                files.append((ref, path, file))
            named.setdefault(path, []).append(ref)
    read_all = partial(_read_all, store, watch, paged)
    found = probe_twice(store, store_id, files, read_all, lambda answer: answer is not None)
    findings: dict[PartitionRef, list[StoreFinding]] = {}
    for (_, path, _), finding in zip(files, found, strict=True):
        if finding is None:
            continue
        for ref in named[path]:
            findings.setdefault(ref, []).append(finding)
    return answers | {ref: loss_of(ref, worst_of(each)) for ref, each in findings.items()}


def _read_all(store: Store, watch: Watch, paged: Set[PartitionRef], files: list[_File]) -> list[StoreFinding | None]:
    def read(each: _File) -> StoreFinding | None:
        ref, path, file = each
        return _read(store, watch, path, file) or (broken_page(store, path, file) if ref in paged else None)

    return in_parallel(read, files, store.workers)


def _read(store: Store, watch: Watch, path: str, file: DataFile) -> StoreFinding | None:
    """Read a file once, and one byte beyond its recorded end."""
    whole = hashlib.sha256()
    try:
        for segment in file.segments:
            part = hashlib.sha256()
            for data in chunks(store, path, segment.offset, segment.length + segment.is_tail):
                part.update(data)
                whole.update(data)
                watch(len(data))
            if part.hexdigest() != segment.sha256:
                return difference(store, path, file, segment, part.hexdigest())
    except NotFound:
        return missing(path, file)
    if whole.hexdigest() == file.sha256:
        return None
    return StoreFinding(Fault.DAMAGED, f"{path}: expected SHA-256 {file.sha256}, found {whole.hexdigest()}")


_ROWS = 16_384
_BUFFER_BYTES = 2**20

_MISMATCH = "CRC checksum verification failed"
"""Part of Arrow's message, for every page."""


def broken_page(store: Store, path: str, file: DataFile) -> StoreFinding | None:
    """Decode all pages of a file and compare their checksums; pages without a checksum are ignored.

    Raises Retryable if the store does not answer.
    """
    if not file.name.endswith(".parquet"):
        return None
    source = StoreFile(store, path, file.bytes)
    try:
        parquet = pq.ParquetFile(
            io.BufferedReader(source, _BUFFER_BYTES),
            page_checksum_verification=True,
            pre_buffer=False,
            buffer_size=_BUFFER_BYTES,
        )
        for _ in parquet.iter_batches(_ROWS, use_threads=False):
            pass
    except (pa.ArrowException, OSError) as error:
        if source.error is not None:
            return _of_store(source.error, path, file)
        return StoreFinding(Fault.DAMAGED, f"{path}: {error}") if _MISMATCH in str(error) else None
    return None


def _of_store(error: Exception, path: str, file: DataFile) -> StoreFinding:
    if isinstance(error, NotFound):
        return missing(path, file)
    raise error


class StoreFile(Seekable):
    """A file of the store as a Python file; `error` is the store's error that a read has met."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        super().__init__(size)
        self._store, self._path = store, path
        self.error: Exception | None = None

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes into a buffer. Raises OSError for whatever the store says."""
        view = memoryview(buffer).cast("B")
        try:
            data = self._store.read(self._path, self._at, len(view))
        except (NotFound, Retryable) as error:
            self.error = error
            raise OSError(str(error)) from error
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
