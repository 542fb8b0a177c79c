"""Reading results again, every byte of them, to see whether they are as they were written.

Invariant: as in `probe`: what is not found twice, of a store whose marker can be read, is not lost. However large a
file is, only a few chunks of it are in memory.

Whether the pages of Parquet files are as Spark meant to write them.

A manifest's digests are made of the files as they were found when they were sealed; the pages' own checksums tell of
what happened to them before that. Invariant: only a checksum that does not match is damage; what cannot be decoded here
may still be decoded elsewhere.
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
"""Is told, from any thread, how many bytes more have been read."""

_File = tuple[PartitionRef, str, DataFile]
"""The result that it is of, its path, and what is recorded of it."""


def compare_results(
    store: Store, store_id: str, refs: Sequence[PartitionRef], watch: Watch, paged: Set[PartitionRef] = frozenset()
) -> dict[PartitionRef, Manifest | Loss]:
    """Compare manifests, sizes, all segments and whole files with what was recorded; the manifest of what is right.

    Of `paged` the checksums of all pages, too. Raises Retryable if anything cannot be answered definitely.
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
    """Read a file once, from its first byte to its last and one more."""
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
"""What Arrow says, whatever the page."""


def broken_page(store: Store, path: str, file: DataFile) -> StoreFinding | None:
    """Decode all pages of a file and compare their checksums; those without one are passed over.

    Raises Retryable if the store does not answer.
    """
    if not file.name.endswith(".parquet"):
        return None
    source = _StoreFile(store, path, file.bytes)
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


class _StoreFile(Seekable):
    """A file of the store as Python's; `error` is what the store said when it did not answer."""

    def __init__(self, store: Store, path: str, size: int) -> None:
        super().__init__(size)
        self._store, self._path = store, path
        self.error: Exception | None = None

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        try:
            data = self._store.read(self._path, self._at, len(view))
        except (NotFound, Retryable) as error:
            self.error = error
            raise OSError(str(error)) from error
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
