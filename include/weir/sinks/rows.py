"""The rows of a version as Arrow batches, and nested values as JSON has them.

Invariant: one row group is in memory, whatever the version has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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


class Counted:
    """Batches, of which `rows` were taken so far."""

    def __init__(self, found: Iterator[pa.RecordBatch]) -> None:
        self._batches, self.rows = found, 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


Ends = tuple[int | None, int | None]
"""The least and the greatest value of a column; None twice where it has none."""


def ends_of_times(reach: Reach, version: Version, columns: Sequence[str]) -> dict[str, Ends | None]:
    """Read days and moments from the files' footers: days or microseconds since 1970; None where a file does not say.

    Raises as `batches`.
    """
    found: dict[str, Ends | None] = dict.fromkeys(columns, (None, None))
    for file in version.files if columns else ():
        with _parquet(reach, file) as parquet:
            paths = [parquet.schema.column(at).path for at in range(len(parquet.schema))]
            for name in columns:
                for number in range(parquet.metadata.num_row_groups):
                    chunk = parquet.metadata.row_group(number).column(paths.index(name))
                    # `a.b` may be a field of the struct `a`, too.
                    ends = _ends(chunk, parquet.schema_arrow.field(name).type) if paths.count(name) == 1 else None
                    found[name] = _joined(found[name], ends)
    return found


def _ends(chunk: pq.ColumnChunkMetaData, kind: pa.DataType) -> Ends | None:
    known = chunk.statistics
    if known is None or not (pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")):
        return None
    if known.has_min_max:
        return known.min_raw, known.max_raw
    return (None, None) if known.has_null_count and known.null_count == chunk.num_values else None


def _joined(one: Ends | None, other: Ends | None) -> Ends | None:
    if one is None or other is None:
        return None
    known = [each for ends in (one, other) for each in ends if each is not None]
    return (min(known), max(known)) if known else (None, None)


@contextmanager
def _parquet(reach: Reach, file: VersionFile) -> Iterator[pq.ParquetFile]:
    with reach.open(file) as source:
        try:
            # Else the columns of all row groups are read at once, and old timestamps beyond 1677 to 2262 become others.
            yield pq.ParquetFile(source, pre_buffer=False, coerce_int96_timestamp_unit="us")
        except (OSError, pa.ArrowInvalid) as error:
            raise Retryable.of("sinks.file_unreadable", file_path=file.path, error=error) from error


def jsonable(value: Any, kind: pa.DataType, leaf: Callable[[Any], Any]) -> Any:
    """Return a value as JSON has it: a map with text keys is an object, another one a list of pairs.

    `leaf` gives that of a value that is not nested, and is not null.
    """
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: jsonable(value[field.name], field.type, leaf) for field in kind}
    if pa.types.is_map(kind):
        pairs = [(jsonable(key, kind.key_type, leaf), jsonable(each, kind.item_type, leaf)) for key, each in value]
        return dict(pairs) if pa.types.is_string(kind.key_type) else [list(each) for each in pairs]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [jsonable(each, kind.value_type, leaf) for each in value]
    return leaf(value)
