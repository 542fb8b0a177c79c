"""Looks into files when a run lists them. Invariant: what all subtasks read has the same columns, of all files.

Of Parquet that are the footers of all files: a later file may have a declared column as another type. Of csv and JSON
it is the first line, and only where a folder's name might be a column.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow.state_schema import Fields, declared_fields
from weir.errors import Misconfigured
from weir_spark.files.names import Names, names_of_kind, unmatched
from weir_spark.files.stored_types import stored_types, unreadable
from weir_spark.sources.folders import columns_of
from weir_spark.sources.listing import opened

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from weir.connections import Connections

_AT_ONCE: Final = 16
_FIRST_BYTES: Final = 2**16


@dataclass(frozen=True, slots=True)
class Contents:
    """The listed files of a source, and how to open them."""

    paths: Sequence[str]
    options: Mapping[str, Any]
    """Those of the source."""
    connections: Connections

    def described(self) -> dict[str, Any]:
        """Return what the split says of the files: `folders`, and without a schema those that are `like` all others.

        Raises Misconfigured where files lack a declared column, have it as a type that is not read as the declared one,
        or contradict each other.
        """
        schema = self.options.get("schema")
        declared = declared_fields(schema) if schema else None
        folders = columns_of(self.paths, declared)
        if self.options["format"] == "parquet":
            return self._of_parquet(declared, folders)
        return {"folders": [{**each, "in_file": self._is_in_line(each["name"], declared)} for each in folders]}

    def _of_parquet(self, declared: Fields | None, folders: list[dict[str, Any]]) -> dict[str, Any]:
        seen = Names()
        like: dict[str, str] = {}
        of_folders: dict[str, set[bool]] = {each["name"]: set() for each in folders}
        wanted = {name: each.kind for name, each in (declared or {}).items() if name not in of_folders}
        for path, footer in self._footers():
            said = str(footer.schema).partition("\n")[2]  # the first line has the object's address
            if like.setdefault(said, path) != path:
                continue
            stored = stored_types(footer.schema)
            present = _spellings(path, stored)
            seen.add(names_of_kind(stored))
            for name, found in of_folders.items():
                found.add(name.casefold() in present)
            if declared is not None and (wrong := list(unreadable(declared, stored))):
                raise Misconfigured.of("sources.parquet_schema_differs", path=path, wrong=wrong)
        missing = list(unmatched(names_of_kind(wanted), seen, ignoring_case=True))
        if missing and self.options.get("if_missing") != "null":
            raise Misconfigured.of(
                "sources.parquet_column_missing", files=len(self.paths), paths=self.paths[0], missing=missing
            )
        return {
            "folders": [{**each, "in_file": _agreed(each["name"], of_folders[each["name"]])} for each in folders],
            **({} if declared else {"like": list(like.values())}),
        }

    def _footers(self) -> Iterator[tuple[str, pq.FileMetaData]]:
        """Yield the footer of each file; several are read at once, and no more of them than are asked for."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield self.paths[0], self._footer(self.paths[0])
            for start in range(1, len(self.paths), _AT_ONCE):
                some = self.paths[start : start + _AT_ONCE]
                yield from zip(some, pool.map(self._footer, some), strict=True)

    def _footer(self, path: str) -> pq.FileMetaData:
        import pyarrow as pa  # noqa: PLC0415  slow to import
        from pyarrow import parquet  # noqa: PLC0415

        files, place = opened(path, self.options.get("conn_id"), self.connections)
        try:
            with files.open(place, "rb") as file:
                return parquet.read_metadata(file)
        except pa.ArrowInvalid as error:
            raise Misconfigured.of("sources.parquet_unreadable", path=path, error=error) from error

    def _is_in_line(self, name: str, declared: Fields | None) -> bool:
        """Report whether lines have a column that is also in a folder's name, by the first line of the first file."""
        reader = {key.lower(): value for key, value in self.options.get("reader", {}).items()}
        files, place = opened(self.paths[0], self.options.get("conn_id"), self.connections)
        try:
            with files.open(place, "rb", compression="infer") as file:
                found = file.read(_FIRST_BYTES)
        except (gzip.BadGzipFile, zlib.error, EOFError):
            return False  # Spark says so
        text = found.decode(reader.get("encoding", "utf-8"), "replace").removeprefix("\ufeff")
        if self.options["format"] == "json":
            return name in _keys(text)
        sep, quote = reader.get("sep", reader.get("delimiter", ",")), reader.get("quote", '"')
        how = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
        line: list[str] = next(csv.reader(text.splitlines(), delimiter=sep if len(sep) == 1 else ",", **how), [])
        if reader.get("header", "").lower() == "true":
            return name.casefold() in {each.strip().casefold() for each in line}
        return len(line) >= len(declared or ())


def _spellings(path: str, columns: Iterable[str]) -> dict[str, str]:
    """Return the columns by their names in lower case. Raises Misconfigured for two that differ in that alone."""
    found: dict[str, str] = {}
    for each in columns:
        other = found.setdefault(each.casefold(), each)
        if other != each:
            raise Misconfigured.of("sources.parquet_columns_alike", path=path, by_name=other, each=each)
    return found


def _agreed(name: str, found: set[bool]) -> bool:
    if len(found) > 1:
        raise Misconfigured.of("sources.column_in_some_files", name=name)
    return found == {True}


def _keys(text: str) -> set[str]:
    line = next((each for each in text.splitlines() if each.strip()), "")
    try:
        found = json.loads(line)
    except ValueError:
        return set()
    return set(found) if isinstance(found, dict) else set()
