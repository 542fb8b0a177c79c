"""A snapshot of an Iceberg table as a source. Invariant: the rows are those of the snapshot, or there is an error.

The metadata are read once a run, by PyIceberg. Attempts read the snapshot's files by their paths: they need no catalog,
and the snapshot stays readable as long as its files are there, also when the table has expired it.

Of a source that goes on, what is returned are the rows that came, each once, or there is an error: a snapshot that
overwrote or deleted rows is one, and one that only rewrote files adds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from weir.dataflow.resolving import Resolved
from weir.dataflow.state_schema import Field, Kind, spark_json
from weir.errors import Misconfigured
from weir.extras import needed_for
from weir_spark.sources.partitions import of_partition
from weir_spark.sources.splits import LiveFile, divided_anew, table_splits

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import IcebergType, NestedField
    from pyspark.sql import DataFrame

    from weir.connections import Connection
    from weir.dataflow.resolving import ResolveContext
    from weir_spark.region.context import StageContext


_TYPES: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
}
"""Iceberg's names of types and Spark's, as DDL has them."""

_WITHOUT_TEXT: Final = ("binary", "fixed", "uuid")


def resolve(ctx: ResolveContext) -> list[dict[str, Any]] | Resolved:
    """Return the live files of the current snapshot, or what came since, divided among the subtasks.

    Raises Misconfigured and Retryable.
    """
    name = str(ctx.options["table"])
    if ctx.recorded is not None:
        return Resolved(divided_anew(ctx.recorded.splits, ctx.parallelism), ctx.recorded.position)
    with _opened(name, ctx.connection(name.partition(".")[0])) as table:
        splits = _splits(table, name, ctx)
        if ctx.options.get("read") != "new":
            return splits
        return Resolved(splits, {"snapshot": _number(table), "table": str(table.metadata.table_uuid)})


def _number(table: Table) -> int | None:
    snapshot = table.current_snapshot()
    return None if snapshot is None else snapshot.snapshot_id


def _files(table: Table, name: str, ctx: ResolveContext) -> Iterator[tuple[DataFile, bool]]:
    """Yield the files to read, and whether rows of them were deleted."""
    number = _number(table)
    position = None if ctx.previous is None else ctx.previous.position
    if position is not None:
        if position["table"] != str(table.metadata.table_uuid):
            raise Misconfigured.of("sources.iceberg_other_table", name=name)
        yield from ((each, False) for each in appended_files(table, name, position["snapshot"]))
    elif number is not None:
        for task in table.scan(snapshot_id=number).plan_files():
            yield task.file, bool(task.delete_files)


def _splits(table: Table, name: str, ctx: ResolveContext) -> list[dict[str, Any]]:
    number = _number(table)
    _require_names_that_stayed(table, name)
    fields = {each.name: Field(each.name, _kind_of_field(each, name)) for each in table.schema().fields}
    schema = json.loads(spark_json(fields))
    live = [_live(file, table, name, has_deletes=has_deletes) for file, has_deletes in _files(table, name, ctx)]
    identities = _identities(table)
    columns = {each["name"]: each["type"] for each in schema["fields"] if each["name"] in identities}
    files, which = of_partition(live, columns, ctx, f"the Iceberg table {name}")
    return table_splits(
        files,
        ctx.parallelism,
        schema,
        f"{_what(number, name)}{which}{_since(ctx)}",
        table=name,
        snapshot=number,
    )


def read(ctx: StageContext, split: dict[str, Any]) -> DataFrame:
    """Read the files of a split with plain Spark."""
    from weir_spark.sources.parquet import read_groups  # noqa: PLC0415  resolvers of this package need no Spark

    return read_groups(ctx.spark, split["schema"], split["groups"], _what(split["snapshot"], split["table"]))


def _since(ctx: ResolveContext) -> str:
    if ctx.previous is None:
        return ""
    snapshot = ctx.previous.position["snapshot"]
    return "" if snapshot is None else f", what came after snapshot {snapshot}"


def _what(snapshot: int | None, table: str) -> str:
    return f"{'no snapshot' if snapshot is None else f'snapshot {snapshot}'} of the Iceberg table {table}"


@contextmanager
def _opened(name: str, connection: Connection) -> Iterator[Table]:
    with needed_for(f"the Iceberg table {name}"):
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415  only runs with such a source need it

        from weir.catalogs import opened, require_location  # noqa: PLC0415
    with opened(connection) as catalog:
        try:
            table = catalog.load_table(name.partition(".")[2])
        except (NoSuchTableError, ValueError) as error:
            raise Misconfigured.of("sources.iceberg_not_opened", name=name, error=error) from error
        require_location(f"the location of the Iceberg table {name}", table.location())
        yield table


def _require_names_that_stayed(table: Table, name: str) -> None:
    """Refuse a table in which a column's name or id has changed: its older files have other columns of that name.

    Iceberg reads columns by id, Spark's plain reader by name.
    """
    present = dict(_names(table.schema()))
    ids = {column: number for number, column in present.items()}
    for schema in table.schemas().values():
        for number, column in _names(schema):
            if present.get(number, column) != column or ids.get(column, number) != number:
                raise Misconfigured.of("sources.iceberg_column_renamed", name=name, column=column)


def _names(schema: Schema) -> Iterator[tuple[int, str]]:
    """Yield id and full name of all fields, also of nested ones."""
    return ((number, schema.find_column_name(number) or "") for number in sorted(schema.field_ids))


def _live(file: DataFile, table: Table, name: str, *, has_deletes: bool) -> LiveFile:
    if has_deletes:
        raise Misconfigured.of("sources.iceberg_delete_files", name=name)
    if file.file_format.value != "PARQUET" or file.key_metadata is not None:
        what = "is encrypted" if file.key_metadata is not None else f"has the format {file.file_format.value}"
        raise Misconfigured.of("sources.iceberg_file_unfit", file_path=file.file_path, name=name, what=what)
    return LiveFile(file.file_path, file.file_size_in_bytes, tuple(_values(file, table, name)))


def _values(file: DataFile, table: Table, name: str) -> Iterator[tuple[str, str | None]]:
    """Yield the columns that the file's partition gives a value: a file that came from Hive lacks them."""
    from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415

    schema = table.schema()
    for at, field in enumerate(table.specs()[file.spec_id].fields):
        column = schema.find_column_name(field.source_id)
        if not isinstance(field.transform, IdentityTransform) or column is None:
            continue
        kind, value = schema.find_type(field.source_id), file.partition[at]
        if "." in column or str(kind).startswith(_WITHOUT_TEXT):
            raise Misconfigured.of("sources.iceberg_partition_unfit", name=name, column=column, kind=kind)
        yield column, None if value is None else field.transform.to_human_string(kind, value)


def _identities(table: Table) -> set[str | None]:
    """Return the columns by whose values the table is partitioned now."""
    from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415

    schema = table.schema()
    ids = [each.source_id for each in table.spec().fields if isinstance(each.transform, IdentityTransform)]
    return {schema.find_column_name(each) for each in ids if each in schema.field_ids}


def _kind_of_field(field: NestedField, table: str) -> Kind:
    if field.initial_default is not None:
        raise Misconfigured.of("sources.iceberg_default", field=field.name, table=table)
    return _kind(field.field_type, field.name, table)


def _kind(found: IcebergType, column: str, table: str) -> Kind:
    from pyiceberg.types import DecimalType, FixedType, ListType, MapType, StructType  # noqa: PLC0415

    match found:
        case StructType():
            return Kind("struct", tuple((each.name, _kind_of_field(each, table)) for each in found.fields))
        case ListType():
            return Kind("array", (("element", _kind(found.element_type, column, table)),))
        case MapType():
            parts = {"key": found.key_type, "value": found.value_type}
            return Kind("map", tuple((name, _kind(part, column, table)) for name, part in parts.items()))
        case DecimalType():
            return Kind(f"decimal({found.precision},{found.scale})")
        case FixedType():
            return Kind("binary")
    name = _TYPES.get(str(found))
    if name is None:
        raise Misconfigured.of("sources.iceberg_type_unknown", column=column, table=table, kind=found)
    return Kind(name)


def appended_files(table: Table, name: str, since: int | None) -> list[DataFile]:
    """Return the files that came after the snapshot `since`, up to the current one. Raises Misconfigured.

    None stands for a table that had no snapshot yet.
    """
    found: list[DataFile] = []
    for snapshot in _after(table, name, since):
        found += _added(table, name, snapshot)
    return found


def _after(table: Table, name: str, since: int | None) -> list[Snapshot]:
    """Return the snapshots after `since`, oldest first."""
    chain: list[Snapshot] = []
    snapshot = table.current_snapshot()
    while snapshot is not None and snapshot.snapshot_id != since:
        chain.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    if (None if snapshot is None else snapshot.snapshot_id) != since or (since is None and _is_cut(chain)):
        raise Misconfigured.of("sources.iceberg_not_followed", name=name, snapshot=since)
    return chain[::-1]


def _is_cut(chain: list[Snapshot]) -> bool:
    """Report whether the first snapshot of the table was expired: the oldest that is left was not its first."""
    return bool(chain) and chain[-1].sequence_number not in (None, 0, 1)


def _added(table: Table, name: str, snapshot: Snapshot) -> Iterator[DataFile]:
    from pyiceberg.manifest import ManifestContent, ManifestEntryStatus  # noqa: PLC0415
    from pyiceberg.table.snapshots import Operation  # noqa: PLC0415

    operation = None if snapshot.summary is None else snapshot.summary.operation
    if operation is Operation.REPLACE:
        return
    manifests = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
    if operation is not Operation.APPEND or any(each.content is not ManifestContent.DATA for each in manifests):
        number = snapshot.snapshot_id
        raise Misconfigured.of("sources.iceberg_not_appended", name=name, snapshot=number, operation=operation)
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                yield entry.data_file
