"""Whether the pages of Parquet files are as Spark meant to write them.

A manifest's digests are made of the files as they were found when they were sealed; the pages' own checksums tell of
what happened to them before that. Invariant: only a checksum that does not match is damage; what cannot be decoded here
may still be decoded elsewhere.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from weir.errors import Fault, Retryable
from weir.results.manifest import DataFile
from weir.store.errors import NotFound
from weir.store.probe import Finding, missing
from weir.store.seekable import Seekable
from weir.store.store import Store

_ROWS = 16_384
_BUFFER_BYTES = 2**20
_MISMATCH = "CRC checksum verification failed"
"""What Arrow says, whatever the page."""


def broken_page(store: Store, path: str, file: DataFile) -> Finding | None:
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
        return Finding(Fault.DAMAGED, f"{path}: {error}") if _MISMATCH in str(error) else None
    return None


def _of_store(error: Exception, path: str, file: DataFile) -> Finding:
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
