"""Reading files of keyed state without Spark.

Invariant: only the row groups that are asked for are fetched, and no byte is used that is not as it was recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from weir.errors import Internal
from weir.reading.state_rows import as_stored, of_key_groups
from weir.results.manifest import Segment, StateFile
from weir.state.files import overlap
from weir.store.errors import NotFound
from weir.store.seekable import Seekable
from weir.store.store import Store


class Gone(Exception):
    """A file is not as it was recorded: `is_there` tells a damaged one from one that is missing."""

    def __init__(self, detail: str, *, is_there: bool) -> None:
        super().__init__(detail)
        self.detail, self.is_there = detail, is_there


def read_rows(store: Store, file: StateFile, schema: pa.Schema, key_groups: tuple[int, int]) -> pa.Table:
    """The rows of an inclusive range of key groups that `file` means, with the columns of `schema`. Raises Gone."""
    first, last = max(file.key_groups[0], key_groups[0]), min(file.key_groups[1], key_groups[1])
    groups = [segment for segment in file.file.segments if not segment.is_tail]
    wanted = [
        number
        for number, segment in enumerate(groups)
        if segment.key_groups is None or overlap(segment.key_groups, (first, last))
    ]
    tails = [segment for segment in file.file.segments if segment.is_tail]
    source = _Fetched(store, file, [*(groups[number] for number in wanted), *tails])
    with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
        numbers = [number for number in range(parquet.num_row_groups) if parquet.metadata.row_group(number).num_rows]
        if len(numbers) != len(groups):
            raise Internal(f"{file.path} has {len(numbers)} row groups, but {len(groups)} were recorded; report this")
        present = [name for name in schema.names if name in parquet.schema_arrow.names]
        table = parquet.read_row_groups([numbers[number] for number in wanted], columns=present)
    return of_key_groups(as_stored(table, schema), (first, last))


class _Fetched(Seekable):
    """A file of which only some segments were fetched, each compared with its recorded SHA-256."""

    def __init__(self, store: Store, file: StateFile, segments: Sequence[Segment]) -> None:
        super().__init__(file.file.bytes)
        self._parts = [(each.offset, _checked(store, file, each)) for each in segments]

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        data, self._at = self._between(self._at, end), max(self._at, end)
        return data

    def _between(self, first: int, end: int) -> bytes:
        """Bytes of a segment that was not fetched are zeros: a reader that guesses may ask for them, and uses none."""
        found = bytearray(max(0, end - first))
        for offset, data in self._parts:
            begin, stop = max(first, offset), min(end, offset + len(data))
            if begin < stop:
                found[begin - first : stop - first] = data[begin - offset : stop - offset]
        return bytes(found)


def _checked(store: Store, file: StateFile, segment: Segment) -> bytes:
    try:
        data = store.read(file.path, segment.offset, segment.length)
    except NotFound:
        raise Gone(f"{file.path}: expected {file.file.bytes} bytes, found no such file", is_there=False) from None
    found = hashlib.sha256(data).hexdigest()
    if found != segment.sha256:
        where = f"bytes {segment.offset} to {segment.offset + segment.length}"
        raise Gone(f"{file.path}, {where}: expected SHA-256 {segment.sha256}, found {found}", is_there=True)
    return data
