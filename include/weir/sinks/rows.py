"""The rows of a version as Arrow batches. Invariant: one row group is in memory, whatever the version has."""

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


@contextmanager
def _parquet(reach: Reach, file: VersionFile) -> Iterator[pq.ParquetFile]:
    with reach.open(file) as source:
        try:
            yield pq.ParquetFile(source, pre_buffer=False)  # else the columns of all row groups are read at once
        except (OSError, pa.ArrowInvalid) as error:
            raise Retryable(f"{file.path} cannot be read: {error}") from error
