"""A version of a Delta table as a source. Invariant: the rows are those of the version, or there is an error.

The log is read once a run, by delta-rs. Attempts read the version's files by their paths: they need no library of
Delta, and the version stays readable as long as its files are there, also when the log has forgotten it.

Of a source that goes on, what is returned are the rows that came, each once, or there is an error: a commit that
removed or changed rows is one, and one that only rewrote files, as OPTIMIZE does, adds nothing. The commits' own files
are read, since a comparison of two versions does not tell rows that came from rows that were moved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from weir.dataflow.resolving import Resolved
from weir.dataflow.state_schema import fields_of_json, spark_json
from weir.delta_rs import is_of_library, is_refusal, said
from weir.errors import Misconfigured, Retryable
from weir.extras import needed_for
from weir_spark.sources.accounts import delta_options
from weir_spark.sources.partitions import of_partition
from weir_spark.sources.splits import LiveFile, divided_anew, table_splits

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

    from weir.dataflow.resolving import ResolveContext
    from weir_spark.region.context import StageContext


_READABLE: Final = frozenset(
    {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "typeWidening-preview", "deletionVectors"}
)
"""Reader features with which plain reading of the Parquet files is right, where no file has a deletion vector."""


def resolve(ctx: ResolveContext) -> list[dict[str, Any]] | Resolved:
    """Return the live files of the newest version, or what came since, divided among the subtasks.

    Raises Misconfigured and Retryable.
    """
    path = str(ctx.options["path"])
    if ctx.recorded is not None:
        return Resolved(divided_anew(ctx.recorded.splits, ctx.parallelism), ctx.recorded.position)
    options = delta_options(path, ctx.options.get("conn_id"), ctx.connection)
    with needed_for(f"the Delta table {path}"):
        from deltalake import DeltaTable  # noqa: PLC0415  only runs with such a source need it
    with _answering(path):
        table = DeltaTable(path, storage_options=options or None)
        _require_plain(table, path)
        if ctx.options.get("read") != "new":
            return _splits(table, path, ctx, _files(table, path))
        files = _files(table, path) if ctx.previous is None else _since(table, path, options, ctx.previous.position)
        position = {"version": table.version(), "table": str(table.metadata().id)}
        return Resolved(_splits(table, path, ctx, files), position)


def _since(table: DeltaTable, path: str, options: Mapping[str, str], position: Mapping[str, Any]) -> list[LiveFile]:
    if position["table"] != str(table.metadata().id) or position["version"] > table.version():
        raise Misconfigured.of("sources.delta_other_table", path=path, version=position["version"])
    return added_files(table, path, options, position["version"])


def _splits(table: DeltaTable, path: str, ctx: ResolveContext, live: list[LiveFile]) -> list[dict[str, Any]]:
    schema = json.loads(spark_json(fields_of_json(table.schema().to_json())))
    partitions = table.metadata().partition_columns
    columns = {each["name"]: each["type"] for each in schema["fields"] if each["name"] in partitions}
    files, which = of_partition(live, columns, ctx, f"the Delta table {path}")
    since = "" if ctx.previous is None else f", what came after version {ctx.previous.position['version']}"
    what = f"version {table.version()} of the Delta table {path}{which}{since}"
    return table_splits(files, ctx.parallelism, schema, what, table=path, version=table.version())


def read(ctx: StageContext, split: dict[str, Any]) -> DataFrame:
    """Read the files of a split with plain Spark."""
    from weir_spark.sources.parquet import read_groups  # noqa: PLC0415  resolvers of this package need no Spark

    what = f"version {split['version']} of the Delta table {split['table']}"
    return read_groups(ctx.spark, split["schema"], split["groups"], what)


@contextmanager
def _answering(path: str) -> Iterator[None]:
    """Translate what delta-rs says: what no person has to change may pass."""
    from deltalake.exceptions import TableNotFoundError  # noqa: PLC0415

    try:
        yield
    except BaseException as error:
        if isinstance(error, TableNotFoundError) or is_refusal(error):
            raise Misconfigured.of("sources.delta_not_opened", path=path, said=said(error)) from error
        if isinstance(error, OSError) or is_of_library(error):
            raise Retryable.of("sources.delta_away", path=path, said=said(error)) from error
        raise


def _require_plain(table: DeltaTable, path: str) -> None:
    """Refuse tables whose Parquet files, read by their names and columns, would give other rows."""
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise Misconfigured.of("sources.delta_column_mapping", path=path, mapping=mapping)
    features = set(table.protocol().reader_features or ())
    if features - _READABLE:
        raise Misconfigured.of("sources.delta_features", path=path, features=sorted(features - _READABLE))
    if "deletionVectors" in features and _has_deletion_vectors(table):
        raise Misconfigured.of("sources.delta_deletion_vectors", path=path)


def _has_deletion_vectors(table: DeltaTable) -> bool:
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        return any(batch.num_rows for batch in table.deletion_vectors())
    except DeltaError:  # one that cannot be read is one
        return True


def _files(table: DeltaTable, path: str) -> list[LiveFile]:
    import pyarrow as pa  # noqa: PLC0415

    found = pa.table(table.get_add_actions(flatten=True))
    if not found.num_rows:  # then it has no columns of partitions
        return []
    names = table.metadata().partition_columns
    texts = [_texts(found[f"partition.{each}"], f"the Delta table {path} is partitioned by {each}") for each in names]
    rows = zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), *texts, strict=True)
    return [
        LiveFile(located(path, unquote(name)), size, tuple(zip(names, values, strict=True)))
        for name, size, *values in rows
    ]


def _texts(values: pa.ChunkedArray, what: str) -> list[str | None]:
    """Return partitions' values as Spark casts them back, also dates that Python lacks. Raises Misconfigured."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        raise Misconfigured.of("sources.delta_binary", what=what)
    try:
        found: list[str | None] = values.cast(pa.string()).to_pylist()
    except pa.ArrowException as error:
        raise Misconfigured.of("sources.delta_value_unreadable", what=what, type=values.type, error=error) from error
    return found


def added_files(table: DeltaTable, path: str, options: Mapping[str, str], since: int) -> list[LiveFile]:
    """Return the files that came after the version `since`, up to that of the table. Raises Misconfigured."""
    names = table.metadata().partition_columns
    found: list[LiveFile] = []
    for version in range(since + 1, table.version() + 1):
        for kind, action in _actions(path, options, version):
            if not action.get("dataChange", True):
                continue
            if kind in ("remove", "cdc") or action.get("deletionVector"):
                raise Misconfigured.of("sources.delta_not_appended", path=path, version=version)
            values = tuple((name, action["partitionValues"].get(name) or None) for name in names)
            found.append(LiveFile(located(path, unquote(action["path"])), action["size"], values))
    return found


def _actions(path: str, options: Mapping[str, str], version: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow.fs as pa_fs  # noqa: PLC0415
    from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415

    files = pa_fs.PyFileSystem(DeltaStorageHandler(path, dict(options) or None))
    try:
        with files.open_input_file(f"_delta_log/{version:020d}.json") as file:
            lines = file.read().decode().splitlines()
    except FileNotFoundError as error:
        raise Misconfigured.of("sources.delta_commit_gone", path=path, version=version) from error
    for line in lines:
        for kind, action in json.loads(line).items():
            if kind in ("add", "remove", "cdc"):
                yield kind, action


def located(root: str, path: str) -> str:
    """Return the path of a file that the log of the table at `root` names."""
    return path if "://" in path or path.startswith("/") else f"{root}/{path}"
