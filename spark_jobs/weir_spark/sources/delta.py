"""A version of a Delta table as a source. Invariant: the rows are those of the version, or there is an error.

The log is read once a run, by delta-rs. Attempts read the version's files by their paths: they need no library of
Delta, and the version stays readable as long as its files are there, also when the log has forgotten it.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from weir.errors import Misconfigured
from weir.extras import needed_for
from weir_spark.sources.accounts import delta_options
from weir_spark.sources.parquet import read_groups
from weir_spark.sources.splits import LiveFile, nullable_schema, of_partition, table_splits

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

    from weir.dataflow.stage import ResolveContext
    from weir_spark.region.context import StageContext


_READABLE: Final = frozenset(
    {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "typeWidening-preview", "deletionVectors"}
)
"""Reader features with which plain reading of the Parquet files is right, where no file has a deletion vector."""

_PARTITION: Final = "partition."


def resolve(ctx: ResolveContext) -> list[dict[str, Any]]:
    """Return the live files of the newest version, divided among the subtasks. Raises Misconfigured."""
    path = str(ctx.options["path"])
    table = _opened(path, delta_options(path, ctx.options.get("conn_id"), ctx.connection))
    _require_plain(table, path)
    files, which = of_partition(_files(table, path), ctx, f"the Delta table {path}")
    what = f"version {table.version()} of the Delta table {path}{which}"
    schema = nullable_schema(json.loads(table.schema().to_json()))
    return table_splits(files, ctx.parallelism, schema, what, table=path, version=table.version())


def read(ctx: StageContext, slice: dict[str, Any]) -> DataFrame:  # noqa: A002  Weir's name of the argument
    """Read the files of a split with plain Spark."""
    what = f"version {slice['version']} of the Delta table {slice['table']}"
    return read_groups(ctx.spark, slice["schema"], slice["groups"], what)


def _opened(path: str, options: dict[str, str]) -> DeltaTable:
    with needed_for(f"the Delta table {path}"):
        from deltalake import DeltaTable  # noqa: PLC0415  only runs with such a source need it
        from deltalake.exceptions import DeltaError  # noqa: PLC0415
    try:
        return DeltaTable(path, storage_options=options or None)
    except (DeltaError, OSError) as error:
        raise Misconfigured(f"the Delta table {path} cannot be opened: {error}") from error


def _require_plain(table: DeltaTable, path: str) -> None:
    """Refuse tables whose Parquet files, read by their names and columns, would give other rows."""
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise Misconfigured(
            f"the Delta table {path} has the column mapping {mapping!r}: its files have other column names than the "
            "table. Weir reads tables without column mapping"
        )
    features = set(table.protocol().reader_features or ())
    if features - _READABLE:
        raise Misconfigured(
            f"the Delta table {path} has the reader feature(s) {', '.join(sorted(features - _READABLE))}, which plain "
            "reading of its Parquet files does not respect"
        )
    if "deletionVectors" in features and _has_deletion_vectors(table):
        raise Misconfigured(
            f"the Delta table {path} has deletion vectors, so that its Parquet files have rows that are deleted: "
            "rewrite them (in Spark: REORG TABLE ... APPLY (PURGE)), and set delta.enableDeletionVectors to false"
        )


def _has_deletion_vectors(table: DeltaTable) -> bool:
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        return any(batch.num_rows for batch in table.deletion_vectors())
    except DeltaError:  # one that cannot be read is one
        return True


def _files(table: DeltaTable, path: str) -> list[LiveFile]:
    import pyarrow as pa  # noqa: PLC0415

    found = pa.table(table.get_add_actions(flatten=True))
    names = [_PARTITION + each for each in table.metadata().partition_columns]
    rows = found.select(["path", "size_bytes", *names]).to_pylist()
    return [
        LiveFile(
            path=_located(path, unquote(row["path"])),
            bytes=row["size_bytes"],
            values=tuple((name.removeprefix(_PARTITION), as_text(path, name, row[name])) for name in names),
        )
        for row in rows
    ]


def _located(root: str, path: str) -> str:
    return path if "://" in path or path.startswith("/") else f"{root}/{path}"


def as_text(table: str, column: str, value: Any) -> str | None:
    """Return a partition's value as Spark casts it back. Raises Misconfigured for a type that has no such text."""
    match value:
        case None:
            return None
        case bytes():
            raise Misconfigured(f"the table {table} is partitioned by {column}, which is binary: Weir cannot read that")
        case bool():
            return str(value).lower()
        case datetime():
            return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat(" ")
        case date():
            return value.isoformat()
        case _:
            return str(value)
