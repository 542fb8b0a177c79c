"""Columns of a version in Apache Iceberg: the schema of a table, and the files that it takes.

Invariant: what a table would refuse, or read as something else, is refused here by the name of the column. Columns are
added and become wider, as those of a state do; they are never dropped or narrowed.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import ResolveError, ValidationError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from weir.errors import Misconfigured, Retryable
from weir.sinks.protocol import VersionFile

NAME_MAPPING: Final = "schema.name-mapping.default"
"""The table property by which readers find the columns of files without field ids, as Spark's are."""

_TYPES: Final[dict[str, IcebergType]] = {
    "byte": IntegerType(),
    "short": IntegerType(),
    "integer": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "boolean": BooleanType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
    "binary": BinaryType(),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_TEXT: Final = re.compile(r"(?:var)?char\(\d+\)")
_WIDER: Final = ((IntegerType, LongType), (FloatType, DoubleType))


def schema_of(spark_schema: str) -> Schema:
    """Return the schema of a version as a table has it: every column may be null. Raises Misconfigured."""
    fields = _Converter().fields(json.loads(spark_schema)["fields"], "")
    _require_names_apart(fields)
    return Schema(*fields)


def _require_names_apart(fields: Sequence[NestedField]) -> None:
    """Require names that differ in Iceberg, which joins nested ones by dots, and for readers that ignore case."""
    found: dict[str, tuple[str, ...]] = {}
    for parts in _parts_of(fields):
        name = ".".join(parts)
        other = found.setdefault(name.lower(), parts)
        if other is not parts:
            raise Misconfigured.of("sinks.iceberg_names_joined", name=_told(other), other=_told(parts))


def _parts_of(fields: Sequence[NestedField]) -> Iterator[tuple[str, ...]]:
    for field in fields:
        yield (field.name,)
        match field.field_type:
            case StructType() as kind:
                inner = _parts_of(kind.fields)
            case ListType() as kind:
                inner = _parts_of([kind.element_field])
            case MapType() as kind:
                inner = _parts_of([kind.key_field, kind.value_field])
            case _:
                continue
        yield from ((field.name, *parts) for parts in inner)


def _told(parts: Sequence[str]) -> str:
    *above, name = parts
    return f"the field {name!r} of {'.'.join(above)!r}" if above else f"the column {name!r}"


class _Converter:
    """Converts Spark's types; ids are those of this schema only, a table gives its own."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def fields(self, fields: Sequence[dict[str, Any]], where: str) -> list[NestedField]:
        return [
            NestedField(
                field_id=next(self._ids),
                name=each["name"],
                field_type=self._type(each["type"], f"{where}{each['name']}"),
                required=False,
            )
            for each in fields
        ]

    def _type(self, kind: Any, where: str) -> IcebergType:
        name = kind["type"] if isinstance(kind, dict) else kind
        if name == "struct":
            return StructType(*self.fields(kind["fields"], f"{where}."))
        if name == "array":
            element = self._type(kind["elementType"], f"{where}.element")
            return ListType(element_id=next(self._ids), element=element, element_required=False)
        if name == "map":
            key, value = (self._type(kind[f"{part}Type"], f"{where}.{part}") for part in ("key", "value"))
            return MapType(
                key_id=next(self._ids), key_type=key, value_id=next(self._ids), value_type=value, value_required=False
            )
        decimal = _DECIMAL.fullmatch(name)
        if decimal:
            return DecimalType(int(decimal[1]), int(decimal[2]))
        found = StringType() if _TEXT.fullmatch(name) else _TYPES.get(name)
        if found is None:
            raise Misconfigured.of("sinks.iceberg_type_unknown", where=where, name=name)
        return found


def stage_schema(transaction: Transaction, table: str, wanted: Schema, *, may_change: bool) -> None:
    """Add to a transaction what the table's schema lacks for these columns, and the mapping of their names.

    Raises Misconfigured for what the table cannot take, or without `may_change` would have to be changed for.
    """
    existing = transaction.table_metadata.schema()
    _require_takable(table, wanted, existing, transaction.table_metadata)
    missing = [name for name in wanted.column_names if name not in existing.column_names]
    narrow = [
        name
        for name in wanted.column_names
        if name not in missing and _is_wider(wanted.find_field(name).field_type, existing.find_field(name).field_type)
    ]
    if missing or narrow:
        if not may_change:
            told = [f"has no column {name}" for name in missing]
            told += [f"has the column {name} as {existing.find_field(name).field_type}" for name in narrow]
            raise Misconfigured.of(
                "sinks.iceberg_table_unfit",
                table=table,
                told=told,
                missing=[f"{name} {wanted.find_field(name).field_type}" for name in missing + narrow],
            )
        try:
            with transaction.update_schema() as update:
                update.union_by_name(wanted)
        except (ValueError, ValidationError, ResolveError) as error:
            raise Misconfigured.of("sinks.iceberg_columns_unfit", table=table, error=error) from error
    _stage_mapping(transaction, table, wanted)


def _require_takable(table: str, wanted: Schema, existing: Schema, metadata: TableMetadata) -> None:
    required = [
        name
        for name in existing.column_names
        if existing.find_field(name).required and not _is_key_of_map(existing, name)
    ]
    if required:
        raise Misconfigured.of("sinks.iceberg_required", table=table, required=required, first=required[0])
    _require_same_depth(table, wanted, existing)
    mapped = {path: field_id for path, field_id in _mapped(metadata) if path not in existing.column_names}
    spelled = {name.lower(): name for name in existing.column_names}
    for name in wanted.column_names:
        if name in mapped:
            raise Misconfigured.of(
                "sinks.iceberg_column_renamed",
                name=name,
                table=table,
                new_name=existing.find_column_name(mapped[name]),
            )
        if name in existing.column_names:
            _require_same_kind(table, name, wanted.find_field(name).field_type, existing.find_field(name).field_type)
        elif name.lower() in spelled:
            raise Misconfigured.of(
                "sinks.iceberg_column_spelled", table=table, name=name, spelled=spelled[name.lower()]
            )


def _require_same_depth(table: str, wanted: Schema, existing: Schema) -> None:
    """Require that no column `a.b` takes a field b of a for itself, or the other way round."""
    there = {".".join(parts): parts for parts in _parts_of(existing.fields)}
    for parts in _parts_of(wanted.fields):
        name = ".".join(parts)
        if there.get(name, parts) != parts:
            raise Misconfigured.of(
                "sinks.iceberg_depth_differs", table=table, found=_told(there[name]), given=_told(parts)
            )


def _is_key_of_map(schema: Schema, name: str) -> bool:
    parent, _, last = name.rpartition(".")
    return last == "key" and isinstance(schema.find_field(parent).field_type, MapType)


def _require_same_kind(table: str, name: str, wanted: IcebergType, existing: IcebergType) -> None:
    is_same = wanted == existing or (not wanted.is_primitive and type(wanted) is type(existing))
    if not is_same and not _is_wider(wanted, existing) and not _is_wider(existing, wanted):
        raise Misconfigured.of("sinks.iceberg_type_differs", name=name, table=table, existing=existing, wanted=wanted)


def _is_wider(wide: IcebergType, narrow: IcebergType) -> bool:
    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        return wide.scale == narrow.scale and wide.precision > narrow.precision
    return (type(narrow), type(wide)) in _WIDER


def _stage_mapping(transaction: Transaction, table: str, wanted: Schema) -> None:
    metadata = transaction.table_metadata
    if metadata.name_mapping() is None:
        transaction.set_properties({NAME_MAPPING: metadata.schema().name_mapping.model_dump_json()})
        return
    mapped = dict(_mapped(metadata))
    for name in wanted.column_names:
        field_id = metadata.schema().find_field(name).field_id
        if mapped.get(name) != field_id:
            raise Misconfigured.of(
                "sinks.iceberg_mapping_incomplete",
                name_mapping=NAME_MAPPING,
                table=table,
                name=name,
                field_id=field_id,
            )


def _mapped(metadata: TableMetadata) -> Iterator[tuple[str, int]]:
    mapping = metadata.name_mapping()
    return iter(()) if mapping is None else _paths(mapping.root, "")


def _paths(fields: Sequence[MappedField], before: str) -> Iterator[tuple[str, int]]:
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield before + name, field.field_id
            yield from _paths(field.fields, f"{before}{name}.")


Opens = Callable[[], BinaryIO]
"""Opens a Parquet file, seekable."""


class _Input:
    """A file as PyIceberg reads one, wherever it is."""

    def __init__(self, open_file: Opens, size: int) -> None:
        self._open, self._size = open_file, size

    def new_input(self, location: str) -> _Input:  # noqa: ARG002  it is this one
        return self

    def open(self) -> BinaryIO:
        return self._open()

    def __len__(self) -> int:
        return self._size


def data_file(table: str, metadata: TableMetadata, path: str, file: VersionFile, open_file: Opens) -> DataFile:
    """Describe a file of a version for a manifest, by its footer. `path` is where the table has it.

    Raises Misconfigured for a file that the table does not take, or Retryable if it cannot be read.
    """
    footer = _footer(file, open_file)
    if footer.num_rows != file.rows:
        raise Retryable.of("sinks.iceberg_rows_differ", file_path=file.path, found=footer.num_rows, rows=file.rows)
    _require_readable(file, footer)
    try:
        made = parquet_file_to_data_file(cast("FileIO", _Input(open_file, file.bytes)), metadata, path)
    except (ValueError, KeyError) as error:
        raise Misconfigured.of(
            "sinks.iceberg_file_refused", table=table, file_path=file.path, error=error, advice=_ADVICE
        ) from error
    except OverflowError as error:
        raise Misconfigured.of(
            "sinks.iceberg_years_refused",
            table=table,
            file_path=file.path,
            file=_without_python(footer),
            error=error,
        ) from error
    for at, field in enumerate(metadata.spec().fields):
        _require_one_value(table, metadata, file, footer, field, made.partition[at])
    return made


def _without_python(footer: pq.FileMetaData) -> str:
    """Return the names of the columns whose bounds are none of Python's dates or times."""
    found = []
    for at in range(footer.num_columns):
        try:
            for group in range(footer.num_row_groups):
                statistics = footer.row_group(group).column(at).statistics
                _ = statistics and (statistics.min, statistics.max)
        except (OverflowError, ValueError):
            found.append(footer.schema.column(at).path)
    return ", ".join(found) or "a column"


_ADVICE: Final = (
    "A file has to have one value of each partition field: partition the table by a column that has one value in an "
    "epoch, such as its day, or not at all"
)


def _footer(file: VersionFile, open_file: Opens) -> pq.FileMetaData:
    try:
        with open_file() as source:
            return pq.read_metadata(source)
    except (OSError, pa.ArrowInvalid) as error:
        raise Retryable.of("sinks.file_unreadable", file_path=file.path, error=error) from error


def _require_readable(file: VersionFile, footer: pq.FileMetaData) -> None:
    kinds = {footer.schema.column(at).path: footer.schema.column(at).physical_type for at in range(footer.num_columns)}
    old = next((path for path, kind in kinds.items() if kind == "INT96"), None)
    if old is not None:
        raise Misconfigured.of("sinks.iceberg_int96", file_path=file.path, old=old)
    if any(b"PARQUET:field_id" in (field.metadata or {}) for field in footer.schema.to_arrow_schema()):
        raise Misconfigured.of("sinks.iceberg_field_ids", file_path=file.path)


def _require_one_value(
    table: str, metadata: TableMetadata, file: VersionFile, footer: pq.FileMetaData, field: PartitionField, value: Any
) -> None:
    """Require that nulls and values are not mixed, and that a null is not for want of statistics."""
    name = metadata.schema().find_column_name(field.source_id)
    paths = [footer.schema.column(at).path for at in range(footer.num_columns)]
    if name not in paths:
        raise Misconfigured.of("sinks.iceberg_partition_missing", table=table, name=name, advice=_ADVICE)
    at = paths.index(name)
    groups = [footer.row_group(number).column(at).statistics for number in range(footer.num_row_groups)]
    if any(each is None or not each.has_null_count for each in groups):
        raise Misconfigured.of("sinks.iceberg_statistics_missing", file_path=file.path, name=name, table=table)
    nulls = sum(each.null_count for each in groups)
    if nulls not in (0, file.rows) or (value is None and nulls == 0):
        raise Misconfigured.of(
            "sinks.iceberg_partition_null",
            table=table,
            file_path=file.path,
            nulls=nulls,
            rows=file.rows,
            name=name,
            advice=_ADVICE,
        )
