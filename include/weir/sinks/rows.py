"""The rows of a version as Arrow batches, and its files' footers.

Invariant: a few thousand rows are in memory, whatever the version has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from weir.errors import Retryable
from weir.sinks.protocol import Reach, Version, VersionFile

BATCH_ROWS = 16_384


def batches(reach: Reach, version: Version, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read these columns of all files. Raises Retryable if the store does not answer, or a file is not there."""
    for file in version.files:
        with _parquet(reach, file) as parquet:
            yield from parquet.iter_batches(BATCH_ROWS, columns=list(columns))


def footers(reach: Reach, version: Version) -> Iterator[pq.FileMetaData]:
    """Read the footer of each file. Raises Retryable as `batches` does, and for other rows than recorded."""
    for file in version.files:
        with _parquet(reach, file) as parquet:
            found = parquet.metadata
        if found.num_rows != file.rows:
            raise Retryable(f"{file.path} has {found.num_rows} rows, expected {file.rows}")
        yield found


@contextmanager
def _parquet(reach: Reach, file: VersionFile) -> Iterator[pq.ParquetFile]:
    with reach.open(file) as source:
        try:
            yield pq.ParquetFile(source)
        except (OSError, pa.ArrowInvalid) as error:
            raise Retryable(f"{file.path} cannot be read: {error}") from error
