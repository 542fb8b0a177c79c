"""Loads rows that Spark does not read itself into Parquet files. Invariant: there is one, also where no rows are."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

_FILE_BYTES: Final = 64 * 2**20
"""The size in memory of the rows of a file."""


def load_tables(tables: Iterable[pa.Table], create_file: Callable[[str, bytes], str]) -> list[str]:
    """Write tables of the same columns, one at least, into files; return the paths, as `create_file` gives them."""
    return [create_file(f"{number:05d}.parquet", data) for number, data in enumerate(_files(tables))]


def _files(tables: Iterable[pa.Table]) -> Iterator[bytes]:
    from pyarrow import concat_tables, parquet  # noqa: PLC0415  slow to import

    def written(some: list[pa.Table]) -> bytes:
        data = io.BytesIO()
        parquet.write_table(concat_tables(some), data, compression="zstd")
        return data.getvalue()

    some: list[pa.Table] = []
    for table in tables:
        some.append(table)
        if sum(each.nbytes for each in some) >= _FILE_BYTES:
            yield written(some)
            some = []
    if some:
        yield written(some)
