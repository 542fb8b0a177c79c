"""Seals an attempt's folder: describes the files that Spark has written for the manifest.

Invariant: the segments of a file cover it without a gap or an overlap, each has its SHA-256, and the files are durable
before a manifest can name them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from weir.errors import Internal, Retryable
from weir.formats.manifest import DataFile, Segment
from weir.store.errors import NotFound
from weir.store.segments import chunks
from weir.store.store import Store
from weir.store.worker_threads import in_parallel
from weir.topology.partitions import KEY_GROUP_COLUMN

_MAGIC = b"PAR1"
_TRAILER_BYTES = 8
"""At the end of a Parquet file: length of the footer (4 bytes, little endian) and the magic."""
_GUESS_BYTES = 64 * 2**10
_WORKERS = 4


@dataclass(frozen=True, slots=True)
class _Span:
    end: int
    is_tail: bool
    key_groups: tuple[int, int] | None


def seal(store: Store, folder: str) -> tuple[DataFile, ...]:
    """Describe the Parquet files of an attempt's folder, by name, and make them durable.

    Spark's side files (names that start with "." or "_": checksums, _SUCCESS, _temporary) are deleted. Raises
    Retryable if a file is not Parquet, Internal if the folder holds something that Spark did not write.
    """
    try:
        sizes, folders = dict(store.list(folder)), store.folders(folder)
    except NotFound:
        return ()  # object stores have no empty folders; the row count of the job reveals a wrong folder
    _delete_side_files(store, folder, sizes, folders)
    names = [name for name in sizes if not _is_side_file(name)]
    unexpected = [name for name in names if not name.endswith(".parquet")]
    if unexpected:
        raise Internal.of("store.folder_used_twice", store_url=store.url, folder=folder, unexpected=unexpected[:3])
    files = in_parallel(lambda name: _sealed(store, folder, name, sizes[name]), names, min(_WORKERS, store.workers))
    store.flush(folder)
    return tuple(files)


def _is_side_file(name: str) -> bool:
    return name.startswith((".", "_"))


def _delete_side_files(store: Store, folder: str, names: Iterable[str], folders: Iterable[str]) -> None:
    for name in filter(_is_side_file, names):
        store.delete(f"{folder}/{name}")
    for name in filter(_is_side_file, folders):
        store.delete_folder(f"{folder}/{name}")


def _sealed(store: Store, folder: str, name: str, size: int) -> DataFile:
    path = f"{folder}/{name}"
    footer = _footer(store, path, size)
    whole = hashlib.sha256()
    segments, offset = [], 0
    for span in _spans(footer, size):
        part = hashlib.sha256()
        found = 0
        for data in chunks(store, path, offset, span.end - offset):
            part.update(data)
            whole.update(data)
            found += len(data)
        if found != span.end - offset:
            raise _unreadable(store, path, f"expected {size} bytes, found {offset + found}")
        segments.append(Segment(offset, found, part.hexdigest(), span.is_tail, span.key_groups))
        offset = span.end
    return DataFile(name, footer.num_rows, size, whole.hexdigest(), tuple(segments))


def _footer(store: Store, path: str, size: int) -> Any:
    """Read a file's metadata from its last bytes, without touching the rest."""
    tail = store.read(path, max(0, size - _GUESS_BYTES), min(size, _GUESS_BYTES))
    if not tail.endswith(_MAGIC) or len(tail) < _TRAILER_BYTES:
        raise _unreadable(store, path, "it does not end as a Parquet file does")
    needed = int.from_bytes(tail[-_TRAILER_BYTES:-4], "little") + _TRAILER_BYTES
    if needed > size:
        raise _unreadable(store, path, f"its footer claims {needed} of {size} bytes")
    if needed > len(tail):
        tail = store.read(path, size - needed, needed)
    try:
        return pq.read_metadata(pa.BufferReader(_MAGIC + tail[-needed:]))
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(store, path, str(error)) from error


def _unreadable(store: Store, path: str, found: str) -> Retryable:
    return Retryable.of("store.parquet_unreadable", store_url=store.url, path=path, found=found)


def _spans(footer: Any, size: int) -> list[_Span]:
    """Cut a file after each row group with bytes; bytes between two row groups belong to the later one."""
    spans = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        if group.num_rows and group.num_columns:
            spans.append(_Span(_end(group), is_tail=False, key_groups=_key_groups(group)))
    spans.sort(key=lambda span: span.end)
    return [*spans, _Span(size, is_tail=True, key_groups=None)]


def _end(group: Any) -> int:
    columns = map(group.column, range(group.num_columns))
    return max(_chunk_start(column) + int(column.total_compressed_size) for column in columns)


def _chunk_start(column: Any) -> int:
    """A dictionary page lies before the data pages; some writers leave its offset 0 where there is none."""
    data = int(column.data_page_offset)
    return min(int(column.dictionary_page_offset or data), data)


def _key_groups(group: Any) -> tuple[int, int] | None:
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema == KEY_GROUP_COLUMN:
            statistics = column.statistics
            known = statistics is not None and statistics.has_min_max
            return (int(statistics.min), int(statistics.max)) if known else None
    return None
